//! Old contents at hand: blocks of the disks, data and parity, that were read or written lately.
//!
//! To overwrite a part of a line, its parity must change by the difference between old and new, or
//! be computed from all of the line. Either needs old contents. Blocks that are hot are overwritten
//! again and again; their old contents were written by the overwrite before, and need no read (File
//! RAID, §1: *in the case old image of disk blocks … is present in the cache*).
//!
//! ```text
//!                 ┌── read by a user, or for parity ──┐
//!                 ├── written ────────────────────────┤
//!                 ▼                                   │
//!    block of a disk ──▶ page ──▶ matches the checksum that the record has? ──▶ old contents
//!                 ▲
//!                 └── forgotten: about to be written, free, rewritten by a repair
//! ```
//!
//! *Coherence.* A page stands for a block of a disk, not of a file, so files may be cut, moved and
//! joined as they like. Three rules keep it right: blocks that are about to be written are
//! forgotten before, and come back with the new contents when these are written; blocks that become
//! free are forgotten, so that a block which is given out has no page; and every reader or writer
//! of a block holds its file's lock. Adding a page where an older one is fails an assertion. If all
//! of that were wrong, the checksum would tell: it is that of the record which the metadata has
//! now, and a page is given out only if it matches.
//!
//! *Memory.* Blocks that wait to be written and pages share one bound. Blocks that wait take at
//! most half of it; pages have the rest, and are evicted at once when these need room. The index of
//! the pages counts as well. Pages are copies of one block each: a part of a longer buffer would
//! keep all of it. Only files with parity over several data blocks have any, as other files never
//! need old contents.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use weft_cache::{Base, Block, Cache, Choice, Penalty};
use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};
use weft_stripe::UnitWrite;

use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Column, Extent, Run};

/// First in, first out, in three queues: blocks that are written in order leave soon.
const POLICY: Choice = Choice { base: Base::S3Fifo, victim_first: false };
/// Blocks that may wait to be written, at least.
const WAITING_MIN: u64 = 4;
/// The longest run of written blocks that evicts other blocks.
const RUN_BLOCKS: u64 = 16;
/// Bits of the number of a block on a disk.
const BLOCK_BITS: u32 = 48;
/// The checksum of a block whose checksum is unknown.
pub(crate) const UNKNOWN: u32 = 0;

/// What old contents at hand were good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OldBlockCounts {
    /// Old blocks that an overwrite needed and that were at hand.
    pub hits: u64,
    /// Old blocks that an overwrite needed and that were read.
    pub misses: u64,
    /// Pages that did not match their block's checksum, and were not used.
    pub wrong: u64,
}

/// Pages of blocks of the disks.
pub(crate) struct OldBlockCache {
    pages: RefCell<Cache<Option<Frozen>>>,
    /// Pages and blocks that wait to be written, in all.
    blocks_max: u64,
    /// Blocks that wait to be written.
    waiting: Cell<u64>,
    pub(crate) counts: Cell<OldBlockCounts>,
}

/// Every miss reads one block.
struct OneBlock;

impl Penalty for OneBlock {
    fn generation(&self) -> u64 {
        0
    }

    fn of(&self, _: Block) -> u32 {
        1
    }
}

fn key(disk: u16, block: u64) -> u64 {
    debug_assert!(block >> BLOCK_BITS == 0, "a disk has less than 2^60 bytes");
    u64::from(disk) << BLOCK_BITS | block
}

impl OldBlockCache {
    /// No pages; they and blocks that wait to be written may take this number of bytes.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let none = |error: weft_cache::CacheError| FsError::Invalid(error.to_string());
        let capacity = |bytes: u64| usize::try_from(bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        // The index is about as large for a little less room.
        let pages = Cache::new(POLICY, capacity(bytes).max(1), 1).map_err(none)?;
        let index = pages.memory_bytes() as u64;
        let blocks_max = (bytes.saturating_sub(index) / BLOCK_BYTES).max(2 * WAITING_MIN);
        let (pages, waiting) = (RefCell::new(pages), Cell::new(0));
        Ok(Self { pages, blocks_max, waiting, counts: Cell::default() })
    }

    /// Blocks that may wait to be written.
    pub(crate) fn waiting_max(&self) -> u64 {
        self.blocks_max / 2
    }

    /// So many blocks wait to be written now: pages give way.
    pub(crate) fn wait(&self, blocks: u64) {
        self.waiting.set(blocks);
        self.make_room(0);
    }

