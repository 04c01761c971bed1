//! The array: its parts, how a change of its members takes effect, and what a stripe is now.

pub(crate) mod label_repair;
pub(crate) mod losses;
pub(crate) mod membership;
pub(crate) mod new_members;
pub(crate) mod resolve;
pub(crate) mod runs;
pub(crate) mod status;
pub(crate) mod torn;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use futures_util::future::join_all;
use weft_code::{Margin, SLOTS_MAX, SlotSet};
use weft_disk::{CachedContents, Disk, DiskError};
use weft_rt::sync::Permit;
use weft_rt::{BUF_ALIGN, Nanos, Rt, SECOND};
use weft_stripe::{Generation, StripeId};

use crate::engine::torn::TornStripe;
use crate::error::ArrayError;
use crate::geometry::Geometry;
use crate::geometry::border::Geometries;
use crate::log::Log;
use crate::maintenance::Jobs;
use crate::members::Members;
use crate::region_map::{RegionMap, RegionNo, WriteGuard};
use crate::state::budget::Budget;
use crate::state::events::Events;
use crate::state::moving_range::MovingRange;
use crate::state::observer::ObserverCell;
use crate::state::pending_writes::PendingWrites;
use crate::state::service::Service;
use crate::state::space_waits::SpaceWaits;
use crate::state::stripe_locks::StripeLocks;

/// Memory for the buffers of stripe operations in progress (writes, reconstructions, jobs); further
/// operations wait.
pub(crate) const BUDGET_BYTES: usize = 96 << 20;

/// The part of it that one operation may take. A larger operation is carried out in parts, each a
/// range of offsets in the units: codes work on each offset separately.
pub(crate) const OPERATION_BYTES_MAX: usize = BUDGET_BYTES / 2;

/// Most buffers that an operation needs per unit. A write: new data aligned or joined, units read
/// of the stripe, new parity and its records. A scrub: what was read, and the recomputed parity.
const BUFFERS_OF_UNIT: usize = 3;

/// The part of the budget that writes may take together. Writes may wait a long time for space, and
/// reads of lost units must not wait with them.
const WRITE_BUDGET_BYTES: usize = BUDGET_BYTES / 2;

/// Converts the engine's time to dates.
pub(crate) struct WallClock {
    /// When the array was assembled, in the engine's time.
    assembled: Nanos,
    /// The start of the clock in seconds since 1970, as given by the caller.
    unix_s: u64,
}

impl WallClock {
    /// The clock of an array that is assembled now: `assembled` in the engine's time, `unix_s`
    /// seconds since 1970.
    pub fn new(assembled: Nanos, unix_s: u64) -> Self {
        Self { assembled, unix_s }
    }

    /// When the array was assembled, in the engine's time.
    pub fn assembled(&self) -> Nanos {
        self.assembled
    }

    /// A moment of the engine's time in seconds since 1970.
    pub fn unix_s(&self, at: Nanos) -> u64 {
        self.unix_s + at.saturating_sub(self.assembled) / SECOND
    }
}

/// The array grows, until this is dropped.
pub(crate) struct Growing<'a>(&'a Cell<bool>);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// What decides the redundancy remaining: the slots that lack some of their units, and the
/// geometries that hold data.
pub(crate) type RemainingOf = (SlotSet, (Generation, Option<Generation>));

/// An array while it runs. Its parts are private: each has a method that lends it, and state of
/// the whole has methods that say what happens to it.
pub(crate) struct Engine {
    rt: Rt,
    clock: WallClock,
    geometries: Geometries,
    moving: MovingRange,
    /// The array is about to use more of each member.
    growing: Cell<bool>,
    members: Members,
    map: RegionMap,
    locks: StripeLocks,
    pending: PendingWrites,
    log: Option<Log>,
    space: SpaceWaits,
    memory: Budget,
    /// The part of it that writes may take.
    write_memory: Budget,
    events: Events,
    jobs: Jobs,
    /// Who watches users' requests.
    observer: ObserverCell,
    service: Service,
    /// Whether repairs for users avoid members with deep queues.
    load_aware_reconstruction: Cell<bool>,
    /// Stripes whose write stopped halfway.
    torn: RefCell<BTreeMap<StripeId, TornStripe>>,
    /// What is known above the array of its contents.
    above: RefCell<Option<Weak<dyn CachedContents>>>,
    /// See [`weft_disk::Volume::corrections`].
    corrections: Cell<u64>,
    /// The redundancy remaining, and for what it was computed.
    remaining: Cell<Option<(RemainingOf, Option<Margin>)>>,
    me: Weak<Engine>,
}

