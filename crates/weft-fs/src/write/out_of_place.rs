//! Heavily overwritten extents are written to new places.
//!
//! To overwrite blocks in place, their lines' old contents are read, one by one where they are
//! scattered, and the log gets partial parities and contents on every copy of the metadata. When
//! much of a record is overwritten, all of its lines are written to new places instead:
//!
//! ```text
//!                 in place                            afresh
//!    record    D · D · D D · ·   D: dirty          D r D r D D r r   r: read in long requests,
//!    disks     read · · · ·                        read ────────        or at hand
//!              log  ▪ ▪ ▪ ▪  on each copy          nothing
//!              write D   D   D D  P P P P          write ──────────────  elsewhere
//! ```
//!
//! *Crashes.* There is no log record. Until a commit the metadata names the old places, whose
//! blocks stay as they are; the commit flushes the disks before it names the new ones; and the old
//! blocks are free when it is durable. So a crash leaves all of the record old, or all of it new.
//! An fsync needs a commit, as for new lines.
//!
//! *Whole records.* The new record has the same lines, code and active columns as the old one, and
//! follows the previous record if that has just been written, too. So files stay in long runs on
//! the disks. Only if there is ample room: otherwise lines are overwritten in place, as blocks
//! which have a place need no other.
//!
//! *The choice* is counted for each record, in blocks that the disks transfer ([`Count`]). A
//! separate request counts as [`REQUEST_BLOCKS`] more; on platters, as a pass over the column: the
//! disk waits while the space between two blocks passes. However many requests there are, they cost
//! no more than such a pass. Never are more than [`AMPLIFICATION`] times as many blocks written as
//! in place. A flush of few blocks, whose contents all go to the log, stays in place: its fsync is
//! one write of the log.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::Frozen;

use crate::disks::extent_stripe::part_of;
use crate::disks::pool::{Pool, runs_of};
use crate::error::{FsError, Result};
use crate::format::extent::{Extent, LINES_MAX};
use crate::format::inode::Ino;
use crate::meta::{META_COPIES, Tx};
use crate::raid_log::{CONTENTS_BLOCKS_MAX, LoggedBand, LoggedFile};
use crate::state::mounted::FsState;
use crate::state::open_files::{Dirty, Node};
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::new_lines::{LineWrite, NewContents, NewPlaces, ReplacedLines, covering};

/// What a request costs beyond its blocks, in blocks, on a disk without platters: such disks carry
/// out about as many requests of one block in a second as of two.
const REQUEST_BLOCKS: u64 = 1;
/// The most blocks that are written, as a multiple of those written in place.
const AMPLIFICATION: u64 = 2;
/// The room that each disk must have, in times of what the lines and all dirty blocks may need of
/// it.
const AMPLE: u64 = 4;

/// A record to write to new places; some of its blocks may have to be read.
struct OutOfPlaceCandidate {
    ino: Ino,
    first: u64,
    record: Extent,
    dirty: Dirty,
}

/// Lines of a column, a bit for each.
type Lines = u64;

const fn all(lines: u64) -> Lines {
    Lines::MAX >> (LINES_MAX - lines)
}

/// The lines between the first and the last of these, with them.
fn span(lines: Lines) -> std::ops::Range<u64> {
    u64::from(lines.trailing_zeros())..u64::from(Lines::BITS - lines.leading_zeros())
}

/// How many of these blocks come before one of the file.
fn count_before(dirty: &[(u64, Frozen)], end: u64) -> usize {
    dirty.iter().take_while(|(block, _)| *block < end).count()
}

/// Adds the dirty blocks of a file that follow up to a block.
fn add_before(end: u64, dirty: &mut Dirty, node: &Node) {
    let behind = dirty.last().map_or(end, |(block, _)| block + 1);
    if behind < end {
        let more = node.dirty.borrow();
        let more = more.range(behind..end);
        dirty.extend(more.map(|(block, (_, data))| (*block, data.clone())));
    }
}

