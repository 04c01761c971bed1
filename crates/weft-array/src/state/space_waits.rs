//! What waits for space below the members: the state of `room`.

use std::cell::{Cell, RefCell};

use weft_code::{SlotNo, SlotSet};
use weft_rt::sync::Semaphore;
use weft_stripe::StripeId;

/// What waits for space, and in which slots.
pub(crate) struct SpaceWaits {
    /// For each slot, bytes of waiting writes.
    pub waiting: Vec<Cell<u64>>,
    /// For each slot, held by the write that retries.
    pub turns: Vec<Semaphore>,
    /// Slots in which a job has found no space: since the last retry of jobs, and between that and
    /// the retry before.
    pub short: Cell<(SlotSet, SlotSet)>,
    /// A stripe whose resync found no space: it is retried before any other.
    pub resync: Cell<Option<StripeId>>,
    /// The disk for which writes waited when the array was stopped.
    pub abandoned: RefCell<Option<String>>,
}

/// Bytes of a waiting write; subtracted again when dropped.
pub(crate) struct WaitingBytes<'a>(&'a Cell<u64>, u64);

impl Drop for WaitingBytes<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl SpaceWaits {
    pub fn new(slots: usize) -> Self {
        Self {
            waiting: vec![Cell::new(0); slots],
            turns: (0..slots).map(|_| Semaphore::new(1)).collect(),
            short: Cell::default(),
            resync: Cell::new(None),
            abandoned: RefCell::default(),
        }
    }

    /// Slots in which a job lacks space.
    pub fn short(&self) -> SlotSet {
        let (now, before) = self.short.get();
        now.union(&before)
    }

    /// The disk for which writes waited when the array was stopped.
    pub fn abandoned(&self) -> Option<String> {
        self.abandoned.borrow().clone()
    }

    pub fn begin_waiting(&self, slot: SlotNo, bytes: u64) -> WaitingBytes<'_> {
        let waiting = &self.waiting[slot.0];
        waiting.set(waiting.get() + bytes);
        WaitingBytes(waiting, bytes)
    }
}
