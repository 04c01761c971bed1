//! A disk in memory: for benchmarks of everything above the disk, and for tests.
//!
//! Operations complete at once, in the caller's own turn; contents are lost with the process.

use std::cell::RefCell;

use weft_rt::{Buf, Frozen};

use crate::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};

/// A disk in memory.
pub struct RamDisk {
    info: DiskInfo,
    bytes: RefCell<Vec<u8>>,
}

impl std::fmt::Debug for RamDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RamDisk").field("info", &self.info).finish_non_exhaustive()
    }
}

impl RamDisk {
    /// A disk of `size_bytes` zeros with sectors of `sector_bytes`.
    ///
    /// # Panics
    /// If the size does not fit this machine's address space.
    pub fn new(name: &str, size_bytes: u64, sector_bytes: u32) -> Self {
        let size_bytes = size_bytes - size_bytes % u64::from(sector_bytes);
        let len = usize::try_from(size_bytes).expect("a RAM disk fits the address space");
        Self {
            info: DiskInfo {
                name: name.to_owned(),
                size_bytes,
                sector_bytes,
                fast_zeroes: true,
                volatile_cache: false,
                rotational: false,
            },
            bytes: RefCell::new(vec![0; len]),
        }
    }

    /// Makes it larger, as a file below an array may become. What is new reads as zeros.
    ///
    /// # Panics
    /// As [`RamDisk::new`].
    pub fn enlarge(&self, size_bytes: u64) {
        let size_bytes = size_bytes - size_bytes % u64::from(self.info.sector_bytes);
        let len = usize::try_from(size_bytes).expect("a RAM disk fits the address space");
        let bytes = &mut *self.bytes.borrow_mut();
        bytes.resize(len.max(bytes.len()), 0);
    }

    fn range(
        &self,
        op: DiskOp,
        offset: u64,
        len: u64,
    ) -> Result<std::ops::Range<usize>, DiskError> {
        self.info.check_within(self.size_now(), op, offset, len)?;
        let index = |n: u64| usize::try_from(n).expect("inside a disk in memory");
        Ok(index(offset)..index(offset + len))
    }
}

impl Disk for RamDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let result = self
                .range(DiskOp::Read, offset, buf.len() as u64)
                .map(|range| buf.copy_from_slice(&self.bytes.borrow()[range]));
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let range = self.range(DiskOp::Write, offset, data.len() as u64)?;
            self.bytes.borrow_mut()[range].copy_from_slice(&data);
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let range = self.range(DiskOp::WriteZeroes, offset, len)?;
            self.bytes.borrow_mut()[range].fill(0);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move { self.range(DiskOp::Discard, offset, len).map(drop) })
    }

    fn size_now(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }
}
