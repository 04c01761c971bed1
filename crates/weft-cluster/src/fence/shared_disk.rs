//! A disk that several nodes share through one server, which enforces fences.
//!
//! Each node gets a [`SharedVolume`] that names its incarnation with every request. A fence raises
//! the disk's bound, makes it durable, and waits for requests in flight (see `gate.rs`).
//!
//! *A second server*, on another machine that reaches the disk, is kept away by a claim in the
//! disk's head (see `claim.rs`). A server that finds another's claim is deposed: it hands nothing
//! to the disk any more, and confirms no fence.
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
use std::rc::{Rc, Weak};

use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DoneFuture, ReadFuture, Volume, VolumeError,
    VolumeErrorKind, VolumeInfo, WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, Nanos, Rt};

use super::claim::{BEAT, Check, Claim, HOLD, Taken, WAIT};
use super::gate::{Bounds, BoundsFull, Gate, Refusal};
use super::head::{HEAD_BYTES, Head, HeadError, Kept};
use super::lease_turns::LeaseTurns;
use super::session::{DiskState, Session};
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
    /// It has something else where leases would lie, or is too small for them.
    #[error(
        "{0} has no room for leases: something else is at its start, where `weft fs create --cluster disks` \
         puts them"
    )]
    NoLeases(String),
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
    /// The server's number.
    server: u64,
    claim: Cell<Claim>,
    /// One beat at a time.
    beating: Semaphore,
    /// Until when the claim holds.
    alive_until: Cell<Nanos>,
    /// From when on: it was late, and another server may not have found out yet.
    serves_from: Cell<Nanos>,
    held: Notify,
    state: Cell<ServerState>,
    lease_turns: Rc<LeaseTurns>,
}

/// Whether the server may hand requests to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerState {
    Serves,
    /// Another server serves the disk.
    Deposed,
    /// It has given the disk back.
    Closed,
}

impl std::fmt::Debug for SharedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.disk.info().name;
        f.debug_struct("SharedDisk").field("disk", name).field("gate", &self.gate).finish()
    }
}

impl SharedDisk {
    /// Opens a disk that was prepared, with the fences that it has kept, as the server of this
    /// number, which is random. It takes half a second, or some seconds if the server before did
    /// not give it back with [`close`](Self::close).
    ///
    /// # Errors
    /// It is not prepared, another server serves it, or it failed.
    pub async fn open(
        rt: &Rt,
        disk: Rc<dyn Disk>,
        server: u64,
    ) -> Result<Rc<Self>, SharedDiskError> {
        // Nothing is written to a disk that was not prepared.
        let kept = Head::read(&*disk).await?;
        let (taken, head, bounds) = begin(rt, &*disk, server, kept.generation).await?;
        let Taken { claim, at, is_late } = taken;
        let shared = Rc::new(Self {
            is_claimed: Cell::new(bounds.cluster.is_some()),
            rt: rt.clone(),
            disk,
            gate: Rc::new(Gate::new(bounds)),
            head: RefCell::new(head),
            storing: Semaphore::new(1),
            fenced: Notify::default(),
            server,
            claim: Cell::new(claim),
            beating: Semaphore::new(1),
            alive_until: Cell::new(at + HOLD),
            serves_from: Cell::new(if is_late { at + WAIT } else { 0 }),
            held: Notify::default(),
            state: Cell::new(ServerState::Serves),
            lease_turns: Rc::default(),
        });
        drop(rt.spawn(live(rt.clone(), Rc::downgrade(&shared))));
        Ok(shared)
    }

