//! Which block devices are weft's own, or made of them by others (LUKS, LVM, MD, loop devices). No
//! members are searched for there: to read from a device whose daemon has ended is to wait for the
//! next daemon, which may be the one that searches.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use weft_disk::mounts;

use crate::block::{nbd_device, ublk_device};

/// The names of such devices now, without `/dev/`.
#[derive(Debug)]
pub struct OwnDevices(BTreeSet<String>);

impl OwnDevices {
    /// Looks at what the kernel shows.
    pub fn find() -> Self {
        let ublk = ublk_device::numbers().into_iter().map(|number| format!("ublkb{number}"));
        let nbd = nbd_device::all().into_iter().map(|device| device.node().name().to_owned());
        let mounts = mounts::all().unwrap_or_default();
        let ours = mounts.into_iter().filter(|mount| {
            let folder = mount.target.parent().and_then(Path::file_name);
            mount.kind == "fuse.weft" && folder.is_some_and(|name| name == "attach")
        });
        let ours: Vec<PathBuf> = ours.map(|mount| mount.target).collect();
        Self(above(Path::new("/sys/block"), ublk.chain(nbd).collect(), &ours))
    }

    /// Whether a path leads to one of them.
    pub fn has(&self, place: &str) -> bool {
        let path = fs::canonicalize(place).unwrap_or_else(|_| place.into());
        if path.is_absolute() && path.parent() != Some(Path::new("/dev")) {
            // A file may be called as a device is.
            return false;
        }
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| self.0.contains(name))
    }
}

/// The devices in `names`, those over a file below one of `folders`, and all that are made of them.
fn above(sys: &Path, mut names: BTreeSet<String>, folders: &[PathBuf]) -> BTreeSet<String> {
    let names_in = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let all = names_in(sys);
    loop {
        let before = names.len();
        for name in &all {
            let folder = sys.join(name);
            let file = fs::read_to_string(folder.join("loop/backing_file")).unwrap_or_default();
            let file = Path::new(file.trim_end());
            let is_over = |names: &BTreeSet<String>| {
                let device = file.file_name().and_then(|name| name.to_str());
                folders.iter().any(|folder| file.starts_with(folder))
                    || file.parent() == Some(Path::new("/dev"))
                        && device.is_some_and(|name| names.contains(name))
                    || names_in(&folder.join("slaves")).iter().any(|name| names.contains(name))
            };
            if names.contains(name) || is_over(&names) {
                let parts = names_in(&folder).into_iter();
                names.extend(parts.filter(|part| folder.join(part).join("partition").exists()));
                names.insert(name.clone());
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::Scratch;

    use super::*;

    #[test]
    fn what_is_made_of_a_device_is_found_through_all_layers() {
        let scratch = Scratch::in_memory("own");
        let make = |path: &str| fs::create_dir_all(scratch.join(path)).expect("made");
        let file = |path: &str, text: &str| fs::write(scratch.join(path), text).expect("written");
        // dm-1 over dm-0 over a partition of ublkb0, in an order that takes more than one look.
        for path in ["dm-0/slaves/ublkb0p1", "ublkb0/ublkb0p1", "aaa/slaves/dm-0", "sda/slaves"] {
            make(path);
        }
        file("ublkb0/ublkb0p1/partition", "1");
        for (name, backing) in
            [("loop0", "/run/weft/attach/tank/disk\n"), ("loop1", "/dev/dm-0\n"), ("loop2", "/a\n")]
        {
            make(&format!("{name}/loop"));
            file(&format!("{name}/loop/backing_file"), backing);
        }
        make("md0/slaves/loop0");
        let ublk = BTreeSet::from(["ublkb0".to_owned()]);
        let found = above(scratch.path(), ublk, &["/run/weft/attach/tank".into()]);
        let wanted = ["aaa", "dm-0", "loop0", "loop1", "md0", "ublkb0", "ublkb0p1"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    }
}
