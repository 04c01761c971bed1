//! Making a change: in memory and on disk in one operation.
//!
//! There are two kinds. A [`Change`] counts once it is in effect: a disk takes a slot, a rebuilt
//! member becomes active, a spare is added. The operation that makes it waits for that. A
//! [`Removal`] counts at once, since the next request must avoid a failed disk; requests that rely
//! on it wait at their end (`engine/membership.rs`). For both, superblocks start to be written in
//! the same poll.
//!
//! A disk that no superblock names yet may join ([`Members::join`]), and a spare be taken for that,
//! in memory only.

use std::cell::RefMut;
use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::Disk;

use super::{Members, Spare};
use crate::format::lane::Lane;
use crate::members::slot::SlotEvent;
use crate::superblock::{LeftMeta, Superblock};

/// What writes superblocks while there are changes that are not in effect.
pub(crate) trait Committer {
    /// Starts writing, unless it is under way, or nothing may be written.
    fn start_commit(&self);
}

/// A change that counts once it is in effect.
pub(crate) struct Change<'a>(&'a Members);

/// A removal of disks, which counts at once.
pub(crate) struct Removal<'a>(&'a Members);

impl Members {
    /// Makes a change. Returns its number, by which to wait until it is in effect.
    pub fn change(&self, committer: &impl Committer, change: impl FnOnce(&Change<'_>)) -> u64 {
        change(&Change(self));
        let number = self.changes.note();
        committer.start_commit();
        number
    }

    /// Removes disks.
    pub fn remove<T>(
        &self,
        committer: &impl Committer,
        removal: impl FnOnce(&Removal<'_>) -> T,
    ) -> T {
        let result = removal(&Removal(self));
        committer.start_commit();
        result
    }
}

impl Change<'_> {
    /// Metadata that has nothing to do with the slots.
    pub fn superblock(&self) -> RefMut<'_, Superblock> {
        self.0.superblock.borrow_mut()
    }

    /// The superblock records that the array uses more of each member.
    pub fn note_size(&self) {
        self.0.spares.need(self.0.superblock().member_bytes());
    }

    /// Names the disk that joined in the superblock.
    pub fn publish(&self, slot: SlotNo) {
        self.0.apply(slot, SlotEvent::Publish);
    }

    /// Nothing is stale in `lane` any more. If that is the lane of the member of `slot`, it is
    /// active now. If it is that of the replacement, the replacement is now the member; the old
    /// member stays as second disk until that is in effect.
    pub fn filled(&self, slot: SlotNo, lane: Lane) {
        self.0.apply(slot, SlotEvent::Filled { lane });
    }

    /// Forgets which disk was last in the missing `slot`.
    pub fn forget(&self, slot: SlotNo) {
        if self.0.apply(slot, SlotEvent::Forget) {
            let meta = &mut self.superblock().slots[slot.0];
            meta.member_id = None;
            meta.disk_hint.clear();
        }
    }

    /// The former member of `lane` has to be rebuilt completely if it comes back: another disk gets
    /// the lane once this is in effect.
    pub fn forget_left(&self, lane: Lane) {
        self.0.forget_left(lane);
    }

    /// Adds slots with these disks, which start with nothing.
    pub fn add_slots(&self, disks: Vec<Spare>) {
        self.0.add_slots(disks);
    }

    /// The member of a slot that the geometry no longer uses becomes a spare.
    pub fn release(&self, slot: SlotNo) {
        self.0.release(slot);
        self.forget(slot);
    }

    /// Removes the slots from `keep` on, which have no members.
    pub fn remove_slots(&self, keep: usize) {
        self.0.remove_slots(keep);
    }

    /// Adds a spare, or gives back one that was taken for a slot.
    pub fn add_spare(&self, spare: Spare) {
        self.0.spares.push(spare);
    }

    pub fn remove_spare(&self, spare: &Spare) {
        self.0.spares.remove(spare);
    }
}

impl Removal<'_> {
    /// The member of `slot` is lost. Its replacement takes the slot, if it is named by the
    /// superblock: it is then being rebuilt, as for a lost member.
    pub fn lose(&self, slot: SlotNo) {
        self.0.apply(slot, SlotEvent::MemberLost);
    }

    /// Notes that the member that has just left `slot` may come back, with its data except for the
    /// regions marked in `lane`.
    pub fn remember(&self, slot: SlotNo, lane: Lane) {
        let members = self.0;
        // A member that came back, and leaves again before the superblock names it, has an older
        // one.
        let left = members.slot(slot).left();
        let seq = left.map_or(members.in_effect.borrow().seq, |left| left.seq);
        let log_epoch = left.map_or(members.superblock().log_epoch, |left| left.log_epoch);
        let left = LeftMeta { lane, seq, log_epoch, absent: false };
        members.apply(slot, SlotEvent::Remember(left));
    }

    /// Removes `disk` if it is the second disk of `slot`. Returns it, with its lane if it was the
    /// replacement.
    pub fn take_second(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> Option<(Spare, Option<Lane>)> {
        let second = self.0.places[slot.0].second.borrow().clone();
        let second = second.filter(|second| Rc::ptr_eq(&second.disk, disk))?;
        let lane = self.0.slot(slot).replacement_lane();
        self.0.apply(slot, SlotEvent::SecondLost).then_some((second, lane))
    }

    /// Undoes the swap in `slot` if it is not in effect. Returns whether there was one.
    pub fn unswap(&self, slot: SlotNo) -> bool {
        self.0.apply(slot, SlotEvent::UndoSwap)
    }
}
