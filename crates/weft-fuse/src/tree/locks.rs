//! Locks of files: with one node they are the kernel's own business, with more the node asks for
//! them.

use std::ops::Range;

use futures_util::future::Ready;
use rustix::io::Errno;
use weft_fs::{Ino, Locked};
use weft_token::{FileLock, LockFamily, LockedFile, Mode};

use super::Tree;
use crate::answer::{Answer, bytes, errno_of, parse};
use crate::long::Going;
use crate::wire::{FlushIn, InHeader, LockIn, LockIs, ReleaseIn, lock, op};

/// The bytes of a lock, from its first to its last.
fn bytes_of(lock: &LockIs) -> Result<Range<u64>, Errno> {
    let end = lock.end.saturating_add(1);
    if lock.start < end { Ok(lock.start..end) } else { Err(Errno::INVAL) }
}

impl Tree {
    /// GETLK, SETLK, and SETLKW, which is `going` until it has its lock.
    pub(super) async fn lock(&self, head: &InHeader, body: &[u8], going: Option<&Going>) -> Answer {
        let (LockIn { owner, lock: wanted, flags, .. }, _) = parse::<LockIn>(body)?;
        let is_flock = flags & lock::FLOCK != 0;
        let family = if is_flock { LockFamily::Flock } else { LockFamily::Posix };
        let file = LockedFile { family, ino: head.nodeid };
        let (owner, of) = (self.fs.lock_owner(owner), bytes_of(&wanted)?);
        let mode = match wanted.kind {
            lock::READ => Mode::Shared,
            lock::WRITE => Mode::Exclusive,
            lock::NONE if head.opcode != op::GETLK => {
                self.fs.unlock_file(file, owner, of).await.map_err(errno_of)?;
                return Ok(Vec::new());
            }
            _ => return Err(Errno::INVAL),
        };
        let wish = FileLock { owner, pid: wanted.pid, bytes: of, mode };
        if head.opcode == op::GETLK {
            let found = self.fs.find_lock(file, wish).await.map_err(errno_of)?;
            return bytes(&found.map_or(LockIs { kind: lock::NONE, ..wanted }, |found| LockIs {
                start: found.bytes.start,
                end: found.bytes.end - 1,
                kind: if found.mode == Mode::Shared { lock::READ } else { lock::WRITE },
                // A process of another node has no number here.
                pid: if found.owner.node == owner.node { found.pid } else { 0 },
            }));
        }
        let locked = match going {
            Some(going) => self.fs.lock_file(file, wish, Some(going.interrupted())).await,
            None => self.fs.lock_file(file, wish, None::<Ready<()>>).await,
        };
        match locked.map_err(errno_of)? {
            Locked::Yes => Ok(Vec::new()),
            Locked::Busy => Err(Errno::AGAIN),
            Locked::Deadlock => Err(Errno::DEADLK),
            Locked::Interrupted => Err(Errno::INTR),
        }
    }

    async fn unlock_all(&self, family: LockFamily, ino: Ino, owner: u64) {
        let (file, owner) = (LockedFile { family, ino }, self.fs.lock_owner(owner));
        // A failure shows in the next request.
        let _ = self.fs.unlock_file(file, owner, 0..u64::MAX).await;
    }

    /// A handle is closed, by one of the processes that have it: the locks of that process end.
    pub(super) async fn flush(&self, ino: Ino, body: &[u8]) -> Answer {
        let (FlushIn { lock_owner, .. }, _) = parse::<FlushIn>(body)?;
        self.unlock_all(LockFamily::Posix, ino, lock_owner).await;
        Ok(Vec::new())
    }

    /// A handle is closed by all: its locks end.
    pub(super) async fn end_handle_locks(&self, ino: Ino, body: &[u8]) {
        if let Ok((ReleaseIn { release_flags, lock_owner, .. }, _)) = parse::<ReleaseIn>(body)
            && release_flags & lock::RELEASE_FLOCK != 0
        {
            self.unlock_all(LockFamily::Flock, ino, lock_owner).await;
        }
    }
}
