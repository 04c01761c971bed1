//! What a run can find, by kind: a canary counts as caught only for the violation that it causes.

use std::ops::Range;

/// What kind of expectation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A read returned what must not be there.
    WrongRead,
    /// A request failed that had to succeed.
    RequestFailed,
    /// A write was acknowledged by an array that is lost.
    FalseAcknowledgement,
    /// An array was not assembled from disks that suffice.
    AssemblyRefused,
    /// Disks that may be stale were started by themselves.
    StaleAssembly,
    /// A command was refused, or failed.
    CommandFailed,
    /// A scrub found what must not be, missed what was there, or claims more than it can know.
    Scrub,
    /// Jobs did not end.
    NeverSettles,
    /// The engine panicked, or hung in virtual time.
    Panic,
    /// Two runs of one seed went differently.
    NotRepeatable,
}

/// A failed expectation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Its kind.
    pub kind: Violation,
    /// What was expected and what happened.
    pub text: String,
    /// Byte range of the volume that it is about.
    pub place: Option<Range<u64>>,
}

impl Broken {
    /// One that is about no place.
    pub(crate) fn new(kind: Violation, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), place: None }
    }
}
