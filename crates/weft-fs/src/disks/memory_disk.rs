//! A disk in memory that is only read.

use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::format::block::BLOCK_BYTES;

/// A disk of zeros, or of a few bytes that are known and zeros around them. It is only read.
pub(crate) struct Memory {
    info: DiskInfo,
    at: u64,
    bytes: Frozen,
}

impl Memory {
    /// Zeros.
    pub(crate) fn void() -> Self {
        Self::holding(0, Frozen::zeros(0))
    }

    /// These bytes, at this offset.
    pub(crate) fn holding(at: u64, bytes: Frozen) -> Self {
        let info = DiskInfo {
            rotational: false,
            name: "blocks in memory".into(),
            size_bytes: u64::MAX / BLOCK_BYTES * BLOCK_BYTES,
            sector_bytes: 4096,
            fast_zeroes: true,
            volatile_cache: false,
        };
        Self { info, at, bytes }
    }

    fn refuse(&self, op: DiskOp, offset: u64, len: u64) -> DoneFuture<'_> {
        let why = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is only read");
        let error = DiskError::new(&self.info.name, op, offset, len, why);
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Disk for Memory {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        let from = offset.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
        let known = from.and_then(|from| self.bytes.get(from..)).unwrap_or_default();
        let len = known.len().min(buf.len());
        buf[..len].copy_from_slice(&known[..len]);
        buf[len..].fill(0);
        Box::pin(std::future::ready((Ok(()), buf)))
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::Write, offset, data.len() as u64)
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::WriteZeroes, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.refuse(DiskOp::Discard, offset, len)
    }
}
