//! Lines that will be written, and the places of new ones.

use std::collections::{BTreeMap, BTreeSet};

use weft_code::UnitSet;
use weft_rt::Frozen;
use weft_stripe::Segment;

use crate::error::Result;
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::{Column, Extent};
use crate::format::inode::Ino;
use crate::format::redundancy::Redundancy;
use crate::meta::Tx;
use crate::state::mounted::FsState;

/// A batch has this part of the blocks that may wait to be written.
const BATCHES_WAITING: usize = 16;

/// Lines that are written together.
pub(crate) struct LineWrite {
    /// The file.
    pub(crate) ino: Ino,
    /// The record's first block.
    pub(crate) first: u64,
    /// The record as the metadata has it; none for new lines.
    pub(crate) old: Option<Extent>,
    /// What new lines take the place of.
    pub(crate) replaced: Option<ReplacedLines>,
    /// The record as it will be.
    pub(crate) record: Extent,
    /// New contents: line, unit, block.
    pub(crate) blocks: Vec<(u64, usize, Frozen)>,
    /// Blocks of lines that exist which were written elsewhere: line, unit, place.
    pub(crate) moved: Vec<(u64, usize, Column)>,
}

/// Records to write to new places, by file and first block.
pub(crate) type NewPlaces = BTreeMap<(Ino, u64), NewContents>;

/// The contents of such a record, as they will be.
pub(crate) struct NewContents {
    /// The record as the metadata has it.
    pub(crate) old: Extent,
    /// All active data blocks: line, unit, block.
    pub(crate) blocks: Vec<(u64, usize, Frozen)>,
    /// The blocks of the file that are dirty.
    pub(crate) dirty: Vec<u64>,
}

/// A record whose lines are written to new places.
pub(crate) struct ReplacedLines {
    pub(crate) record: Extent,
    /// The blocks of the file that were dirty, in their order.
    pub(crate) dirty: Vec<u64>,
}

impl LineWrite {
    /// What is written, as ranges of its units.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let segment = |(line, unit, data): &(u64, usize, Frozen)| Segment {
            unit: *unit,
            from: line * BLOCK_BYTES,
            data: data.clone(),
        };
        Segment::joined(self.blocks.iter().map(segment).collect())
    }

    pub(crate) fn k(&self) -> u64 {
        self.record.k()
    }

    /// Whether all its lines are whole, and fill `blocks_max` blocks.
    pub(crate) fn is_full(&self, blocks_max: usize) -> bool {
        let most = Extent::lines_max(self.record.coded);
        let lines = (blocks_max as u64 / self.k()).clamp(1, most);
        self.record.lines == lines && self.blocks.len() as u64 == self.record.blocks()
    }

    /// The blocks of the file that it writes and that were dirty, with their contents.
    pub(crate) fn written(&self) -> impl Iterator<Item = (u64, &Frozen)> {
        let replaced = self.replaced.as_ref();
        let was_dirty = move |block: &u64| {
            replaced.is_none_or(|replaced| replaced.dirty.binary_search(block).is_ok())
        };
        let blocks = self.blocks.iter();
        let placed = blocks.map(|(line, unit, data)| (self.block(*line, *unit), data));
        placed.filter(move |(block, _)| was_dirty(block))
    }

    /// The block of the file that a unit of a line is.
    fn block(&self, line: u64, unit: usize) -> u64 {
        self.first + line * self.k() + unit as u64
    }

    /// Whether it changes contents of blocks that have a place, and nothing else.
    pub(crate) fn overwrites(&self) -> bool {
        self.old.is_some() && self.activated().is_empty()
    }

    /// Whether it has places that were reserved before.
    pub(crate) fn is_reserved(&self) -> bool {
        self.replaced.as_ref().is_some_and(|replaced| replaced.record.unwritten)
    }

    /// The units that become active.
    pub(crate) fn activated(&self) -> UnitSet {
        let is_new = |unit: &usize| match &self.old {
            Some(old) => old.columns[*unit].is_none() && self.record.columns[*unit].is_some(),
            None => self.record.columns[*unit].is_some(),
        };
        (0..self.record.columns.len()).filter(is_new).collect()
    }
}

