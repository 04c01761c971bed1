//! A disk that several nodes share through one server, which enforces fences.
//!
//! Each node gets a [`SharedVolume`] that names its incarnation with every request. A fence raises
//! the disk's bound, makes it durable, and waits for what is in flight (see `gate.rs`).
//!
//! *A server that dies.* Its requests in flight may still reach the disk. They keep the disk's
//! file open in the kernel, and the disk has one owner at a time ([`weft_disk::FileDisk`]): so the
//! next server can open it only when they have ended, and a fence that it confirms holds for them
//! too.
//!
//! *A request that got no answer* (a time limit below, a disk that is gone) may still be carried
//! out. It stays in flight, so that fences of its node are not confirmed. So there should be no
//! time limit below: the node that waits for the fence has one.
//!
//! *A disk that fails.* If the bound cannot be made durable the fence is not confirmed, and the
//! disk is of no use to the cluster until it is. The bound holds in memory nevertheless.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DoneFuture, ReadFuture, Volume, VolumeError,
    VolumeErrorKind, VolumeInfo, WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, Rt};

use super::gate::{BoundsFull, Gate, Refusal};
use super::head::{HEAD_BYTES, Head, HeadError};
use crate::{ClusterName, Epoch, Incarnation};

/// Why a shared disk cannot be used, or did not confirm a fence.
#[derive(Debug, thiserror::Error)]
pub enum SharedDiskError {
    /// Its head cannot be used.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The caller was fenced.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no room for another node's fence.
    #[error(transparent)]
    Full(#[from] BoundsFull),
    /// It belongs to another cluster.
    #[error("the disk belongs to cluster {found}, not to {wanted}")]
    WrongCluster {
        /// Whose it is.
        found: ClusterName,
        /// Who asked.
        wanted: ClusterName,
    },
    /// No coordinator gives this epoch.
    #[error("{0} is not an epoch: they are counted from 1")]
    NoEpoch(Epoch),
}

/// A disk and its fences.
pub struct SharedDisk {
    rt: Rt,
    disk: Rc<dyn Disk>,
    gate: Rc<Gate>,
    head: RefCell<Head>,
    /// Bounds are made durable one after the other.
    storing: Semaphore,
    /// Whether the cluster is known to be durable.
    is_claimed: Cell<bool>,
    fenced: Notify,
}

impl std::fmt::Debug for SharedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.disk.info().name;
        f.debug_struct("SharedDisk").field("disk", name).field("gate", &self.gate).finish()
    }
}

impl SharedDisk {
    /// Opens a disk that was prepared, with the fences that it has kept. The caller is its only
    /// user.
    ///
    /// # Errors
    /// It is not prepared, or failed.
    pub async fn open(rt: &Rt, disk: Rc<dyn Disk>) -> Result<Rc<Self>, SharedDiskError> {
        let (head, bounds) = Head::open(&*disk).await?;
        let is_claimed = Cell::new(bounds.cluster.is_some());
        Ok(Rc::new(Self {
            is_claimed,
            rt: rt.clone(),
            disk,
            gate: Rc::new(Gate::new(bounds)),
            head: RefCell::new(head),
            storing: Semaphore::new(1),
            fenced: Notify::default(),
        }))
    }

    /// Its fences and requests in flight.
    pub fn gate(&self) -> &Rc<Gate> {
        &self.gate
    }

