//! An array as NBD clients and the FUSE file see it: through the boundary around it.

use std::rc::Rc;

use weft_disk::{
    AllocationRange, DoneFuture, IoFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind,
    VolumeInfo,
};
use weft_rt::{Buf, Frozen};

use crate::daemon::isolation::{Isolated, Isolation};

/// A volume with its isolation: a request fails if the volume has failed, or fails during the
/// request.
pub struct GuardedVolume {
    volume: Rc<dyn Volume>,
    isolation: Rc<Isolation>,
}

impl GuardedVolume {
    /// Guards `volume` with `isolation`.
    pub fn new(volume: Rc<dyn Volume>, isolation: Rc<Isolation>) -> Self {
        Self { volume, isolation }
    }

    fn done<'a>(
        &'a self,
        work: IoFuture<'a, Result<(), VolumeError>>,
    ) -> DoneFuture<'a, VolumeError> {
        Box::pin(async move { self.isolation.guard(work).await.map_err(failed)? })
    }
}

fn failed(isolated: Isolated) -> VolumeError {
    VolumeError::new(VolumeErrorKind::Failed, isolated)
}

impl Volume for GuardedVolume {
    fn inner(&self) -> Option<&dyn Volume> {
        Some(&*self.volume)
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        let len = buf.len();
        let work = self.volume.read(offset, buf);
        Box::pin(async move {
            match self.isolation.guard(work).await {
                Ok(done) => done,
                // The request still holds the buffer, and may still be in flight.
                Err(isolated) => (Err(failed(isolated)), Buf::zeroed(len)),
            }
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        self.done(self.volume.write(offset, data, fua))
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        self.done(self.volume.flush())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        self.done(self.volume.write_zeroes(offset, len, fua, may_deallocate))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        self.done(self.volume.discard(offset, len))
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<AllocationRange>, VolumeError> {
        self.isolation.call(|| self.volume.allocation(offset, len)).map_err(failed)?
    }

    fn read_cost(&self, offset: u64, len: u64) -> Option<u64> {
        self.isolation.call(|| self.volume.read_cost(offset, len)).ok()?
    }

    fn failure_domain(&self, offset: u64) -> usize {
        self.isolation.call(|| self.volume.failure_domain(offset)).unwrap_or(0)
    }

    fn note_cached_read(&self, offset: u64, len: u64) {
        let _ = self.isolation.call(|| self.volume.note_cached_read(offset, len));
    }
}
