//! The export: what a server serves.

use weft_disk::{DoneFuture, ReadFuture};
use weft_rt::{Buf, Frozen};

use crate::proto::{BlockSizes, Errno};

/// A failed operation of an export, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExportError {
    /// The protocol's error.
    pub errno: Errno,
    /// For people; clients with structured replies see it.
    pub message: String,
}

impl ExportError {
    /// An error with the cause as its message.
    pub fn new(errno: Errno, cause: impl std::fmt::Display) -> Self {
        Self { errno, message: cause.to_string() }
    }
}

/// A run of bytes of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Not allocated.
    pub hole: bool,
    /// Reads as zeros for certain.
    pub zero: bool,
}

impl Extent {
    /// Allocated, of unknown contents.
    pub fn data(len: u64) -> Self {
        Self { len, hole: false, zero: false }
    }
}

/// A block device to serve. Many requests run at the same time.
///
/// Ranges are checked before (inside the size, aligned to the minimum block, not longer than the
/// largest payload for data), and an export that is read-only gets no writes. The promises
/// are those of NBD with several connections: a write that has completed is seen by every read
/// that starts after it, on any connection, and a flush makes everything durable that
/// completed before it, likewise.
///
/// A client that vanishes does not cancel what was started: futures run to their end. Only of a
/// trim or zeros that were cut into pieces the rest is not begun.
pub trait Export {
    /// Size in bytes; a client learns it when it connects.
    fn size_bytes(&self) -> u64;

    /// Block sizes. The server lowers the largest payload to its own bound.
    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// A sentence for people who list the exports.
    fn description(&self) -> String {
        String::new()
    }

    /// Trims and zeros are cut at multiples of this many bytes, and each piece is carried out by
    /// itself. A range that is freed in whole units should not be cut within one.
    fn zero_granularity(&self) -> u64 {
        64 << 20
    }

    /// Whether [`Export::write_zeroes`] is always much faster than writing zeros. If not, a client
    /// that asks for zeros only if they come fast is refused.
    fn fast_zeroes(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset` (bytes). The buffer comes back also if the read fails.
    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, ExportError>;

    /// Writes `data` at `offset` (bytes); with `fua` it is durable when it completes. The memory
    /// is page-aligned.
    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, ExportError>;

    /// Makes durable what completed before.
    fn flush(&self) -> DoneFuture<'_, ExportError>;

    /// `len` bytes from `offset` are no longer needed; what they read as is undefined.
    fn trim(&self, offset: u64, len: u64) -> DoneFuture<'_, ExportError>;

    /// `len` bytes from `offset` read as zeros afterwards; `may_trim` allows deallocation.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_trim: bool,
    ) -> DoneFuture<'_, ExportError>;

    /// The states of `len` bytes from `offset`, in order. They may cover less (but something)
    /// or more than was asked for.
    fn block_status(&self, _offset: u64, len: u64) -> Vec<Extent> {
        vec![Extent::data(len)]
    }
}