    /// Bytes of the pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.borrow().len() as u64 * BLOCK_BYTES
    }

    fn make_room(&self, more: u64) {
        let room = self.blocks_max.saturating_sub(self.waiting.get() + more);
        let mut pages = self.pages.borrow_mut();
        while pages.len() as u64 > room {
            pages.evict(&OneBlock);
        }
    }

    pub(crate) fn count(&self, note: impl FnOnce(&mut OldBlockCounts)) {
        let mut counts = self.counts.get();
        note(&mut counts);
        self.counts.set(counts);
    }

    /// Adds a block, which is not there.
    fn put(&self, disk: u16, block: u64, data: &[u8]) {
        let key = key(disk, block);
        debug_assert!(!self.has(disk, block), "block {block} of disk {disk} was written unnoticed");
        if self.blocks_max > self.waiting.get() {
            self.make_room(1);
            let page = Some(Frozen::copy_from(data));
            self.pages.borrow_mut().insert(Block { key, class: 0 }, page, &OneBlock);
        }
    }

    fn has(&self, disk: u16, block: u64) -> bool {
        self.pages.borrow().peek(key(disk, block)).is_some()
    }

    /// The contents of a block, if they are there and match its checksum.
    fn get(&self, disk: u16, block: u64, sum: u32) -> Option<Frozen> {
        let mut pages = self.pages.borrow_mut();
        let key = key(disk, block);
        let page = pages.get(Block { key, class: 0 }, &OneBlock)?.clone()?;
        if sum != UNKNOWN && crc32c(&page) == sum {
            return Some(page);
        }
        pages.remove(key);
        self.count(|counts| counts.wrong += u64::from(sum != UNKNOWN));
        None
    }

    /// Blocks are about to be written, are free, or were repaired.
    pub(crate) fn forget(&self, run: Run) {
        let mut pages = self.pages.borrow_mut();
        if pages.is_empty() {
            return;
        }
        for block in run.start..run.start + run.blocks {
            pages.remove(key(run.disk, block));
        }
    }

    /// The units whose lines seem to be cached: their checksums are not computed.
    pub(crate) fn units(&self, record: &Extent, lines: &Range<u64>) -> UnitSet {
        let is_here = |column: &Column| {
            lines.clone().all(|line| {
                sum_of(column, line) != UNKNOWN && self.has(column.disk, column.start + line)
            })
        };
        let here = record.active().filter(|(_, column)| is_here(column));
        here.map(|(unit, _)| unit).collect()
    }

    /// The lines of a unit that are at hand, as it seems, a bit for each.
    pub(crate) fn lines(&self, record: &Extent, unit: usize) -> u64 {
        let Some(column) = &record.columns[unit] else { return 0 };
        let is_here = |line: &u64| {
            sum_of(column, *line) != UNKNOWN && self.has(column.disk, column.start + line)
        };
        (0..record.lines).filter(is_here).fold(0, |lines, line| lines | 1 << line)
    }

    /// The contents of a unit over some lines, if all of them are at hand.
    pub(crate) fn unit(&self, record: &Extent, unit: usize, lines: &Range<u64>) -> Option<Frozen> {
        let count = lines.end - lines.start;
        let unit = record.columns[unit].as_ref().and_then(|column| {
            let page = |line| self.get(column.disk, column.start + line, sum_of(column, line));
            if count == 1 {
                return page(lines.start);
            }
            let pages: Vec<Frozen> = lines.clone().map(page).collect::<Option<_>>()?;
            let mut unit = Buf::new(pages.len() * BLOCK);
            unit.chunks_exact_mut(BLOCK)
                .zip(&pages)
                .for_each(|(to, page)| to.copy_from_slice(page));
            Some(unit.freeze())
        });
        self.count(|counts| match unit {
            Some(_) => counts.hits += count,
            None => counts.misses += count,
        });
        unit
    }

    /// Adds the contents read of a unit, as far as they are not there.
    pub(crate) fn put_read(&self, record: &Extent, unit: usize, lines: &Range<u64>, data: &[u8]) {
        let Some(column) = record.columns[unit].as_ref().filter(|_| is_of_use(record)) else {
            return;
        };
        for (line, data) in lines.clone().zip(data.chunks_exact(BLOCK)) {
            let block = column.start + line;
            if sum_of(column, line) != UNKNOWN && !self.has(column.disk, block) {
                self.put(column.disk, block, data);
            }
        }
    }

    /// Units of a record are about to be written.
    pub(crate) fn forget_before(&self, record: &Extent, writes: &[UnitWrite]) {
        runs_of(record, writes).for_each(|(_, run, _)| self.forget(run));
    }

    /// Units of a record were written, and forgotten before. Long runs follow the order of a file,
    /// and are seldom overwritten block by block: they drive nothing out, and leave only data, from
    /// which parity can be computed.
    pub(crate) fn put_written(&self, record: &Extent, writes: &[UnitWrite]) {
        if !is_of_use(record) {
            return;
        }
        for (unit, run, data) in runs_of(record, writes) {
            let is_long = run.blocks > RUN_BLOCKS;
            for (block, data) in (run.start..).zip(data.chunks_exact(BLOCK)) {
                if is_long && (unit >= record.coded.k() || !self.has_spare_room()) {
                    break;
                }
                self.put(run.disk, block, data);
            }
        }
    }

    /// Whether pages take less than their guaranteed share.
    fn has_spare_room(&self) -> bool {
        (self.pages.borrow().len() as u64) < self.blocks_max - self.waiting_max()
    }
}

