//! The array: its parts, and what holds them together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use futures_util::future::join_all;
use weft_code::{Plan, PlanCache, Undecodable, UnitSet};
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::sync::Semaphore;
use weft_rt::{BUF_ALIGN, Frozen, Rt};

use crate::error::ArrayError;
use crate::events::{Event, Events};
use crate::geometry::Geometry;
use crate::locks::StripeLocks;
use crate::log::Log;
use crate::members::{Members, Refusal};
use crate::no_room::Wanting;
use crate::region_map::{MapError, MapStore, MapStoreError, RegionMap, StoreFuture, WriteGuard};
use crate::superblock::{SlotState, SuperblockError};
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

/// Plans kept per array.
const PLANS: usize = 1024;

pub(crate) struct Inner {
    pub rt: Rt,
    pub geometry: Geometry,
    pub members: Members,
    pub map: RegionMap,
    pub locks: StripeLocks,
    pub pending: RefCell<BTreeMap<u64, Vec<Pending>>>,
    pub log: Option<Log>,
    pub wanting: Wanting,
    pub budget: Semaphore,
    pub events: Events,
    pub jobs: crate::jobs::Jobs,
    /// All data units are copies of one.
    pub mirrored: bool,
    /// Users' repairs go around deep queues.
    pub goes_around: Cell<bool>,
    /// All members read as zeros where regions are unwritten.
    pub zeroed: Cell<bool>,
    pub read_only: Cell<bool>,
    pub stopped: Cell<bool>,
    /// Why the array takes no writes any more.
    pub broken: RefCell<Option<String>>,
    /// The slots whose loss broke it.
    pub broken_slots: Cell<UnitSet>,
    /// Redundancy remaining, with the incomplete slots that it was computed for.
    pub remaining: Cell<Option<(UnitSet, Option<usize>)>>,
    pub plans: RefCell<PlanCache>,
    pub me: Weak<Inner>,
}

/// What became of a disk that failed.
enum TakenOut {
    /// It is out of its slot.
    Now,
    /// It was out already.
    Before,
    /// It is the one that was too many: the array is broken.
    Essential,
}

impl Inner {
    /// An owning handle, for tasks.
    pub fn handle(&self) -> Rc<Self> {
        self.me.upgrade().expect("a method runs on a living array")
    }

