//! The oracle: which values each part of a volume may hold. Every read is checked against it.
//!
//! The volume is divided into *cells*: logical blocks, or pieces of odd sizes when unaligned
//! requests are tested. For each cell the oracle keeps **candidates**, the values that the cell may
//! hold. Time is logical: each start and each end of a request is a tick.
//!
//! * A write adds a candidate when it starts; reads may return it from then on. When the write is
//!   acknowledged, at tick e, it supersedes every candidate whose write had *ended before this one
//!   started*: reads that start after e must not return those. Overlapping writes all remain
//!   candidates until a read that overlaps nothing returns one of them; from then on that is the
//!   value.
//! * A superseded value may return after a power cut, until a flush that started after tick e is
//!   acknowledged, or a FUA write supersedes it.
//! * A failed write may or may not have happened; it supersedes nothing. It may leave copies that
//!   differ, in an array that had to stop. A read decides there, too, until the array is assembled
//!   again ([`Oracle::had_to_stop`]): after it, another copy is no answer.
//! * After a power cut all candidates are possible, and the first read decides: a value read once
//!   must be read from then on, from any copy or parity.
//! * After a crash of only the program this also holds for reads, but a later power cut may still
//!   bring back another candidate, as long as no flush was acknowledged.
//! * *Anything* can be a candidate, too: after a discard, and where a promise ends by
//!   `docs/consistency.md` (see [`Oracle::excuse`]).

mod candidate;
mod content;
mod crash;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use candidate::{Candidate, CutCell};
pub use candidate::{Cut, Tick};
use content::Contents;
pub use content::Version;

/// The kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes made by [`Oracle::fill`].
    Data,
    /// Zeros.
    Zero,
    /// A discard: the range may hold anything afterwards.
    Anything,
}

/// A write in progress.
#[derive(Debug)]
#[must_use]
pub struct Writing {
    /// Its version.
    pub version: Version,
    cells: Range<usize>,
    began: Tick,
}

impl Writing {
    /// The cells that it covers.
    pub fn cells(&self) -> Range<usize> {
        self.cells.clone()
    }
}

/// A read in progress.
#[derive(Debug)]
#[must_use]
pub struct Reading {
    cells: Range<usize>,
    began: Tick,
}

/// A flush in progress.
#[derive(Debug)]
#[must_use]
pub struct Flushing(Tick);

/// A read that returned a value that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The cell.
    pub cell: usize,
    /// Byte offset of the cell in the volume.
    pub offset: u64,
    /// The value found and the allowed values, in words.
    pub text: String,
}

/// The reference model of a volume.
#[derive(Debug, Clone)]
pub struct Oracle {
    contents: Contents,
    /// The candidates of each cell, in the order in which their writes started. Empty: never
    /// written. Also of some cells beyond the end: the volume may become larger.
    cells: Vec<Vec<Candidate>>,
    /// Cells with more than one candidate.
    open: BTreeSet<usize>,
    /// Cells that were being written at the last crashes, until [`Oracle::consistent_again`]. Disks
    /// lost until then may still end promises for them.
    cut: BTreeMap<usize, CutCell>,
    /// Excused cells whose contents may still change: see [`Oracle::excuse`].
    unsettled: BTreeSet<usize>,
    /// Cells that lost a copy, with the time of the loss, until [`Oracle::consistent_again`].
    doubted: BTreeMap<usize, Tick>,
    /// When each read in progress started.
    reads: BTreeSet<Tick>,
    count: usize,
    tick: Tick,
    next_version: u32,
}

impl Oracle {
    /// The oracle for a volume of `size_bytes` zeros, in cells of `cell_bytes` (16 to 4096). A last
    /// partial cell is not used.
    pub fn new(seed: u64, size_bytes: u64, cell_bytes: usize) -> Self {
        let count = usize::try_from(size_bytes).unwrap_or(usize::MAX) / cell_bytes;
        Self {
            contents: Contents::new(seed, cell_bytes),
            cells: vec![Vec::new(); count],
            open: BTreeSet::new(),
            cut: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            doubted: BTreeMap::new(),
            reads: BTreeSet::new(),
            count,
            tick: 1,
            next_version: 1,
        }
    }

    /// The volume has become larger: new space reads as zeros, except where [`Oracle::excuse`]
    /// excused it before. Returns the new cells.
    pub fn grow(&mut self, size_bytes: u64) -> Range<usize> {
        let count = usize::try_from(size_bytes).unwrap_or(usize::MAX) / self.cell_bytes();
        let before = self.count;
        self.count = count.max(before);
        self.reach(self.count);
        before..self.count
    }

    fn reach(&mut self, count: usize) {
        self.cells.resize(count.max(self.cells.len()), Vec::new());
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> usize {
        self.contents.cell_bytes()
    }

    /// The byte range of `cells`.
    pub fn bytes(&self, cells: &Range<usize>) -> Range<u64> {
        let size = self.cell_bytes() as u64;
        cells.start as u64 * size..cells.end as u64 * size
    }

    /// The current tick. Requests that start later have a greater one.
    pub fn now(&self) -> Tick {
        self.tick
    }

    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Cells that may hold more than one value, or anything.
    pub fn open_cells(&self) -> impl Iterator<Item = usize> + '_ {
        self.open.range(..self.count).copied()
    }