    /// Gives the disk back: the next server need not wait. Nothing is handed to the disk any more.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn close(&self) -> Result<(), SharedDiskError> {
        let _one = self.beating.acquire(1).await;
        if self.state.replace(ServerState::Closed) == ServerState::Serves {
            self.held.notify_all();
            let mut claim = self.claim.get();
            claim.give_back(&*self.disk).await?;
        }
        Ok(())
    }

    fn depose(&self) {
        if self.state.get() == ServerState::Serves {
            self.state.set(ServerState::Deposed);
            self.fenced.notify_all();
            self.held.notify_all();
        }
    }

    fn served(&self) -> HeadError {
        HeadError::Served(self.disk.info().name.clone())
    }

    /// Waits until another server serves the disk.
    pub async fn deposed(&self) {
        loop {
            let held = self.held.wait();
            if self.state.get() == ServerState::Deposed {
                return;
            }
            held.await;
        }
    }

    /// Shows that the server lives; takes the claim again if it was late.
    async fn beat(&self) -> Result<(), HeadError> {
        let _one = self.beating.acquire(1).await;
        if self.state.get() != ServerState::Serves {
            return Ok(());
        }
        let start = self.rt.now();
        if start >= self.alive_until.get() {
            return self.take_again().await;
        }
        let mut claim = self.claim.get();
        let check = claim.beat(&*self.disk).await?;
        self.claim.set(claim);
        if check == Check::Foreign {
            return Err(self.served());
        }
        if self.rt.now() < self.alive_until.get() {
            self.alive_until.set(start + HOLD);
            self.held.notify_all();
        }
        Ok(())
    }

    /// Claims the disk after beats that were late, with the fences that it keeps by then.
    async fn take_again(&self) -> Result<(), HeadError> {
        self.serves_from.set(Nanos::MAX);
        let above = self.claim.get().generation;
        let _one = self.storing.acquire(1).await;
        let (taken, head, bounds) = begin(&self.rt, &*self.disk, self.server, above).await?;
        self.claim.set(taken.claim);
        *self.head.borrow_mut() = head;
        self.gate.join(&bounds);
        self.fenced.notify_all();
        self.alive_until.set(taken.at + HOLD);
        self.serves_from.set(taken.at + WAIT);
        Ok(())
    }

    /// Waits until the server's claim holds. To be called before a request is handed to the disk.
    pub(super) async fn hold(&self) -> Result<(), HeadError> {
        loop {
            let held = self.held.wait();
            if self.state.get() != ServerState::Serves {
                return Err(self.served());
            }
            let now = self.rt.now();
            if now < self.alive_until.get() && now >= self.serves_from.get() {
                return Ok(());
            }
            held.await;
        }
    }

    /// Its fences and requests in flight.
    pub fn gate(&self) -> &Rc<Gate> {
        &self.gate
    }

    pub(super) fn rt(&self) -> &Rt {
        &self.rt
    }

    /// The disk itself, with what it keeps for itself.
    pub(super) fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Who writes its leases.
    pub(super) fn lease_turns(&self) -> &Rc<LeaseTurns> {
        &self.lease_turns
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
        self.claim_for(cluster, who).await?;
        self.gate.check(who)?;
        Ok(SharedVolume { disk: self.clone(), who: Some(who.clone()), session: 0 })
    }

    /// As [`SharedDisk::open_as`], in a session that follows earlier ones. Returns when none of
    /// their requests can be carried out any more.
    ///
    /// # Errors
    /// Those of [`SharedDisk::open_as`], or another session has the disk.
    pub async fn open_session(
        self: &Rc<Self>,
        cluster: &ClusterName,
        who: &Incarnation,
        session: Session,
    ) -> Result<SharedVolume, SharedDiskError> {
        self.claim_for(cluster, who).await?;
        self.gate.begin_session(who, session)?;
        // Connections of earlier sessions end.
        self.fenced.notify_all();
        self.gate.settled(who, session.number).await;
        // What comes late must not come after requests of a later server.
        self.hold().await?;
        self.gate.check_in(who, session.number)?;
        Ok(SharedVolume { disk: self.clone(), who: Some(who.clone()), session: session.number })
    }

    /// Which disk it is, and whose.
    pub fn state(&self) -> DiskState {
        let disk = self.gate.bounds().disk.unwrap_or_default();
        DiskState { disk, server: self.server, generation: self.claim.get().generation }
    }

    /// What a program sees that only reads the disk, and is no node.
    pub fn open_read_only(self: &Rc<Self>) -> SharedVolume {
        SharedVolume { disk: self.clone(), who: None, session: 0 }
    }

    async fn claim_for(
        &self,
        cluster: &ClusterName,
        who: &Incarnation,
    ) -> Result<(), SharedDiskError> {
        if who.epoch == Epoch::default() || who.epoch == Epoch(u64::MAX) {
            return Err(SharedDiskError::NoEpoch(who.epoch));
        }
        self.belong_to(cluster).await
    }

    /// It belongs to this cluster, from now on if it belonged to none.
    pub(super) async fn belong_to(&self, cluster: &ClusterName) -> Result<(), SharedDiskError> {
        if self.state.get() != ServerState::Serves {
            return Err(self.served().into());
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

    /// Makes the bounds durable as they are by then. Succeeds only if the disk has this server's
    /// claim afterwards.
    async fn store(&self) -> Result<(), HeadError> {
        let _one = self.storing.acquire(1).await;
        self.check_claim().await?;
        let bounds = self.gate.bounds();
        let mut head = *self.head.borrow();
        let result = head.store(&*self.disk, &bounds).await;
        *self.head.borrow_mut() = head;
        result?;
        self.check_claim().await
    }

    async fn check_claim(&self) -> Result<(), HeadError> {
        if self.state.get() == ServerState::Serves
            && self.claim.get().check(&*self.disk).await? == Check::Own
        {
            return Ok(());
        }
        self.depose();
        Err(self.served())
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
        self.claim_for(cluster, victim).await?;
        self.gate.refuse(victim)?;
        self.fenced.notify_all();
        self.hold().await?;
        self.store().await?;
        self.gate.drained(&victim.node).await;
        // The nodes of another server, which has not found out yet, write until then.
        Ok(self.hold().await?)
    }

    /// Waits until `who` is refused in a session, or another server serves the disk. Tells which.
    pub async fn refused(&self, who: &Incarnation, session: u64) -> String {
        loop {
            let fenced = self.fenced.wait();
            if self.gate.check(who).is_err() {
                return format!("{who} was fenced");
            }
            if let Err(refusal) = self.gate.check_in(who, session) {
                return refusal.to_string();
            }
            if self.state.get() == ServerState::Deposed {
                return self.served().to_string();
            }
            fenced.await;
        }
    }

    /// Reads from what nodes see, in whole sectors or parts of them.
    pub(super) async fn read_at(
        &self,
        offset: u64,
        mut buf: Buf,
    ) -> (Result<(), VolumeError>, Buf) {
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
    /// The number of its session; 0: none.
    session: u64,
}

/// Whether a request may still be carried out although it failed.
pub(super) fn is_unanswered(error: &DiskError) -> bool {
    matches!(error.kind, DiskErrorKind::Gone | DiskErrorKind::TimedOut)
}

fn refused(refusal: Refusal) -> VolumeError {
    VolumeError::new(VolumeErrorKind::Stopped, refusal)
}

pub(super) fn failed(error: HeadError) -> VolumeError {
    VolumeError::new(VolumeErrorKind::Failed, error)
}

/// Claims a disk, and writes what it keeps as this server's. Nothing is written that may come when
/// another server has the disk.
async fn begin(
    rt: &Rt,
    disk: &dyn Disk,
    server: u64,
    above: u64,
) -> Result<(Taken, Head, Bounds), HeadError> {
    loop {
        let taken = Claim::take(rt, disk, server, above).await?;
        let Kept { mut bounds, .. } = Head::read(disk).await?;
        // Random, as the server's is.
        bounds.disk.get_or_insert(server);
        if rt.now() < taken.at + HOLD {
            let mut head = Head::new(taken.claim.generation);
            head.store(disk, &bounds).await?;
            return Ok((taken, head, bounds));
        }
    }
}

/// Shows that a server lives, as long as it does.
async fn live(rt: Rt, disk: Weak<SharedDisk>) {
    loop {
        rt.sleep(BEAT).await;
        let Some(disk) = disk.upgrade() else { return };
        if disk.state.get() != ServerState::Serves {
            return;
        }
        // A disk that fails or is slow gets no requests until a beat succeeds.
        if let Err(HeadError::Served(_)) = disk.beat().await {
            disk.depose();
        }
    }
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
            self.disk.hold().await.map_err(failed)?;
            let in_flight = self.disk.gate.admit_in(who, self.session).map_err(refused)?;
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
                && let Err(refusal) = self.disk.gate.check_in(who, self.session)
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
