//! Identifies the hardware of a block device by the text printed on the disk's label, so that
//! people pull the right disk.
//!
//! The kernel names disks in the order in which it finds them, so `/dev/sdc` may be another disk
//! after the next boot. Serial number, model and world wide name stay. udev has asked the disk for
//! them, and has decoded the answers of SATA and SAS disks. Without udev, sysfs has what the
//! drivers report: a file `serial` (NVMe, virtio), or the SCSI page 0x80. Nothing is read from the
//! disk itself, so a hung disk delays nothing.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Maximum length of a text from a disk, in characters.
const TEXT_MAX: usize = 64;

/// How a disk identifies itself. Texts hold no control characters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hardware {
    /// The serial number.
    pub serial: Option<String>,
    /// The maker's name for it.
    pub model: Option<String>,
    /// The world wide name.
    pub wwn: Option<String>,
}

impl Hardware {
    /// Looks up the disk that the block device `path` stands for, a partition's as well; `None` if
    /// it is no block device.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?;
        Some(Self::find(Path::new("/"), major(meta.rdev()), minor(meta.rdev())))
    }

    /// Looks up device `major:minor`, with `sys` and `run` below `root`.
    fn find(root: &Path, major: u32, minor: u32) -> Self {
        let device = root.join(format!("sys/dev/block/{major}:{minor}"));
        // The folder of a partition is in that of its disk.
        let disk = match device.join("partition").exists() {
            true => fs::canonicalize(&device).ok().and_then(|at| at.parent().map(PathBuf::from)),
            false => Some(device),
        };
        let udev = root.join(format!("run/udev/data/b{major}:{minor}"));
        let udev = fs::read(udev).unwrap_or_default();
        let udev = String::from_utf8_lossy(&udev);
        let property = |name: &str| {
            let mut lines = udev.lines().filter_map(|line| line.strip_prefix("E:"));
            lines.find_map(|line| text(line.strip_prefix(name)?.strip_prefix('=')?))
        };
        let attribute = |name: &str| {
            let bytes = fs::read(disk.as_ref()?.join(name)).ok()?;
            text(&String::from_utf8_lossy(&bytes))
        };
        let page = || text(&unit_serial(&fs::read(disk.as_ref()?.join("device/vpd_pg80")).ok()?)?);
        let underscored = || property("ID_MODEL").map(|model| model.replace('_', " "));
        Self {
            // Of a SAS disk the short one is its world wide name.
            serial: property("ID_SCSI_SERIAL")
                .or_else(|| property("ID_SERIAL_SHORT"))
                .or_else(|| attribute("device/serial"))
                .or_else(|| attribute("serial"))
                .or_else(page)
                .or_else(|| property("ID_SERIAL")),
            model: attribute("device/model").or_else(underscored),
            wwn: property("ID_WWN_WITH_EXTENSION")
                .or_else(|| property("ID_WWN"))
                .or_else(|| attribute("wwid"))
                .or_else(|| attribute("device/wwid")),
        }
    }
}

/// The serial number in a SCSI page 0x80: four bytes of a head, the last two the length.
fn unit_serial(page: &[u8]) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let serial = page.get(4..)?;
    Some(String::from_utf8_lossy(&serial[..length.min(serial.len())]).into_owned())
}

