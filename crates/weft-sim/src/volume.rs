//! The interface between the clients and the volume under test.

use std::future::Future;
use std::pin::Pin;

use weft_rt::{Buf, Frozen};

/// A future that a volume returns.
pub type VolumeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A volume: bytes at offsets, with flushes. Errors are text because they are only shown.
pub trait Volume {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads `buf.len()` bytes.
    fn read(&self, offset: u64, buf: Buf) -> VolumeFuture<'_, (Result<(), String>, Buf)>;

    /// Writes; with `fua` the data is durable on completion.
    fn write(&self, offset: u64, data: Frozen, fua: bool) -> VolumeFuture<'_, Result<(), String>>;

    /// Makes all completed writes durable.
    fn flush(&self) -> VolumeFuture<'_, Result<(), String>>;

    /// Makes a range read as zeros.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> VolumeFuture<'_, Result<(), String>>;

    /// Declares that a range is no longer needed.
    fn discard(&self, offset: u64, len: u64) -> VolumeFuture<'_, Result<(), String>>;
}