    /// Whether a cell may hold anything.
    pub fn may_hold_anything(&self, cell: usize) -> bool {
        self.known(cell).is_some_and(|list| list.iter().any(|c| c.version.is_any()))
    }

    /// The candidates of a cell that has been written.
    fn known(&self, cell: usize) -> Option<&Vec<Candidate>> {
        self.cells.get(cell).filter(|list| !list.is_empty())
    }

    fn candidates(&mut self, cell: usize) -> &mut Vec<Candidate> {
        let list = &mut self.cells[cell];
        if list.is_empty() {
            list.push(Candidate {
                version: Version::BLANK,
                began: 0,
                ended: Some(0),
                acknowledged: true,
                superseded: None,
                unrecoverable: false,
                settled: true,
                at_risk: false,
            });
        }
        list
    }

    fn next_number(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version - 1
    }

    /// A write starts.
    pub fn begin_write(&mut self, cells: Range<usize>, kind: Kind) -> Writing {
        let began = self.tick();
        let number = self.next_number();
        let version = match kind {
            Kind::Data => Version::data(number),
            Kind::Zero => Version::zero(number),
            Kind::Anything => Version::any(number),
        };
        for cell in cells.clone() {
            self.candidates(cell).push(Candidate {
                version,
                began,
                ended: None,
                acknowledged: false,
                superseded: None,
                unrecoverable: false,
                settled: false,
                at_risk: true,
            });
            self.open.insert(cell);
        }
        Writing { version, cells, began }
    }

    /// Fills `out` with the contents of a write.
    ///
    /// # Panics
    /// If `out` is not as long as the write.
    pub fn fill(&self, write: &Writing, out: &mut [u8]) {
        assert_eq!(out.len(), write.cells.len() * self.cell_bytes());
        for (cell, bytes) in write.cells.clone().zip(out.chunks_mut(self.cell_bytes())) {
            self.contents.fill(cell, write.version, bytes);
        }
    }

    /// A write ends. `acknowledged`: it succeeded. `fua`: it is durable.
    pub fn end_write(&mut self, write: Writing, acknowledged: bool, fua: bool) {
        let now = self.tick();
        for cell in write.cells {
            let list = self.candidates(cell);
            for candidate in list.iter_mut() {
                if candidate.version == write.version {
                    candidate.ended = Some(now);
                    candidate.acknowledged = acknowledged;
                } else if acknowledged && candidate.ended.is_some_and(|end| end < write.began) {
                    candidate.superseded.get_or_insert(now);
                }
            }
            if acknowledged && fua {
                for candidate in list.iter_mut() {
                    let before = candidate.ended.is_some_and(|end| end < write.began);
                    candidate.unrecoverable |= before;
                    candidate.at_risk &= !before && candidate.version != write.version;
                }
            }
            self.drop_unrecoverable(cell);
        }
    }

    /// Drops the unrecoverable candidates that no read in progress may return.
    fn drop_unrecoverable(&mut self, cell: usize) {
        let oldest = self.reads.first().copied().unwrap_or(Tick::MAX);
        self.candidates(cell)
            .retain(|c| !c.unrecoverable || c.superseded.is_some_and(|since| since > oldest));
        self.refresh(cell);
    }

    fn refresh(&mut self, cell: usize) {
        let list = self.candidates(cell);
        if list.len() > 1 || list[0].version.is_any() {
            self.open.insert(cell);
        } else {
            list[0].at_risk = false;
            self.open.remove(&cell);
        }
    }

    /// A flush starts.
    pub fn begin_flush(&mut self) -> Flushing {
        Flushing(self.tick())
    }

    /// A flush is acknowledged: values that were superseded before it started cannot return.
    pub fn end_flush(&mut self, flush: Flushing) {
        let Flushing(began) = flush;
        for cell in std::mem::take(&mut self.open) {
            for candidate in self.candidates(cell) {
                candidate.unrecoverable |= candidate.superseded.is_some_and(|since| since < began);
                candidate.at_risk &= candidate.ended.is_none_or(|end| end > began);
            }
            self.drop_unrecoverable(cell);
        }
    }

    /// A read starts.
    pub fn begin_read(&mut self, cells: Range<usize>) -> Reading {
        let began = self.tick();
        self.reads.insert(began);
        Reading { cells, began }
    }

    /// A read failed or was abandoned.
    pub fn abandon_read(&mut self, read: Reading) {
        self.reads.remove(&read.began);
    }

    /// A read returned `bytes`.
    ///
    /// # Errors
    /// The first cell with a value that is not allowed.
    ///
    /// # Panics
    /// If `bytes` is not as long as the read.
    pub fn end_read(&mut self, read: Reading, bytes: &[u8]) -> Result<(), Mismatch> {
        let now = self.tick();
        self.reads.remove(&read.began);
        let size = self.cell_bytes();
        assert_eq!(bytes.len(), read.cells.len() * size);
        for (cell, found) in read.cells.zip(bytes.chunks(size)) {
            self.check(cell, read.began, now, found)?;
        }
        Ok(())
    }

