//! Folders that only one user (and root) can change.
//!
//! Commands find the sockets, the lock and the mount points of a daemon by their names in a folder.
//! A user who may write in that folder, or replace it, chooses what they find there. So a folder is
//! used only if its owner is the current user or root, and if no other user may write in it. This
//! also holds for the folders above it; there, other users may write if only the owner of an entry
//! may rename it (the sticky bit, as on `/tmp`).
//!
//! The folder is then used by the descriptor that was checked, and entries are opened with
//! `O_NOFOLLOW`.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawMode, fstat, mkdirat, open as open_file, openat};
use rustix::process::Uid;

use crate::failure::Failure;

const WRITABLE_BY_OTHERS: RawMode = 0o022;
const STICKY: RawMode = 0o1000;
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder, if it is one that only `user` and root can change.
///
/// # Errors
/// If it is not, or cannot be opened.
pub fn open(path: &Path, user: Uid) -> Result<OwnedFd, Failure> {
    let place = path.display();
    let folder = open_file(path, FOLDER, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
            Failure::new(format!("{place} is not a folder, or is a symbolic link"))
                .hint("choose a folder of your own with --runtime-dir or WEFT_RUNTIME_DIR")
        }
        e => Failure::new(format!("{place}: {e}")),
    })?;
    let stat = fstat(&folder).map_err(|e| Failure::new(format!("{place}: {e}")))?;
    check(path, stat.st_uid, stat.st_mode, user)?;
    check_above(path, user)?;
    Ok(folder)
}

/// Creates the folder `name` in `parent` if it does not exist, and opens it as [`open`] does.
/// `path` is for messages.
///
/// # Errors
/// As [`open`].
pub fn make_below(
    parent: &OwnedFd,
    name: &str,
    path: &Path,
    user: Uid,
) -> Result<OwnedFd, Failure> {
    let failed = |e: rustix::io::Errno| Failure::new(format!("{}: {e}", path.display()));
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    let folder = openat(parent, name, FOLDER, Mode::empty()).map_err(failed)?;
    let stat = fstat(&folder).map_err(failed)?;
    check(path, stat.st_uid, stat.st_mode, user)?;
    Ok(folder)
}

/// Whether only root can change a folder and those above it.
pub fn is_roots(path: &Path) -> bool {
    open(path, Uid::ROOT).is_ok()
}

fn check(path: &Path, owner: u32, mode: RawMode, user: Uid) -> Result<(), Failure> {
    let place = path.display();
    if owner != 0 && owner != user.as_raw() {
        let (user, owner) = (user.as_raw(), owner);
        return Err(Failure::new(format!(
            "{place} belongs to user {owner}, who could trick user {user} there"
        ))
        .hint("run this as that user, or name a folder of your own with --runtime-dir"));
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(Failure::new(format!(
            "others can write to {place} (mode {:o})",
            mode & 0o7777
        ))
        .hint(format!("`chmod go-w {place}`, or choose another with --runtime-dir")));
    }
    Ok(())
}

/// Checks the folders above: a user who may rename an entry there can put another in its place.
fn check_above(path: &Path, user: Uid) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let real = fs::canonicalize(path).map_err(failed)?;
    for above in real.ancestors().skip(1) {
        let stat = fs::metadata(above).map_err(failed)?;
        let mode = if stat.mode() & STICKY == 0 { stat.mode() } else { 0 };
        check(above, stat.uid(), mode, user)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_own_folders_and_roots_do() {
        let place = Path::new("/x");
        let (me, other) = (Uid::from_raw(1000), 1001);
        assert!(check(place, 1000, 0o40700, me).is_ok());
        assert!(check(place, 0, 0o40755, me).is_ok());
        let why = |owner, mode| check(place, owner, mode, me).expect_err("not safe").to_string();
        assert!(why(other, 0o40700).contains("belongs to user 1001"));
        for mode in [0o40720, 0o40702, 0o41777] {
            assert!(why(1000, mode).contains("others can write to"));
        }
        assert!(check(place, 1000, 0o40700, Uid::ROOT).is_err(), "root trusts only root");
    }
}
