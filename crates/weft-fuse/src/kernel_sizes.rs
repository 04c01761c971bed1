//! Sizes of files as the kernel knows them, when other nodes have changed them.
//!
//! *Fault.* The kernel numbers what it knows of a file. It drops an answer with attributes if the
//! number has changed since it asked: a notification changes it, and so does each write. A `read`
//! or `fstat` goes on all the same, with the size that the kernel has: an earlier one, if another
//! node appended. The order of messages cannot help, as the kernel takes an answer over when the
//! program's thread runs again, some time after the answer was sent.
//!
//! *Cure.* Before the server tells a size that the kernel may not know, it makes the file that long
//! in the kernel: `NOTIFY_STORE` beyond the end extends a file as `write(2)` does, whatever the
//! number. Contents come only by reads under tokens. So the bytes of the message are where there is
//! no memory: the kernel sets the size, fails to copy them, and no page changes.
//!
//! *When.* From when the kernel was told to forget a file's attributes until it forgets the file.
//! `known` is a size that the kernel has at least: larger ones are set, smaller ones lower it.
//!
//! *Smaller sizes* need nothing: a read beyond the end of the file is answered short, and the
//! kernel takes the end from that.
//!
//! *Cuts.* A file that a program of this node cuts has its new size in the kernel with the answer,
//! whatever the number. Sizes from before are set by then ([`KernelSizes::settle`]).
//!
//! *Waits.* The kernel sets the size at once. Then it waits for the lock of the page with the last
//! byte, which a request may have that waits for tokens. So nothing that holds tokens waits for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::select;
use weft_fs::Ino;
use weft_rt::ring::Fd;
use weft_rt::sync::Notify;
use weft_rt::{Nanos, Rt};

use crate::notification::{PAUSE_NS, has_ended, tell_with_fault};
use crate::wire::{NOTIFY_STORE, StoreOut};

/// What the kernel knows of a file whose attributes it had to forget.
#[derive(Default)]
struct KnownSize {
    /// It has at least this size.
    known: Cell<u64>,
    /// Messages on their way that extend it.
    extending: Cell<u32>,
    /// Told when one of them has ended.
    extended: Notify,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct KernelSizes(RefCell<BTreeMap<Ino, Rc<KnownSize>>>);

impl KernelSizes {
    fn get(&self, ino: Ino) -> Option<Rc<KnownSize>> {
        self.0.borrow().get(&ino).cloned()
    }

    /// The kernel is about to forget the attributes of a file, which another node may change.
    pub(crate) fn outdate(&self, ino: Ino) {
        self.0.borrow_mut().entry(ino).or_default();
    }

    /// The kernel may learn from an answer that a file has this size, or is no longer.
    pub(crate) fn lower(&self, ino: Ino, size: u64) {
        if let Some(of) = self.get(ino) {
            of.known.set(of.known.get().min(size));
        }
    }

    /// The kernel does not know a file any more.
    pub(crate) fn forget(&self, ino: Ino) {
        self.0.borrow_mut().remove(&ino);
    }

    /// Returns when the kernel knows that a file is this long at least. To be called at once when
    /// that was found, and before it is answered.
    pub(crate) async fn make_known(&self, rt: &Rt, channel: &Fd, ino: Ino, size: u64) {
        let Some(of) = self.get(ino) else { return };
        if size > of.known.get() {
            of.known.set(size);
            of.extending.set(of.extending.get() + 1);
            extend(rt, channel, ino, size).await;
            of.extending.set(of.extending.get() - 1);
            of.extended.notify_all();
        } else {
            of.known.set(size);
            of.settle().await;
        }
    }

    /// Waits, before a cut of a file is answered, until sizes from before it are set. They are when
    /// the kernel waits for a page, which may wait for the cut: so not for longer than `most`.
    pub(crate) async fn settle(&self, rt: &Rt, ino: Ino, most: Nanos) {
        if let Some(of) = self.get(ino) {
            select(pin!(of.settle()), pin!(rt.sleep(most))).await;
        }
    }
}

impl KnownSize {
    async fn settle(&self) {
        loop {
            let extended = self.extended.wait();
            if self.extending.get() == 0 {
                return;
            }
            extended.await;
        }
    }
}

/// Makes the kernel take a file for so long, if it is shorter there.
async fn extend(rt: &Rt, channel: &Fd, ino: Ino, size: u64) {
    let store = StoreOut { ino, offset: size - 1, size: 1, padding: 0 };
    while let Err(errno) = tell_with_fault(channel, NOTIFY_STORE, store).await {
        if has_ended(errno) {
            return;
        }
        rt.sleep(PAUSE_NS).await;
    }
}
