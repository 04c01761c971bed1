//! Pages of a file that the kernel gives back, and the requests for them meanwhile.
//!
//! *Theory.* The kernel locks pages while it waits for the answer to a request that fills or writes
//! them, and to drop pages it waits for their locks. A request for pages of a file whose token is
//! being returned would wait for the token, which another node gets first; the token would wait for
//! the pages, and the pages for the request. So such a request goes on under the token that is
//! being returned: it is *late*. The token is returned when no late request has used pages since
//! the last round in which the kernel dropped them.
//!
//! *End.* A round drops only the pages that late requests have used since the round before began,
//! and only requests for these pages are let in, until the kernel has dropped them. Requests for
//! other pages wait for the next token: their pages are locked, and empty. So a program that reads
//! on does not hold the return up.
//!
//! *Parts of pages.* A write of some bytes locks the whole page. So rounds are of whole pages: the
//! kernel waits also for a request for other bytes of a page that a late request has used.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_rt::sync::Notify;

use crate::format::block::BLOCK_BYTES;

/// Whether the kernel has dropped pages. The thread that asks it to notes that at once.
#[derive(Debug, Clone, Default)]
pub struct Dropped(Arc<AtomicBool>);

impl Dropped {
    /// The kernel has dropped the pages.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Bytes of a file.
pub(crate) type Bytes = Range<u64>;

/// The pages that bytes are in. A page has the size of a block.
fn pages_of(bytes: &Bytes) -> Bytes {
    let end = bytes.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
    bytes.start / BLOCK_BYTES * BLOCK_BYTES..end
}

/// The pages of one file while the kernel gives them back.
pub(crate) struct ReturnedPages {
    /// What the kernel drops in this round, and whether it has.
    round: RefCell<(Bytes, Dropped)>,
    /// What late requests have used since the round began: first and end.
    used: RefCell<Option<Bytes>>,
    /// Late requests in progress.
    running: Cell<u32>,
    ended: Cell<bool>,
    /// A late request ends, or all of this does.
    changes: Notify,
}

/// A late request, until this is dropped.
pub(crate) struct LateRequest(Rc<ReturnedPages>);

impl Drop for LateRequest {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.changes.notify_all();
    }
}

impl ReturnedPages {
    /// The kernel is about to drop all pages of a file.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            round: RefCell::new((0..u64::MAX, Dropped::default())),
            used: RefCell::default(),
            running: Cell::new(0),
            ended: Cell::new(false),
            changes: Notify::default(),
        })
    }

    /// Begins a late request for these bytes, if the kernel may wait for it. One without bytes
    /// needs no pages.
    pub(crate) fn begin(self: &Rc<Self>, bytes: &Bytes) -> Option<LateRequest> {
        if self.ended.get() {
            return None;
        }
        if !bytes.is_empty() {
            let pages = pages_of(bytes);
            let (round, dropped) = &*self.round.borrow();
            if dropped.get() || pages.start >= round.end || round.start >= pages.end {
                return None;
            }
            let mut used = self.used.borrow_mut();
            let (start, end) = used.as_ref().map_or((u64::MAX, 0), |used| (used.start, used.end));
            *used = Some(start.min(pages.start)..end.max(pages.end));
        }
        self.running.set(self.running.get() + 1);
        Some(LateRequest(self.clone()))
    }

    /// What the kernel drops in the first round.
    pub(crate) fn first_round(&self) -> (Bytes, Dropped) {
        self.round.borrow().clone()
    }

    /// After a round: what the kernel drops in the next one. If nothing is left, late requests have
    /// ended, and there are no more.
    pub(crate) async fn next_round(&self) -> Option<(Bytes, Dropped)> {
        loop {
            if let Some(used) = self.used.take() {
                let round = (used, Dropped::default());
                *self.round.borrow_mut() = round.clone();
                return Some(round);
            }
            if self.running.get() == 0 {
                self.ended.set(true);
                self.changes.notify_all();
                return None;
            }
            self.changes.wait().await;
        }
    }

    /// Waits until the kernel has given all pages back.
    pub(crate) async fn end(&self) {
        while !self.ended.get() {
            self.changes.wait().await;
        }
    }
}

impl Drop for ReturnedPages {
    fn drop(&mut self) {
        debug_assert_eq!(self.running.get(), 0, "a late request holds this");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(pages: &ReturnedPages) -> Option<Option<Bytes>> {
        let round = futures_util::FutureExt::now_or_never(pages.next_round())?;
        Some(round.map(|(bytes, _)| bytes))
    }

    #[test]
    fn each_round_is_of_what_was_used_in_the_round_before() {
        let of = |pages: Bytes| pages.start * BLOCK_BYTES..pages.end * BLOCK_BYTES;
        let pages = ReturnedPages::new();
        let (all, dropped) = pages.first_round();
        assert_eq!(all, 0..u64::MAX);
        drop(pages.begin(&of(1..2)).expect("it is late"));
        let slow = pages.begin(&of(3..4)).expect("it is late");
        dropped.set();
        assert!(pages.begin(&of(1..2)).is_none(), "the kernel has dropped the pages");
        assert!(pages.begin(&(0..0)).is_some(), "it needs none");
        assert_eq!(next(&pages), Some(Some(of(1..4))));
        assert!(pages.begin(&of(4..5)).is_none(), "the kernel does not wait for it");
        drop(pages.begin(&of(3..5)).expect("the kernel waits for it"));
        assert_eq!(next(&pages), Some(Some(of(3..5))));
        assert_eq!(next(&pages), None, "one is in progress");
        drop(slow);
        assert_eq!(next(&pages), Some(None));
        assert!(pages.begin(&(0..0)).is_none());
    }

    #[test]
    fn a_round_is_of_whole_pages_as_the_kernel_locks_these() {
        let pages = ReturnedPages::new();
        let (_, dropped) = pages.first_round();
        drop(pages.begin(&(4200..4300)).expect("it is late"));
        dropped.set();
        assert_eq!(next(&pages), Some(Some(4096..8192)));
        assert!(pages.begin(&(8192..8200)).is_none(), "the kernel does not wait for it");
        drop(pages.begin(&(5000..5100)).expect("the kernel waits for its page"));
        assert_eq!(next(&pages), Some(Some(4096..8192)));
        assert_eq!(next(&pages), Some(None));
    }
}
