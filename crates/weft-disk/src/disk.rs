//! The face of a disk.
//!
//! What a disk promises, and no more:
//! * A write that has completed is seen by every read that starts after it, but may be lost, wholly
//!   or in part (torn at sectors), in a power cut until a [`Disk::flush`] that *started* after the
//!   write completed has itself completed. A write with `fua` is durable when it completes, and so
//!   is every write to a disk without a volatile cache ([`DiskInfo::volatile_cache`]).
//! * Requests in flight at the same time have no order; overlapping ones give any mixture.
//! * Offsets, lengths and memory must be aligned to [`DiskInfo::sector_bytes`].

use std::future::Future;
use std::io;
use std::pin::Pin;

use weft_rt::{Buf, Frozen};

use crate::{Counters, DiskError, DiskOp};

/// Future of a disk operation. Boxed, because disks of all kinds stand side by side in an array.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Future of a read: how it ended, and the caller's buffer, which always comes back.
pub type ReadFuture<'a, E = DiskError> = IoFuture<'a, (Result<(), E>, Buf)>;

/// Future of an operation that gives nothing back but how it ended.
pub type DoneFuture<'a, E = DiskError> = IoFuture<'a, Result<(), E>>;

/// Who waits for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A user's request that other users wait for as well: metadata.
    Urgent,
    /// A user's request.
    User,
    /// Rebuild, resync, scrub.
    Maintenance,
}

/// How a write is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOpts {
    /// Who waits for it.
    pub class: Class,
    /// Force unit access: durable when it completes.
    pub fua: bool,
}

impl WriteOpts {
    /// A plain write for a user.
    pub const USER: Self = Self { class: Class::User, fua: false };
    /// A plain write for maintenance.
    pub const MAINTENANCE: Self = Self { class: Class::Maintenance, fua: false };
    /// A user's write that is durable when it completes.
    pub const USER_FUA: Self = Self { class: Class::User, fua: true };
}

/// What is fixed about an open disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskInfo {
    /// What a person calls it: the path or URI it was opened by.
    pub name: String,
    /// Size in bytes when it was opened, a multiple of `sector_bytes`; see [`Disk::size_now`].
    pub size_bytes: u64,
    /// Smallest unit of a request, in bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// Whether [`Disk::write_zeroes`] is much cheaper than writing zeros (a file's hole, an
    /// SSD's deallocation), so that clearing a whole disk takes seconds.
    pub fast_zeroes: bool,
    /// Whether a completed write may be lost in a power cut until it is flushed. A disk without a
    /// volatile cache keeps what it has acknowledged.
    pub volatile_cache: bool,
    /// Whether it is known to have rotating platters. If this is unknown, it counts as not.
    pub rotational: bool,
}

impl DiskInfo {
    /// Refuses a request that reaches beyond the end, or is not made of whole sectors.
    ///
    /// # Errors
    /// Of kind [`DiskErrorKind::Invalid`](crate::DiskErrorKind::Invalid).
    pub fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        self.check_within(self.size_bytes, op, offset, len)
    }

    /// As [`DiskInfo::check`], for a disk that has `size_bytes` now.
    ///
    /// # Errors
    /// As [`DiskInfo::check`].
    pub fn check_within(
        &self,
        size_bytes: u64,
        op: DiskOp,
        offset: u64,
        len: u64,
    ) -> Result<(), DiskError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= size_bytes);
        // A sector's size is a power of two.
        let unaligned = (offset | len) & (u64::from(self.sector_bytes) - 1);
        if inside && unaligned == 0 {
            return Ok(());
        }
        let what = if inside { "not aligned to sectors" } else { "beyond the end of the disk" };
        let source = io::Error::new(io::ErrorKind::InvalidInput, what);
        Err(DiskError::new(&self.name, op, offset, len, source))
    }
}

/// A disk: an array of sectors that can fail.
///
/// Futures are lazy and may be dropped: a started operation then runs on unobserved, its
/// buffer owned by the driver until it completes.
pub trait Disk {
    /// What is fixed about it.
    fn info(&self) -> &DiskInfo;

    /// Fills `buf` from `offset` (bytes). The buffer comes back also when the read fails; its
    /// contents are then unspecified.
    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_>;

    /// Writes `data` at `offset` (bytes).
    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_>;

    /// Makes every write durable that completed before this call.
    fn flush(&self) -> DoneFuture<'_>;

    /// Makes `len` bytes from `offset` read as zeros; may deallocate them.
    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_>;

    /// Tells the disk that `len` bytes from `offset` are not needed; their contents are
    /// unspecified afterwards. A disk without the ability succeeds and does nothing.
    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_>;

    /// The first byte from `offset` on that may hold data; `None` if all that follows was never
    /// written, and reads as zeros. A disk that cannot tell holds data everywhere.
    fn next_data(&self, offset: u64) -> Option<u64> {
        (offset < self.info().size_bytes).then_some(offset)
    }

    /// Its size in bytes now: that of [`Disk::info`], or more if it was enlarged since it was
    /// opened. Requests may go as far.
    fn size_now(&self) -> u64 {
        self.info().size_bytes
    }

    /// Whether it was cut short since it was opened, as far as that can be seen without a request:
    /// requests fail, with [`DiskErrorKind::Shrunk`](crate::DiskErrorKind::Shrunk) where they meet
    /// that. A disk that cannot tell says no.
    fn has_shrunk(&self) -> bool {
        false
    }

    /// What went through it; `None` if it does not count.
    fn counters(&self) -> Option<Counters> {
        None
    }

    /// Its owner has severed it: requests in progress end with an error as soon as possible, later
    /// ones fail. What was started may still be carried out. A disk that always answers need do
    /// nothing.
    fn sever(&self, _why: &str) {}
}
