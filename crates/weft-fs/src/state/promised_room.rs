//! Room on the disks that is promised to blocks which are not there yet
//! ([`crate::write::reserve`]).

use std::cell::Cell;

use weft_rt::sync::{Permit, Semaphore};

use crate::disks::pool::Pool;
use crate::format::redundancy::{Redundancy, WIDTH_MAX};

/// Room that is promised besides that of the blocks that wait.
pub(crate) struct Promised {
    /// Blocks that are about to wait.
    coming: Cell<u64>,
    /// Columns of the widest of the lines that these and the waiting blocks need at least.
    columns: Cell<usize>,
    /// Blocks that a batch of a job may take.
    held: Cell<u64>,
    /// Held during such a batch.
    batch: Semaphore,
}

impl Default for Promised {
    fn default() -> Self {
        let (coming, columns, held) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Self { coming, columns, held, batch: Semaphore::new(1) }
    }
}

impl Promised {
    /// `blocks` wait now.
    pub(crate) fn note_waiting(&self, blocks: u64) {
        if blocks == 0 && self.coming.get() == 0 {
            self.columns.set(0);
        }
    }

    /// Blocks that wait, or are about to, if `dirty` are dirty.
    pub(crate) fn waiting_blocks(&self, dirty: u64) -> u64 {
        dirty + self.coming.get()
    }

    /// Whether the disks have room for what waits and `lines` lines of a redundancy more.
    pub(crate) fn fits(&self, pool: &Pool, dirty: u64, redundancy: Redundancy, lines: u64) -> bool {
        let is_any_full = pool.is_any_full(self.waiting_blocks(dirty) + lines);
        self.fits_if(pool, dirty, redundancy, lines, is_any_full)
    }

    /// As [`Promised::fits`], for blocks: each is a line of its own, or makes a line of any width
    /// move if a disk may be full by then.
    pub(crate) fn fits_blocks(
        &self,
        pool: &Pool,
        dirty: u64,
        redundancy: Redundancy,
        blocks: u64,
    ) -> bool {
        let is_any_full = pool.is_any_full(self.waiting_blocks(dirty) + blocks);
        let lines = if is_any_full { blocks * WIDTH_MAX as u64 } else { blocks };
        self.fits_if(pool, dirty, redundancy, lines, is_any_full)
    }

    /// Whether the disks have room for the waiting blocks and `lines` lines of this width, which
    /// get their places now.
    pub(crate) fn fits_lines(&self, pool: &Pool, dirty: u64, columns: usize, lines: u64) -> bool {
        let is_any_full = pool.is_any_full(self.waiting_blocks(dirty) + lines);
        self.fits_columns(pool, dirty, columns, lines, is_any_full)
    }

    fn fits_if(
        &self,
        pool: &Pool,
        dirty: u64,
        redundancy: Redundancy,
        lines: u64,
        is_any_full: bool,
    ) -> bool {
        self.fits_columns(pool, dirty, redundancy.columns_min(), lines, is_any_full)
    }

    fn fits_columns(
        &self,
        pool: &Pool,
        dirty: u64,
        columns: usize,
        lines: u64,
        is_any_full: bool,
    ) -> bool {
        let columns = columns.max(self.columns.get());
        let waiting = self.waiting_blocks(dirty);
        let waiting = if is_any_full { waiting * WIDTH_MAX as u64 } else { waiting };
        pool.fits(waiting + lines, columns, self.held.get())
    }

    /// Blocks that a batch of a job holds back.
    pub(crate) fn held_blocks(&self) -> u64 {
        self.held.get()
    }

    /// Whether a batch of a job holds room back.
    pub(crate) fn is_held(&self) -> bool {
        self.held_blocks() > 0
    }

    /// Waits until no batch of a job holds room back.
    pub(crate) async fn after_batch(&self) {
        drop(self.batch.acquire(1).await);
    }

    /// Holds `blocks` blocks back for a batch of a job, after the batch before.
    pub(crate) async fn hold(&self, blocks: u64) -> HeldRoom<'_> {
        let batch = self.batch.acquire(1).await;
        self.held.set(blocks);
        HeldRoom { of: self, _batch: batch }
    }

    /// Lines of this redundancy wait, or are about to.
    pub(crate) fn note_columns(&self, redundancy: Redundancy) {
        self.columns.set(redundancy.columns_min().max(self.columns.get()));
    }
}

/// Room for blocks that are about to wait. It is dropped when they do.
pub(crate) struct Reserved<'a> {
    of: &'a Promised,
    blocks: u64,
}

impl<'a> Reserved<'a> {
    pub(crate) fn new(of: &'a Promised, blocks: u64) -> Self {
        of.coming.set(of.coming.get() + blocks);
        Self { of, blocks }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.of.coming.set(self.of.coming.get() - self.blocks);
    }
}

/// Room for a batch of a job.
pub(crate) struct HeldRoom<'a> {
    of: &'a Promised,
    _batch: Permit,
}

impl Drop for HeldRoom<'_> {
    fn drop(&mut self) {
        self.of.held.set(0);
    }
}