/// Makes a text from a disk safe to show: it could hold anything.
fn text(told: &str) -> Option<String> {
    let words: Vec<&str> =
        told.split(|c: char| c.is_whitespace() || c.is_control() || c == '\u{fffd}').collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let text: String = words.join(" ").chars().take(TEXT_MAX).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use weft_testkit::Scratch;

    use super::*;

    /// A root with the files of a device.
    fn root(name: &str, files: &[(&str, &[u8])]) -> Scratch {
        let root = Scratch::new(name);
        for (path, bytes) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
            fs::write(path, bytes).expect("write a file");
        }
        root
    }

    fn of(serial: &str, model: &str, wwn: &str) -> Hardware {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Hardware { serial: some(serial), model: some(model), wwn: some(wwn) }
    }

    #[test]
    fn a_sata_disk_is_known_by_what_udev_has_asked() {
        let udev = b"S:disk/by-id/ata-x\nI:812345\nE:ID_MODEL=ST8000NM0055-1RM112\n\
            E:ID_SERIAL=ST8000NM0055-1RM112_ZA1B2C3D\nE:ID_SERIAL_SHORT=ZA1B2C3D\n\
            E:ID_WWN=0x5000c500a1b2c3d4\nE:ID_WWN_WITH_EXTENSION=0x5000c500a1b2c3d4\nG:systemd\n";
        let root = root(
            "sata",
            &[
                ("run/udev/data/b8:32", udev),
                // Cut to 16 characters, as SCSI has it.
                ("sys/dev/block/8:32/device/model", b"ST8000NM0055-1RM\n"),
                ("sys/dev/block/8:32/device/vpd_pg80", b"\0\x80\0\x08ZA1B2C3D"),
            ],
        );
        let found = Hardware::find(root.path(), 8, 32);
        assert_eq!(found, of("ZA1B2C3D", "ST8000NM0055-1RM", "0x5000c500a1b2c3d4"));
    }

    #[test]
    fn a_sas_disk_goes_by_its_unit_serial() {
        let udev = b"E:ID_SERIAL_SHORT=35000cca2abcdef01\nE:ID_SCSI_SERIAL=7SGXYZAB\n\
            E:ID_MODEL=HUS726T6TAL5204\nE:ID_WWN=0x5000cca2abcdef01\n";
        let root = root("sas", &[("run/udev/data/b8:0", udev)]);
        let found = Hardware::find(root.path(), 8, 0);
        assert_eq!(found, of("7SGXYZAB", "HUS726T6TAL5204", "0x5000cca2abcdef01"));
    }

    #[test]
    fn without_udev_the_drivers_are_asked() {
        let root = root(
            "drivers",
            &[
                ("sys/dev/block/259:0/device/serial", b"S4EWNX0R123456   \n"),
                ("sys/dev/block/259:0/device/model", b"Samsung SSD 970 EVO Plus 1TB\n"),
                ("sys/dev/block/259:0/wwid", b"eui.0025385b01405a6c\n"),
                ("sys/dev/block/8:16/device/vpd_pg80", b"\0\x80\0\x0c    Z1Z4ABCD\xff\xff"),
                ("sys/dev/block/8:16/device/model", b"HGST HUH721010AL\n"),
                ("sys/dev/block/254:0/serial", b"disk-of-a-guest"),
            ],
        );
        let find = |major, minor| Hardware::find(root.path(), major, minor);
        let nvme = of("S4EWNX0R123456", "Samsung SSD 970 EVO Plus 1TB", "eui.0025385b01405a6c");
        assert_eq!(find(259, 0), nvme);
        assert_eq!(find(8, 16), of("Z1Z4ABCD", "HGST HUH721010AL", ""));
        assert_eq!(find(254, 0), of("disk-of-a-guest", "", ""));
        assert_eq!(find(7, 0), Hardware::default(), "a device of which nothing is known");
    }

    #[test]
    fn a_partition_is_on_its_disk() {
        let root = root(
            "partition",
            &[
                ("sys/devices/nvme0n1/device/serial", b"S4EWNX0R123456"),
                ("sys/devices/nvme0n1/nvme0n1p2/partition", b"2\n"),
                ("sys/dev/block/here", b""),
            ],
        );
        symlink("../../devices/nvme0n1/nvme0n1p2", root.join("sys/dev/block/259:2"))
            .expect("make a link");
        assert_eq!(Hardware::find(root.path(), 259, 2), of("S4EWNX0R123456", "", ""));
    }

    #[test]
    fn what_a_disk_tells_is_made_fit_to_be_shown() {
        let long = "x".repeat(500);
        let cases = [
            ("  WD  Red\t4TB \n", "WD Red 4TB"),
            ("a\x1b[2Jb\0\0", "a [2Jb"),
            (&long, &long[..TEXT_MAX]),
        ];
        for (told, shown) in cases {
            assert_eq!(text(told).as_deref(), Some(shown));
        }
        assert_eq!((text(" \0\n"), unit_serial(b"\0\x80"), text("\u{fffd}")), (None, None, None));
        assert_eq!(unit_serial(b"\0\x80\xff\xffAB").as_deref(), Some("AB"), "a length that lies");
    }

    #[test]
    fn files_are_no_hardware() {
        let root = root("file", &[("d0", b"")]);
        assert_eq!(Hardware::of(&root.join("d0")), None);
        assert_eq!(Hardware::of(&root.join("none")), None);
    }
}
