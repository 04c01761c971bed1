//! One mount of a file system on a machine.
//!
//! Disks are opened by one program at a time, but copies of all of them – images, snapshots of the
//! volumes below – are other disks with the same labels. Mounted beside the originals, they would
//! be taken for them at the next mount that looks for disks. So a mount locks the identity of its
//! file system.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use weft_cli::failure::Failure;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

/// The kernel ends a process that was killed, and with it its lock, some time after it is gone.
const PATIENCE: Nanos = 2 * SECOND;

/// Where the lock of an identity is.
fn lock_of(id: &str) -> PathBuf {
    Path::new("/run").join(format!("weftfs-{id}.lock"))
}

/// Locks the identity of a file system that is about to be mounted on `folder`, as long as what
/// this returns exists. Where there is no `/run`, nothing is locked.
pub(super) async fn lock(rt: &Rt, id: &str, folder: &Path) -> Result<Option<File>, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    let Ok(mut file) = options.open(lock_of(id)) else { return Ok(None) };
    let patience = rt.now().saturating_add(PATIENCE);
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK {
            return Ok(None);
        }
        if rt.now() >= patience {
            let mut at = String::new();
            // It only locates it.
            let _ = file.read_to_string(&mut at);
            let at = if at.is_empty() { String::new() } else { format!(" on {at}") };
            return Err(Failure::new(format!(
                "a file system with the same identity is mounted{at}: these disks are copies of its disks"
            ))
            .hint("unmount it first, or mount the copies on another machine"));
        }
        rt.sleep(20 * MILLISECOND).await;
    }
    // Its text is only for people.
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let _ = write!(file, "{}", folder.display());
    Ok(Some(file))
}