    pub fn new_budget() -> Semaphore {
        Semaphore::new(BUDGET_BYTES)
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

    /// A disk failed an operation. On return it is durably excluded – or, if it is a member that
    /// the code cannot do without, the array has stopped taking writes and its metadata is left as
    /// it was.
    pub async fn member_failed(&self, slot: usize, disk: &Rc<dyn Disk>, error: &DiskError) {
        self.exclude(slot, disk, &error.to_string()).await;
    }

    pub async fn exclude(&self, slot: usize, disk: &Rc<dyn Disk>, cause: &str) {
        match self.take_out(slot, disk, cause) {
            TakenOut::Now => {
                // In a task of its own: others rely on this commit, so it must go on if whoever met
                // the failure is dropped.
                let array = self.handle();
                let commit = async move {
                    array.commit_members().await;
                    array.jobs.wake();
                };
                self.rt.spawn(commit).await;
            }
            // Somebody else saw it first; what relies on it must wait for their commit.
            TakenOut::Before => drop(self.members.turn_to_commit().await),
            TakenOut::Essential => {}
        }
    }

    /// Takes a failed disk out, in memory; [`Inner::commit_members`] must follow. What is under way
    /// on it ends, however long the disk itself would take: who waits for it holds locks, log and
    /// memory that others need.
    fn take_out(&self, slot: usize, disk: &Rc<dyn Disk>, cause: &str) -> TakenOut {
        let name = disk.info().name.clone();
        let cause = cause.to_owned();
        if self.members.holds(slot, disk) && self.members.copying(slot).is_none() {
            // One that has just taken the place of another gives it back, if it is not too late.
            self.members.unswap_in(slot);
        }
        if let Some((_, lane)) = self.members.take_beside(slot, disk) {
            disk.sever(&cause);
            if let Some(lane) = lane {
                self.map.end_lane(lane);
                self.events.emit(Event::ReplacementFailed { slot, disk: name, cause });
            }
            return TakenOut::Now;
        }
        if !self.members.holds(slot, disk) {
            return TakenOut::Before;
        }
        // A broken array's metadata stays as it was when it broke.
        if self.broken.borrow().is_some() || self.cannot_spare(slot) {
            self.set_broken(UnitSet::one(slot), &cause);
            return TakenOut::Essential;
        }
        self.empty_slot(slot);
        disk.sever(&cause);
        self.events.emit(Event::MemberFailed { slot, disk: name, cause });
        TakenOut::Now
    }

    /// Writes the membership to all members, excluding those that fail to take it. A change that
    /// would leave too few of the members that were active before does not take effect: those left
    /// out could later be taken for the array ([`may_take_effect`]). The array is then broken.
    pub async fn commit_members(&self) {
        loop {
            // Whoever had the turn before may have lost members, or found the array broken.
            let turn = self.members.turn_to_commit().await;
            if self.read_only.get() || self.broken.borrow().is_some() {
                return;
            }
            if let Err(cause) = self.members.check_majority() {
                // A member may be replaced some other time.
                if self.members.unswap() {
                    continue;
                }
                self.set_broken(UnitSet::new(), &cause);
                return;
            }
            let failed = self.members.commit(turn).await;
            let again = !failed.is_empty() || self.members.needs_two_majorities();
            if !self.take_out_all(failed) || !again {
                return;
            }
        }
    }

    /// Excludes, in memory, members that failed to take a superblock. False if the array is broken.
    pub fn take_out_all(&self, failed: Vec<Refusal>) -> bool {
        for (slot, disk, error) in failed {
            let SuperblockError::Disk(error) = error else {
                // No member's fault, and nothing was written: what stands on the members is good.
                self.set_broken(UnitSet::new(), &error.to_string());
                return false;
            };
            if let TakenOut::Essential = self.take_out(slot, &disk, &error.to_string()) {
                return false;
            }
        }
        true
    }

    /// Empties a slot, or leaves it to its member's replacement, in memory;
    /// [`Inner::commit_members`] must follow.
    pub fn empty_slot(&self, slot: usize) {
        if self.members.promote(slot) {
            return;
        }
        if let Some(staged) = self.members.beside(slot)
            && let Some((spare, Some(lane))) = self.members.take_beside(slot, &staged)
        {
            self.map.end_lane(lane);
            self.members.spares.borrow_mut().push(spare);
        }
        if let SlotState::Rebuilding { lane } = self.members.state(slot) {
            self.map.end_lane(lane);
        }
        if let Some(log) = &self.log {
            log.forget_ring(slot);
        }
        self.members.set_missing(slot);
    }

    pub fn set_broken(&self, slots: UnitSet, cause: &str) {
        self.broken_slots.set(self.broken_slots.get().union(&slots));
        let mut broken = self.broken.borrow_mut();
        if broken.is_none() {
            *broken = Some(cause.to_owned());
            drop(broken);
            self.events.emit(Event::ArrayBroken { cause: cause.to_owned() });
        }
    }

    /// Marks a region as being written, durably, for as long as the guard lives.
    pub async fn begin_write(&self, region: u64) -> Result<WriteGuard<'_>, ArrayError> {
        self.map.begin_write(self, region).await.map_err(|error| match error {
            MapError::Store(MapStoreError::NoSpace { disk }) => ArrayError::NoSpace { disk },
            error => error.into(),
        })
    }

    /// Makes every write durable that was acknowledged before this call.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        if self.stopped.get() {
            return Err(ArrayError::Stopped);
        }
        self.flush_members().await;
        self.retire_others().await;
        match &*self.broken.borrow() {
            Some(cause) => Err(ArrayError::Broken { cause: cause.clone() }),
            None => Ok(()),
        }
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

    /// Flushes all members; one that fails to is excluded. Retires what the log holds.
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
        if let (Some(log), Some(mark), true) = (&self.log, mark, self.broken.borrow().is_none()) {
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
