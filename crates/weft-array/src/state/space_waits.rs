//! What waits for space below the members: the state of `room`.

use std::cell::{Cell, RefCell};

use weft_code::{SlotNo, SlotSet};
use weft_rt::sync::{Permit, Semaphore};
use weft_stripe::StripeId;

/// What waits for space, and in which slots.
pub(crate) struct SpaceWaits {
    /// For each slot, bytes of waiting writes.
    waiting: Vec<Cell<u64>>,
    /// For each slot, held by the write that retries.
    turns: Vec<Semaphore>,
    /// Slots in which a job has found no space: since the last retry of jobs, and between that and
    /// the retry before.
    short: Cell<(SlotSet, SlotSet)>,
    /// A stripe whose resync found no space: it is retried before any other.
    resync: Cell<Option<StripeId>>,
    /// The disk for which writes waited when the array was stopped.
    abandoned: RefCell<Option<String>>,
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

    /// Writes waited for this disk when the array was stopped.
    pub fn abandon(&self, disk: String) {
        *self.abandoned.borrow_mut() = Some(disk);
    }

    /// Notes that a job found no space in a slot.
    pub fn note_short(&self, slot: SlotNo) {
        let (now, before) = self.short.get();
        self.short.set((now.with(slot), before));
    }

    /// Jobs are retried now. Returns whether any found no space since the last retry.
    pub fn begin_retry(&self) -> bool {
        let (now, _) = self.short.get();
        self.short.set((SlotSet::new(), now));
        !now.is_empty()
    }

    /// The stripe whose resync found no space.
    pub fn resync(&self) -> Option<StripeId> {
        self.resync.get()
    }

    /// Sets or clears the stripe whose resync found no space.
    pub fn set_resync(&self, stripe: Option<StripeId>) {
        self.resync.set(stripe);
    }

    /// Bytes of the writes that wait for space in a slot.
    pub fn waiting_bytes(&self, slot: SlotNo) -> u64 {
        self.waiting[slot.0].get()
    }

    /// Waits for the turn to retry a write to a slot.
    pub async fn turn(&self, slot: SlotNo) -> Permit {
        self.turns[slot.0].acquire(1).await
    }

    /// A write of `bytes` bytes waits for space in a slot, until the guard is dropped.
    pub fn begin_waiting(&self, slot: SlotNo, bytes: u64) -> WaitingBytes<'_> {
        let waiting = &self.waiting[slot.0];
        waiting.set(waiting.get() + bytes);
        WaitingBytes(waiting, bytes)
    }
}
