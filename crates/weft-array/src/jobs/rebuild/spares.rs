//! Taking spares: how a disk takes the place of a lost member.
//!
//! Every written region is marked stale on the slot's lane of the region map, durably; then the
//! superblock says that the slot is being rebuilt by that disk. From then on a crash resumes where
//! the map stands. Regions never written need no rebuild, and what is first written from now on
//! goes to the replacement directly.

use crate::array::Inner;
use crate::events::Event;
use crate::members::Spare;
use crate::superblock::SlotState;

/// What a disk that takes a missing slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joining {
    /// Nothing.
    New,
    /// All but what its lane marks: it is the slot's last member.
    Back,
}

impl Inner {
    /// Puts spares into missing slots. Returns whether one was taken.
    pub(crate) async fn take_spares(&self) -> bool {
        let mut taken = false;
        for slot in self.members.missing() {
            if self.members.free_lane().is_none() || !self.can_take_spare() {
                break;
            }
            // Records that had a sibling on the slot's last member are not needed any more, and
            // the new ring says so from its beginning.
            self.retire_all().await;
            let Some(spare) = self.take_ready_spare().await else { break };
            // Meanwhile somebody else may have taken the lane for a replacement.
            let Some(lane) = self.members.free_lane() else {
                self.members.spares.push(spare);
                break;
            };
            // Or its last member has come back.
            if self.members.state(slot) != SlotState::Missing {
                self.members.spares.push(spare);
                continue;
            }
            self.members.forget_left(lane);
            self.join(slot, lane, spare, Joining::New).await;
            taken = true;
        }
        taken
    }

    /// Whether a spare waits for a slot that is missing.
    pub(super) fn can_take_spare(&self) -> bool {
        self.members.spares.any_ready() && !self.members.missing().is_empty()
    }

    /// Puts a disk into a slot that is missing. Returns whether it holds the slot, durably.
    pub(super) async fn join(&self, slot: usize, lane: u8, spare: Spare, how: Joining) -> bool {
        let disk = spare.disk.info().name.clone();
        // From here on, in one turn: what is written is stale on the new disk, and what is first
        // written later goes to it. The superblock names the disk only when the map, with the
        // stale marks, is durable on all members and on the disk itself.
        if let Some(log) = &self.log {
            log.renew_ring(slot);
        }
        self.members.stage_rebuilding(slot, spare.disk.clone(), lane);
        let joined = match how {
            Joining::New => self.map.start_lane(self, lane).await,
            Joining::Back => self.map.rejoin_lane(self, lane).await,
        };
        if let Err(cause) = joined {
            let job = format!("rebuild of slot {slot}");
            self.events.emit(Event::JobStalled { job, cause: cause.to_string() });
            self.empty_slot(slot);
            if how == Joining::New {
                self.members.spares.push(spare);
            }
            self.jobs.stalled.set(true);
            return false;
        }
        if let Some(log) = &self.log {
            log.begin_ring(self, slot).await;
        }
        self.map.lane_joined(lane);
        if !self.members.holds(slot, &spare.disk) {
            return false;
        }
        if let Some(left) = self.members.left(slot) {
            self.map.end_absence(left.lane);
        }
        self.members.publish_rebuilding(slot, &spare);
        self.commit_members().await;
        self.jobs.rebuild.counts.started(self.rt.now());
        self.events.emit(Event::RebuildStarted { slot, disk });
        // A replacement may have stalled for want of another active member, just before.
        self.jobs.wake();
        true
    }
}
