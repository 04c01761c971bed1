//! The kernel's memory of a file system that other nodes use as well.
//!
//! *Names.* To forget one name the kernel takes the lock of its folder, which it holds during every
//! request there; and such a request may wait for the token that is being returned. So single names
//! are not forgotten: since Linux 6.16 the kernel can be told that all names are old, without a
//! lock, and asks again for each that is used. Older kernels keep no names of such a file system.
//!
//! *Attributes* the kernel numbers: an answer that was on its way when it was told to forget is not
//! kept. It does not look at the number in an answer that makes a file known to it, or sets
//! attributes, so these may not be kept.
//!
//! *Pages* it drops when they are not locked, after it has written those that were changed.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use rustix::io::Errno;
use weft_fs::{Dropped, Forgotten, Ino, KernelCache};
use weft_rt::ring::Fd;
use weft_rt::{MILLISECOND, Nanos, Rt};

use crate::unwritten::{attributes_of, pages_of, tell};
use crate::wire::{DIRECT_DROPS_MINOR, EPOCH_MINOR, NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE};

/// How long to wait when the kernel cannot be told something.
const PAUSE_NS: Nanos = 10 * MILLISECOND;

/// What the kernel at the other end of the channel can do.
#[derive(Default)]
pub(crate) struct KernelVersion(Cell<u32>);

impl KernelVersion {
    /// The minor version that it offers.
    pub(crate) fn set(&self, minor: u32) {
        self.0.set(minor);
    }

    /// Whether it can be told that all names are old.
    pub(crate) fn forgets_names(&self) -> bool {
        self.0.get() >= EPOCH_MINOR
    }

    /// Whether it drops the pages that a write bypasses.
    pub(crate) fn drops_bypassed_pages(&self) -> bool {
        self.0.get() >= DIRECT_DROPS_MINOR
    }
}

/// Tells the kernel what to forget.
pub(crate) struct KernelMemory {
    pub(crate) rt: Rt,
    pub(crate) fd: Fd,
    pub(crate) version: Rc<KernelVersion>,
}

/// Whether the kernel has ended the file system: it keeps nothing of it.
fn has_ended(errno: Errno) -> bool {
    matches!(errno, Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN | Errno::PERM | Errno::BADF)
}

impl KernelMemory {
    /// Attempts something until it succeeds: the token stays here until then.
    fn attempt<F: Future<Output = Result<(), Errno>> + 'static>(
        &self,
        attempt: impl Fn(Fd) -> F + 'static,
    ) -> Forgotten {
        let (rt, fd) = (self.rt.clone(), self.fd.clone());
        Box::pin(async move {
            while let Err(errno) = attempt(fd.clone()).await {
                if has_ended(errno) {
                    return;
                }
                rt.sleep(PAUSE_NS).await;
            }
        })
    }
}

impl KernelCache for KernelMemory {
    fn forget_names(&self, _folders: Vec<Ino>) -> Forgotten {
        if !self.version.forgets_names() {
            return Box::pin(async {});
        }
        self.attempt(|fd| async move { tell(&fd, NOTIFY_INC_EPOCH, vec![[0_u8; 0]], || ()).await })
    }

    fn forget_attributes(&self, files: Vec<Ino>) -> Forgotten {
        let files = Rc::new(files);
        self.attempt(move |fd| {
            let each = files.iter().map(|ino| attributes_of(*ino)).collect();
            async move { tell(&fd, NOTIFY_INVAL_INODE, each, || ()).await }
        })
    }

    fn drop_pages(&self, ino: Ino, bytes: Range<u64>, dropped: Dropped) -> Forgotten {
        self.attempt(move |fd| {
            let (pages, dropped) = (pages_of(ino, &bytes), dropped.clone());
            async move {
                // Beyond the longest file there are no pages.
                let Ok(pages) = pages else { return Ok(()) };
                tell(&fd, NOTIFY_INVAL_INODE, vec![pages], move || dropped.set()).await
            }
        })
    }
}
