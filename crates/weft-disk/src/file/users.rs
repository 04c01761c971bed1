//! Who else uses a regular file.
//!
//! The lock of `flock` keeps out other daemons of weft only. The kernel takes no lock on the file
//! below a loop device or on a swap file, and virtual machines lock their images in another way. So
//! the opening looks at what the kernel lists.
//!
//! Files that other programs use are compared by name, and by inode only where they are on the same
//! file system: to ask another one could wait for ever, if this very thread serves it (FUSE).

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::AsFd;
use rustix::fs::{Stat, major, minor};
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::mounts;

/// What uses the file at `path`, which is open as `fd`, in words.
pub(super) fn of_file(fd: impl AsFd, path: &Path, stat: &Stat) -> Option<String> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_it = |other: &Path| other == path || is_same(other, stat);
    if let Some((device, _)) = loop_devices().find(|(_, backing)| is_it(backing)) {
        return Some(format!("the loop device {}", device.display()));
    }
    if swap_files().iter().any(|swap| is_it(swap)) {
        return Some("the kernel, as swap space".to_owned());
    }
    // Virtual machines lock some bytes of their images.
    let whole = Flock::from(FlockType::WriteLock);
    let locked = fcntl_getlk(fd, &whole).ok().flatten()?;
    Some(match locked.pid {
        Some(pid) => format!("process {pid}, which has locked it"),
        None => "a program that has locked it".to_owned(),
    })
}

/// Whether the file below the loop device `major:minor` is locked by its owner.
pub(super) fn is_locked_below(device: u64) -> bool {
    let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let Some(backing) = backing_of(Path::new(&link)) else { return false };
    let Some(mount) = mounts::holding(&backing) else { return false };
    if mount.kind.starts_with("fuse") {
        return false;
    }
    let Ok(stat) = rustix::fs::stat(&backing) else { return false };
    let (major, minor) = (major(stat.st_dev), minor(stat.st_dev));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"FLOCK") && words.contains(&file.as_str())
    })
}

/// Whether `other` is the file of `stat`.
fn is_same(other: &Path, stat: &Stat) -> bool {
    let device = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
    mounts::holding(other).is_some_and(|mount| mount.device == device)
        && rustix::fs::stat(other)
            .is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino))
}

/// The loop devices in use, and the files below them.
fn loop_devices() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"));
    devices.filter_map(|entry| {
        Some((Path::new("/dev").join(entry.file_name()), backing_of(&entry.path())?))
    })
}

/// The file below a loop device, by the device's folder in sysfs.
fn backing_of(device: &Path) -> Option<PathBuf> {
    let text = fs::read(device.join("loop/backing_file")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    Some(Path::new(std::ffi::OsStr::from_bytes(text)).to_owned())
}

fn swap_files() -> Vec<PathBuf> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let files = swaps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.next()? == "file").then(|| mounts::unescape(name))
    });
    files.collect()
}
