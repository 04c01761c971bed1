//! Writing a superblock to all members: one round of a commit (`engine/membership.rs`).

use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::sync::Permit;

use super::{Members, Spare};
use crate::format::uuid::Id;
use crate::members::assemble::{majorities_meet, may_take_effect};
use crate::members::slot::lanes_of;
use crate::superblock::{
    Predecessor, Role, SPARES_MAX, Superblock, SuperblockError, write_superblock,
};

/// A member that failed to take a superblock.
pub(crate) type Refusal = (SlotNo, Rc<dyn Disk>, SuperblockError);

/// The result of a round.
pub(crate) struct Round {
    /// The superblock that was written.
    pub superblock: Rc<Superblock>,
    /// The newest change in it.
    pub change: u64,
    /// The members that failed to take it. They must be excluded, and another round follows.
    pub refusals: Vec<Refusal>,
}

impl Round {
    /// Whether its changes are in effect and no further round is needed: every member that the
    /// superblock lists has it, and assembly needs no majority of the members before it.
    pub fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.superblock.succeeds.is_none()
    }
}

impl Members {
    /// Whether the present membership may take effect after the one in effect.
    pub fn check_majority(&self) -> Result<(), String> {
        let before = &self.in_effect.borrow().active;
        let now = self.superblock.borrow().active_members();
        let kept = before.iter().filter(|id| now.contains(id)).count();
        if may_take_effect(before.len(), kept) {
            return Ok(());
        }
        let lost = before.len() - kept;
        Err(format!(
            "{lost} of {} active members failed at once; assemble the array again with all of them, or force it degraded",
            before.len()
        ))
    }

    /// Whether the membership without `disk` in `slot` may take effect after the one in effect, and
    /// after the one being written. If not, it may once the changes made so far are in effect.
    pub fn may_remove(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        let left = self.active_without(slot, disk);
        let keeps_enough = |before: &Predecessor| {
            let kept = before.active.iter().filter(|id| left.contains(id)).count();
            may_take_effect(before.active.len(), kept)
        };
        keeps_enough(&self.in_effect.borrow()) && self.writing.borrow().iter().all(keeps_enough)
    }

    /// The members that could be active once `disk` is removed from `slot`. Swaps that are not in
    /// effect could be undone, so their old members count too, and so do members that were
    /// released.
    fn active_without(&self, lost: SlotNo, disk: &Rc<dyn Disk>) -> Vec<Id> {
        let superblock = self.superblock.borrow();
        let members =
            superblock.active_slots().filter(|slot| *slot != lost || !self.holds(lost, disk));
        let members = members.filter_map(|slot| superblock.slots[slot.0].member_id);
        let replaced = self.slots().filter_map(|slot| {
            let old = self.replaced(slot)?;
            (slot != lost || !Rc::ptr_eq(&old.disk, disk)).then_some(old.id)
        });
        let released = self.released.borrow();
        let released = released.iter().filter(|(_, member, _)| !Rc::ptr_eq(&member.disk, disk));
        members.chain(replaced).chain(released.map(|(_, member, _)| member.id)).collect()
    }

    /// Waits until no superblock is being written, and prevents further superblock writes for as
    /// long as the permit lives. Whether the next round may be written must be checked after this.
    pub async fn turn_to_commit(&self) -> Permit {
        self.turn.acquire(1).await
    }

    /// Writes the present superblock, with the next sequence number, to every member.
    pub async fn commit(&self, _turn: Permit) -> Round {
        let change = self.changes.made();
        let superblock = Rc::new(self.next_superblock());
        // The members that it lists, and not the members that a concurrent change lists.
        let listed = self.named();
        let (seq, active) = (superblock.seq, superblock.active_members());
        let of_round = Predecessor { seq, active };
        *self.writing.borrow_mut() = Some(of_round.clone());
        let lanes = lanes_of(&superblock);
        self.lanes_on_disk.set(self.lanes_on_disk.get().union(lanes));
        let mut refusals = self.catch_up(&superblock).await;
        refusals.extend(write_to(listed, &superblock).await);
        *self.writing.borrow_mut() = None;
        let without_effect = if refusals.is_empty() {
            *self.in_effect.borrow_mut() = of_round;
            self.lanes_on_disk.set(lanes);
            self.forget_replaced(&superblock);
            let still_active = superblock.active_members();
            self.released.borrow_mut().retain(|(_, member, _)| still_active.contains(&member.id));
            None
        } else {
            Some(superblock.clone())
        };
        *self.without_effect.borrow_mut() = without_effect;
        Round { superblock, change, refusals }
    }

    /// After a round that did not take effect and whose swap was undone: a member that the
    /// superblock of that round did not list gets it now, before the next one, which lists it
    /// again. Otherwise a power cut could leave it with a superblock two generations old, and
    /// assembly would take it for one that was set back (`members/assemble.rs`). It must not get it
    /// earlier: it would know of a change that listed members may have missed.
    async fn catch_up(&self, next: &Superblock) -> Vec<Refusal> {
        let Some(last) = self.without_effect.borrow().clone() else { return Vec::new() };
        let listed = last.active_members();
        let active = next.active_members();
        let mut again = self.named();
        again.retain(|(_, member)| active.contains(&member.id) && !listed.contains(&member.id));
        write_to(again, &last).await
    }

    fn next_superblock(&self) -> Superblock {
        let in_effect = self.in_effect.borrow();
        let mut superblock = self.superblock.borrow_mut();
        superblock.seq += 1;
        // One too many may be among them for a moment: a disk that got no slot in the end. It works
        // as a spare while the array runs.
        superblock.spares = self.spares.metas();
        superblock.spares.truncate(SPARES_MAX);
        let meet = majorities_meet(&in_effect.active, &superblock.active_members());
        superblock.succeeds = (!meet).then(|| in_effect.clone());
        superblock.note_features();
        let mut written = superblock.clone();
        written.shorten_hints();
        written
    }

    /// Writes `newest`, which still lists members that were not found, as the superblock of a new
    /// run. Returns the superblock written, the members that have it, and the members that failed
    /// to take it.
    pub async fn affirm(
        &self,
        newest: Superblock,
        _turn: Permit,
    ) -> (Superblock, Vec<Id>, Vec<Refusal>) {
        let mut superblock = {
            let mut now = self.superblock.borrow_mut();
            now.seq += 1;
            let (seq, clean) = (now.seq, now.clean);
            let (log_epoch, unreplayed) = (now.log_epoch, now.unreplayed);
            Superblock { seq, clean, log_epoch, unreplayed, ..newest }
        };
        superblock.note_features();
        superblock.shorten_hints();
        let mut members = self.named();
        members.retain(|(_, member)| superblock.role_of(member.id) != Role::None);
        let failed = write_to(members.clone(), &superblock).await;
        members.retain(|(_, has)| failed.iter().all(|(_, not, _)| !Rc::ptr_eq(&has.disk, not)));
        let holders = members.into_iter().map(|(_, member)| member.id);
        (superblock, holders.collect(), failed)
    }
}

/// Writes a superblock to the given members. Returns the members that failed to take it.
async fn write_to(members: Vec<(SlotNo, Spare)>, superblock: &Superblock) -> Vec<Refusal> {
    let write = |member: &Spare| {
        let (disk, id) = (member.disk.clone(), member.id);
        async move { write_superblock(&*disk, superblock, id).await }
    };
    let results = join_all(members.iter().map(|(_, member)| write(member))).await;
    let failed = members.into_iter().zip(results);
    failed.filter_map(|((slot, member), result)| Some((slot, member.disk, result.err()?))).collect()
}