/// Takes some of the rest. `false` if that is not enough.
fn take(left: &mut u64, wanted: u64) -> bool {
    let fits = wanted <= *left;
    *left = left.saturating_sub(wanted);
    fits
}

/// What transfers cost.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    /// Blocks, with what requests cost.
    cost: u64,
    /// Blocks that are written.
    written: u64,
}

impl Count {
    /// Lines of a column are read or written, of `of` lines; each request costs `request` more.
    fn column(&mut self, lines: Lines, of: u64, request: u64) {
        if lines != 0 {
            let requests = u64::from((lines & !(lines << 1)).count_ones());
            let blocks = u64::from(lines.count_ones());
            self.cost += (blocks + requests * request).min(of + request);
        }
    }

    fn write(&mut self, lines: Lines, of: u64, request: u64) {
        self.column(lines, of, request);
        self.written += u64::from(lines.count_ones());
    }
}

/// A record with its dirty and cached blocks.
struct Known<'a> {
    record: &'a Extent,
    /// Active data units.
    data: UnitSet,
    /// Dirty lines of each unit.
    dirty: Vec<Lines>,
    /// Lines of each unit that are at hand.
    at_hand: Vec<Lines>,
    /// What a separate request costs.
    request: u64,
}

impl Known<'_> {
    fn parity(&self) -> impl Iterator<Item = usize> {
        let k = self.record.coded.k();
        self.record.active().map(|(unit, _)| unit).filter(move |unit| *unit >= k)
    }

    /// Units that have to be read for a line: the rest of it, or its old contents.
    fn reads(&self, line: Lines) -> UnitSet {
        let missing = |unit: &usize| self.at_hand[*unit] & line == 0;
        let is_dirty = |unit: &usize| self.dirty[*unit] & line != 0;
        let others = self.data.iter().filter(|unit| !is_dirty(unit) && missing(unit));
        let others: UnitSet = others.collect();
        let olds = self.data.iter().filter(is_dirty).chain(self.parity()).filter(missing);
        let olds: UnitSet = olds.collect();
        if others.len() <= olds.len() { others } else { olds }
    }

    fn in_place(&self) -> Count {
        let (lines, columns) = (self.record.lines, self.record.columns.len());
        let any = self.dirty.iter().fold(0, |any, lines| any | lines);
        let parity = self.parity().count() as u64;
        let mut count = Count::default();
        let mut reads: Vec<Lines> = vec![0; columns];
        let mut logged = 0;
        if parity > 0 {
            for line in (0..lines).map(|line| 1 << line).filter(|line| any & line != 0) {
                self.reads(line).iter().for_each(|unit| reads[unit] |= line);
                let dirty = self.dirty.iter().filter(|lines| **lines & line != 0).count();
                // Partial parity is zero if all is written; contents of several units are logged.
                logged += if dirty < self.data.len() { parity } else { 0 };
                logged += if dirty > 1 { dirty as u64 } else { 0 };
            }
        }
        reads.iter().for_each(|read| count.column(*read, lines, self.request));
        self.dirty.iter().for_each(|dirty| count.write(*dirty, lines, self.request));
        self.parity().for_each(|_| count.write(any, lines, self.request));
        count.cost += logged * META_COPIES as u64;
        count.written += logged * META_COPIES as u64;
        count
    }

    /// Lines of a data unit that are neither dirty nor at hand.
    fn missing(&self, unit: usize) -> Lines {
        all(self.record.lines) & !self.dirty[unit] & !self.at_hand[unit]
    }

    /// Blocks that have to be read to write all of it; the blocks between them are read as well.
    fn to_read(&self) -> u64 {
        let missing = self.data.iter().map(|unit| self.missing(unit)).filter(|lines| *lines != 0);
        missing.map(span).map(|span| span.end - span.start).sum()
    }

    fn afresh(&self) -> Count {
        let lines = self.record.lines;
        let requests = self.data.iter().filter(|unit| self.missing(*unit) != 0).count() as u64;
        let mut count = Count { cost: self.to_read() + requests * self.request, written: 0 };
        self.record.active().for_each(|_| count.write(all(lines), lines, self.request));
        count
    }

    /// Whether to write it to new places.
    fn is_better_out_of_place(&self) -> bool {
        let (in_place, afresh) = (self.in_place(), self.afresh());
        afresh.cost < in_place.cost && afresh.written <= AMPLIFICATION * in_place.written
    }
}

