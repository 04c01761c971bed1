//! Room that is promised: a write that succeeds has room on the disks before it is in the cache.
//!
//! A block gets its place when it is flushed, and by then there is no caller to receive an error.
//! So a write is refused if the blocks that wait or are about to, and its own, may not fit. Each of
//! them is counted as a line of its own, as wide as the narrowest line of the redundancy (*w*
//! disks), and all as those with the widest:
//!
//! ```text
//!     n lines of w columns fit on disks with free[i] blocks    if    w × n ≤ Σ min(free[i], n)
//! ```
//!
//! The columns of a line are on different disks, so a large disk beside small ones is of no use for
//! more. That many lines are found if each takes the disks with the most room
//! ([`crate::disks::allocator`]). If some of them are one line with more columns in truth, that
//! takes no room from the rest: such a line has j + p columns for j blocks, and w is more than p.
//!
//! A block that becomes active in a line for which no disk is left makes the line's other blocks
//! move too. If a disk may be full by then, each block counts as a whole line's.
//!
//! When that is too much, what waits is written, and then known: the file's own blocks at once
//! ([`FsState::reserve`]); those of other files once the operation holds nothing
//! ([`FsState::with_room`]). What a job takes for its next batch is held back likewise
//! ([`FsState::hold_room`]).

use std::ops::Range;
use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Inode};
use crate::format::redundancy::Redundancy;
use crate::meta::Tx;
use crate::state::mounted::FsState;
use crate::state::open_files::Node;
use crate::state::promised_room::Reserved;

/// Columns that lines have where there are many disks.
const COLUMNS_USUAL: usize = 16;
/// Lines that a record of blocks written one after the other has at least, but for the first and
/// last.
const LINES_USUAL: u64 = 8;
/// How often other nodes are asked for room before an operation fails: what the first answer says
/// of the disks may change how much is needed.
const OBTAIN_TRIES: usize = 2;
/// How often an operation that finds no room is tried again after what waits was written.
const RETRIES: usize = 2;

/// More bytes than the rows have that a record of one line needs, and its disks' maps.
fn record_row_bytes(columns: usize) -> u64 {
    128 + columns as u64 * 64
}

impl FsState {
    /// Bytes of the rows that what waits may need: each block a record of its own.
    fn waiting_row_bytes(&self) -> u64 {
        self.promised().waiting_blocks(self.unwritten().blocks())
            * record_row_bytes(self.pool().len().min(COLUMNS_USUAL))
    }

    /// Writes what waits, if the metadata might have no room for all of it and these blocks. The
    /// caller holds nothing.
    pub(crate) async fn write_if_rows_are_scarce(&self, blocks: Range<u64>) {
        let waits = self.unwritten().blocks() > 0;
        let records = (blocks.end - blocks.start) / LINES_USUAL + 2;
        let wanted = records * record_row_bytes(COLUMNS_USUAL);
        if waits
            && self.meta().has_room(wanted, false)
            && !self.meta().has_room(self.waiting_row_bytes() + wanted, false)
        {
            // The blocks stay dirty if this fails, and fsync reports it.
            let _ = self.write_all().await;
        }
    }

    /// Whether the metadata has room for rows of these blocks, and of what waits.
    pub(crate) fn has_rows_for(&self, redundancy: Redundancy, blocks: u64) -> bool {
        let Ok(coded) = self.pool().coded_now(redundancy) else { return false };
        let records = blocks / coded.k() as u64 / LINES_USUAL + 2;
        let rows = self.waiting_row_bytes() + records * record_row_bytes(coded.columns);
        self.meta().has_room(rows, false)
    }

    /// Whether there is room for `blocks` more blocks of a file, even if all waiting blocks are
    /// new. If so they are taken into account as soon as they wait or are [`Reserved`].
    pub(crate) fn has_room_for(&self, inode: &Inode, blocks: u64) -> bool {
        let redundancy = inode.redundancy;
        let dirty = self.unwritten().blocks();
        let has_room = self.has_rows_for(redundancy, blocks)
            && self.promised().fits_blocks(self.pool(), dirty, redundancy, blocks);
        if has_room {
            self.promised().note_columns(redundancy);
        }
        has_room
    }

    /// Room for these blocks of a file. The caller holds its lock exclusively.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if there may be none, even after what waits of the file was written.
    pub(crate) async fn reserve(
        &self,
        node: &Rc<Node>,
        inode: &Inode,
        blocks: Range<u64>,
    ) -> Result<Reserved<'_>> {
        let wanted = blocks.end - blocks.start;
        if self.has_room_for(inode, wanted) {
            return Ok(Reserved::new(self.promised(), wanted));
        }
        if self.obtain_room(wanted, false).await && self.has_room_for(inode, wanted) {
            return Ok(Reserved::new(self.promised(), wanted));
        }
        self.flush_node(node).await?;
        self.commit().await?;
        let lines = self.meta().run(|tx| lines_for(tx, node.ino, blocks)).await?;
        // Blocks that have a place need no other.
        if lines > 0 {
            let redundancy = inode.redundancy;
            let fits = || {
                let dirty = self.unwritten().blocks();
                self.has_rows_for(redundancy, wanted)
                    && self.promised().fits(self.pool(), dirty, redundancy, lines)
            };
            for _ in 0..OBTAIN_TRIES {
                if !fits() {
                    self.obtain_room(lines, true).await;
                }
            }
            if !fits() {
                return Err(FsError::NoSpace);
            }
            self.promised().note_columns(redundancy);
        }
        Ok(Reserved::new(self.promised(), lines.max(wanted)))
    }

    /// Runs an operation that needs room. If there is none for it, it is tried again when what
    /// other files have in the cache is written, and no job takes room. It holds nothing between.
    pub(crate) async fn with_room<T>(
        self: &Rc<Self>,
        operation: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..RETRIES {
            self.make_metadata_room().await;
            let done = operation().await;
            let may_find_room = self.promised().waiting_blocks(self.unwritten().blocks()) > 0
                || self.promised().is_held();
            if !matches!(done, Err(FsError::NoSpace)) || !may_find_room {
                return done;
            }
            // What fails to be written is told by the fsync of its file.
            let _ = self.write_all().await;
            self.promised().after_batch().await;
        }
        operation().await
    }
}

/// Lines of one block that these blocks of a file may need: blocks with a place need none, and
/// blocks that become active in a line may need new places for all of it.
fn lines_for(tx: &Tx<'_>, ino: Ino, blocks: Range<u64>) -> Result<u64> {
    let mut lines = blocks.end - blocks.start;
    let records = tx.records(ino, blocks.start, blocks.end)?;
    for (at, (first, record)) in records.iter().enumerate() {
        let next = records.get(at + 1).map_or(u64::MAX, |(next, _)| *next);
        let end = (first + record.blocks()).min(next).min(blocks.end);
        let mut moved = None;
        for block in blocks.start.max(*first)..end {
            let (line, unit) = record.locate(block - first);
            if record.columns[unit].is_some() {
                lines -= 1;
            } else if moved.replace(line) != Some(line) {
                lines += data_units(record);
            }
        }
    }
    Ok(lines)
}

/// Active data blocks of a line.
fn data_units(record: &Extent) -> u64 {
    record.active().filter(|(unit, _)| *unit < record.coded.k()).count() as u64
}