/// The blocks that are written, by unit.
fn runs_of<'a>(
    record: &'a Extent,
    writes: &'a [UnitWrite],
) -> impl Iterator<Item = (usize, Run, &'a Frozen)> {
    writes.iter().filter_map(|UnitWrite { unit, from, data }| {
        let column = record.columns[*unit].as_ref()?;
        let (start, blocks) = (column.start + from / BLOCK_BYTES, (data.len() / BLOCK) as u64);
        Some((*unit, Run { disk: column.disk, start, blocks }, data))
    })
}

/// Whether lines of a record ever need old contents.
fn is_of_use(record: &Extent) -> bool {
    record.coded.p() > 0 && record.k() > 1
}

pub(crate) fn sum_of(column: &Column, line: u64) -> u32 {
    column.sums[usize::try_from(line).expect("few lines")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::BLOCK;

    fn block(of: u8) -> Vec<u8> {
        vec![of; BLOCK]
    }

    #[test]
    fn a_page_is_given_only_for_its_checksum() {
        let at_hand = OldBlockCache::new(1 << 20).expect("room");
        at_hand.put(3, 7, &block(1));
        assert_eq!(at_hand.get(3, 7, crc32c(&block(1))).as_deref(), Some(&block(1)[..]));
        assert!(at_hand.get(3, 8, crc32c(&block(1))).is_none());
        assert!(at_hand.get(2, 7, crc32c(&block(1))).is_none());
        // The block changed without notice: the cached contents are useless.
        assert!(at_hand.get(3, 7, crc32c(&block(2))).is_none());
        assert_eq!((at_hand.counts.get().wrong, at_hand.bytes()), (1, 0));
        at_hand.put(3, 7, &block(1));
        assert!(
            at_hand.get(3, 7, UNKNOWN).is_none(),
            "a checksum that is not known proves nothing"
        );
    }

    #[test]
    fn what_waits_and_pages_share_the_bound() {
        let at_hand = OldBlockCache::new(1 << 20).expect("room");
        let most = 2 * at_hand.waiting_max();
        assert!(most < 256 && most > 240, "the index counts: {most}");
        (0..1000).for_each(|n| at_hand.put(0, n, &block(1)));
        assert!(at_hand.bytes() / BLOCK_BYTES >= most);
        for waiting in [1, 50, at_hand.waiting_max()] {
            at_hand.wait(waiting);
            assert!(at_hand.bytes() / BLOCK_BYTES + waiting <= at_hand.blocks_max);
            (1000 * waiting..1000 * waiting + 999).for_each(|n| at_hand.put(0, n, &block(1)));
            assert_eq!(at_hand.bytes() / BLOCK_BYTES + waiting, at_hand.blocks_max);
        }
        at_hand.forget(Run { disk: 0, start: 0, blocks: 200_000 });
        assert_eq!(at_hand.bytes(), 0);
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "it is an assertion")]
    #[should_panic(expected = "unnoticed")]
    fn what_is_written_was_forgotten_before() {
        let at_hand = OldBlockCache::new(1 << 20).expect("room");
        at_hand.put(0, 1, &block(1));
        at_hand.put(0, 1, &block(2));
    }
}