impl Pool {
    /// What a separate request costs on the disks of a record.
    fn request_blocks(&self, record: &Extent) -> u64 {
        let turns = record.active().any(|(_, column)| {
            let member = self.member(column.disk);
            member.is_some_and(|member| member.data().is_some_and(|disk| disk.info().rotational))
        });
        if turns { LINES_MAX } else { REQUEST_BLOCKS }
    }
}

impl FsState {
    /// Selects the records of these dirty blocks to write to new places, and reads their missing
    /// blocks. All dirty blocks of a record are written together: those of the last one are added
    /// to `files`. Blocks for which the log has no room, or that would need more than
    /// [`BLOCKS_MAX`] reads, are left to the next flush.
    pub(crate) async fn choose_out_of_place(
        &self,
        files: &mut Vec<(Rc<Node>, Dirty)>,
    ) -> Result<NewPlaces> {
        let dirty: usize = files.iter().map(|(_, dirty)| dirty.len()).sum();
        if dirty <= CONTENTS_BLOCKS_MAX {
            return Ok(NewPlaces::default());
        }
        let chosen = self.meta().run(|tx| self.choose(tx, files)).await?;
        let fresh = chosen.into_iter().map(|chosen| self.complete(chosen));
        let fresh = join_all(fresh).await;
        fresh.into_iter().filter_map(Result::transpose).collect()
    }

    fn choose(
        &self,
        tx: &Tx<'_>,
        files: &mut Vec<(Rc<Node>, Dirty)>,
    ) -> Result<Vec<OutOfPlaceCandidate>> {
        let mut chosen = Vec::new();
        let mut room = self.log().record_bytes_max();
        room = room.saturating_sub(files.len() as u64 * LoggedFile::BYTES);
        let mut to_read = BLOCKS_MAX as u64;
        for n in 0..files.len() {
            let (node, dirty) = &mut files[n];
            let (ino, mut at) = (node.ino, 0);
            while let Some((block, _)) = dirty.get(at) {
                let next = tx.next_record(ino, block + 1)?.unwrap_or(u64::MAX);
                let covered = covering(tx, ino, *block)?;
                let end =
                    covered.as_ref().map_or(next, |(at, record)| next.min(at + record.blocks()));
                let Some((first, record)) = covered.filter(|(_, record)| !record.unwritten) else {
                    at += count_before(&dirty[at..], end);
                    continue;
                };
                add_before(end, dirty, node);
                let count = count_before(&dirty[at..], end);
                let of_record = &dirty[at..at + count];
                let afresh = self.reads_out_of_place(first, &record, of_record);
                let fits = match afresh {
                    Some(reads) => take(&mut to_read, reads),
                    None => take(&mut room, LoggedBand::bytes_max(&record, 1) * count as u64),
                };
                if !fits && (n, at) != (0, 0) {
                    dirty.truncate(at);
                    files.truncate(if at > 0 { n + 1 } else { n });
                    return Ok(chosen);
                }
                if afresh.is_some() {
                    chosen.push(OutOfPlaceCandidate {
                        ino,
                        first,
                        record,
                        dirty: of_record.to_vec(),
                    });
                }
                at += count;
            }
        }
        Ok(chosen)
    }

    /// The blocks to read of a record with these dirty blocks, if it is written to new places.
    fn reads_out_of_place(
        &self,
        first: u64,
        record: &Extent,
        dirty: &[(u64, Frozen)],
    ) -> Option<u64> {
        let k = record.coded.k();
        let units: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let mut lines: Vec<Lines> = vec![0; k];
        for (block, _) in dirty {
            let (line, unit) = record.locate(block - first);
            lines[unit] |= 1 << line;
            if !units.contains(unit) {
                return None;
            }
        }
        let at_hand = (0..record.columns.len()).map(|unit| self.pool().at_hand.lines(record, unit));
        let known = Known {
            record,
            data: units.intersection(&UnitSet::first(k)),
            dirty: lines,
            at_hand: at_hand.collect(),
            request: self.pool().request_blocks(record),
        };
        (known.is_better_out_of_place() && self.has_ample_room(record)).then(|| known.to_read())
    }

