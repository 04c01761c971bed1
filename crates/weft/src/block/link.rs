//! Names of block devices that stay: `/dev/weft/ARRAY` is a link to the device of an attached
//! array. Numbers of devices change; fstab and the like use the link.
//!
//! `/dev` is in memory, as devices are, so a link outlives the daemon and ends with the machine.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

/// The folder of the links.
pub const FOLDER: &str = "/dev/weft";

/// The link of an array.
pub fn path_of(array: &str) -> PathBuf {
    Path::new(FOLDER).join(array)
}

/// The name of the device that the link of `array` leads to; `None` if there is no link.
pub fn target_of(array: &str) -> Option<String> {
    target_in(Path::new(FOLDER), array)
}

/// The array whose link leads to the device of this name.
pub fn array_of(device: &str) -> Option<String> {
    array_in(Path::new(FOLDER), device)
}

/// Links `array` to the device of this name. A link to another device that is in use, by `taken`,
/// stays. Returns whether the link now leads to the device.
pub fn set(array: &str, device: &str, taken: impl Fn(&str) -> bool) -> bool {
    match target_of(array) {
        Some(target) if target == device => true,
        Some(target) if taken(&target) => false,
        _ => set_in(Path::new(FOLDER), array, device).is_ok(),
    }
}

/// Removes the links to the device of this name.
pub fn clear(device: &str) {
    clear_in(Path::new(FOLDER), device);
}

fn target_in(folder: &Path, array: &str) -> Option<String> {
    let target = fs::read_link(folder.join(array)).ok()?;
    target.file_name()?.to_str().map(str::to_owned)
}

fn array_in(folder: &Path, device: &str) -> Option<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // A link that is about to be renamed bears no array's name.
    let mut names = names.filter(|name| !name.starts_with('.'));
    names.find(|name| target_in(folder, name).as_deref() == Some(device))
}

fn set_in(folder: &Path, array: &str, device: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    // Renamed into its place: the name always leads somewhere.
    let new = folder.join(format!(".{array}.new"));
    let _ = fs::remove_file(&new);
    symlink(Path::new("..").join(device), &new)?;
    fs::rename(&new, folder.join(array))
}

fn clear_in(folder: &Path, device: &str) {
    while let Some(array) = array_in(folder, device) {
        if fs::remove_file(folder.join(array)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::Scratch;

    use super::*;

    #[test]
    fn a_link_leads_to_the_device_that_it_was_set_to_last() {
        let scratch = Scratch::in_memory("link");
        let folder = scratch.join("weft");
        assert_eq!(target_in(&folder, "tank"), None);
        set_in(&folder, "tank", "ublkb0").expect("set");
        set_in(&folder, "pool", "loop1").expect("set");
        assert_eq!(fs::read_link(folder.join("tank")).expect("a link"), Path::new("../ublkb0"));
        set_in(&folder, "tank", "ublkb3").expect("set again");
        assert_eq!(target_in(&folder, "tank").as_deref(), Some("ublkb3"));
        assert_eq!(array_in(&folder, "loop1").as_deref(), Some("pool"));
        assert_eq!(array_in(&folder, "ublkb0"), None);
        symlink("../ublkb7", folder.join(".pool.new")).expect("as while it is set");
        assert_eq!(array_in(&folder, "ublkb7"), None);
        clear_in(&folder, "ublkb3");
        assert_eq!((target_in(&folder, "tank"), array_in(&folder, "ublkb3")), (None, None));
        assert!(target_in(&folder, "pool").is_some());
    }
}
