//! The leases on a shared disk, as a process uses them that has no epoch yet, or a node
//! (`coordinator/disks.rs`): the first [`AREA_BYTES`] of what nodes see, and no more.
//!
//! They are written without an epoch: who joins gets one by them, and who was fenced must be able
//! to find that out. A disk whose start is used for something else has no leases.

use std::rc::Rc;

use weft_disk::{Disk, DiskError, DoneFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind};
use weft_disk::{VolumeInfo, WriteOpts};
use weft_rt::{Buf, Frozen};

use super::head::HEAD_BYTES;
use super::lease_turns::Turn;
use super::shared_disk::{SharedDisk, SharedDiskError, failed, is_unanswered};
use crate::ClusterName;
use crate::coordinator::disks::{AREA_BYTES, POOL_NODES, is_for_leases};

/// The leases of a disk, as the node of a number writes them.
#[derive(Debug, Clone)]
pub struct LeaseVolume {
    disk: Rc<SharedDisk>,
    turn: Turn,
}

impl LeaseVolume {
    /// Begins to use them. Earlier users of the same number write nothing any more. A disk that
    /// belongs to no cluster belongs to `cluster` from then on.
    ///
    /// # Errors
    /// The disk belongs to another cluster, or has something else there.
    pub async fn open(
        disk: &Rc<SharedDisk>,
        cluster: &ClusterName,
        number: u32,
    ) -> Result<Self, SharedDiskError> {
        let below = disk.below();
        if disk.size_bytes() < AREA_BYTES || !is_for_leases(below, HEAD_BYTES, POOL_NODES).await? {
            return Err(SharedDiskError::NoLeases(below.info().name.clone()));
        }
        disk.belong_to(cluster).await?;
        let turn = disk.lease_turns().take(number).await;
        Ok(Self { disk: disk.clone(), turn })
    }

    /// Waits until another connection has this number, or another server the disk; says which.
    pub(super) async fn ended(&self) -> String {
        let turn = Box::pin(self.turn.ended());
        match futures_util::future::select(turn, Box::pin(self.disk.deposed())).await {
            futures_util::future::Either::Left(_) => "another process uses these leases".to_owned(),
            futures_util::future::Either::Right(_) => "another server serves the disk".to_owned(),
        }
    }

    fn change<'a>(
        &'a self,
        request: impl AsyncFnOnce(&dyn Disk) -> Result<(), DiskError> + 'static,
    ) -> DoneFuture<'a, VolumeError> {
        Box::pin(async move {
            self.disk.hold().await.map_err(failed)?;
            let writing = self.turn.admit().ok_or_else(|| {
                VolumeError::new(VolumeErrorKind::Stopped, "another process uses these leases")
            })?;
            let disk = self.disk.clone();
            let run = move || async move {
                let result = request(disk.below()).await;
                match &result {
                    Err(error) if is_unanswered(error) => writing.stay(),
                    _ => drop(writing),
                }
                result
            };
            Ok(self.disk.rt().attach(run).await?)
        })
    }
}

impl Volume for LeaseVolume {
    fn info(&self) -> VolumeInfo {
        let disk = self.disk.below().info();
        VolumeInfo {
            align_bytes: disk.sector_bytes,
            block_bytes: disk.sector_bytes,
            fast_zeroes: disk.fast_zeroes,
        }
    }

    fn size_bytes(&self) -> u64 {
        AREA_BYTES
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(self.disk.read_at(offset, buf))
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        let opts = WriteOpts { fua, ..WriteOpts::USER };
        self.change(async move |disk| disk.write(offset + HEAD_BYTES, data, opts).await)
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        self.change(async move |disk| disk.flush().await)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        _may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        let opts = WriteOpts { fua, ..WriteOpts::USER };
        self.change(async move |disk| disk.write_zeroes(offset + HEAD_BYTES, len, opts).await)
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_, VolumeError> {
        // What is there is not given up.
        Box::pin(async { Ok(()) })
    }
}
