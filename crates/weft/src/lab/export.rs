//! A disk as an NBD export.

use std::rc::Rc;

use weft_disk::{Class, Disk, DiskError, DiskErrorKind, DoneFuture, ReadFuture, WriteOpts};
use weft_nbd::proto::{BlockSizes, Errno};
use weft_nbd::{Export, ExportError};
use weft_rt::{Buf, Frozen};

/// A disk to serve.
pub struct DiskExport {
    disk: Rc<dyn Disk>,
    description: String,
}

impl DiskExport {
    /// Serves `disk`.
    pub fn new(disk: Rc<dyn Disk>, description: String) -> Self {
        Self { disk, description }
    }
}

impl DiskExport {
    /// Reads parts of sectors, for programs that inspect the file.
    async fn read_part(
        &self,
        offset: u64,
        mut buf: Buf,
        sector: u64,
    ) -> (Result<(), ExportError>, Buf) {
        let before = usize::try_from(offset % sector).unwrap_or(0);
        let sector_len = usize::try_from(sector).unwrap_or(1);
        let whole = Buf::new((before + buf.len()).next_multiple_of(sector_len));
        let (result, whole) = self.disk.read(offset - offset % sector, whole, Class::User).await;
        let len = buf.len();
        buf.copy_from_slice(&whole[before..before + len]);
        (result.map_err(export_error), buf)
    }
}

fn export_error(error: DiskError) -> ExportError {
    let errno = match error.kind {
        DiskErrorKind::Invalid => Errno::Invalid,
        DiskErrorKind::NoSpace => Errno::NoSpace,
        DiskErrorKind::Medium
        | DiskErrorKind::Gone
        | DiskErrorKind::TimedOut
        | DiskErrorKind::Other => Errno::Io,
    };
    ExportError::new(errno, error)
}

fn opts(fua: bool) -> WriteOpts {
    WriteOpts { fua, ..WriteOpts::USER }
}

impl Export for DiskExport {
    fn size_bytes(&self) -> u64 {
        self.disk.info().size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { min: self.disk.info().sector_bytes, preferred: 4096, ..BlockSizes::default() }
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn fast_zeroes(&self) -> bool {
        self.disk.info().fast_zeroes
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, ExportError> {
        let sector = u64::from(self.disk.info().sector_bytes);
        let len = buf.len() as u64;
        Box::pin(async move {
            if offset.is_multiple_of(sector) && len.is_multiple_of(sector) {
                let (result, buf) = self.disk.read(offset, buf, Class::User).await;
                return (result.map_err(export_error), buf);
            }
            self.read_part(offset, buf, sector).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, ExportError> {
        Box::pin(
            async move { self.disk.write(offset, data, opts(fua)).await.map_err(export_error) },
        )
    }

    fn flush(&self) -> DoneFuture<'_, ExportError> {
        Box::pin(async move { self.disk.flush().await.map_err(export_error) })
    }

    fn trim(&self, offset: u64, len: u64) -> DoneFuture<'_, ExportError> {
        Box::pin(async move { self.disk.discard(offset, len).await.map_err(export_error) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        _may_trim: bool,
    ) -> DoneFuture<'_, ExportError> {
        Box::pin(async move {
            self.disk.write_zeroes(offset, len, opts(fua)).await.map_err(export_error)
        })
    }
}
