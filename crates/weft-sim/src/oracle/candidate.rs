//! What a cell may hold, and what it may have held at a crash.

use super::content::Version;

/// A logical instant.
pub type Tick = u64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) version: Version,
    pub(super) began: Tick,
    /// When its write ended; `None` while in flight.
    pub(super) ended: Option<Tick>,
    pub(super) acknowledged: bool,
    /// Since when reads that begin must not see it.
    pub(super) superseded: Option<Tick>,
    /// It cannot come back through a crash either; only a read that began before may still see it.
    pub(super) buried: bool,
    /// It survived a power cut: the disks hold it (or not), no cache does.
    pub(super) settled: bool,
    /// It was written and is not known to be durable: a crash may change what the disks hold of it.
    pub(super) at_risk: bool,
}

impl Candidate {
    pub(super) fn visible_to(&self, read_began: Tick) -> bool {
        self.superseded.is_none_or(|since| since > read_began)
    }
}

/// A cell that was cut, as it was then.
#[derive(Debug, Clone, Default)]
pub(super) struct CutCell {
    /// The last crash that cut it.
    pub(super) at: Tick,
    /// All that it could have been at these crashes.
    pub(super) known: Vec<Candidate>,
}

impl CutCell {
    pub(super) fn learn(&mut self, candidates: Vec<Candidate>) {
        for candidate in candidates {
            match self.known.iter_mut().find(|other| other.version == candidate.version) {
                Some(known) => known.at_risk |= candidate.at_risk,
                None => self.known.push(candidate),
            }
        }
    }
}

/// A cell that was being written at a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The cell.
    pub cell: usize,
    /// The crash.
    pub at: Tick,
    /// When the first of the writes began that were not known to be durable.
    pub began: Tick,
}
