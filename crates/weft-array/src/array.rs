//! The array: its parts, and what holds them together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use futures_util::future::join_all;
use weft_code::{Margin, Plan, PlanCache, Undecodable, UnitSet};
use weft_disk::WriteOpts;
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{BUF_ALIGN, Frozen, Nanos, Rt, SECOND};

use crate::error::ArrayError;
use crate::events::Events;
use crate::geometry::Geometry;
use crate::locks::StripeLocks;
use crate::log::Log;
use crate::members::Members;
use crate::region_map::{MapStore, MapStoreError, RegionMap, StoreFuture, WriteGuard};
use crate::room::Room;
use crate::write::Pending;

/// Memory for the buffers of stripe operations under way (writes, reconstructions, jobs): what is
/// beyond waits.
pub(crate) const BUDGET_BYTES: usize = 96 << 20;

/// What one operation may take of that. One that would take more is carried out in parts, each a
/// run of offsets in the units: codes work offset by offset.
const OPERATION_BYTES_MAX: usize = BUDGET_BYTES / 2;

/// Buffers that an operation has of each unit, at most. A write: the new data aligned or joined,
/// what was read of the stripe, new parity and its records. A scrub: what was read, parity as it
/// should be.
const BUFFERS_OF_UNIT: usize = 3;

/// What writes may take of the budget together. They may wait for room for a long time, and reads
/// of what is lost must not wait with them.
const WRITE_BUDGET_BYTES: usize = BUDGET_BYTES / 2;

/// Plans kept per array.
const PLANS: usize = 1024;

/// Turns the engine's time into dates.
pub(crate) struct WallClock {
    /// When the array was assembled.
    pub assembled: Nanos,
    /// The same, in seconds since 1970, as the caller gave it.
    pub unix_s: u64,
}

impl WallClock {
    /// A moment in seconds since 1970.
    pub fn unix_s(&self, at: Nanos) -> u64 {
        self.unix_s + at.saturating_sub(self.assembled) / SECOND
    }
}

pub(crate) struct Inner {
    pub rt: Rt,
    pub clock: WallClock,
    pub geometry: Geometry,
    pub members: Members,
    pub map: RegionMap,
    pub locks: StripeLocks,
    pub pending: RefCell<BTreeMap<u64, Vec<Pending>>>,
    pub log: Option<Log>,
    pub room: Room,
    pub budget: Semaphore,
    /// What writes may take of it.
    pub write_budget: Semaphore,
    pub events: Events,
    pub jobs: crate::jobs::Jobs,
    /// All data units are copies of one.
    pub mirrored: bool,
    /// Users' repairs go around deep queues.
    pub load_aware_reconstruction: Cell<bool>,
    /// All members read as zeros where regions are unwritten.
    pub zeroed: Cell<bool>,
    pub read_only: Cell<bool>,
    pub stopped: Cell<bool>,
    /// Why the array takes no writes any more.
    pub broken: RefCell<Option<String>>,
    /// The slots whose loss broke it.
    pub broken_slots: Cell<UnitSet>,
    /// Redundancy remaining, with the incomplete slots that it was computed for.
    pub remaining: Cell<Option<(UnitSet, Option<Margin>)>>,
    pub plans: RefCell<PlanCache>,
    pub me: Weak<Inner>,
}

impl Inner {
    /// An owning handle, for tasks.
    pub fn handle(&self) -> Rc<Self> {
        self.me.upgrade().expect("a method runs on a living array")
    }

    pub fn new_budget() -> Semaphore {
        Semaphore::new(BUDGET_BYTES)
    }

    pub fn new_write_budget() -> Semaphore {
        Semaphore::new(WRITE_BUDGET_BYTES)
    }

    pub fn new_plans() -> RefCell<PlanCache> {
        RefCell::new(PlanCache::new(PLANS))
    }

    /// The memory that a stripe operation over a run of `len` offsets in the units takes, at most.
    /// Buffers are powers of two.
    pub fn memory_of(&self, len: usize) -> usize {
        let buffer = len.min(self.run_max()).next_power_of_two().max(BUF_ALIGN);
        BUFFERS_OF_UNIT * self.geometry.code.width() * buffer
    }

    /// The longest run of offsets in the units that a stripe operation may work on at a time.
    pub fn run_max(&self) -> usize {
        let most = OPERATION_BYTES_MAX / (BUFFERS_OF_UNIT * self.geometry.code.width());
        (1 << most.ilog2()).min(self.geometry.unit_len())
    }

    /// The runs of offsets, with their lengths, in which an operation goes over whole units.
    pub fn runs(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (unit, most) = (self.geometry.unit_len(), self.run_max());
        (0..unit).step_by(most).map(move |from| (from as u64, most.min(unit - from)))
    }

    /// Waits for memory for a write over a run of `len` offsets.
    pub async fn write_memory(&self, len: usize) -> (Permit, Permit) {
        let bytes = self.memory_of(len);
        let of_writes = self.write_budget.acquire(bytes.min(WRITE_BUDGET_BYTES)).await;
        (of_writes, self.budget.acquire(bytes).await)
    }