/// Its parts.
impl Engine {
    /// An array of these parts, read-only for now.
    pub fn new(
        rt: Rt,
        clock: WallClock,
        geometries: Geometries,
        members: Members,
        map: RegionMap,
        log: Option<Log>,
        jobs: Jobs,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            rt,
            clock,
            geometries,
            moving: MovingRange::default(),
            growing: Cell::new(false),
            members,
            map,
            locks: StripeLocks::default(),
            pending: PendingWrites::default(),
            log,
            space: SpaceWaits::new(SLOTS_MAX),
            memory: Budget::new(BUDGET_BYTES),
            write_memory: Budget::new(WRITE_BUDGET_BYTES),
            events: Events::new(),
            jobs,
            observer: ObserverCell::default(),
            service: Service::new(),
            load_aware_reconstruction: Cell::new(true),
            torn: RefCell::default(),
            above: RefCell::default(),
            corrections: Cell::new(0),
            remaining: Cell::new(None),
            me: me.clone(),
        })
    }

    #[inline]
    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    pub fn clock(&self) -> &WallClock {
        &self.clock
    }

    #[inline]
    pub fn geometries(&self) -> &Geometries {
        &self.geometries
    }

    /// What a reshape is moving.
    #[inline]
    pub fn moving(&self) -> &MovingRange {
        &self.moving
    }

    #[inline]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The region map.
    #[inline]
    pub fn map(&self) -> &RegionMap {
        &self.map
    }

    #[inline]
    pub fn locks(&self) -> &StripeLocks {
        &self.locks
    }

    /// Writes that wait for their stripe.
    #[inline]
    pub fn pending(&self) -> &PendingWrites {
        &self.pending
    }

    /// The log, if the array has one.
    #[inline]
    pub fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// What waits for space below the members.
    #[inline]
    pub fn space(&self) -> &SpaceWaits {
        &self.space
    }

    /// Memory for operations in progress.
    #[inline]
    pub fn memory(&self) -> &Budget {
        &self.memory
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    #[inline]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Who watches users' requests.
    #[inline]
    pub fn observer(&self) -> &ObserverCell {
        &self.observer
    }

    /// Whether the array takes requests.
    #[inline]
    pub fn service(&self) -> &Service {
        &self.service
    }
}

impl Engine {
    /// Whether the array is about to use more of each member.
    pub fn is_growing(&self) -> bool {
        self.growing.get()
    }

