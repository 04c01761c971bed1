//! A single disk as a volume.

use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use crate::{Class, Disk, DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo, WriteOpts};

/// A disk as it is, without redundancy: its errors are the volume's. All requests are users'.
pub struct DiskVolume(Rc<dyn Disk>);

impl std::fmt::Debug for DiskVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DiskVolume").field(&self.0.info().name).finish()
    }
}

impl DiskVolume {
    /// The volume that is `disk`.
    pub fn new(disk: Rc<dyn Disk>) -> Self {
        Self(disk)
    }

    /// Reads parts of sectors, for programs that inspect the disk through a file.
    async fn read_part(
        &self,
        offset: u64,
        mut buf: Buf,
        sector: usize,
    ) -> (Result<(), VolumeError>, Buf) {
        let before = usize::try_from(offset % sector as u64).expect("below the sector's size");
        let whole = Buf::new((before + buf.len()).next_multiple_of(sector));
        let (result, whole) = self.0.read(offset - before as u64, whole, Class::User).await;
        let len = buf.len();
        buf.copy_from_slice(&whole[before..before + len]);
        (result.map_err(Into::into), buf)
    }
}

fn opts(fua: bool) -> WriteOpts {
    WriteOpts { fua, ..WriteOpts::USER }
}

impl Volume for DiskVolume {
    fn info(&self) -> VolumeInfo {
        let disk = self.0.info();
        VolumeInfo {
            align_bytes: disk.sector_bytes,
            block_bytes: disk.sector_bytes,
            fast_zeroes: disk.fast_zeroes,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.0.info().size_bytes
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        let sector = self.0.info().sector_bytes as usize;
        Box::pin(async move {
            if offset.is_multiple_of(sector as u64) && buf.len().is_multiple_of(sector) {
                let (result, buf) = self.0.read(offset, buf, Class::User).await;
                return (result.map_err(Into::into), buf);
            }
            self.read_part(offset, buf, sector).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.0.write(offset, data, opts(fua)).await?) })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.0.flush().await?) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        _may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.0.write_zeroes(offset, len, opts(fua)).await?) })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.0.discard(offset, len).await?) })
    }
}
