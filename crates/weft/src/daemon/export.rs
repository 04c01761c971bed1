//! An array as NBD clients and the FUSE file see it.

use weft_array::{Array, ArrayError};
use weft_disk::{DoneFuture, ReadFuture};
use weft_nbd::proto::{BlockSizes, Errno};
use weft_nbd::{Export, ExportError, Extent};
use weft_rt::{Buf, Frozen};

/// An array to serve.
#[derive(Debug)]
pub struct ArrayExport {
    array: Array,
    description: String,
    read_only: bool,
}

impl ArrayExport {
    /// Serves `array`.
    pub fn new(array: Array, read_only: bool) -> Self {
        let status = array.status();
        let description = format!("weft array {} ({})", status.name, status.code);
        Self { array, description, read_only }
    }
}

fn export_error(error: ArrayError) -> ExportError {
    let errno = match error.root() {
        ArrayError::OutOfRange { .. } => Errno::Invalid,
        ArrayError::ReadOnly => Errno::Perm,
        ArrayError::NoSpace { .. } => Errno::NoSpace,
        ArrayError::Stopped => Errno::Shutdown,
        _ => Errno::Io,
    };
    ExportError::new(errno, error)
}

impl Export for ArrayExport {
    fn size_bytes(&self) -> u64 {
        self.array.size_bytes()
    }

    fn block_sizes(&self) -> BlockSizes {
        // Any byte may be written, and what is not whole blocks is read first.
        let preferred = u32::try_from(self.array.block_bytes()).unwrap_or(4096).max(4096);
        BlockSizes { min: 1, preferred, ..BlockSizes::default() }
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn zero_granularity(&self) -> u64 {
        self.array.region_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, ExportError> {
        Box::pin(async move {
            let (result, buf) = self.array.read(offset, buf).await;
            (result.map_err(export_error), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, ExportError> {
        Box::pin(async move { self.array.write(offset, data, fua).await.map_err(export_error) })
    }

    fn flush(&self) -> DoneFuture<'_, ExportError> {
        Box::pin(async move { self.array.flush().await.map_err(export_error) })
    }

    fn trim(&self, offset: u64, len: u64) -> DoneFuture<'_, ExportError> {
        Box::pin(async move { self.array.discard(offset, len).await.map_err(export_error) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_trim: bool,
    ) -> DoneFuture<'_, ExportError> {
        Box::pin(async move {
            self.array.write_zeroes(offset, len, fua, may_trim).await.map_err(export_error)
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> Vec<Extent> {
        let extents = self.array.allocation(offset, len).unwrap_or_default();
        let extent = |e: &weft_array::Extent| Extent { len: e.len, hole: e.hole, zero: e.hole };
        let extents: Vec<Extent> = extents.iter().map(extent).collect();
        if extents.is_empty() { vec![Extent::data(len)] } else { extents }
    }
}