    /// What nodes see of it, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.disk.info().size_bytes - HEAD_BYTES
    }

    /// What a node sees of the disk. A disk that belongs to no cluster belongs to `cluster` from
    /// then on.
    ///
    /// # Errors
    /// The node was fenced, or the disk belongs to another cluster.
    pub async fn open_as(
        self: &Rc<Self>,
        cluster: &ClusterName,
        who: &Incarnation,
    ) -> Result<SharedVolume, SharedDiskError> {
        self.claim(cluster, who).await?;
        self.gate.check(who)?;
        Ok(SharedVolume { disk: self.clone(), who: Some(who.clone()) })
    }

    /// What a program sees that only reads the disk, and is no node.
    pub fn open_read_only(self: &Rc<Self>) -> SharedVolume {
        SharedVolume { disk: self.clone(), who: None }
    }

    async fn claim(&self, cluster: &ClusterName, who: &Incarnation) -> Result<(), SharedDiskError> {
        if who.epoch == Epoch::default() || who.epoch == Epoch(u64::MAX) {
            return Err(SharedDiskError::NoEpoch(who.epoch));
        }
        let owner = self.gate.bounds().cluster;
        match owner {
            Some(owner) if owner == *cluster => {}
            Some(found) => {
                return Err(SharedDiskError::WrongCluster { found, wanted: cluster.clone() });
            }
            None => self.gate.set_cluster(cluster),
        }
        if !self.is_claimed.get() {
            self.store().await?;
            self.is_claimed.set(true);
        }
        Ok(())
    }

    /// Makes the bounds durable as they are by then.
    async fn store(&self) -> Result<(), DiskError> {
        let _one = self.storing.acquire(1).await;
        let bounds = self.gate.bounds();
        let mut head = Head { sequence: self.head.borrow().sequence };
        let result = head.store(&*self.disk, &bounds).await;
        self.head.borrow_mut().sequence = head.sequence;
        result
    }

    /// Refuses `victim` and earlier incarnations of its node, for ever. Returns when that is
    /// durable and none of their requests is in flight.
    ///
    /// # Errors
    /// The fence is not confirmed: the disk failed, has no room, or belongs to another cluster.
    pub async fn fence(
        &self,
        cluster: &ClusterName,
        victim: &Incarnation,
    ) -> Result<(), SharedDiskError> {
        self.claim(cluster, victim).await?;
        self.gate.refuse(victim)?;
        self.fenced.notify_all();
        self.store().await?;
        self.gate.drained(&victim.node).await;
        Ok(())
    }

    /// Waits until `who` is refused.
    pub async fn refused(&self, who: &Incarnation) {
        loop {
            let fenced = self.fenced.wait();
            if self.gate.check(who).is_err() {
                return;
            }
            fenced.await;
        }
    }

    /// Reads from what nodes see, in whole sectors or parts of them.
    async fn read_at(&self, offset: u64, mut buf: Buf) -> (Result<(), VolumeError>, Buf) {
        let sector = self.disk.info().sector_bytes as usize;
        let offset = offset + HEAD_BYTES;
        if offset.is_multiple_of(sector as u64) && buf.len().is_multiple_of(sector) {
            let (result, buf) = self.disk.read(offset, buf, Class::User).await;
            return (result.map_err(Into::into), buf);
        }
        let before = usize::try_from(offset % sector as u64).expect("below the sector's size");
        let whole = Buf::new((before + buf.len()).next_multiple_of(sector));
        let (result, whole) = self.disk.read(offset - before as u64, whole, Class::User).await;
        let len = buf.len();
        buf.copy_from_slice(&whole[before..before + len]);
        (result.map_err(Into::into), buf)
    }
}

/// A shared disk as one incarnation uses it.
#[derive(Debug, Clone)]
pub struct SharedVolume {
    disk: Rc<SharedDisk>,
    /// `None`: it only reads.
    who: Option<Incarnation>,
}

/// Whether a request may still be carried out although it failed.
fn is_unanswered(error: &DiskError) -> bool {
    matches!(error.kind, DiskErrorKind::Gone | DiskErrorKind::TimedOut)
}

fn refused(refusal: Refusal) -> VolumeError {
    VolumeError::new(VolumeErrorKind::Stopped, refusal)
}

impl SharedVolume {
    /// Runs a request that changes the disk. It is in flight until it has ended, also if its
    /// future is dropped.
    fn change<'a>(
        &'a self,
        request: impl AsyncFnOnce(&dyn Disk) -> Result<(), DiskError> + 'static,
    ) -> DoneFuture<'a, VolumeError> {
        Box::pin(async move {
            let Some(who) = &self.who else {
                let cause = "name a node and its epoch to write: DISK/CLUSTER/NODE/EPOCH";
                return Err(VolumeError::new(VolumeErrorKind::ReadOnly, cause));
            };
            let in_flight = self.disk.gate.admit(who).map_err(refused)?;
            let disk = self.disk.disk.clone();
            let run = move || async move {
                let result = request(&*disk).await;
                match &result {
                    Err(error) if is_unanswered(error) => in_flight.stay(),
                    _ => drop(in_flight),
                }
                result
            };
            Ok(self.disk.rt.attach(run).await?)
        })
    }
}

impl Volume for SharedVolume {
    fn info(&self) -> VolumeInfo {
        let disk = self.disk.disk.info();
        VolumeInfo {
            align_bytes: disk.sector_bytes,
            block_bytes: disk.sector_bytes,
            fast_zeroes: disk.fast_zeroes,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            if let Some(who) = &self.who
                && let Err(refusal) = self.disk.gate.check(who)
            {
                return (Err(refused(refusal)), buf);
            }
            self.disk.read_at(offset, buf).await
        })
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

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        self.change(async move |disk| disk.discard(offset + HEAD_BYTES, len).await)
    }
}
