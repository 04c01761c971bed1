//! The public interface of an array.

use std::rc::Rc;

use weft_code::{Margin, SlotNo};
use weft_disk::{AllocationRange, Disk};
use weft_rt::{Buf, Frozen, Nanos, Rt};

use crate::engine::Engine;
use crate::engine::membership::Trust;
use crate::engine::status::Status;
use crate::error::ArrayError;
use crate::format::preferences::{CacheChoice, Preferences};
use crate::format::rebuild_policy::RebuildPolicy;
use crate::jobs::growth::GrowthPlan;
use crate::jobs::reshape::plan::{ReshapeOptions, ReshapePlan};
use crate::lifecycle::start_stop::{self, AssembleOptions};
use crate::maintenance::experiment::Experiment;
use crate::maintenance::{RebuildCounts, ScrubReport};
use crate::state::events::{Event, Subscription};
use crate::state::observer::ServedRequest;
use crate::superblock::{ScrubMode, SlotState, Superblock};

/// A running array: one volume over its members. Clones are handles of the same array.
///
/// Any byte range may be read and written; ranges aligned to [`Array::block_bytes`] are fastest.
/// Requests may be issued concurrently. A write that was started completes even if its future is
/// dropped.
#[derive(Clone)]
pub struct Array(pub(crate) Rc<Engine>);

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Array").field("size_bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}

impl Array {
    /// Assembles an array from its members, given in any order. Recovers from a crash before it
    /// returns, and starts resync and rebuild in the background if they are due.
    ///
    /// # Errors
    /// If the disks are not of one array, or not enough of it; nothing on them is changed then.
    pub async fn assemble(
        rt: &Rt,
        disks: Vec<Rc<dyn Disk>>,
        options: AssembleOptions,
    ) -> Result<Self, ArrayError> {
        start_stop::assemble(rt, disks, options).await.map(Self)
    }