    pub fn check_range(&self, offset: u64, len: u64) -> Result<(), ArrayError> {
        let size = self.geometry.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(ArrayError::OutOfRange { offset, len, size }),
        }
    }

    pub fn check_writable(&self) -> Result<(), ArrayError> {
        if self.stopped.get() {
            return Err(ArrayError::Stopped);
        }
        if self.read_only.get() {
            return Err(ArrayError::ReadOnly);
        }
        self.check_whole()
    }

    /// Whether the array is not broken.
    pub fn check_whole(&self) -> Result<(), ArrayError> {
        match &*self.broken.borrow() {
            Some(cause) => Err(ArrayError::Broken { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    pub fn plan(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        at_hand: UnitSet,
    ) -> Result<Arc<Plan>, Undecodable> {
        self.plans.borrow_mut().plan(&self.geometry.code, stripe, lost, wanted, at_hand)
    }

    /// As [`Inner::plan`] with nothing at hand, but `unit` is read only if it must be.
    pub fn plan_without(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        unit: usize,
    ) -> Result<Arc<Plan>, Undecodable> {
        let (code, dear) = (&self.geometry.code, UnitSet::one(unit));
        let mut plans = self.plans.borrow_mut();
        plans.plan_avoiding(code, stripe, lost, wanted, UnitSet::new(), dear)
    }

    /// Marks a region as being written, durably, for as long as the guard lives.
    pub async fn begin_write(&self, region: u64) -> Result<WriteGuard<'_>, ArrayError> {
        Ok(self.map.begin_write(self, region).await?)
    }

    /// Makes every write durable that was acknowledged before this call.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        if self.stopped.get() {
            return Err(ArrayError::Stopped);
        }
        self.flush_members().await;
        self.retire_others().await;
        self.check_whole()
    }

    /// Waits until every record is retired that leaves out units written by others, as those are
    /// durable now and it could not restore them (`log.rs`).
    async fn retire_others(&self) {
        if let Some(log) = &self.log {
            self.retire_up_to(log, log.others_seq()).await;
        }
    }

    /// Waits until every record made so far is retired.
    pub async fn retire_all(&self) {
        if let Some(log) = &self.log {
            self.retire_up_to(log, log.newest_seq()).await;
        }
    }

    async fn retire_up_to(&self, log: &Log, seq: u64) {
        while !log.is_retired(seq) && self.broken.borrow().is_none() {
            let progress = log.progress();
            if log.completed_below() > seq {
                self.flush_members().await;
            } else {
                progress.await;
            }
        }
    }

    /// Flushes all members; one that fails to is excluded. Retires what the log holds. On return
    /// what was flushed is durable, unless the array is broken: those that were not asked are
    /// excluded, too.
    pub async fn flush_members(&self) {
        let mark = self.log.as_ref().map(Log::mark);
        let flushes = self.members.all_disks().into_iter().map(|(slot, disk)| async move {
            let result = disk.flush().await;
            (slot, disk, result)
        });
        for (slot, disk, result) in join_all(flushes).await {
            if let Err(error) = result {
                self.member_failed(slot, &disk, &error).await;
            }
        }
        let settled = self.settled().await;
        if let (Some(log), Some(mark), Ok(())) =
            (&self.log, mark, settled.and_then(|()| self.check_whole()))
        {
            log.flushed(mark);
        }
    }
}

/// The region map's way to the members: pages go to all of them, with FUA. A member that cannot
/// take one is excluded, and the page is as durable as the array is.
impl MapStore for Inner {
    fn write_page(&self, offset: u64, page: Frozen) -> StoreFuture<'_> {
        Box::pin(async move {
            let writes = self.members.all_disks().into_iter().map(|(slot, disk)| {
                let page = page.clone();
                async move {
                    let result = disk.write(offset, page, WriteOpts::USER_FUA).await;
                    result.err().map(|error| (slot, disk, error))
                }
            });
            for (slot, disk, error) in join_all(writes).await.into_iter().flatten() {
                self.member_failed(slot, &disk, &error).await;
            }
            // It is not on members that were taken out before, either.
            let _ = self.settled().await;
            self.durable_or_broken()
        })
    }

    fn flush_data(&self) -> StoreFuture<'_> {
        Box::pin(async move {
            self.flush_members().await;
            self.durable_or_broken()
        })
    }

    fn zero_region(&self, region: u64) -> StoreFuture<'_> {
        Box::pin(async move {
            self.zero_units(self.geometry.stripes_of(region)).await?;
            self.durable_or_broken()
        })
    }
}

impl Inner {
    /// Whether metadata that was just written is as durable as the array can make it.
    fn durable_or_broken(&self) -> Result<(), MapStoreError> {
        match &*self.broken.borrow() {
            Some(cause) => Err(MapStoreError::Refused(cause.clone())),
            None => Ok(()),
        }
    }
}
