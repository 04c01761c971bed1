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

use rustix::fs::OFlags;
use rustix::io::Errno;
use weft_fs::{Fs, Ino};
use weft_rt::ring::Fd;

use crate::answer::errno_of;
use crate::notification::write_back;

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