    fn check(&mut self, cell: usize, began: Tick, now: Tick, found: &[u8]) -> Result<(), Mismatch> {
        let Some(list) = self.known(cell) else {
            return match self.contents.is(cell, Version::BLANK, found) {
                true => Ok(()),
                false => Err(self.mismatch(cell, began, found)),
            };
        };
        // A discarded cell may hold anything, and may change, until it is written again.
        if list.iter().any(|c| c.visible_to(began) && c.version.is_any() && !c.settled) {
            return Ok(());
        }
        let seen = list.iter().rev().find(|c| {
            c.visible_to(began) && !c.version.is_any() && self.contents.is(cell, c.version, found)
        });
        // If a write overlapped this read, the value is not decided yet.
        let doubted = self.doubted.get(&cell).is_some_and(|lost| began <= *lost);
        let quiet = !doubted
            && list.iter().all(|c| {
                c.ended.is_some_and(|e| e < began) && c.superseded.is_none_or(|s| s < began)
            });
        let seen = match seen {
            Some(candidate) => candidate.version,
            None => {
                let visible: Vec<_> = list.iter().filter(|c| c.visible_to(began)).collect();
                let anything = visible.iter().any(|c| c.version.is_any());
                let versions: Vec<_> =
                    visible.iter().map(|c| c.version).filter(|v| !v.is_any()).collect();
                if !anything && !self.contents.is_mixture(cell, &versions, found) {
                    return Err(self.mismatch(cell, began, found));
                }
                if !quiet {
                    return Ok(());
                }
                self.adopt(cell, found)
            }
        };
        if quiet {
            self.collapse(cell, seen, now);
        }
        Ok(())
    }

    /// Makes contents that were found, and are allowed, a candidate of their own.
    fn adopt(&mut self, cell: usize, found: &[u8]) -> Version {
        let number = self.next_number();
        let version = self.contents.keep_found(number, found);
        let list = self.candidates(cell);
        // Part of the contents may be in a cache only.
        let settled = list.iter().all(|c| c.settled || c.superseded.is_some());
        let at_risk = list.iter().any(|c| c.at_risk);
        let began = list.iter().map(|c| c.began).max().unwrap_or(0);
        let ended = list.iter().filter_map(|c| c.ended).max();
        list.push(Candidate {
            version,
            began,
            ended,
            acknowledged: true,
            superseded: None,
            unrecoverable: false,
            settled,
            at_risk,
        });
        version
    }

    /// A read that overlaps nothing has returned `seen`: it supersedes all other candidates.
    fn collapse(&mut self, cell: usize, seen: Version, now: Tick) {
        // A read in progress may have its answer from a copy that was lost since it began.
        let lost = self.doubted.get(&cell).copied().unwrap_or(0);
        let may_return = self.reads.first().is_some_and(|oldest| *oldest <= lost);
        let list = self.candidates(cell);
        if list.len() == 1 {
            return;
        }
        let settled = list.iter().any(|c| c.version == seen && c.settled);
        for candidate in list.iter_mut().filter(|c| c.version != seen) {
            candidate.superseded.get_or_insert(now);
            candidate.unrecoverable |= settled && candidate.settled;
        }
        match may_return {
            true => self.drop_unrecoverable(cell),
            false => list.retain(|c| c.version == seen || !(settled && c.settled)),
        }
        self.refresh(cell);
    }

    fn mismatch(&self, cell: usize, began: Tick, found: &[u8]) -> Mismatch {
        let blank = "  never written\n".to_owned();
        let allowed = self.known(cell).map_or(blank, |list| {
            let line = |c: &Candidate| {
                let state = match (c.visible_to(began), c.ended.is_some(), c.acknowledged) {
                    (false, ..) => "superseded",
                    (true, false, _) => "in flight",
                    (true, true, true) => "acknowledged",
                    (true, true, false) => "failed or cut off",
                };
                let settled = if c.settled { ", survived a power cut" } else { "" };
                format!("  {} ({state}{settled})\n", c.version)
            };
            list.iter().map(line).collect()
        });
        let offset = cell as u64 * self.cell_bytes() as u64;
        let text = format!(
            "cell {cell} (byte {offset}) holds {}\ncandidates:\n{allowed}",
            self.contents.describe(found)
        );
        Mismatch { cell, offset, text }
    }

    /// The cells that overlap a byte range.
    pub fn cells_of(&self, bytes: &Range<u64>) -> Range<usize> {
        let Range { start, end } = self.cells_at(bytes);
        start.min(self.count)..end.min(self.count)
    }

    /// The cells that overlap a byte range, or will once the volume is large enough.
    pub fn cells_at(&self, bytes: &Range<u64>) -> Range<usize> {
        let size = self.cell_bytes() as u64;
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        index(bytes.start / size)..index(bytes.end.div_ceil(size))
    }
}

#[cfg(test)]
mod tests;
