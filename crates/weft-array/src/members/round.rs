//! Writing a superblock to all members: one round of a commit (`commit.rs`).

use std::rc::Rc;

use futures_util::future::join_all;
use weft_disk::Disk;
use weft_rt::sync::Permit;

use super::Members;
use crate::assemble::{majorities_meet, may_take_effect};
use crate::superblock::{
    Predecessor, Role, SlotState, Superblock, SuperblockError, write_superblock,
};
use crate::uuid::Id;

/// A member that failed to take a superblock.
pub(crate) type Refusal = (usize, Rc<dyn Disk>, SuperblockError);

/// What became of a round.
pub(crate) struct Round {
    /// The superblock that was written.
    pub superblock: Rc<Superblock>,
    /// The newest change that it contains.
    pub change: u64,
    /// The members that failed to take it: they must be excluded, and another round follows.
    pub refusals: Vec<Refusal>,
}

impl Round {
    /// Whether the changes that it contains are in effect, and need no further round: every member
    /// that the superblock lists has it, and an assembly need not ask those before, too.
    pub fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.superblock.succeeds.is_none()
    }
}

impl Members {
    /// Whether the membership as it is now may take effect after the one that is.
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

    /// Whether the membership without `disk` in `slot` may take effect after the one that is, and
    /// after the one that is being written. If not, it may once the changes made so far have.
    pub fn may_lose(&self, slot: usize, disk: &Rc<dyn Disk>) -> bool {
        let left = self.active_without(slot, disk);
        let keeps_enough = |before: &Predecessor| {
            let kept = before.active.iter().filter(|id| left.contains(id)).count();
            may_take_effect(before.active.len(), kept)
        };
        keeps_enough(&self.in_effect.borrow()) && self.writing.borrow().iter().all(keeps_enough)
    }

    /// Who could be active once `disk` is taken out of `slot`; a swap that is not in effect can be
    /// taken back.
    fn active_without(&self, lost: usize, disk: &Rc<dyn Disk>) -> Vec<Id> {
        let superblock = self.superblock.borrow();
        let members =
            superblock.active_slots().filter(|slot| *slot != lost || !self.holds(lost, disk));
        let members = members.filter_map(|slot| superblock.slots[slot].member_id);
        let replaced = (0..self.len()).filter_map(|slot| {
            let old = self.replaced(slot)?;
            (slot != lost || !Rc::ptr_eq(&old.disk, disk)).then_some(old.id)
        });
        members.chain(replaced).collect()
    }

    /// Waits for a superblock that is being written; no other is for as long as the permit lives.
    /// What speaks against a round must be looked at after this.
    pub async fn turn_to_commit(&self) -> Permit {
        self.turn.acquire(1).await
    }

    /// Writes the superblock as it is now, with the next sequence number, to every member.
    pub async fn commit(&self, _turn: Permit) -> Round {
        let change = self.changes.made();
        let superblock = Rc::new(self.next_superblock());
        let (seq, active) = (superblock.seq, superblock.active_members());
        let of_round = Predecessor { seq, active };
        *self.writing.borrow_mut() = Some(of_round.clone());
        let mut refusals = self.catch_up(&superblock).await;
        refusals.extend(self.write_to_all(&superblock).await);
        *self.writing.borrow_mut() = None;
        let without_effect = if refusals.is_empty() {
            *self.in_effect.borrow_mut() = of_round;
            self.forget_replaced(&superblock);
            None
        } else {
            Some(superblock.clone())
        };
        *self.without_effect.borrow_mut() = without_effect;
        Round { superblock, change, refusals }
    }

    /// A swap was taken back after a round that did not take effect: the member, which that
    /// superblock does not list, gets it before the next one, which does. Else it would be two
    /// behind if the power went now, and be taken for one that was set back (`assemble.rs`). Not
    /// earlier: it would know of a change that those it lists may have missed.
    async fn catch_up(&self, next: &Superblock) -> Vec<Refusal> {
        let Some(last) = self.without_effect.borrow().clone() else { return Vec::new() };
        let listed = last.active_members();
        let active = next.active_members();
        let members = self.disks().into_iter().filter_map(|(slot, disk)| {
            let id = next.slots[slot].member_id.filter(|id| active.contains(id))?;
            (!listed.contains(&id)).then_some((slot, disk, id))
        });
        write_to(members.collect(), &last).await
    }

    fn next_superblock(&self) -> Superblock {
        let in_effect = self.in_effect.borrow();
        let mut superblock = self.superblock.borrow_mut();
        superblock.seq += 1;
        superblock.spares = self.spares.metas();
        let meet = majorities_meet(&in_effect.active, &superblock.active_members());
        superblock.succeeds = (!meet).then(|| in_effect.clone());
        superblock.note_features();
        superblock.clone()
    }

    /// Writes `newest`, which still lists those that were not found, as the superblock of a new
    /// run. Gives what was written, who in a slot has it, and the members that failed to take it.
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
        let failed = self.write_to_all(&superblock).await;
        let mut holders = self.disks();
        holders.retain(|(_, disk)| failed.iter().all(|(_, other, _)| !Rc::ptr_eq(disk, other)));
        let slots = &self.superblock.borrow().slots;
        let ids = holders.into_iter().filter_map(|(slot, _)| slots[slot].member_id);
        (superblock, ids.collect(), failed)
    }

    /// Writes a superblock to every member that has a part in it.
    async fn write_to_all(&self, superblock: &Superblock) -> Vec<Refusal> {
        let now = self.superblock.borrow().clone();
        let members = self.disks().into_iter().filter_map(|(slot, disk)| {
            // A replacement that is staged and not published yet is no member so far.
            let meta = Some(&now.slots[slot]).filter(|meta| meta.state != SlotState::Missing)?;
            Some((slot, disk, meta.member_id?))
        });
        let replacements = now.slots.iter().enumerate().filter_map(|(slot, meta)| {
            Some((slot, self.second_disk(slot)?, meta.replacement.as_ref()?.member_id))
        });
        let members: Vec<_> = members
            .chain(replacements)
            .filter(|(_, _, id)| superblock.role_of(*id) != Role::None)
            .collect();
        write_to(members, superblock).await
    }
}

/// Writes a superblock to some members: slot, disk and identity of each.
async fn write_to(
    members: Vec<(usize, Rc<dyn Disk>, Id)>,
    superblock: &Superblock,
) -> Vec<Refusal> {
    let writes = members.iter().map(|(_, disk, id)| write_superblock(&**disk, superblock, *id));
    let results = join_all(writes).await;
    let failed = members.into_iter().zip(results);
    failed.filter_map(|((slot, disk, _), result)| Some((slot, disk, result.err()?))).collect()
}
