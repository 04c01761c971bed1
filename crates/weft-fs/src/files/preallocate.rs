//! Reserving space for parts of a file that have none.
//!
//! Where a file has no lines they get places, as if they were written
//! ([`crate::write::new_lines`]), and the record is marked as unwritten: it reads as zeros, and is
//! a hole for who looks for data. A write there needs no room ([`crate::write::reserved_lines`]). A
//! block that has no place in a line that exists gets one with zeros, through the cache like all
//! else.

use std::ops::Range;
use std::rc::Rc;

use weft_rt::Frozen;

use crate::error::{FsError, Result};
use crate::files::write::FILE_BYTES_MAX;
use crate::format::block::{BLOCK, blocks_of};
use crate::format::extent::LINES_MAX;
use crate::format::inode::{Ino, Inode};
use crate::format::redundancy::WIDTH_MAX;
use crate::meta::{FORMAT_WITH_UNWRITTEN, Tx};
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::Node;
use crate::write::line_writes::put_joined;
use crate::write::new_lines::covering;

/// Blocks that get zeros at a time.
const STEP: u64 = 1024;
/// How often more room is asked for before a step fails.
const OBTAIN_TRIES: u32 = 2;
/// Blocks of the longest record of usual width.
const RECORD_BLOCKS: u64 = LINES_MAX * WIDTH_MAX as u64;

/// How far a reservation has come.
struct ReservedUpTo {
    /// The block that comes next.
    next: u64,
    /// Blocks of lines that exist which have no place.
    missing: Vec<u64>,
}

