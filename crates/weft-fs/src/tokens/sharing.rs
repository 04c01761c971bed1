//! Whether other nodes use the file system, and the kernel that must hear of them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use weft_rt::sync::Notify;

use crate::format::inode::Ino;
use crate::tokens::returned_pages::Dropped;

/// Ends when the kernel has forgotten something.
pub type Forgotten = Pin<Box<dyn Future<Output = ()>>>;

/// The kernel's memory of files. It may wait for requests that are in progress; these must be
/// carried out meanwhile.
pub trait KernelCache {
    /// The kernel forgets which files the names in folders are of, and that there are none.
    fn forget_names(&self, folders: Vec<Ino>) -> Forgotten;

    /// The kernel forgets the attributes of files.
    fn forget_attributes(&self, files: Vec<Ino>) -> Forgotten;

    /// The kernel drops its pages of some bytes of a file. It first writes those that programs have
    /// changed. `dropped` is set at once when that has happened.
    fn drop_pages(&self, ino: Ino, bytes: Range<u64>, dropped: Dropped) -> Forgotten;
}

/// Nodes that have ended: what only they had open is not open any more.
#[derive(Default)]
pub(crate) struct EndedNodes {
    count: Cell<u64>,
    more: Notify,
}

impl EndedNodes {
    /// A node has ended, or some may have.
    pub(crate) fn note(&self) {
        self.count.set(self.count.get() + 1);
        self.more.notify_all();
    }

    /// Waits until there are more than `known`. Returns how many.
    pub(crate) async fn after(&self, known: u64) -> u64 {
        loop {
            let more = self.more.wait();
            if self.count.get() > known {
                return self.count.get();
            }
            more.await;
        }
    }
}

/// Whether other nodes use the file system, and the kernel that must hear of them.
#[derive(Default)]
pub(crate) struct Sharing {
    ended: Rc<EndedNodes>,
    is_shared: Cell<bool>,
    kernel: RefCell<Option<Rc<dyn KernelCache>>>,
}

impl Drop for Sharing {
    fn drop(&mut self) {
        // Who waits for that finds the file system gone.
        self.ended.note();
    }
}

impl Sharing {
    /// The nodes that have ended.
    pub(crate) fn ended(&self) -> &Rc<EndedNodes> {
        &self.ended
    }

    /// The kernel that keeps names, attributes and pages under the tokens.
    pub(crate) fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.kernel.borrow().clone()
    }

    /// Other nodes may use the file system from now on.
    pub(crate) fn share(&self) {
        self.is_shared.set(true);
    }

    /// From now on a kernel keeps names, attributes and pages under the tokens.
    pub(crate) fn keep_in(&self, kernel: Rc<dyn KernelCache>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }

    /// Whether other nodes may use the file system.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.get()
    }

    /// Whether a kernel keeps pages under the tokens.
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel.borrow().is_some()
    }
}
