//! A disk as all threads know it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What suits a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Smallest request without a penalty.
    pub unit_bytes: u64,
    /// The best request.
    pub stripe_bytes: u64,
}

/// Which disk the users of a socket have seen: a file beside the socket with its identity. They
/// connect again by themselves, to the name of the socket, and go on with their requests; so no
/// other disk may be there. The file stays when the socket goes.
pub(crate) struct Identity {
    path: PathBuf,
    identity: String,
}

impl Identity {
    pub(crate) fn new(path: &Path, identity: &str) -> Self {
        Self { path: path.into(), identity: identity.to_owned() }
    }

    /// # Errors
    /// If users may have seen another disk.
    pub(crate) fn check(&self) -> io::Result<()> {
        match fs::read_to_string(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(seen) if seen.trim() == self.identity => Ok(()),
            Ok(seen) => Err(io::Error::other(format!(
                "guests there have used another array of this name ({}); once none of them runs, \
                 remove {} and start the array again",
                seen.trim().escape_default(),
                self.path.display()
            ))),
            Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", self.path.display()))),
        }
    }

    /// # Errors
    /// As [`Self::check`], and if the file cannot be made.
    fn note_user(&self) -> io::Result<()> {
        self.check()?;
        if self.path.exists() {
            return Ok(());
        }
        let new = self.path.with_extension("new");
        fs::write(&new, format!("{}\n", self.identity))?;
        fs::rename(&new, &self.path)
    }
}

/// A disk.
pub(crate) struct Disk {
    name: String,
    identity: Identity,
    size_bytes: AtomicU64,
    pub(crate) limits: Limits,
    pub(crate) read_only: bool,
    is_ending: AtomicBool,
}

impl Disk {
    pub(crate) fn new(
        name: &str,
        identity: Identity,
        size_bytes: u64,
        limits: Limits,
        read_only: bool,
    ) -> Self {
        let (name, size_bytes) = (name.to_owned(), AtomicU64::new(size_bytes));
        Self { name, identity, size_bytes, limits, read_only, is_ending: AtomicBool::new(false) }
    }

    /// A user is about to see it.
    ///
    /// # Errors
    /// If users of its socket may have seen another disk, or this cannot be noted.
    pub(crate) fn note_user(&self) -> io::Result<()> {
        self.identity.note_user()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Takes no more requests.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::Scratch;

    use super::*;

    #[test]
    fn users_of_a_socket_get_no_other_disk_of_the_same_name() {
        let scratch = Scratch::in_memory("vhost-identity");
        let path = scratch.join("tank.array");
        let (first, second) = (Identity::new(&path, "one"), Identity::new(&path, "two"));
        second.check().expect("no guest has used the first one");
        first.note_user().expect("noted");
        first.note_user().expect("noted before");
        first.check().expect("the same");
        let refused = second.check().expect_err("another").to_string();
        assert!(refused.contains("(one)") && refused.contains("tank.array"), "{refused}");
        second.note_user().expect_err("another");
        assert_eq!(fs::read_to_string(&path).expect("there"), "one\n");
        fs::remove_file(&path).expect("removed");
        second.note_user().expect("noted");
    }
}