impl FsState {
    async fn allocate(
        self: &Rc<Self>,
        ino: Ino,
        offset: u64,
        len: u64,
        keep_size: bool,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        self.check_writable()?;
        let blocks = blocks_of(offset, len);
        self.write_if_rows_are_scarce(blocks.start..blocks.end.min(blocks.start + STEP)).await;
        let _tokens = self.hold_to_change(ino, offset, len).await;
        // What cannot fit at all is refused before the disks are full.
        let inode = self.file(ino).await?;
        inode.flags.check_change()?;
        let missing = (blocks.end - blocks.start).saturating_sub(inode.blocks);
        if missing > self.free_blocks(inode.redundancy).0 {
            return Err(FsError::NoSpace);
        }
        let node = self.node(ino);
        let (mut at, mut steps, mut tries) = (blocks.start, 0, 0);
        while at < blocks.end {
            if !goes_on() {
                return Err(FsError::Cancelled);
            }
            match self.allocate_some(&node, at..blocks.end).await {
                Ok(next) => (at, tries) = (next, 0),
                Err(FsError::NoSpace) if tries < OBTAIN_TRIES => {
                    tries += 1;
                    if !self.obtain_room(LINES_MAX, false).await
                        && !self.obtain_room(LINES_MAX, true).await
                    {
                        return Err(FsError::NoSpace);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.drain().await?;
            self.commit_now_and_then(&mut steps).await?;
            self.rt().yield_now().await;
        }
        let _alone = node.alone().await;
        let inode = self.file(ino).await?;
        if !keep_size && end > inode.size {
            self.clear_behind_end(&node, inode.size, end).await?;
            self.grow(&node, &inode, end);
        }
        Ok(())
    }

    /// Gives some blocks, from the first of these on, places. Returns where to go on.
    async fn allocate_some(&self, node: &Rc<Node>, blocks: Range<u64>) -> Result<u64> {
        let _alone = node.alone().await;
        let inode = self.file(node.ino).await?;
        if node.has_dirty(u64::MAX) {
            // It is to get lines first.
            self.flush_node(node).await?;
        }
        // No disk is taken out of service meanwhile.
        let placing = self.share_flushes().await;
        let (ino, range) = (node.ino, blocks.clone());
        let placed = self.meta().run(|tx| self.place_some(tx, ino, &inode, range)).await;
        drop(placing);
        let ReservedUpTo { next, missing } = placed?;
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let reserved = self.reserve(node, &inode, *first..last + 1).await?;
            missing.into_iter().for_each(|block| self.dirty(node, block, Frozen::zeros(BLOCK)));
            drop(reserved);
        }
        Ok(next)
    }

    fn place_some(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        inode: &Inode,
        blocks: Range<u64>,
    ) -> Result<ReservedUpTo> {
        let (mut at, mut missing) = (blocks.start, Vec::new());
        for n in 0..self.meta().at_a_time() {
            if at >= blocks.end || missing.len() as u64 >= STEP {
                break;
            }
            if let Some((first, record)) = covering(tx, ino, at)? {
                let next = tx.next_record(ino, first + 1)?.unwrap_or(u64::MAX);
                let end = (first + record.blocks()).min(next).min(blocks.end);
                let has_place =
                    |block: &u64| record.columns[record.locate(block - first).1].is_some();
                missing.extend((at..end).filter(|block| !has_place(block)));
                at = end;
                continue;
            }
            match self.place_record(tx, ino, inode, at..blocks.end) {
                Ok(end) => at = end,
                // What was placed in this step is kept, and told of in the next one.
                Err(FsError::NoSpace) if n > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(ReservedUpTo { next: at, missing })
    }

    /// Reserves lines for the first of these blocks, which no record covers, and some that follow.
    /// Returns the first block after them.
    fn place_record(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        inode: &Inode,
        blocks: Range<u64>,
    ) -> Result<u64> {
        let before = tx.record_before(ino, blocks.start)?;
        let before = before.as_ref().map(|(first, record)| (*first, record));
        let end = tx.next_record(ino, blocks.start)?.unwrap_or(u64::MAX);
        let coded = self.pool().coded_now(inode.redundancy)?;
        let (k, behind) = (coded.k() as u64, before.map_or(0, |(at, record)| at + record.blocks()));
        let mut count = (end.min(blocks.end) - blocks.start).min(RECORD_BLOCKS);
        let fits = |count: u64| {
            let lines = ((blocks.start - behind) % k + count).div_ceil(k).min(LINES_MAX);
            let columns = usize::try_from(count.min(k)).expect("a width") + coded.p();
            self.promised().fits_lines(self.pool(), self.unwritten().blocks(), columns, lines)
        };
        while count > 1 && !fits(count) {
            count /= 2;
        }
        if !fits(count) || !self.has_rows_for(inode.redundancy, count) {
            return Err(FsError::NoSpace);
        }
        let zeros = Frozen::zeros(BLOCK);
        let wanted: Vec<_> =
            (blocks.start..blocks.start + count).map(|block| (block, zeros.clone())).collect();
        let target =
            self.new_lines_between(before, (0, end), ino, inode.redundancy, &wanted, wanted.len())?;
        let mut record = target.record;
        record.unwritten = true;
        self.raise_format(tx, FORMAT_WITH_UNWRITTEN)?;
        put_joined(tx, ino, target.first, &record)?;
        let mut inode = tx.inode(ino)?;
        inode.blocks += record.data_blocks();
        tx.put_inode(ino, &inode)?;
        Ok(blocks.start + target.blocks.len() as u64)
    }
}

impl Fs {
    /// Gives a range of a file places on the disks: writing there later cannot fail for want of
    /// room. The file grows to the end of the range, unless it must keep its size.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if there is no room. If that shows only on the way, a part stays
    /// reserved.
    pub async fn allocate(&self, ino: Ino, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.allocate_while(ino, offset, len, keep_size, || true).await
    }

    /// [`Fs::allocate`], while `goes_on` returns true.
    ///
    /// # Errors
    /// Also [`FsError::Cancelled`] if it was told to stop: a part stays reserved.
    pub async fn allocate_while(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        keep_size: bool,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<()> {
        let fs = self.0.clone();
        let allocate = || async move {
            fs.with_room(async || fs.allocate(ino, offset, len, keep_size, &goes_on).await).await
        };
        self.0.rt().attach(allocate).await
    }
}