    /// Capacity in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.geometries().size_bytes()
    }

    /// The smallest range that can be written without reading around it, in bytes: 512 or 4096.
    pub fn block_bytes(&self) -> u64 {
        self.0.geometry().sector_bytes
    }

    /// Data bytes of one stripe: writes of this size and alignment read nothing.
    pub fn stripe_bytes(&self) -> u64 {
        self.0.geometry().stripe_bytes()
    }

    /// The range of the array that shares its entry in the region map with byte `offset`: the data
    /// of whole stripes, up to the border of a reshape. A discard of all of it frees space, and
    /// spares rebuilds their work.
    pub fn region_at(&self, offset: u64) -> std::ops::Range<u64> {
        self.0.geometries().region_around(offset).1
    }

    /// Fills `buf` from `offset` (bytes). The buffer is returned on failure, too.
    pub async fn read(&self, offset: u64, buf: Buf) -> (Result<(), ArrayError>, Buf) {
        let (begun, len) = (self.0.rt().turn_time(), buf.len());
        self.0.jobs().throttle().note_user(begun, len as u64);
        let done = self.0.read(offset, buf).await;
        self.0.note_served(begun, false, (offset, len), done.0.is_ok());
        done
    }

    /// Writes `data` at `offset` (bytes); with `fua` it is durable on return.
    ///
    /// # Errors
    /// After an error the range may hold old or new bytes; nothing outside it is changed.
    pub async fn write(&self, offset: u64, data: Frozen, fua: bool) -> Result<(), ArrayError> {
        let (begun, len) = (self.0.rt().turn_time(), data.len());
        self.0.jobs().throttle().note_user(begun, len as u64);
        let array = self.0.clone();
        let write = move || async move { array.write(offset, data, fua).await };
        let done = self.0.rt().attach(write).await;
        self.0.note_served(begun, true, (offset, len), done.is_ok());
        done
    }

    /// Makes everything durable that was acknowledged before this call.
    ///
    /// # Errors
    /// If the array is broken or stopped.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        let array = self.0.clone();
        self.0.rt().attach(move || async move { array.flush().await }).await
    }

    /// Makes a range read as zeros; with `may_deallocate` the storage below may be freed.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> Result<(), ArrayError> {
        self.0.jobs().throttle().note_user(self.0.rt().turn_time(), len);
        let array = self.0.clone();
        let task =
            move || async move { array.write_zeroes(offset, len, fua, may_deallocate).await };
        self.0.rt().attach(task).await
    }

    /// Notes that a range is not needed. Whole stripes in it read as zeros afterwards; the rest
    /// keeps its contents.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), ArrayError> {
        self.0.jobs().throttle().note_user(self.0.rt().turn_time(), len);
        let array = self.0.clone();
        self.0.rt().attach(move || async move { array.discard(offset, len).await }).await
    }

    /// Which parts of a range are data and which are holes; consecutive, covering the range.
    ///
    /// # Errors
    /// If the range lies beyond the end.
    pub fn allocation(&self, offset: u64, len: u64) -> Result<Vec<AllocationRange>, ArrayError> {
        self.0.check_range(offset, len)?;
        let mut extents: Vec<AllocationRange> = Vec::new();
        let mut at = offset;
        while at < offset + len {
            // As a read of this address finds it.
            let (region, bytes) = self.0.geometries().region_around(at);
            let end = bytes.end.min(offset + len);
            let hole = !self.0.map().is_written(region);
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += end - at,
                _ => extents.push(AllocationRange { len: end - at, hole }),
            }
            at = end;
        }
        Ok(extents)
    }

    /// The array's present status.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Subscribes to events from now on.
    pub fn subscribe(&self) -> Subscription {
        self.0.events().subscribe()
    }

    /// Subscribes to all events since the array was assembled, with those of its start, such as
    /// [`Event::MetadataRepaired`]. The first caller gets them; later callers get only new events.
    pub fn subscribe_from_start(&self) -> Subscription {
        self.0.events().subscribe_from_start()
    }

    /// Excludes the member of a slot, as if its disk had failed. Returns when the exclusion is
    /// durable.
    ///
    /// # Errors
    /// If the slot has no member, the code cannot do without it, members that could take its place
    /// are not active on disk yet, or the array breaks during this.
    pub async fn fail(&self, slot: SlotNo) -> Result<(), ArrayError> {
        let mut disks = self.0.members().disks().into_iter();
        let member = disks.find(|(of, _)| *of == slot).map(|(_, disk)| disk);
        self.fail_disk(slot, member, "has no member").await
    }

    /// Excludes the replacement of a working member, as if its disk had failed; the member stays.
    /// Returns when that is durable.
    ///
    /// # Errors
    /// If the member has no replacement, or the array breaks during this.
    pub async fn fail_replacement(&self, slot: SlotNo) -> Result<(), ArrayError> {
        let members = self.0.members();
        let filling = members.rebuilding().iter().any(|(of, _)| *of == slot);
        let replacement = filling.then(|| members.second_disk(slot)).flatten();
        self.fail_disk(slot, replacement, "is not being replaced").await
    }

    async fn fail_disk(
        &self,
        slot: SlotNo,
        disk: Option<Rc<dyn Disk>>,
        without: &str,
    ) -> Result<(), ArrayError> {
        self.0.check_writable()?;
        let refused = || ArrayError::Refused(format!("slot {slot} {without}"));
        let disk = disk.ok_or_else(refused)?;
        self.await_failable(slot, &disk).await?;
        self.0.exclude(slot, &disk, "failed by command", Trust::Kept).await;
        self.0.check_whole()
    }

    /// Waits until `disk` may be removed from `slot`.
    async fn await_failable(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> Result<(), ArrayError> {
        self.check_removable(slot, disk)?;
        self.0.probe_others(slot).await;
        self.0.await_removable(slot, disk).await?;
        // Members may have failed during this, also this one.
        self.0.check_writable()?;
        self.check_removable(slot, disk)
    }

    /// Checks that the code can do without the disk; a replacement can always be removed.
    fn check_removable(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> Result<(), ArrayError> {
        let gone = self.0.incomplete_slots();
        let unsound = gone.union(&self.0.space().short()).with(slot);
        let is_whole_member = self.0.members().holds(slot, disk) && !gone.contains(slot);
        if is_whole_member && !self.0.survives(unsound) {
            return Err(ArrayError::Refused(format!(
                "slot {slot} cannot be failed: the array would lose data; wait for the rebuild, or add a spare first"
            )));
        }
        Ok(())
    }

    /// Adds a disk as a spare. If a member is missing, its rebuild starts at once.
    ///
    /// # Errors
    /// If the disk is too small, or its sectors are larger than the array's, or if the array has as
    /// many spares as it can have. The caller must check before whether the disk may be overwritten
    /// (see [`crate::examine()`]).
    pub async fn add_spare(&self, disk: Rc<dyn Disk>) -> Result<(), ArrayError> {
        self.0.check_writable()?;
        self.0.check_spare_room()?;
        let spare = self.0.prepare_spare(disk).await?;
        self.0.check_writable()?;
        // Others may have been added in the meantime.
        if let Err(refused) = self.0.check_spare_room() {
            crate::superblock::wipe::wipe(&*spare.disk, false).await?;
            return Err(refused);
        }
        let name = spare.disk.info().name.clone();
        self.0.change(|change| change.add_spare(spare)).await?;
        self.0.events().emit(Event::SpareAdded { disk: name });
        self.0.jobs().wake();
        Ok(())
    }

    /// Takes back a former member: its disk failed and works again, or was absent when the array
    /// was assembled. Only regions written since are rebuilt. Returns its slot; `None` if the disk
    /// is not a former member, or not in the state in which it left, and has to be added as a new
    /// disk.
    ///
    /// # Errors
    /// If the array takes no writes, or the disk no longer fits it.
    pub async fn take_back(&self, disk: Rc<dyn Disk>) -> Result<Option<SlotNo>, ArrayError> {
        self.0.check_writable()?;
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.take_back(&disk).await }).await
    }

    /// The slot that [`Array::take_back`] would give to the disk with this superblock, and whether
    /// its member was absent when the array was assembled rather than failed.
    #[must_use]
    pub fn slot_left_by(&self, own: &Superblock) -> Option<(SlotNo, bool)> {
        let superblock = self.0.members().superblock();
        let slot = crate::members::assemble::may_return(&superblock, own)?;
        Some((slot, superblock.was_absent(slot)))
    }

    /// Replaces the member in a slot by `disk`. A working member stays while it is copied to the
    /// disk, so redundancy never decreases; a missing member is rebuilt onto the disk. Returns when
    /// copy or rebuild has started.
    ///
    /// # Errors
    /// As [`Array::add_spare`]; or if the member is already being replaced, or is the only active
    /// one.
    pub async fn replace(&self, slot: SlotNo, disk: Rc<dyn Disk>) -> Result<(), ArrayError> {
        self.0.check_writable()?;
        if slot.0 >= self.0.members().len() {
            return Err(ArrayError::Refused(format!("there is no slot {slot}")));
        }
        // Another member may be about to become active.
        let members = self.0.members();
        let known = || members.changes().is_settled() || !members.is_only_active(slot);
        self.0.changed_soon(known).await;
        if members.state(slot) == SlotState::Active {
            self.0.check_settled()?;
        }
        self.0.check_replaceable(slot)?;
        let spare = self.0.prepare_spare(disk).await?;
        if self.0.members().state(slot) == SlotState::Active {
            let array = self.0.clone();
            let begun = async move { array.begin_replacement(slot, spare).await };
            return self.0.rt().spawn(begun).await;
        }
        let old = self.0.members().disk(slot);
        if let Some(old) = &old {
            self.await_failable(slot, old).await?;
        }
        // Spares are taken last in, first out: this disk is next.
        let added = self.0.change(|change| change.add_spare(spare));
        if let Some(old) = &old {
            self.0.exclude(slot, old, "failed by command", Trust::Kept).await;
        }
        added.await?;
        self.0.jobs().wake();
        Ok(())
    }

    /// Whether the array is being moved to another geometry.
    pub fn is_reshaping(&self) -> bool {
        self.0.geometries().former().is_some()
    }

    /// What a reshape would do.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if it is not possible, now or at all.
    pub fn plan_reshape(&self, options: &ReshapeOptions) -> Result<ReshapePlan, ArrayError> {
        self.0.plan_reshape(options)
    }

    /// Starts to move the array to another geometry. When this returns that is in effect, and goes
    /// on in the background, in this run and the next ones. Disks to add are taken from the spares.
    /// The array has its new size when all of it has moved.
    ///
    /// # Errors
    /// As [`Array::plan_reshape`]; or if a disk fails meanwhile.
    pub async fn reshape(&self, options: ReshapeOptions) -> Result<ReshapePlan, ArrayError> {
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.begin_reshape(&options).await }).await
    }

    /// What [`Array::grow`] would do.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if it is not possible, now or at all.
    pub fn plan_growth(&self, member_bytes: Option<u64>) -> Result<GrowthPlan, ArrayError> {
        self.0.plan_growth(member_bytes)
    }

    /// Lets the array use `member_bytes` of each member; `None`: as much as the smallest has now,
    /// which may have been replaced or enlarged. Nothing is moved, and when this returns the array
    /// has its new size. What is new reads as zeros.
    ///
    /// # Errors
    /// As [`Array::plan_growth`]; or if a disk fails meanwhile.
    pub async fn grow(&self, member_bytes: Option<u64>) -> Result<GrowthPlan, ArrayError> {
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.grow(member_bytes).await }).await
    }

    /// Turns a reshape back. When this returns that is in effect, and goes on in the background
    /// until the array has the geometry again that it had before. Discarded capacity is empty.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if the array is not being reshaped, the reshape is paused, or the
    /// way back is not free.
    pub async fn turn_reshape(&self) -> Result<(), ArrayError> {
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.turn_reshape().await }).await
    }

    /// Scrubs the whole array; returns when the scrub has ended. If the array is stopped or crashes
    /// first, the next assembly continues from about the same place.
    ///
    /// # Errors
    /// If a scrub is running already, or repair is requested while the array takes no writes.
    pub async fn scrub(&self, mode: ScrubMode) -> Result<ScrubReport, ArrayError> {
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.scrub(mode).await }).await
    }

    /// Ends a running scrub early; returns when it has ended. It will not be continued.
    pub async fn cancel_scrub(&self) {
        if self.0.jobs().scrub().is_running() {
            self.0.jobs().scrub().cancel();
            self.0.jobs().wake();
            self.0.jobs().scrub().ended().await;
        }
    }

    /// Pauses or resumes rebuild, resync and scrub.
    pub fn set_paused(&self, paused: bool) {
        self.0.jobs().set_paused(paused);
    }

    /// Bounds the rate of jobs, in bytes per second and member. [`Array::store_throttle`] stores
    /// the bounds.
    pub fn set_throttle(&self, min_bytes_s: u64, max_bytes_s: Option<u64>) {
        self.0.jobs().throttle().set(min_bytes_s, max_bytes_s);
        self.0.jobs().changed();
    }

    /// While users are active, jobs run as fast as they can so that users' requests take `target`
    /// nanoseconds on average, within the bounds of [`Array::set_throttle`]; `None`: no target.
    pub fn set_latency_target(&self, target: Option<Nanos>) {
        self.0.jobs().throttle().set_latency_target(target);
        self.0.jobs().changed();
    }

    /// Stores the bounds of the rate and the latency target for the next assembly.
    pub async fn store_throttle(&self) {
        let throttle = self.0.jobs().throttle().get();
        self.0.choose(|chosen| chosen.throttle = throttle).await;
    }

    /// The cache that was chosen for this array, if one was.
    pub fn cache_choice(&self) -> Option<CacheChoice> {
        self.0.members().superblock().rebuild.as_ref()?.cache.clone()
    }

    /// Stores the cache chosen for this array, for daemons that serve it; `None`: none was.
    pub async fn store_cache_choice(&self, cache: Option<CacheChoice>) {
        self.0.choose(|chosen| chosen.cache = cache).await;
    }

    /// Whether repairs for users avoid members with deep queues, at the price of more reads. The
    /// default is yes; otherwise they always read the fewest units, as in the papers' arrays. For
    /// experiments: the setting is not stored.
    pub fn set_load_aware_reconstruction(&self, enabled: bool) {
        self.0.set_load_aware_reconstruction(enabled);
    }

    /// The policy of rebuilds.
    pub fn rebuild_policy(&self) -> RebuildPolicy {
        self.0.jobs().rebuild().policy()
    }

    /// Changes the policy of rebuilds, also of a running one: stripes in flight end as they
    /// started, and nothing is rebuilt twice. The members store it for the next assembly.
    ///
    /// # Errors
    /// If a parameter is out of range; nothing is changed then.
    pub async fn set_rebuild_policy(&self, policy: RebuildPolicy) -> Result<(), ArrayError> {
        policy.check().map_err(ArrayError::Refused)?;
        self.0.jobs().rebuild().set_policy(policy.clone());
        self.0.jobs().changed();
        self.0.choose(|chosen| chosen.policy = policy).await;
        Ok(())
    }

    /// Replaces parts of rebuilds, also of a running one; `None` ends the experiment. It is not
    /// stored.
    pub fn set_rebuild_experiment(&self, experiment: Option<Rc<dyn Experiment>>) {
        self.0.jobs().rebuild().set_experiment(experiment);
        self.0.jobs().changed();
    }

    /// Counts of rebuild work since the array was assembled.
    pub fn rebuild_counts(&self) -> RebuildCounts {
        self.0.jobs().rebuild().counts().get()
    }

    /// How many more members could fail, in any combination, after the member of `slot` had failed.
    /// `None` if data would be lost.
    pub fn redundancy_without(&self, slot: SlotNo) -> Option<Margin> {
        self.0.redundancy_without(slot)
    }

    /// The name of the disk that requests take for the member of `slot`, and whether it holds
    /// everything. The status tells of such a change only once it is durable.
    pub fn member_in_memory(&self, slot: SlotNo) -> Option<(String, bool)> {
        let members = self.0.members();
        let disk = members.disk(slot)?;
        Some((disk.info().name.clone(), members.state(slot) == SlotState::Active))
    }

    /// Slots, other than incomplete ones, whose loss now would lose data.
    pub fn essential_slots(&self) -> Vec<SlotNo> {
        let gone = self.0.incomplete_slots();
        let unsound = gone.union(&self.0.space().short());
        let essential =
            |slot: &SlotNo| !gone.contains(*slot) && !self.0.survives(unsound.with(*slot));
        self.0.members().slots().filter(essential).collect()
    }

    /// Stops the array cleanly: flushes everything and notes the clean stop on the members. Later
    /// requests fail; the caller should have completed its own first. A rebuild first completes
    /// partly rebuilt regions, for at most two seconds.
    ///
    /// # Errors
    /// If the array is broken; it is stopped all the same.
    pub async fn stop(&self) -> Result<(), ArrayError> {
        let array = self.0.clone();
        self.0.rt().spawn(async move { array.stop().await }).await
    }
}

impl Engine {
    /// Notes that a user's request of a range (offset, length) has ended, which began at `begun`.
    #[inline]
    fn note_served(&self, begun: Nanos, is_write: bool, range: (u64, usize), succeeded: bool) {
        let now = || self.rt().turn_time();
        self.jobs().throttle().note_served(begun, now);
        self.observer().tell(|| {
            let (offset, len) = range;
            let took = now().saturating_sub(begun);
            ServedRequest { is_write, offset, len, begun, took, succeeded }
        });
    }

    /// Changes what the superblock stores of users' choices for maintenance. If the array breaks,
    /// its metadata stays unchanged; the choice is in effect all the same.
    async fn choose(&self, choice: impl FnOnce(&mut Preferences)) {
        if self.check_writable().is_err() {
            return;
        }
        let _ = self
            .change(|change| {
                let mut superblock = change.superblock();
                let mut chosen = superblock.rebuild.take().unwrap_or_default();
                choice(&mut chosen);
                superblock.rebuild = chosen.stored();
            })
            .await;
    }
}
