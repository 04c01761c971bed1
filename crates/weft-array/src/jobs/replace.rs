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
//!   dirty become stale on the replacement. So do regions that awaited a resync, since a resync
//!   also writes to both disks. If the member does not come back, the replacement takes its slot.
//!
//! If a resync found space on the replacement but not on the member, the region becomes stale on
//! the replacement.

use weft_code::SlotNo;

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::members::Spare;
use crate::state::events::Event;
use crate::superblock::SlotState;

impl Engine {
    /// Checks whether the member of `slot`, if it works, may be replaced now.
    pub(crate) fn check_replaceable(&self, slot: SlotNo) -> Result<(), ArrayError> {
        let refused = |why: String| Err(ArrayError::Refused(why));
        if self.members().state(slot) != SlotState::Active {
            return Ok(());
        }
        if let Some(second) = self.members().second_disk(slot) {
            let name = &second.info().name;
            return refused(format!(
                "slot {slot} is already being replaced by {name}; fail that disk first to choose another"
            ));
        }
        if self.members().is_only_active(slot) {
            return refused(format!(
                "slot {slot} is the only active member, and cannot be replaced by a copy: add a disk to the array and let it be rebuilt first"
            ));
        }
        Ok(())
    }

    /// Gives the member of `slot` a replacement, durably.
    ///
    /// # Errors
    /// If too many members are being rebuilt or copied, or if one of the two disks fails during
    /// this.
    pub(crate) async fn begin_replacement(
        &self,
        slot: SlotNo,
        spare: Spare,
    ) -> Result<(), ArrayError> {
        // A stop waits until this has ended: it writes to the members.
        let _running = self.hold_off_stop().await;
        let lane = self.lane_to_join().await;
        self.check_writable()?;
        self.check_settled()?;
        self.check_replaceable(slot)?;
        let refused = |why: &str| ArrayError::Refused(why.to_owned());
        if self.members().state(slot) != SlotState::Active {
            return Err(refused("the member failed meanwhile: add the disk as a spare"));
        }
        let lane = lane.ok_or_else(|| {
            refused(
                "too many members are being rebuilt or copied: wait until one of them has finished",
            )
        })?;
        // The array may use more of its members since the disk was prepared.
        self.check_size(&*spare.disk)?;
        if self.members_zeroed() && !spare.is_zeroed(self.members().superblock().member_bytes()) {
            return Err(refused("the array was enlarged meanwhile: try again"));
        }
        let disk = spare.disk.clone();
        // In one poll: regions written so far are stale on the new disk, and regions first written
        // later go to both.
        self.members().join(slot, spare, lane);
        if let Err(cause) = self.map().start_lane(self, lane).await {
            self.take_second(slot, &disk);
            return Err(cause.into());
        }
        // Records that are only in the member's own ring are retired, and the new ring records
        // that.
        self.retire_all().await;
        if let Some(log) = self.log() {
            log.begin_ring(self, slot).await;
        }
        self.map().lane_joined(lane);
        let is_second = || self.members().is_second(slot, &disk);
        if is_second() {
            self.change(|change| change.publish(slot)).await?;
        }
        self.check_writable()?;
        if !is_second() && !self.members().holds(slot, &disk) {
            return Err(refused("the member or its replacement failed meanwhile; see the status"));
        }
        let disk = disk.info().name.clone();
        self.jobs().rebuild().counts().started(self.rt().now());
        self.events().emit(Event::ReplaceStarted { slot, disk });
        self.jobs().wake();
        Ok(())
    }
}
