//! The name of a block device that is the same on all machines.
//!
//! `/dev/sdb` may be another disk on the next machine. The kernel knows what each disk calls itself
//! (its world-wide name), and so do the names below `/dev/disk/by-id`, which also tell it while the
//! disk is missing. Paths of several drivers to one disk have one name.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use weft_cluster::DiskName;

/// Longest name.
const BYTES_MAX: usize = 64;

/// A block device as the kernel describes it.
struct Device {
    folder: PathBuf,
}

impl Device {
    /// `None`: it is no block device, or not there.
    fn find(path: &Path) -> Option<Self> {
        use std::os::unix::fs::FileTypeExt as _;
        let data =
            std::fs::metadata(path).ok().filter(|data| data.file_type().is_block_device())?;
        let (major, minor) = (rustix::fs::major(data.rdev()), rustix::fs::minor(data.rdev()));
        Some(Self { folder: format!("/sys/dev/block/{major}:{minor}").into() })
    }

    fn text(&self, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.folder.join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// What the disk calls itself.
    fn identity(&self) -> Option<String> {
        self.text("device/wwid").or_else(|| self.text("wwid")).or_else(|| self.text("dm/uuid"))
    }
}

/// Whether a path is a block device, and whether a partition of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole disk, or what may be one that is missing.
    Disk,
    /// A part of a disk.
    Partition,
    /// Something else.
    Other,
}

/// What is at this path.
pub(super) fn kind_of(path: &Path) -> Kind {
    let is_below_dev = std::path::absolute(path).is_ok_and(|path| path.starts_with("/dev"));
    match Device::find(path) {
        Some(device) if device.folder.join("partition").exists() => Kind::Partition,
        Some(_) => Kind::Disk,
        None if is_below_dev && !path.exists() => Kind::Disk,
        None => Kind::Other,
    }
}

/// The name of the block device at this path, which may be missing.
pub(super) fn name_of(path: &Path) -> Option<DiskName> {
    let file = path.file_name()?.to_str()?;
    let identity = Device::find(path).and_then(|device| device.identity());
    usual(&identity.unwrap_or_else(|| file.to_owned())).parse().ok()
}

/// The path of a disk with this name on this machine, if its path on another one leads to no such
/// disk here: device-mapper's, if it has several.
pub(super) fn path_of(elsewhere: &str, name: &DiskName) -> Option<String> {
    let path = Path::new(elsewhere);
    if !path.is_absolute() || name_of(path).as_ref() == Some(name) && path.exists() {
        return None;
    }
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    let paths = devices.map(|device| Path::new("/dev").join(device.file_name()));
    let found = paths.filter(|path| name_of(path).as_ref() == Some(name));
    let best = found.max_by_key(|path| path.starts_with("/dev/dm-"))?;
    best.to_str().map(str::to_owned)
}

/// One spelling for all ways to write the same identity, with letters that names have.
fn usual(identity: &str) -> String {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let naa = ["wwn-0x", "naa.", "scsi-3", "mpath-3", "dm-uuid-mpath-3"];
    let eui = ["nvme-eui.", "eui."];
    let after = |prefixes: &[&str]| {
        let rest = prefixes.iter().find_map(|prefix| identity.strip_prefix(prefix));
        rest.filter(|rest| rest.len() >= 16 && hex(rest)).map(str::to_ascii_lowercase)
    };
    if let Some(rest) = after(&naa) {
        return format!("naa.{rest}");
    }
    if let Some(rest) = after(&eui) {
        return format!("eui.{rest}");
    }
    let letter = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { ' ' };
    let spaced: String = identity.chars().map(letter).collect();
    let name = spaced.split_whitespace().collect::<Vec<_>>().join("-");
    // The number that tells it from others of its kind is at the end.
    let name = &name[name.len().saturating_sub(BYTES_MAX)..];
    name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_write_an_identity_give_one_name() {
        let naa = "naa.6001405a0b1c2d3e4f50617283940516";
        for text in [
            "wwn-0x6001405a0b1c2d3e4f50617283940516",
            "naa.6001405A0B1C2D3E4F50617283940516",
            "scsi-36001405a0b1c2d3e4f50617283940516",
            "mpath-36001405a0b1c2d3e4f50617283940516",
            "dm-uuid-mpath-36001405a0b1c2d3e4f50617283940516",
        ] {
            assert_eq!(usual(text), naa, "{text}");
        }
        assert_eq!(usual("nvme-eui.0025385b01409e2a"), "eui.0025385b01409e2a");
        assert_eq!(usual("t10.ATA     QEMU HARDDISK   QM00001 "), "t10.ATA-QEMU-HARDDISK-QM00001");
        assert_eq!(usual("sdb"), "sdb");
        let long = usual(&format!("t10.{}QM00001", "x".repeat(80)));
        assert!(long.len() == BYTES_MAX && long.ends_with("QM00001"), "{long}");
        assert!(usual("--a").parse::<DiskName>().is_ok());
    }

    #[test]
    fn files_are_no_block_devices_and_missing_devices_may_be_disks() {
        assert_eq!(kind_of(Path::new("/dev/null")), Kind::Other);
        assert_eq!(kind_of(Path::new("Cargo.toml")), Kind::Other);
        assert_eq!(kind_of(Path::new("/dev/disk/by-id/wwn-0x0")), Kind::Disk);
        let name = name_of(Path::new("/dev/disk/by-id/wwn-0x6001405a0b1c2d3e4f50617283940516"));
        assert_eq!(name.expect("a name").as_str(), "naa.6001405a0b1c2d3e4f50617283940516");
    }
}
