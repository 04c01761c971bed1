//! An array as a [`Disk`], so that a trace can be replayed to it.

use std::io;

use weft_array::{Array, ArrayError};
use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Target {
    array: Array,
    info: DiskInfo,
}

impl Target {
    pub(crate) fn new(array: Array) -> Self {
        let info = DiskInfo {
            name: "array".into(),
            size_bytes: array.size_bytes(),
            sector_bytes: u32::try_from(array.block_bytes()).expect("512 or 4096"),
            fast_zeroes: false,
        };
        Self { array, info }
    }

    fn error(&self, op: DiskOp, offset: u64, len: u64, error: ArrayError) -> DiskError {
        DiskError::new(&self.info.name, op, offset, len, io::Error::other(error))
    }
}

impl Disk for Target {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len() as u64;
            let (result, buf) = self.array.read(offset, buf).await;
            (result.map_err(|e| self.error(DiskOp::Read, offset, len, e)), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let len = data.len() as u64;
            let result = self.array.write(offset, data, opts.fua).await;
            result.map_err(|e| self.error(DiskOp::Write, offset, len, e))
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(
            async move { self.array.flush().await.map_err(|e| self.error(DiskOp::Flush, 0, 0, e)) },
        )
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let result = self.array.write_zeroes(offset, len, opts.fua, false).await;
            result.map_err(|e| self.error(DiskOp::WriteZeroes, offset, len, e))
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            let result = self.array.discard(offset, len).await;
            result.map_err(|e| self.error(DiskOp::Discard, offset, len, e))
        })
    }
}