    /// The array grows until the guard is dropped.
    pub fn begin_growth(&self) -> Growing<'_> {
        self.growing.set(true);
        Growing(&self.growing)
    }

    /// Whether repairs for users avoid members with deep queues.
    pub fn load_aware_reconstruction(&self) -> bool {
        self.load_aware_reconstruction.get()
    }

    pub fn set_load_aware_reconstruction(&self, enabled: bool) {
        self.load_aware_reconstruction.set(enabled);
    }

    /// What is known above the array of its contents, if anything.
    pub fn contents_above(&self) -> Option<Rc<dyn CachedContents>> {
        self.above.borrow().as_ref().and_then(Weak::upgrade)
    }

    pub fn set_contents_above(&self, above: Weak<dyn CachedContents>) {
        *self.above.borrow_mut() = Some(above);
    }

    /// See [`weft_disk::Volume::corrections`].
    pub fn corrections(&self) -> u64 {
        self.corrections.get()
    }

    /// A stop waits while the permit is held: its holder writes to members.
    pub async fn hold_off_stop(&self) -> Permit {
        self.memory.acquire(1).await
    }

    /// Reads may give other contents from now on, although no user wrote.
    pub fn note_correction(&self) {
        self.corrections.set(self.corrections.get() + 1);
    }

    /// Whether all members read as zeros where regions are unwritten, according to the superblock.
    pub fn members_zeroed(&self) -> bool {
        self.members.superblock().members_zeroed
    }

    /// An owning handle, for tasks.
    pub fn handle(&self) -> Rc<Self> {
        self.me.upgrade().expect("a method runs on a living array")
    }

    /// Most memory that a stripe operation over a range of `len` offsets in the units takes. Buffer
    /// sizes are powers of two.
    pub fn memory_of(&self, geometry: &Geometry, len: usize) -> usize {
        let buffer = len.min(self.run_max(geometry)).next_power_of_two().max(BUF_ALIGN);
        BUFFERS_OF_UNIT * geometry.code().width() * buffer
    }

    /// The longest range of offsets in the units that a stripe operation may handle at a time.
    pub fn run_max(&self, geometry: &Geometry) -> usize {
        let most = OPERATION_BYTES_MAX / (BUFFERS_OF_UNIT * geometry.code().width());
        (1 << most.ilog2()).min(geometry.unit_len())
    }

    /// The ranges (offset, length) in which an operation handles whole units.
    pub fn runs(&self, geometry: &Geometry) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (unit, most) = (geometry.unit_len(), self.run_max(geometry));
        (0..unit).step_by(most).map(move |from| (from as u64, most.min(unit - from)))
    }

    /// Whether users' accesses matter to a rebuild: the only check on the healthy path.
    pub fn is_monitored(&self) -> bool {
        !cfg!(feature = "unmonitored") && !self.members.all_active()
    }

    /// Waits for memory for the work on one stripe. Fails if the array was stopped since: nothing
    /// may be started then.
    pub async fn job_memory(&self, geometry: &Geometry) -> Result<Permit, ArrayError> {
        let memory = self.memory.acquire(self.memory_of(geometry, geometry.unit_len())).await;
        if self.service.is_stopped() { Err(ArrayError::Stopped) } else { Ok(memory) }
    }

    /// The geometry in which a stripe counts.
    pub fn geometry_of(&self, stripe: StripeId) -> &Geometry {
        self.geometries.of(stripe)
    }

    /// The newest geometry.
    pub fn geometry(&self) -> &Geometry {
        self.geometries.newest()
    }

    /// The name of a stripe of the newest geometry.
    pub fn id(&self, number: u64) -> StripeId {
        self.geometry().id(number)
    }

    /// The region of a stripe.
    pub fn region_of(&self, stripe: StripeId) -> RegionNo {
        self.geometry_of(stripe).regions().of(stripe.number)
    }

    /// Waits for memory for a write over a range of `len` offsets.
    pub async fn write_memory(&self, geometry: &Geometry, len: usize) -> (Permit, Permit) {
        let bytes = self.memory_of(geometry, len);
        let of_writes = bytes.min(WRITE_BUDGET_BYTES);
        if let Some(of_writes) = self.write_memory.try_acquire(of_writes)
            && let Some(of_all) = self.memory.try_acquire(bytes)
        {
            return (of_writes, of_all);
        }
        let of_writes = self.write_memory.acquire(of_writes).await;
        (of_writes, self.memory.acquire(bytes).await)
    }

    pub fn check_range(&self, offset: u64, len: u64) -> Result<(), ArrayError> {
        let size = self.geometries.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(ArrayError::OutOfRange { offset, len, size }),
        }
    }

    /// Fails if the array takes no writes.
    #[inline]
    pub fn check_writable(&self) -> Result<(), ArrayError> {
        self.service.check_writable()
    }

    /// Fails if the array is broken.
    #[inline]
    pub fn check_whole(&self) -> Result<(), ArrayError> {
        self.service.check_whole()
    }

    /// Marks a region as dirty, durably, for as long as the guard lives.
    pub async fn begin_write(&self, region: RegionNo) -> Result<WriteGuard<'_>, ArrayError> {
        Ok(self.map.begin_write(self, region).await?)
    }

    /// Makes every write durable that was acknowledged before this call.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        if self.service.is_stopped() {
            return Err(ArrayError::Stopped);
        }
        self.flush_members().await;
        self.retire_others().await;
        self.check_whole()
    }

    /// Waits until every record is retired that leaves out units of other writes: those units are
    /// durable now, and such a record could not restore them (`log.rs`).
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

    /// As [`Engine::retire_all`], and every ring records that: after a crash, recovery uses none of
    /// the records made so far. A member whose ring does not take that is excluded; whether that is
    /// in effect is for the caller to check.
    pub async fn retire_durably(&self) {
        let Some(log) = &self.log else { return };
        self.retire_all().await;
        let rings = self.members.disks().into_iter();
        join_all(rings.map(|(slot, _)| log.note_retirement(self, slot))).await;
    }

    async fn retire_up_to(&self, log: &Log, seq: u64) {
        while !log.is_retired(seq) && !self.service.is_broken() {
            let progress = log.progress();
            if log.completed_below() > seq {
                self.flush_members().await;
            } else {
                progress.await;
            }
        }
    }

    /// Flushes all members, and retires log records accordingly. A member that fails to flush is
    /// excluded. When this returns the flushed data is durable unless the array is broken: members
    /// that were not flushed are excluded, too.
    pub async fn flush_members(&self) {
        let mark = self.log.as_ref().map(Log::mark);
        let settled = self.on_all_disks(async |disk| disk.flush().await).await;
        if let (Some(log), Some(mark), Ok(())) =
            (&self.log, mark, settled.and_then(|()| self.check_whole()))
        {
            log.flushed(mark);
        }
    }

    /// Does the same on all disks at once. A member whose disk fails is excluded. So is every
    /// member that was left out, when this returns.
    pub(crate) async fn on_all_disks(
        &self,
        operation: impl AsyncFn(&dyn Disk) -> Result<(), DiskError>,
    ) -> Result<(), ArrayError> {
        let operations = self.members.all_disks().into_iter().map(async |(slot, disk)| {
            let error = operation(&*disk).await.err()?;
            Some((slot, disk, error))
        });
        for (slot, disk, error) in join_all(operations).await.into_iter().flatten() {
            self.member_failed(slot, &disk, &error).await;
        }
        self.settled().await
    }
}
