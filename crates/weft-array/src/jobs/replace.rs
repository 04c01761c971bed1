//! Replacing a working member without reducing redundancy at any moment.
//!
//! ```text
//! staged     the new disk is the slot's second disk: it gets the log, the region map, first writes
//! copying    the superblock names it; the member's contents are copied to it stripe by stripe
//! replaced   it is the member; the old disk still gets every write, until that is in effect
//! ```
//!
//! The replacement has a lane of the region map, like that of a lost member, and the same job works
//! through its stale regions (`rebuild.rs`): each unit is read from the member, or reconstructed
//! where the member cannot be read. Reads go to the member. Writes go to the member, and to the
//! replacement unless the stripe is stale there ([`Owner::second`]); the log and the region map
//! go to both. So at every moment the replacement holds what the member holds, except for stale
//! stripes.
//!
//! - *The member is lost*: the replacement takes its slot, as for a lost member, with its lane
//!   unchanged. The rebuild continues where the copy was.
//! - *The replacement is lost*, or has no space: its removal is made durable like any exclusion,
//!   since it missed a write. The member is not affected.
//! - *Nothing is stale any more*: one change of the superblock makes the replacement the member.
//!   Until it is in effect, a crash may leave either disk as the member, so both get all writes. If
//!   other members fail in the same moment, so that too few active members would remain, the swap
//!   is undone, and tried again after their exclusion.
//! - *A crash*: both disks keep their roles. What was being written may be new on one and old on
//!   the other. The member's contents count, and before anything is served the regions that were
//!   dirty become stale on the replacement. So do those that awaited a resync, since a resync
//!   writes to both disks, too. If the member does not come back, the replacement takes its slot.
//!
//! If a resync found space on the replacement but not on the member, the region becomes stale on
//! the replacement.

use std::rc::Rc;

use futures_util::future::join;
use weft_code::SlotNo;
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;

use crate::engine::Inner;
use crate::error::ArrayError;
use crate::format::lane::Lane;
use crate::members::Spare;
use crate::state::events::Event;
use crate::superblock::SlotState;
use weft_stripe::StripeId;

impl Inner {
    /// Checks whether the member of `slot`, if it works, may be replaced now.
    pub(crate) fn check_replaceable(&self, slot: SlotNo) -> Result<(), ArrayError> {
        let refused = |why: String| Err(ArrayError::Refused(why));
        if self.members.state(slot) != SlotState::Active {
            return Ok(());
        }
        if let Some(second) = self.members.second_disk(slot) {
            let name = &second.info().name;
            return refused(format!(
                "slot {slot} is already being replaced by {name}; fail that disk first to choose another"
            ));
        }
        if self.members.is_only_active(slot) {
            return refused(format!(
                "slot {slot} is the only active member, and cannot be replaced by a copy: add a disk to the array and let it be rebuilt first"
            ));
        }
        Ok(())
    }

    /// Gives the member of `slot` a replacement, durably.
    ///
    /// # Errors
    /// If too many members are being rebuilt or copied, or if one of the two disks fails meanwhile.
    pub(crate) async fn begin_replacement(
        &self,
        slot: SlotNo,
        spare: Spare,
    ) -> Result<(), ArrayError> {
        // A stop waits until this has ended: it writes to the members.
        let _running = self.budget.acquire(1).await;
        let lane = self.lane_to_join().await;
        self.check_writable()?;
        self.check_settled()?;
        self.check_replaceable(slot)?;
        let refused = |why: &str| ArrayError::Refused(why.to_owned());
        if self.members.state(slot) != SlotState::Active {
            return Err(refused("the member failed meanwhile: add the disk as a spare"));
        }
        let lane = lane.ok_or_else(|| {
            refused(
                "too many members are being rebuilt or copied: wait until one of them has finished",
            )
        })?;
        let disk = spare.disk.clone();
        // In one poll: regions written so far are stale on the new disk, and regions first written
        // later go to both.
        self.members.join(slot, spare, lane);
        if let Err(cause) = self.map.start_lane(self, lane).await {
            self.take_second(slot, &disk);
            return Err(cause.into());
        }
        // Records that are only in the member's own ring are retired, and the new ring says so.
        self.retire_all().await;
        if let Some(log) = &self.log {
            log.begin_ring(self, slot).await;
        }
        self.map.lane_joined(lane);
        let is_second = || self.members.is_second(slot, &disk);
        if is_second() {
            self.change(|change| change.publish(slot)).await?;
        }
        self.check_writable()?;
        if !is_second() && !self.members.holds(slot, &disk) {
            return Err(refused("the member or its replacement failed meanwhile; see the status"));
        }
        let disk = disk.info().name.clone();
        self.jobs.rebuild.counts.started(self.rt.now());
        self.events.emit(Event::ReplaceStarted { slot, disk });
        self.jobs.wake();
        Ok(())
    }

