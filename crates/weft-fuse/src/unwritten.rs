//! Pages that the kernel has not written yet.
//!
//! The kernel gathers in its page cache what programs write to mapped files. A file that a program
//! has open for writing may have bytes there that the server has not received, where the server
//! sees a hole. LSEEK passes these pages by. A program that copies a file by its holes
//! (`tar --sparse`) would then get zeros for what another one has written.
//!
//! So a hole of such a file is trusted only after the kernel was told to drop its pages there,
//! which it writes first if they are dirty. That blocks until the server has carried the writes
//! out: it is done on a thread of its own, and while it lasts the request that waits for it takes
//! no place of another. Where the file has data, pages stay. Closing a file writes its pages, so
//! files that are not open for writing need none of this.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::AsFd as _;

use rustix::fs::OFlags;
use rustix::io::Errno;
use weft_cli::thread::elsewhere;
use weft_fs::{Fs, Ino};
use weft_rt::ring::Fd;
use zerocopy::{Immutable, IntoBytes};

use crate::answer::errno_of;
use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, OutHeader, StoreOut};

/// How often each file is open for writing.
#[derive(Default)]
pub(crate) struct Writers(RefCell<BTreeMap<Ino, u64>>);

/// Whether a file that is opened with these flags may be written.
pub(crate) fn writes(flags: u32) -> bool {
    flags & (OFlags::WRONLY | OFlags::RDWR).bits() != 0
}

impl Writers {
    /// A file is opened with these flags.
    pub(crate) fn opened(&self, ino: Ino, flags: u32) {
        if writes(flags) {
            *self.0.borrow_mut().entry(ino).or_default() += 1;
        }
    }

    /// A file that was opened with these flags is closed.
    pub(crate) fn closed(&self, ino: Ino, flags: u32) {
        let mut writers = self.0.borrow_mut();
        if writes(flags)
            && let Some(count) = writers.get_mut(&ino)
        {
            *count -= 1;
            if *count == 0 {
                writers.remove(&ino);
            }
        }
    }

    /// Whether any file is open for writing.
    pub(crate) fn any(&self) -> bool {
        !self.0.borrow().is_empty()
    }

    /// Whether the kernel may have pages of a file that it has not written.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.0.borrow().contains_key(&ino)
    }
}

/// Where data, or a hole, starts in a file that is open for writing.
///
/// # Errors
/// [`Errno::NXIO`] if there is none.
pub(crate) async fn seek(
    fs: &Fs,
    channel: &Fd,
    ino: Ino,
    offset: u64,
    data: bool,
    goes_on: &dyn Fn() -> bool,
) -> Result<u64, Errno> {
    let look =
        async |offset, data| fs.seek_while(ino, offset, data, goes_on).await.map_err(errno_of);
    loop {
        let found = look(offset, data).await?;
        let from = if data { offset } else { found.unwrap_or(offset) };
        let to = if data { found } else { look(from, true).await? };
        if to != Some(from) {
            write_back(channel, ino, from..to.unwrap_or(u64::MAX)).await?;
        }
        let again = look(offset, data).await?;
        // A hole may have turned out to be data. Then the next one must not be trusted any more.
        if data || again == found {
            return again.ok_or(Errno::NXIO);
        }
    }
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
