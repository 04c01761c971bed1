//! One request of a trace.

use std::fmt;

use serde::Serialize;

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// Make everything written durable; has no address.
    Flush,
    /// Discard the bytes.
    Trim,
}

impl Op {
    /// The letter that weft's own format uses: `R`, `W`, `F`, `T`.
    pub const fn letter(self) -> char {
        match self {
            Self::Read => 'R',
            Self::Write => 'W',
            Self::Flush => 'F',
            Self::Trim => 'T',
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
        })
    }
}

/// One request. `offset + len` never overflows in what a reader or generator gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Record {
    /// When it was issued, in nanoseconds since the first request of the trace.
    pub at_ns: u64,
    /// Which volume (SPC: ASU; MSR: disk; blkparse: `major << 20 | minor`).
    pub device: u32,
    /// Byte offset on that volume.
    pub offset: u64,
    /// Length in bytes; 0 for a flush, never 0 otherwise.
    pub len: u64,
    /// The operation.
    pub op: Op,
}

impl Record {
    /// The end: the offset after the last byte.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}