    /// Nothing is stale on the replacement of `slot` any more: makes it the member.
    pub(super) async fn finish_replacement(&self, slot: SlotNo, lane: Lane) {
        if self.members.is_only_active(slot) {
            let is_open = |(_, other): (SlotNo, Lane)| self.map.stale_count(other) > 0;
            if self.members.rebuilding().into_iter().any(is_open) {
                // The rebuild of another slot, which continues, makes it active.
                return;
            }
            let job = format!("the replacement of slot {slot}");
            let cause = "its member is the only active one; add a disk for another".to_owned();
            self.events.emit(Event::JobStalled { job, cause });
            self.jobs.stalled.set(true);
            return;
        }
        let _ = self.change(|change| change.filled(slot, lane)).await;
        let done = self.members.second_disk(slot).is_none();
        if done && self.members.state(slot) == SlotState::Active && self.check_writable().is_ok() {
            self.map.end_lane(lane);
            self.note_rebuild_ended();
            let disk = self.members.name(slot);
            self.events.emit(Event::ReplaceFinished { slot, disk });
        }
    }

    /// Writes to the member of `slot` and to its second disk. Returns the member's result. A user's
    /// write waits for space on the member, but not on the second disk.
    pub(crate) async fn write_to_both(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        (disk, second): (&Rc<dyn Disk>, Rc<dyn Disk>),
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let own = self.write_with_room(slot, disk, offset, data.clone(), opts);
        let also = async |second: &dyn Disk| second.write(offset, data, opts).await;
        let result = self.on_both(slot, own, Some(&second), also).await;
        self.keep_alike(stripe, slot, &result, &second).await;
        result
    }

    /// As [`Inner::write_to_both`], with zeros, and also where the stripe is stale on the second
    /// disk: old bytes may be there, and no rebuild replaces them once the region is unwritten.
    pub(crate) async fn zero_both(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        offset: u64,
        len: u64,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let second = self.members.second_disk(slot);
        let own = self.zero_with_room(slot, disk, offset, len, opts);
        let also = async |second: &dyn Disk| second.write_zeroes(offset, len, opts).await;
        let result = self.on_both(slot, own, second.as_ref(), also).await;
        if let Some(second) = second {
            self.keep_alike(stripe, slot, &result, &second).await;
        }
        result
    }

    /// Waits for an operation on the member of `slot`, and does the same on its second disk. That
    /// is excluded if it fails. Returns the member's result.
    pub(crate) async fn on_both(
        &self,
        slot: SlotNo,
        own: impl Future<Output = Result<(), DiskError>>,
        second: Option<&Rc<dyn Disk>>,
        also: impl AsyncFnOnce(&dyn Disk) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let Some(second) = second else { return own.await };
        let (result, second_result) = join(own, also(&**second)).await;
        if let Err(error) = second_result {
            self.member_failed(slot, second, &error).await;
        }
        result
    }

    /// If the member of `slot` had no space for a write that its second disk has: the member keeps
    /// what it has, and the second disk must not differ.
    async fn keep_alike(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        result: &Result<(), DiskError>,
        second: &Rc<dyn Disk>,
    ) {
        let no_space = result.as_ref().is_err_and(DiskError::is_no_space);
        if !no_space || !self.members.is_second(slot, second) {
            return;
        }
        match self.members.copying(slot) {
            Some(lane) => {
                let region = self.region_of(stripe);
                let _ = self.map.make_stale(self, lane, region).await;
            }
            None => drop(self.take_second(slot, second)),
        }
    }
}
