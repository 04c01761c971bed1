//! The mounts of file systems and block devices, from `/proc`.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the mounted device.
    pub device: String,
    /// Where it is mounted.
    pub target: PathBuf,
    /// The kind of file system, such as `ext4`.
    pub kind: String,
    /// What is mounted, as the kernel shows it.
    pub source: PathBuf,
}

/// Everything mounted that this process sees.
///
/// # Errors
/// If the kernel's list cannot be read.
pub fn all() -> io::Result<Vec<Mount>> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().filter_map(parse).collect())
}

/// The mounts of each mount namespace except our own, with a process in it.
pub fn of_other_namespaces() -> Vec<(String, Vec<Mount>)> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: Vec<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(namespace) = namespace(&path).filter(|own| !seen.contains(own)) else { continue };
        seen.push(namespace);
        let lines = fs::read_to_string(path.join("mountinfo")).unwrap_or_default();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let process = format!("{} ({})", name.trim(), entry.file_name().display());
        found.push((process, lines.lines().filter_map(parse).collect()));
    }
    found
}

/// Whether something is mounted exactly at `target`.
///
/// # Errors
/// If the kernel's list cannot be read.
pub fn is_mount_point(target: &Path) -> io::Result<bool> {
    Ok(all()?.iter().any(|mount| mount.target == target))
}

/// The mount that `path`, which is absolute, lies on, by its name only: no file system is asked,
/// since one that this very thread serves could not answer.
#[must_use]
pub fn holding(path: &Path) -> Option<Mount> {
    let above = all().ok()?.into_iter().filter(|mount| path.starts_with(&mount.target));
    // Of several at one place, the last one covers the earlier ones.
    above.max_by_key(|mount| mount.target.components().count())
}

fn parse(line: &str) -> Option<Mount> {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let device = left.nth(2)?.to_owned();
    let target = unescape(left.nth(1)?);
    let (kind, source) = right.split_once(' ')?;
    let source = unescape(source.split(' ').next()?);
    Some(Mount { device, target, kind: kind.to_owned(), source })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
pub(crate) fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let code = octal.and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line = r"36 35 7:3 / /mnt/a\040b rw,noatime shared:1 - ext4 /dev/loop3 rw";
        let mount = parse(line).expect("a line of the manual's form");
        assert_eq!(mount.device, "7:3");
        assert_eq!(mount.target, Path::new("/mnt/a b"));
        assert_eq!(mount.kind, "ext4");
        assert_eq!(mount.source, Path::new("/dev/loop3"));
        assert_eq!(unescape(r"\x\\"), Path::new(r"\x\\"));
    }
}
