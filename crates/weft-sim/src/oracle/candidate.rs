//! The values that a cell may hold, and may have held at a crash.

use super::content::Version;

/// A logical instant.
pub type Tick = u64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) version: Version,
    pub(super) began: Tick,
    /// When its write ended; `None` while in progress.
    pub(super) ended: Option<Tick>,
    pub(super) acknowledged: bool,
    /// Reads that start after this tick must not return it.
    pub(super) superseded: Option<Tick>,
    /// It cannot return after a crash either; only a read that started earlier may still return it.
    pub(super) unrecoverable: bool,
    /// It survived a power cut: it is on the disks or not, but in no cache.
    pub(super) settled: bool,
    /// It is not known to be durable: a crash may change what the disks hold of it.
    pub(super) at_risk: bool,
}

impl Candidate {
    pub(super) fn visible_to(&self, read_began: Tick) -> bool {
        self.superseded.is_none_or(|since| since > read_began)
    }
}

/// A cell that was being written at a crash.
#[derive(Debug, Clone, Default)]
pub(super) struct CutCell {
    /// The last crash at which it was being written.
    pub(super) at: Tick,
    /// All candidates at these crashes.
    pub(super) known: Vec<Candidate>,
}

impl CutCell {
    pub(super) fn merge(&mut self, candidates: Vec<Candidate>) {
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
    /// When the crash happened.
    pub at: Tick,
    /// When the first write started that was not known to be durable.
    pub began: Tick,
}
