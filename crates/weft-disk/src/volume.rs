//! The face of a volume: what serves blocks to users, and what users ask for blocks.
//!
//! A [`Disk`](crate::Disk) is what redundancy is built from: it fails, and requests to it are whole
//! sectors. A volume is the result: an array, or a single disk taken as it is
//! ([`DiskVolume`](crate::DiskVolume)). Servers, the block device, replays and the simulator know
//! no more of it than this.
//!
//! What a volume promises:
//! * A write that has completed is seen by every read that starts after it. It may be lost in a
//!   crash until a [`Volume::flush`] that *started* after it has completed; with `fua` it is
//!   durable when it completes.
//! * Many requests run at the same time, and have no order among them.
//! * A failed write leaves old or new bytes in its range, and changes nothing outside it.
//! * What was started runs to its end, also if its future is dropped.

use std::error::Error;
use std::rc::Weak;

use weft_rt::{Buf, Frozen};

use crate::{DiskError, DiskErrorKind, DoneFuture, ReadFuture, ZEROES_BYTES_MAX};

/// What is fixed about a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Offsets and lengths of requests are multiples of it, in bytes; 1: any range will do.
    pub align_bytes: u32,
    /// Writes of whole blocks of this many bytes read nothing around them.
    pub block_bytes: u32,
    /// Whether [`Volume::write_zeroes`] is always much faster than writing zeros.
    pub fast_zeroes: bool,
}

/// A range of a volume that is all data or all hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationRange {
    /// Its length in bytes.
    pub len: u64,
    /// Whether it was never written, or was deallocated, and reads as zeros.
    pub hole: bool,
}

/// What kind of failure it is: what a user does next depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeErrorKind {
    /// The range is beyond the end, or not aligned: a bug of the user.
    Invalid,
    /// The volume takes no writes, as its owner wants it.
    ReadOnly,
    /// The volume has been stopped.
    Stopped,
    /// There is no room left below it.
    NoSpace,
    /// This range cannot be read; other requests may be.
    Unreadable,
    /// Anything else: the volume, or a layer below it, has failed.
    Failed,
}

/// A failed request to a volume.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct VolumeError {
    /// What kind it is.
    pub kind: VolumeErrorKind,
    /// The volume's own error.
    pub cause: Box<dyn Error + Send + Sync>,
}

impl VolumeError {
    /// An error of this kind.
    pub fn new(kind: VolumeErrorKind, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, cause: cause.into() }
    }
}

impl From<DiskError> for VolumeError {
    fn from(error: DiskError) -> Self {
        let kind = match error.kind {
            DiskErrorKind::Invalid => VolumeErrorKind::Invalid,
            DiskErrorKind::NoSpace => VolumeErrorKind::NoSpace,
            DiskErrorKind::Medium => VolumeErrorKind::Unreadable,
            DiskErrorKind::Fenced => VolumeErrorKind::Stopped,
            DiskErrorKind::Gone
            | DiskErrorKind::Shrunk
            | DiskErrorKind::TimedOut
            | DiskErrorKind::Other => VolumeErrorKind::Failed,
        };
        Self::new(kind, error)
    }
}

/// What is known above a volume of its contents: a cache. A volume that must reconstruct the data
/// read uses it in place of disks.
pub trait CachedContents {
    /// Whether the contents of `len` bytes from `offset` are known: the bytes that a read which
    /// starts now would return.
    fn holds(&self, offset: u64, len: usize) -> bool;

    /// These contents.
    fn contents(&self, offset: u64, len: usize) -> Option<Frozen>;

    /// A read at `offset` was reconstructed with such contents, and so asked the disks for this
    /// many bytes less than [`Volume::read_cost`] tells.
    fn note_spared(&self, offset: u64, bytes: u64);
}

/// A volume of blocks.
pub trait Volume {
    /// The volume that this one stands on, if it is a layer above one. What this one does not say
    /// for itself, that one does: all methods that are not required.
    fn inner(&self) -> Option<&dyn Volume> {
        None
    }

    /// What is fixed about it.
    fn info(&self) -> VolumeInfo;

    /// Its size in bytes now. When it changes, [`Volume::changes`] rises.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from `offset` (bytes). The buffer comes back also if the read fails; its
    /// contents are then unspecified.
    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError>;

    /// Writes `data` at `offset` (bytes); with `fua` it is durable when it completes.
    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError>;

    /// Makes durable what completed before.
    fn flush(&self) -> DoneFuture<'_, VolumeError>;

    /// Makes `len` bytes from `offset` read as zeros; with `may_deallocate` the storage below may
    /// be freed.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError>;

    /// `len` bytes from `offset` are not needed any more; what they read as is unspecified.
    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError>;

    /// Where to cut a long range that is to read as zeros: the end of the piece that contains
    /// `offset`. Space is freed in whole pieces.
    fn zeroes_end(&self, offset: u64) -> u64 {
        let whole = || (offset - offset % ZEROES_BYTES_MAX).saturating_add(ZEROES_BYTES_MAX);
        self.inner().map_or_else(whole, |inner| inner.zeroes_end(offset))
    }

    /// Which parts of `len` bytes from `offset` are data and which are holes: consecutive, and
    /// covering the range. A volume that cannot tell holds data everywhere.
    ///
    /// # Errors
    /// If the range is beyond the end, or the volume has failed.
    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<AllocationRange>, VolumeError> {
        match self.inner() {
            Some(inner) => inner.allocation(offset, len),
            None => Ok(vec![AllocationRange { len, hole: false }]),
        }
    }

    /// How many reads of disks a read of `len` bytes from `offset` would cost now; `None` if they
    /// cannot be read. For callers that choose what to keep: a block that would have to be
    /// reconstructed is worth more than one that is read. What the queues of the disks add is left
    /// out.
    fn read_cost(&self, offset: u64, len: u64) -> Option<u64> {
        match self.inner() {
            Some(inner) => inner.read_cost(offset, len),
            None => Some(u64::from(len > 0)),
        }
    }

    /// The number of failure domains: ranges in the same one are lost together. In an array, its
    /// slots.
    fn failure_domains(&self) -> usize {
        self.inner().map_or(1, |inner| inner.failure_domains())
    }

    /// The failure domain of the byte at `offset`.
    fn failure_domain(&self, offset: u64) -> usize {
        self.inner().map_or(0, |inner| inner.failure_domain(offset))
    }

    /// `len` bytes from `offset` were read without asking the volume, from a cache above it. For
    /// volumes that do something about what is read often.
    fn note_cached_read(&self, offset: u64, len: u64) {
        if let Some(inner) = self.inner() {
            inner.note_cached_read(offset, len);
        }
    }

    /// From now on this is known above the volume.
    fn offer(&self, at_hand: Weak<dyn CachedContents>) {
        if let Some(inner) = self.inner() {
            inner.offer(at_hand);
        }
    }

    /// A number that rises when the volume has changed contents without being asked to: a scrub has
    /// corrected them, or a member was lost before a resync had settled what a crash interrupted. A
    /// cache above it must forget all that it read before.
    fn corrections(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.corrections())
    }

    /// A number that rises as a rebuild makes ranges cheaper to read. Asking costs next to nothing.
    fn rebuilt(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.rebuilt())
    }

    /// A number that rises whenever a member is lost, comes back or is whole again, and when the
    /// size changes. As long as it stays, no range becomes dearer to read except by being written,
    /// while a rebuild makes one after another cheaper. Asking costs next to nothing.
    fn changes(&self) -> u64 {
        self.inner().map_or(0, |inner| inner.changes())
    }
}
