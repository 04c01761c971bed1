//! What a volume may answer: the reference that every read is held against.
//!
//! The volume is seen as *cells* (one logical block each, or smaller pieces of odd size
//! when unaligned requests are tried). A cell has a list of **candidates**: values that it may
//! hold. Time is logical – every call that begins or ends a request is a tick.
//!
//! * A write adds its value when it begins: from then on reads may see it. When it is acknowledged,
//!   at tick e, every candidate whose own write had *ended before this one began* is superseded:
//!   reads that begin later must not see it. Writes that overlapped stay candidates side by side –
//!   until a read, alone on the cell, has seen one of them: then that is the value.
//! * A superseded value may still come back through a power cut, until a flush that began after
//!   it was superseded is acknowledged (or a FUA write supersedes it).
//! * A write that failed may have happened or not; it supersedes nothing.
//! * After a power cut every candidate is possible, and reads are held to the first answer:
//!   what was read once must be read for ever, from whatever copy or parity it comes.
//! * After the program alone was killed the same holds for reads; a later power cut may still
//!   bring another candidate, as long as no flush has been acknowledged.
//! * *Anything* is a candidate too: after a discard, and where `docs/consistency.md` says that
//!   a promise ends (see [`Oracle::excuse`]).

mod candidate;
mod content;
mod crash;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use candidate::{Candidate, CutCell};
pub use candidate::{Cut, Tick};
use content::Contents;
pub use content::Version;

/// What kind of write it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes made by [`Oracle::fill`].
    Data,
    /// Zeros.
    Zero,
    /// A discard: anything may be there afterwards.
    Anything,
}

/// A write under way.
#[derive(Debug)]
#[must_use]
pub struct Writing {
    /// Its version.
    pub version: Version,
    cells: Range<usize>,
    began: Tick,
}

impl Writing {
    /// The cells that it writes.
    pub fn cells(&self) -> Range<usize> {
        self.cells.clone()
    }
}

/// A read under way.
#[derive(Debug)]
#[must_use]
pub struct Reading {
    cells: Range<usize>,
    began: Tick,
}

/// A flush under way.
#[derive(Debug)]
#[must_use]
pub struct Flushing(Tick);

/// A read that returned what must not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The cell.
    pub cell: usize,
    /// Byte offset of the cell in the volume.
    pub offset: u64,
    /// In words: what was found and what was allowed.
    pub text: String,
}

/// The reference.
#[derive(Debug, Clone)]
pub struct Oracle {
    contents: Contents,
    /// Candidates of each cell in the order of their beginning; none means: never written.
    cells: Vec<Vec<Candidate>>,
    /// Cells with more than one candidate.
    open: BTreeSet<usize>,
    /// What was being written at the last crashes, until [`Oracle::consistent_again`]: the cells
    /// for which a disk lost later may still take promises with it.
    cut: BTreeMap<usize, CutCell>,
    /// Excused cells whose contents may still change: see [`Oracle::excuse`].
    loose: BTreeSet<usize>,
    /// Cells with a lost copy, and when it was lost, until [`Oracle::consistent_again`].
    doubted: BTreeMap<usize, Tick>,
    /// When each of the reads under way began.
    reads: BTreeSet<Tick>,
    count: usize,
    tick: Tick,
    next_version: u32,
}

impl Oracle {
    /// A reference for `size_bytes` of zeros in cells of `cell_bytes` (16 to 4096); a rest that
    /// fills no cell is left alone.
    pub fn new(seed: u64, size_bytes: u64, cell_bytes: usize) -> Self {
        let count = usize::try_from(size_bytes).unwrap_or(usize::MAX) / cell_bytes;
        Self {
            contents: Contents::new(seed, cell_bytes),
            cells: vec![Vec::new(); count],
            open: BTreeSet::new(),
            cut: BTreeMap::new(),
            loose: BTreeSet::new(),
            doubted: BTreeMap::new(),
            reads: BTreeSet::new(),
            count,
            tick: 1,
            next_version: 1,
        }
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no cell at all.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of a cell.
    pub fn cell_bytes(&self) -> usize {
        self.contents.cell_bytes()
    }

    /// Byte range of cells.
    pub fn bytes(&self, cells: &Range<usize>) -> Range<u64> {
        let size = self.cell_bytes() as u64;
        cells.start as u64 * size..cells.end as u64 * size
    }

    /// The present instant: what begins later has a greater one.
    pub fn now(&self) -> Tick {
        self.tick
    }

    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Cells that may hold one of several values (or anything): what is at risk.
    pub fn open_cells(&self) -> impl Iterator<Item = usize> + '_ {
        self.open.iter().copied()
    }

