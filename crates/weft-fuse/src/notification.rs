//! Notifications: what the server tells the kernel without being asked.
//!
//! The kernel may wait for requests that are in progress before it does what it is told. So each
//! message is written on a thread of its own.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::AsFd as _;

use rustix::io::Errno;
use weft_cli::thread::elsewhere;
use weft_fs::Ino;
use weft_rt::ring::Fd;
use weft_rt::{MILLISECOND, Nanos};
use zerocopy::{Immutable, IntoBytes};

use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, OutHeader, StoreOut};

/// How long to wait when the kernel cannot be told something.
pub(crate) const PAUSE_NS: Nanos = 10 * MILLISECOND;

/// Whether the kernel has ended the file system: it keeps nothing of it.
pub(crate) fn has_ended(errno: Errno) -> bool {
    matches!(errno, Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN | Errno::PERM | Errno::BADF)
}

/// Returns when the kernel has written, and dropped, its pages of these bytes of a file.
///
/// # Errors
/// If it cannot be told.
pub(crate) async fn write_back(channel: &Fd, ino: Ino, bytes: Range<u64>) -> Result<(), Errno> {
    tell(channel, NOTIFY_INVAL_INODE, vec![pages_of(ino, &bytes)?], || ()).await
}

/// Returns when the kernel has forgotten the attributes of a file. It keeps the pages.
///
/// # Errors
/// If it cannot be told.
pub(crate) async fn forget_attributes(channel: &Fd, ino: Ino) -> Result<(), Errno> {
    tell(channel, NOTIFY_INVAL_INODE, vec![attributes_of(ino)], || ()).await
}

/// Pages of these bytes of a file.
///
/// # Errors
/// If no file is that long.
pub(crate) fn pages_of(ino: Ino, bytes: &Range<u64>) -> Result<InvalInodeOut, Errno> {
    let offset = i64::try_from(bytes.start).map_err(|_| Errno::INVAL)?;
    // 0: to the end.
    let length = i64::try_from(bytes.end).map_or(0, |end| end - offset);
    Ok(InvalInodeOut { ino, offset, length })
}

/// The attributes of a file.
pub(crate) fn attributes_of(ino: Ino) -> InvalInodeOut {
    InvalInodeOut { ino, offset: -1, length: 0 }
}

/// Tells the kernel something that is followed by bytes which cannot be read, on a thread of its
/// own: what it does before it needs the bytes is done.
///
/// # Errors
/// If the kernel cannot be told.
pub(crate) async fn tell_with_fault(channel: &Fd, code: i32, store: StoreOut) -> Result<(), Errno> {
    let channel = channel.as_fd().try_clone_to_owned().map_err(|_| Errno::NFILE)?;
    let told = elsewhere(move || {
        let missing = store.size as usize;
        let bytes = size_of::<OutHeader>() + size_of::<StoreOut>() + missing;
        let len = u32::try_from(bytes).unwrap_or(0);
        let head = OutHeader { len, error: code, unique: 0 };
        let message = [head.as_bytes(), store.as_bytes()].concat();
        match weft_rt::write_with_fault(&channel, &message, missing) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                // It has looked for the bytes; or it knows the file no more.
                Errno::FAULT | Errno::NOENT => Ok(()),
                errno => Err(errno),
            },
        }
    });
    told.await.unwrap_or(Err(Errno::AGAIN))
}

/// Tells the kernel things of one kind, on a thread of its own: it may wait for requests that are
/// in progress. The thread calls `after` when the kernel has done them.
///
/// # Errors
/// If the kernel cannot be told. `after` was not called.
pub(crate) async fn tell(
    channel: &Fd,
    code: i32,
    each: Vec<impl IntoBytes + Immutable + Send + 'static>,
    after: impl FnOnce() + Send + 'static,
) -> Result<(), Errno> {
    let channel = channel.as_fd().try_clone_to_owned().map_err(|_| Errno::NFILE)?;
    let told = elsewhere(move || {
        for body in &each {
            let body = body.as_bytes();
            let len = u32::try_from(size_of::<OutHeader>() + body.len()).unwrap_or(0);
            let head = OutHeader { len, error: code, unique: 0 };
            let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body)];
            match rustix::io::retry_on_intr(|| rustix::io::writev(&channel, &parts)) {
                // The kernel knows the file no more: it has nothing of it.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        after();
        Ok(())
    });
    told.await.unwrap_or(Err(Errno::AGAIN))
}
