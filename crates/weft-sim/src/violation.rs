//! Violations: what a run reports. A canary counts as caught only by a violation that it can cause.

use std::ops::Range;

/// The kind of a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationKind {
    /// A read returned bytes that the oracle does not allow.
    WrongRead,
    /// Block status called something a hole that does not read as zeros.
    BlockStatus,
    /// A request failed that had to succeed.
    RequestFailed,
    /// An array that is lost acknowledged a write.
    FalseAcknowledgement,
    /// The engine refused to assemble an array from enough disks.
    AssemblyRefused,
    /// The engine started disks that may be stale without being forced to.
    StaleAssembly,
    /// The engine refused a command, or the command failed.
    CommandFailed,
    /// A scrub reported a mismatch that must not be there, missed one, or located one that it
    /// cannot locate.
    Scrub,
    /// The engine's jobs did not end.
    NeverSettles,
    /// The engine panicked, or hung in virtual time.
    Panic,
    /// Two runs of one seed differed.
    NotRepeatable,
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its kind.
    pub kind: ViolationKind,
    /// What was expected and what happened.
    pub text: String,
    /// The byte range of the volume that it concerns.
    pub place: Option<Range<u64>>,
}

impl Violation {
    /// A violation that concerns no particular range.
    pub(crate) fn new(kind: ViolationKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), place: None }
    }
}