impl FsState {
    /// New lines for the first of these blocks, and for later blocks that fill lines alike.
    /// `planned` are the lines of the file that are not stored, and come last.
    pub(crate) fn new_lines(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        redundancy: Redundancy,
        dirty: &[(u64, Frozen)],
        planned: Option<(u64, &Extent)>,
    ) -> Result<LineWrite> {
        let block = dirty[0].0;
        // Lines start after the previous record, stored or planned.
        let stored = tx.record_before(ino, block)?;
        let stored = stored.as_ref().map(|(first, record)| (*first, record));
        let before = stored.into_iter().chain(planned).max_by_key(|(first, _)| *first);
        let end = tx.next_record(ino, block)?.unwrap_or(u64::MAX);
        let blocks_max = self.batch_blocks();
        self.new_lines_between(before, (0, end), ino, redundancy, dirty, blocks_max)
    }

    /// New lines after `before` (or a block) and before another block, of at most `blocks_max`
    /// blocks, or one line.
    pub(crate) fn new_lines_between(
        &self,
        before: Option<(u64, &Extent)>,
        (start, end): (u64, u64),
        ino: Ino,
        redundancy: Redundancy,
        dirty: &[(u64, Frozen)],
        blocks_max: usize,
    ) -> Result<LineWrite> {
        let block = dirty[0].0;
        let coded = self.pool().coded_now(redundancy)?;
        let k = coded.k() as u64;
        let start = before.map_or(start, |(first, record)| first + record.blocks());
        let first = start + (block - start) / k * k;
        let mut blocks = Vec::new();
        let mut units = UnitSet::new();
        let mut lines = 0;
        let mut rest = dirty;
        let lines_max = (blocks_max as u64 / k).clamp(1, Extent::lines_max(coded));
        while lines < lines_max {
            let from = first + lines * k;
            let to = from.saturating_add(k).min(end);
            let unit = |block: u64| usize::try_from(block - from).expect("a unit");
            let count = rest.iter().take_while(|(block, _)| *block < to).count();
            let line: UnitSet = rest[..count].iter().map(|(block, _)| unit(*block)).collect();
            if line.is_empty() || (lines > 0 && line != units) {
                break;
            }
            units = line;
            let placed = |(block, data): &(u64, Frozen)| (lines, unit(*block), data.clone());
            blocks.extend(rest[..count].iter().map(placed));
            rest = &rest[count..];
            lines += 1;
        }
        let before = before.filter(|(at, record)| at + record.blocks() == first);
        let before = before.map(|(_, record)| record);
        let units = units.union(&(coded.k()..coded.columns).collect());
        let record = self.pool().allocate(coded, units, lines, before, (ino, first / k))?;
        blocks.retain(|(line, _, _)| *line < record.lines);
        let moved = Vec::new();
        Ok(LineWrite { ino, first, old: None, replaced: None, record, blocks, moved })
    }

    /// Blocks with which a batch is full. Long runs of new blocks are cut into lines of this
    /// number.
    pub(crate) fn batch_blocks(&self) -> usize {
        let blocks = usize::try_from(self.unwritten().blocks_max()).unwrap_or(usize::MAX);
        (blocks / BATCHES_WAITING).max(1)
    }
}

/// The record that covers a block.
pub(crate) fn covering(tx: &Tx<'_>, ino: Ino, block: u64) -> Result<Option<(u64, Extent)>> {
    let found = tx.record_before(ino, block + 1)?;
    Ok(found.filter(|(first, record)| block < first + record.blocks()))
}

/// Those of these blocks of a file that have no place.
pub(crate) fn without_place(tx: &Tx<'_>, ino: Ino, blocks: Vec<u64>) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for block in blocks {
        let has_place = covering(tx, ino, block)?.is_some_and(|(first, record)| {
            record.columns[record.locate(block - first).1].is_some()
        });
        if !has_place {
            found.insert(block);
        }
    }
    Ok(found)
}

/// Cuts a line out of a record, with its first block. The records before and after it are stored;
/// the line's own record is the caller's to store.
pub(crate) fn cut_out(
    tx: &Tx<'_>,
    ino: Ino,
    (first, mut record): (u64, Extent),
    line: u64,
) -> Result<(u64, Extent)> {
    let k = record.k();
    if line + 1 < record.lines {
        let rest = record.split_off(line + 1);
        tx.put_record(ino, first + (line + 1) * k, &rest)?;
    }
    if line == 0 {
        return Ok((first, record));
    }
    let alone = record.split_off(line);
    tx.put_record(ino, first, &record)?;
    Ok((first + line * k, alone))
}