    /// Whether a cell may hold anything at all.
    pub fn is_lost(&self, cell: usize) -> bool {
        self.known(cell).is_some_and(|list| list.iter().any(|c| c.version.is_any()))
    }

    /// The candidates of a cell that was ever written.
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
                buried: false,
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

    /// A write begins.
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
                buried: false,
                settled: false,
                at_risk: true,
            });
            self.open.insert(cell);
        }
        Writing { version, cells, began }
    }

    /// The bytes of a write.
    ///
    /// # Panics
    /// If `out` is not as long as the write.
    pub fn fill(&self, write: &Writing, out: &mut [u8]) {
        assert_eq!(out.len(), write.cells.len() * self.cell_bytes());
        for (cell, bytes) in write.cells.clone().zip(out.chunks_mut(self.cell_bytes())) {
            self.contents.fill(cell, write.version, bytes);
        }
    }

    /// A write ends: acknowledged or failed; durable (`fua`) or not.
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
                    candidate.buried |= before;
                    candidate.at_risk &= !before && candidate.version != write.version;
                }
            }
            self.forget_buried(cell);
        }
    }

    /// Forgets the buried candidates that no read under way can see.
    fn forget_buried(&mut self, cell: usize) {
        let oldest = self.reads.first().copied().unwrap_or(Tick::MAX);
        self.candidates(cell)
            .retain(|c| !c.buried || c.superseded.is_some_and(|since| since > oldest));
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

    /// A flush begins.
    pub fn begin_flush(&mut self) -> Flushing {
        Flushing(self.tick())
    }

    /// A flush is acknowledged: what was superseded before it began is gone for good.
    pub fn end_flush(&mut self, flush: Flushing) {
        let Flushing(began) = flush;
        for cell in std::mem::take(&mut self.open) {
            for candidate in self.candidates(cell) {
                candidate.buried |= candidate.superseded.is_some_and(|since| since < began);
                candidate.at_risk &= candidate.ended.is_none_or(|end| end > began);
            }
            self.forget_buried(cell);
        }
    }

    /// A read begins.
    pub fn begin_read(&mut self, cells: Range<usize>) -> Reading {
        let began = self.tick();
        self.reads.insert(began);
        Reading { cells, began }
    }

    /// A read has failed.
    pub fn abandon_read(&mut self, read: Reading) {
        self.reads.remove(&read.began);
    }

    /// A read has returned `bytes`.
    ///
    /// # Errors
    /// The first cell that has a value that it must not have.
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
        // After a discard nothing is promised until the next write, not even that it stays.
        if list.iter().any(|c| c.visible_to(began) && c.version.is_any() && !c.settled) {
            return Ok(());
        }
        let seen = list.iter().rev().find(|c| {
            c.visible_to(began) && !c.version.is_any() && self.contents.is(cell, c.version, found)
        });
        // Something moved on the cell meanwhile: then the value need not be the last.
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

    /// Contents that were found and are allowed become a candidate of their own.
    fn adopt(&mut self, cell: usize, found: &[u8]) -> Version {
        let number = self.next_number();
        let version = self.contents.keep_odd(number, found);
        let list = self.candidates(cell);
        // Part of it may be in a cache only.
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
            buried: false,
            settled,
            at_risk,
        });
        version
    }

    /// A quiet read has seen `seen`: the other values are out of sight from now on.
    fn collapse(&mut self, cell: usize, seen: Version, now: Tick) {
        let list = self.candidates(cell);
        if list.len() == 1 {
            return;
        }
        let settled = list.iter().any(|c| c.version == seen && c.settled);
        list.retain(|c| c.version == seen || !(settled && c.settled));
        for candidate in list.iter_mut().filter(|c| c.version != seen) {
            candidate.superseded.get_or_insert(now);
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
                let settled = if c.settled { ", survived a cut" } else { "" };
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

    /// The cells that touch a byte range.
    pub fn cells_of(&self, bytes: &Range<u64>) -> Range<usize> {
        let size = self.cell_bytes() as u64;
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(self.count);
        index(bytes.start / size)..index(bytes.end.div_ceil(size))
    }
}

#[cfg(test)]
mod tests;
