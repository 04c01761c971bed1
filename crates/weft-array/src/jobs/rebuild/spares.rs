//! Taking spares: how a disk takes the slot of a lost member.
//!
//! Every written region is marked stale in the slot's lane of the region map, durably. Then the
//! superblock records that the slot is being rebuilt on that disk. From then on, a rebuild
//! interrupted by a crash resumes from the map. Regions that were never written need no rebuild;
//! regions first written from now on go to the replacement directly.

use crate::engine::Engine;
use crate::engine::membership::Trust;
use crate::format::lane::Lane;
use crate::members::Spare;
use crate::state::events::Event;
use crate::superblock::SlotState;
use weft_code::SlotNo;

/// What a disk holds that takes a missing slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JoiningContents {
    /// Nothing.
    New,
    /// Everything except the regions marked in its lane: it is the slot's former member.
    Back,
}

impl Engine {
    /// Puts spares into missing slots. Returns whether one was taken.
    pub(crate) async fn take_spares(&self) -> bool {
        let mut taken = false;
        for slot in self.members().missing() {
            if !self.can_take_spare() {
                break;
            }
            // Records that had a sibling on the slot's former member are retired, and the new ring
            // records that from its start.
            self.retire_all().await;
            let Some(spare) = self.take_ready_spare().await else { break };
            // Another operation may have taken the lane for a replacement since.
            let Some(lane) = self.lane_to_join().await else {
                drop(self.change(|change| change.add_spare(spare)));
                break;
            };
            // Or the former member has come back.
            if self.members().state(slot) != SlotState::Missing {
                drop(self.change(|change| change.add_spare(spare)));
                continue;
            }
            self.join(slot, lane, spare, JoiningContents::New).await;
            taken = true;
        }
        taken
    }

    /// Whether a spare is ready, and there is a slot and a lane for it.
    pub(in crate::jobs) fn can_take_spare(&self) -> bool {
        let members = self.members();
        members.spares().any_ready() && !members.missing().is_empty() && members.has_lane_to_join()
    }

    /// Puts a disk into a missing slot. Returns whether it holds the slot, durably.
    pub(super) async fn join(
        &self,
        slot: SlotNo,
        lane: Lane,
        spare: Spare,
        how: JoiningContents,
    ) -> bool {
        let disk = spare.disk.info().name.clone();
        // From here on, in one poll: regions written so far are stale on the new disk, and regions
        // first written later go to it. The superblock names the disk only when the map with the
        // stale marks is durable on all members and on the disk itself.
        if let Some(log) = self.log() {
            log.renew_ring(slot);
        }
        self.members().join(slot, spare.clone(), lane);
        let joined = match how {
            JoiningContents::New => self.map().start_lane(self, lane).await,
            JoiningContents::Back => self.map().rejoin_lane(self, lane).await,
        };
        if let Err(cause) = joined {
            let job = format!("rebuild of slot {slot}");
            self.events().emit(Event::JobStalled { job, cause: cause.to_string() });
            if self.members().holds(slot, &spare.disk) {
                self.empty_slot(slot, Trust::Kept);
            }
            if how == JoiningContents::New {
                drop(self.change(|change| change.add_spare(spare.touched())));
            }
            self.jobs().stall_rebuild();
            return false;
        }
        if let Some(log) = self.log() {
            log.begin_ring(self, slot).await;
        }
        self.map().lane_joined(lane);
        if !self.members().holds(slot, &spare.disk) {
            return false;
        }
        // Of another member than this one, what it misses is marked until that no longer counts.
        if how == JoiningContents::Back {
            self.map().end_absence(lane);
        }
        if self.change(|change| change.publish(slot)).await.is_err() {
            return false;
        }
        self.jobs().rebuild().counts().started(self.rt().now());
        self.events().emit(Event::RebuildStarted { slot, disk });
        // A replacement may just have stalled for lack of another active member.
        self.jobs().wake();
        true
    }
}