    /// Whether each disk has more than enough room for these lines and all dirty blocks.
    fn has_ample_room(&self, record: &Extent) -> bool {
        let needed = record.lines + self.unwritten().blocks();
        AMPLE * needed <= self.pool().least_free(record.coded.columns)
    }

    /// Reads the missing blocks of a record; none if that cannot be had: blocks that are
    /// overwritten in place may not need it.
    async fn complete(
        &self,
        chosen: OutOfPlaceCandidate,
    ) -> Result<Option<((Ino, u64), NewContents)>> {
        let OutOfPlaceCandidate { ino, first, record, dirty } = chosen;
        let at_hand = &self.pool().at_hand;
        let mut blocks: BTreeMap<(u64, usize), Frozen> = BTreeMap::new();
        for (block, data) in &dirty {
            blocks.insert(record.locate(block - first), data.clone());
        }
        let k = record.coded.k();
        let (mut missing, mut lines) = (UnitSet::new(), 0);
        for unit in record.active().map(|(unit, _)| unit).filter(|unit| *unit < k) {
            for line in (0..record.lines)
                .filter(|line| !blocks.contains_key(&(*line, unit)))
                .collect::<Vec<_>>()
            {
                match at_hand.unit(&record, unit, &(line..line + 1)) {
                    Some(data) => drop(blocks.insert((line, unit), data)),
                    None => {
                        missing.insert(unit);
                        lines |= 1 << line;
                    }
                }
            }
        }
        if !missing.is_empty() {
            let lines = span(lines);
            let laid = self.pool().lay(&record)?;
            let read = match laid.read(&record, (ino, first), missing, lines.clone()).await {
                Err(FsError::Unreadable { .. }) => return Ok(None),
                read => read?,
            };
            for (unit, buf) in read {
                let buf = buf.freeze();
                for line in lines.clone() {
                    let part = part_of(lines.start, line);
                    let block = || buf.slice(part.start, part.len());
                    blocks.entry((line, unit)).or_insert_with(block);
                }
            }
        }
        let blocks = blocks.into_iter().map(|((line, unit), data)| (line, unit, data)).collect();
        let dirty = dirty.into_iter().map(|(block, _)| block).collect();
        Ok(Some(((ino, first), NewContents { old: record, blocks, dirty })))
    }

    /// New places for a record, after those of `targets`; none if it does not find room in one
    /// piece.
    pub(crate) fn afresh(
        &self,
        tx: &Tx<'_>,
        (ino, first): (Ino, u64),
        fresh: NewContents,
        targets: &[LineWrite],
    ) -> Result<Option<LineWrite>> {
        let NewContents { old, blocks, dirty } = fresh;
        let planned = targets.last().filter(|target| target.ino == ino && target.old.is_none());
        let stored = tx.record_before(ino, first)?;
        let before = match planned {
            Some(target) => Some((target.first, &target.record)),
            None => stored.as_ref().map(|(at, record)| (*at, record)),
        };
        let before = before.filter(|(at, record)| at + record.blocks() == first);
        let units = old.active().map(|(unit, _)| unit).collect();
        let before = before.map(|(_, record)| record);
        match self.pool().allocate(old.coded, units, old.lines, before, (ino, first / old.k())) {
            Ok(record) if record.lines == old.lines => {
                let replaced = Some(ReplacedLines { record: old, dirty });
                let moved = Vec::new();
                Ok(Some(LineWrite { ino, first, old: None, replaced, record, blocks, moved }))
            }
            Ok(record) => {
                self.pool().release(runs_of(&record));
                Ok(None)
            }
            Err(FsError::NoSpace) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
