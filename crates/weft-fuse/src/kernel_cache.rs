//! The kernel's memory of a file system that other nodes use as well.
//!
//! *Names.* To forget one name the kernel takes the lock of its folder, which it holds during every
//! request there; and such a request may wait for the token that is being returned. So single names
//! are not forgotten: since Linux 6.16 the kernel can be told that all names are old, without a
//! lock, and asks again for each that is used. Older kernels keep no names of such a file system.
//!
//! *Attributes* the kernel numbers: an answer that was on its way when it was told to forget is not
//! kept. It does not look at the number in an answer that makes a file known to it, or sets
//! attributes, so these may not be kept. Sizes need more ([`crate::kernel_sizes`]).
//!
//! *Pages* it drops when they are not locked, after it has written those that were changed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use rangemap::RangeSet;
use rustix::io::Errno;
use weft_fs::{BLOCK_BYTES, Dropped, Forgotten, Ino, KernelCache};
use weft_rt::Rt;
use weft_rt::ring::Fd;

use crate::kernel_sizes::KernelSizes;
use crate::notification::{PAUSE_NS, attributes_of, has_ended, pages_of, tell};
use crate::wire::{DIRECT_DROPS_MINOR, EPOCH_MINOR, NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE};

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

/// Bytes of files that the kernel has read since it had to drop them.
///
/// A program's write changes pages that the kernel has, and then comes as a request. In between
/// the pages may be dropped, and read again as they were before. These are dropped once more when
/// the write is carried out. A page that the kernel locks for a write was not read: it is not
/// among them, so it holds nothing up.
#[derive(Default)]
pub(crate) struct ReadAgain {
    read: RefCell<BTreeMap<Ino, RangeSet<u64>>>,
    /// What the kernel is dropping.
    dropping: RefCell<Vec<(Ino, Range<u64>)>>,
}

impl ReadAgain {
    /// The kernel gets these bytes of a file.
    pub(crate) fn note(&self, ino: Ino, bytes: Range<u64>) {
        if bytes.start < bytes.end {
            self.read.borrow_mut().entry(ino).or_default().insert(bytes);
        }
    }

    /// Takes those that were read of some bytes of a file.
    fn take_read(&self, ino: Ino, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let mut files = self.read.borrow_mut();
        let Some(of) = files.get_mut(&ino).filter(|_| bytes.start < bytes.end) else {
            return Vec::new();
        };
        let part = |of: &Range<u64>| of.start.max(bytes.start)..of.end.min(bytes.end);
        let taken = of.overlapping(bytes).map(part).collect();
        of.remove(bytes.clone());
        if of.is_empty() {
            files.remove(&ino);
        }
        taken
    }

    /// The kernel begins to drop its pages of these bytes. [`Self::end_drop`] follows.
    fn begin_drop(&self, ino: Ino, bytes: &Range<u64>) -> Vec<(Ino, Range<u64>)> {
        let taken: Vec<_> = self.take_read(ino, bytes).into_iter().map(|of| (ino, of)).collect();
        self.dropping.borrow_mut().extend(taken.iter().cloned());
        taken
    }

    /// It has dropped them.
    fn end_drop(&self, dropped: &[(Ino, Range<u64>)]) {
        let mut dropping = self.dropping.borrow_mut();
        for of in dropped {
            if let Some(at) = dropping.iter().position(|other| other == of) {
                dropping.swap_remove(at);
            }
        }
    }

    /// It does not know a file any more.
    pub(crate) fn forget(&self, ino: Ino) {
        self.read.borrow_mut().remove(&ino);
    }

    /// Takes those that are in the pages of these bytes. The kernel may be dropping some of them.
    pub(crate) fn take(&self, ino: Ino, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let end = bytes.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
        let pages = bytes.start / BLOCK_BYTES * BLOCK_BYTES..end;
        let mut taken = self.take_read(ino, &pages);
        let dropping = self.dropping.borrow();
        let of_file = dropping.iter().filter(|(of, _)| *of == ino).map(|(_, of)| of);
        let parts = of_file.map(|of| of.start.max(pages.start)..of.end.min(pages.end));
        taken.extend(parts.filter(|of| of.start < of.end));
        taken
    }
}

/// Tells the kernel what to forget.
pub(crate) struct KernelMemory {
    pub(crate) read_again: Rc<ReadAgain>,
    pub(crate) sizes: Rc<KernelSizes>,
    pub(crate) rt: Rt,
    pub(crate) fd: Fd,
    pub(crate) version: Rc<KernelVersion>,
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
        files.iter().for_each(|ino| self.sizes.outdate(*ino));
        let files = Rc::new(files);
        self.attempt(move |fd| {
            let each = files.iter().map(|ino| attributes_of(*ino)).collect();
            async move { tell(&fd, NOTIFY_INVAL_INODE, each, || ()).await }
        })
    }

    fn drop_pages(&self, ino: Ino, bytes: Range<u64>, dropped: Dropped) -> Forgotten {
        let read_again = self.read_again.clone();
        let taken = read_again.begin_drop(ino, &bytes);
        let dropping = self.attempt(move |fd| {
            let (pages, dropped) = (pages_of(ino, &bytes), dropped.clone());
            async move {
                // Beyond the longest file there are no pages.
                let Ok(pages) = pages else { return Ok(()) };
                tell(&fd, NOTIFY_INVAL_INODE, vec![pages], move || dropped.set()).await
            }
        });
        Box::pin(async move {
            dropping.await;
            read_again.end_drop(&taken);
        })
    }
}
