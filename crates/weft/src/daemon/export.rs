//! An array as NBD clients and the FUSE file see it.

use std::rc::Rc;

use weft_array::{Array, ArrayError};
use weft_disk::{DoneFuture, ReadFuture};
use weft_nbd::proto::{BlockSizes, Errno};
use weft_nbd::{Export, ExportError, Extent};
use weft_rt::{Buf, Frozen};

use crate::daemon::isolation::{Isolated, Isolation};

/// An array to serve.
pub struct ArrayExport {
    array: Array,
    isolation: Rc<Isolation>,
    size_bytes: u64,
    description: String,
    read_only: bool,
}

impl ArrayExport {
    /// Serves `array`, which is behind `isolation`.
    pub fn new(array: Array, isolation: Rc<Isolation>, read_only: bool) -> Self {
        let status = array.status();
        let description = format!("weft array {} ({})", status.name, status.code);
        let size_bytes = array.size_bytes();
        Self { array, isolation, size_bytes, description, read_only }
    }

    /// Carries out a request, unless the array has failed.
    fn done<'a>(
        &'a self,
        work: impl Future<Output = Result<(), ArrayError>> + 'a,
    ) -> DoneFuture<'a, ExportError> {
        Box::pin(async move {
            self.isolation.guard(work).await.map_err(isolated)?.map_err(export_error)
        })
    }
}

fn isolated(error: Isolated) -> ExportError {
    ExportError::new(Errno::Io, error)
}

fn export_error(error: ArrayError) -> ExportError {
    let errno = match error.root() {
        ArrayError::OutOfRange { .. } => Errno::Invalid,
        ArrayError::ReadOnly => Errno::Perm,
        ArrayError::Stopped | ArrayError::Unclean { .. } => Errno::Shutdown,
        _ => Errno::Io,
    };
    ExportError::new(errno, error)
}

impl Export for ArrayExport {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        // Any byte may be written; the array first reads what is not whole blocks.
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
            let len = buf.len();
            match self.isolation.guard(self.array.read(offset, buf)).await {
                Ok((result, buf)) => (result.map_err(export_error), buf),
                // The request still holds the buffer, and may still be in flight.
                Err(error) => (Err(isolated(error)), Buf::zeroed(len)),
            }
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, ExportError> {
        self.done(self.array.write(offset, data, fua))
    }

    fn flush(&self) -> DoneFuture<'_, ExportError> {
        self.done(self.array.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> DoneFuture<'_, ExportError> {
        self.done(self.array.discard(offset, len))
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_trim: bool,
    ) -> DoneFuture<'_, ExportError> {
        self.done(self.array.write_zeroes(offset, len, fua, may_trim))
    }

    fn block_status(&self, offset: u64, len: u64) -> Vec<Extent> {
        let extents = self.isolation.call(|| self.array.allocation(offset, len));
        let extents = extents.ok().and_then(Result::ok).unwrap_or_default();
        let extent = |e: &weft_array::Extent| Extent { len: e.len, hole: e.hole, zero: e.hole };
        let extents: Vec<Extent> = extents.iter().map(extent).collect();
        if extents.is_empty() { vec![Extent::data(len)] } else { extents }
    }
}
