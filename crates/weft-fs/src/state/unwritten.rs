//! How many blocks wait to be written, and what waits for that.
//!
//! Writers wait while there are too many (`write/writeback.rs`). They have turns, so that a fast
//! one leaves some memory to the others.

use std::cell::Cell;

use weft_rt::sync::{Notify, Permit, Semaphore};

/// See the [module](self).
pub(crate) struct Unwritten {
    blocks: Cell<u64>,
    blocks_max: u64,
    /// Writes to the cache so far.
    writes: Cell<u64>,
    /// Overwrites that the last drain skipped.
    skipped: Cell<u64>,
    /// Held while dirty blocks are written because there are many.
    draining: Semaphore,
    /// Dirty blocks were written.
    written: Notify,
    /// Held by the writer that waits for memory next.
    turns: Semaphore,
}

impl Unwritten {
    /// At most `blocks_max` blocks are to wait.
    pub(crate) fn new(blocks_max: u64) -> Self {
        Self {
            blocks: Cell::new(0),
            blocks_max,
            writes: Cell::new(0),
            skipped: Cell::new(0),
            draining: Semaphore::new(1),
            written: Notify::default(),
            turns: Semaphore::new(1),
        }
    }

    /// Blocks that wait.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.get()
    }

    pub(crate) fn set_blocks(&self, blocks: u64) {
        self.blocks.set(blocks);
    }

    /// The most blocks that are to wait.
    pub(crate) fn blocks_max(&self) -> u64 {
        self.blocks_max
    }

    /// Whether no more blocks are to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks.get() >= self.blocks_max
    }

    /// Writes to the cache so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// The number of a write that begins.
    pub(crate) fn next_write(&self) -> u64 {
        self.writes.set(self.writes.get() + 1);
        self.writes.get()
    }

    /// Overwrites that the last drain skipped.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    pub(crate) fn set_skipped(&self, blocks: u64) {
        self.skipped.set(blocks);
    }

    /// A drain begins, unless one is running.
    pub(crate) fn begin_drain(&self) -> Option<Permit> {
        self.draining.try_acquire(1)
    }

    /// Waits until no drain is running.
    pub(crate) async fn drained(&self) -> Permit {
        self.draining.acquire(1).await
    }

    /// Blocks were written, or given up.
    pub(crate) fn note_written(&self) {
        self.written.notify_all();
    }

    /// Completes when blocks are written, or given up.
    pub(crate) fn written(&self) -> impl Future<Output = ()> + '_ {
        self.written.wait()
    }

    /// Waits for the turn to wait for memory.
    pub(crate) async fn turn(&self) -> Permit {
        self.turns.acquire(1).await
    }
}
