//! The members of an array: which disk is in which slot, in what state, and how that changes.
//!
//! A change of membership takes effect in memory at once: the next request avoids a failed member.
//! The change is counted ([`Changes`]), and operations that rely on it wait until it is in effect
//! on disk (`commit.rs`).
//!
//! A slot may have a *second disk*: while a working member is being replaced, its replacement, and
//! after the swap the old member, until the swap is in effect (`jobs/replace.rs`).

mod changes;
mod round;
mod spares;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::sync::Semaphore;

use crate::lane::Lane;
use crate::superblock::{LeftMeta, Predecessor, ReplacementMeta, SlotState, Superblock, disk_hint};
use changes::Changes;
pub(crate) use round::Refusal;
pub(crate) use spares::Spare;
use spares::Spares;

/// The second disk of a slot.
#[derive(Clone)]
struct SecondDisk {
    spare: Spare,
    lane: Lane,
    role: SecondRole,
}

/// What the second disk of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SecondRole {
    /// The replacement, before the superblock names it.
    Staged,
    /// The replacement, named by the superblock: the member is being copied to it.
    Copying,
    /// The old member, until the superblock that no longer names it is in effect.
    Replaced,
}

/// A slot while the array runs.
pub(crate) struct Slot {
    disk: RefCell<Option<Rc<dyn Disk>>>,
    second: RefCell<Option<SecondDisk>>,
    state: Cell<SlotState>,
    in_flight: Cell<u32>,
    read_errors: Cell<u64>,
    repairs: Cell<u64>,
}

pub(crate) struct Members {
    slots: Vec<Slot>,
    pub spares: Spares,
    /// The array's metadata, as it is on disk or is about to be.
    pub superblock: RefCell<Superblock>,
    pub changes: Changes,
    /// Held while a superblock is written: one at a time.
    turn: Semaphore,
    all_active: Cell<bool>,
    /// The superblock in effect.
    in_effect: RefCell<Predecessor>,
    /// The superblock that is being written.
    writing: RefCell<Option<Predecessor>>,
    /// The last superblock written, if it did not take effect.
    without_effect: RefCell<Option<Rc<Superblock>>>,
    /// Whether any slot has a second disk.
    any_second: Cell<bool>,
}

impl Members {
    /// `in_effect` is the superblock in effect: its active members count when some are lost.
    pub fn new(
        superblock: Superblock,
        in_effect: Predecessor,
        disks: Vec<Option<Rc<dyn Disk>>>,
        replacements: Vec<Option<Rc<dyn Disk>>>,
        spares: Vec<Spare>,
    ) -> Self {
        let replacements = superblock.slots.iter().zip(replacements).map(|(meta, disk)| {
            let (meta, disk) = meta.replacement.as_ref().zip(disk)?;
            let spare = Spare::new(meta.member_id, disk);
            Some(SecondDisk { spare, lane: meta.lane, role: SecondRole::Copying })
        });
        let disks = superblock.slots.iter().zip(disks).zip(replacements);
        let slots = disks.map(|((meta, disk), second)| Slot {
            disk: RefCell::new(disk),
            second: RefCell::new(second),
            state: Cell::new(meta.state),
            in_flight: Cell::new(0),
            read_errors: Cell::new(0),
            repairs: Cell::new(0),
        });
        let members = Self {
            in_effect: RefCell::new(in_effect),
            writing: RefCell::new(None),
            without_effect: RefCell::default(),
            slots: slots.collect(),
            spares: Spares::new(spares),
            superblock: RefCell::new(superblock),
            changes: Changes::default(),
            turn: Semaphore::new(1),
            all_active: Cell::new(false),
            any_second: Cell::new(false),
        };
        members.note_states();
        members.note_seconds();
        members
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether every slot is active, so that no unit is lost.
    pub fn all_active(&self) -> bool {
        self.all_active.get()
    }

    pub fn state(&self, slot: usize) -> SlotState {
        self.slots[slot].state.get()
    }

    /// The disk in `slot`, unless the slot is missing.
    pub fn disk(&self, slot: usize) -> Option<Rc<dyn Disk>> {
        self.slots[slot].disk.borrow().clone()
    }

    /// All disks in slots, without the second disks.
    pub fn disks(&self) -> Vec<(usize, Rc<dyn Disk>)> {
        (0..self.len()).filter_map(|slot| Some((slot, self.disk(slot)?))).collect()
    }

    /// Slots without a member.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.len()).filter(|slot| self.state(*slot) == SlotState::Missing).collect()
    }

    /// All disks, with the second disks.
    pub fn all_disks(&self) -> Vec<(usize, Rc<dyn Disk>)> {
        let second = |slot| Some((slot, self.second_disk(slot)?));
        let seconds = (0..self.len()).filter(|_| self.any_second.get()).filter_map(second);
        self.disks().into_iter().chain(seconds).collect()
    }

    /// Slots that are being rebuilt, or whose member is being copied to its replacement, each with
    /// its lane of the region map.
    pub fn rebuilding(&self) -> Vec<(usize, Lane)> {
        let lane = |slot| match self.state(slot) {
            SlotState::Rebuilding { lane } => Some((slot, lane)),
            _ => Some((slot, self.copying(slot)?)),
        };
        (0..self.len()).filter_map(lane).collect()
    }

    /// Whether `slot` has a new disk that the superblock does not name yet.
    pub fn is_staged(&self, slot: usize) -> bool {
        let known = self.superblock.borrow().slots[slot].state;
        matches!(self.state(slot), SlotState::Rebuilding { .. }) && known == SlotState::Missing
    }

    /// Whether any slot has such a disk.
    pub fn any_staged(&self) -> bool {
        (0..self.len()).any(|slot| self.is_staged(slot))
    }

    /// Whether every rebuild in progress is a copy: the slot has its member.
    pub fn only_copies(&self) -> bool {
        self.rebuilding().iter().all(|(slot, _)| self.state(*slot) == SlotState::Active)
    }

    /// A lane of the region map for a joining disk. If none is free, it is taken from a former
    /// member, which then has to be rebuilt completely if it comes back.
    pub fn free_lane(&self) -> Option<Lane> {
        let of_left =
            || self.superblock.borrow().slots.iter().find_map(|s| Some(s.left.as_ref()?.lane));
        self.unused_lane().or_else(of_left)
    }

    /// A lane of the region map that is not in use.
    pub fn unused_lane(&self) -> Option<Lane> {
        let of_second = |slot: &Slot| slot.second.borrow().as_ref().map(|second| second.lane);
        let of_state = |slot: &Slot| match slot.state.get() {
            SlotState::Rebuilding { lane } => Some(lane),
            _ => None,
        };
        // The superblock does not name staged disks, nor old members after a swap.
        let of_slots = self.slots.iter().flat_map(|slot| [of_state(slot), of_second(slot)]);
        self.superblock.borrow().lanes().union(of_slots.flatten().collect()).first_free()
    }

    /// The disk to which the rebuild of `slot` writes.
    pub fn rebuilt_disk(&self, slot: usize) -> Option<Rc<dyn Disk>> {
        if self.copying(slot).is_some() { self.second_disk(slot) } else { self.disk(slot) }
    }

    /// The number of requests in progress on `slot`.
    pub fn in_flight(&self, slot: usize) -> &Cell<u32> {
        &self.slots[slot].in_flight
    }

    pub fn count_read_error(&self, slot: usize) {
        let count = &self.slots[slot].read_errors;
        count.set(count.get() + 1);
    }

    pub fn count_repair(&self, slot: usize) {
        let count = &self.slots[slot].repairs;
        count.set(count.get() + 1);
    }

    /// Read errors on `slot`, met and repaired.
    pub fn error_counts(&self, slot: usize) -> (u64, u64) {
        (self.slots[slot].read_errors.get(), self.slots[slot].repairs.get())
    }

    /// The name of the disk in `slot`; of a missing slot, the last one known.
    pub fn name(&self, slot: usize) -> String {
        match self.disk(slot) {
            Some(disk) => disk.info().name.clone(),
            None => self.superblock.borrow().slots[slot].disk_hint.clone(),
        }
    }

    /// Whether `disk` is the member of `slot` or its second disk.
    pub fn uses(&self, slot: usize, disk: &Rc<dyn Disk>) -> bool {
        self.holds(slot, disk) || is_same(self.second_disk(slot).as_ref(), disk)
    }

    /// Whether `disk` is still the member of `slot`.
    pub fn holds(&self, slot: usize, disk: &Rc<dyn Disk>) -> bool {
        is_same(self.slots[slot].disk.borrow().as_ref(), disk)
    }

    /// What is kept about the former member of the missing `slot`.
    pub fn left(&self, slot: usize) -> Option<LeftMeta> {
        self.superblock.borrow().slots[slot].left.clone()
    }

    /// The lane that the departing member of `slot` has in the superblock already, if any: it was
    /// being rebuilt, or had just come back. It is remembered in the same lane.
    pub fn lane_in_superblock(&self, slot: usize) -> Option<Lane> {
        let meta = &self.superblock.borrow().slots[slot];
        match (meta.state, &meta.left) {
            (SlotState::Rebuilding { lane }, _) => Some(lane),
            (SlotState::Missing, Some(left)) => Some(left.lane),
            _ => None,
        }
    }

    /// Notes that the departing member of `slot` may come back, with its data except for the
    /// regions marked in `lane`.
    pub fn remember(&self, slot: usize, lane: Lane) {
        let mut superblock = self.superblock.borrow_mut();
        let log_epoch = superblock.log_epoch;
        let meta = &mut superblock.slots[slot];
        // A member that came back, and leaves again before the superblock names it, has an older
        // one.
        let in_effect = self.in_effect.borrow().seq;
        let seq = meta.left.as_ref().map_or(in_effect, |left| left.seq);
        let log_epoch = meta.left.as_ref().map_or(log_epoch, |left| left.log_epoch);
        meta.left = Some(LeftMeta { lane, seq, log_epoch, absent: false });
    }

    /// A disk takes `lane`: the former member of that lane, if any, has to be rebuilt completely.
    pub fn forget_left(&self, lane: Lane) {
        let mut superblock = self.superblock.borrow_mut();
        for meta in &mut superblock.slots {
            if meta.left.as_ref().is_some_and(|left| left.lane == lane) {
                meta.left = None;
            }
        }
    }

    /// Empties a slot.
    pub fn set_missing(&self, slot: usize) {
        *self.slots[slot].disk.borrow_mut() = None;
        self.set_state(slot, SlotState::Missing);
    }

    fn note_seconds(&self) {
        let any = self.slots.iter().any(|slot| slot.second.borrow().is_some());
        self.any_second.set(any);
    }

    fn set_second(&self, slot: usize, second: Option<SecondDisk>) {
        *self.slots[slot].second.borrow_mut() = second;
        self.note_seconds();
    }

    fn second_role(&self, slot: usize) -> Option<SecondRole> {
        if !self.any_second.get() {
            return None;
        }
        self.slots[slot].second.borrow().as_ref().map(|second| second.role)
    }

    /// The second disk of `slot`.
    pub fn second_disk(&self, slot: usize) -> Option<Rc<dyn Disk>> {
        if !self.any_second.get() {
            return None;
        }
        self.slots[slot].second.borrow().as_ref().map(|second| second.spare.disk.clone())
    }

    /// The old member of `slot` after a swap that is not in effect yet.
    fn replaced(&self, slot: usize) -> Option<Spare> {
        let second = self.slots[slot].second.borrow();
        let replaced = second.as_ref().filter(|second| second.role == SecondRole::Replaced);
        replaced.map(|second| second.spare.clone())
    }

    /// The lane in which the member of `slot` is being copied.
    pub fn copying(&self, slot: usize) -> Option<Lane> {
        let second = self.slots[slot].second.borrow();
        second.as_ref().filter(|second| second.role == SecondRole::Copying).map(|b| b.lane)
    }

    /// The second disk of `slot`, if it must get what the member gets: unless the stripe is stale
    /// there.
    pub fn second_for_write(
        &self,
        slot: usize,
        is_stale: impl Fn(Lane) -> bool,
    ) -> Option<Rc<dyn Disk>> {
        if !self.any_second.get() {
            return None;
        }
        let second = self.slots[slot].second.borrow();
        let second = second.as_ref()?;
        let needed = second.role == SecondRole::Replaced || !is_stale(second.lane);
        needed.then(|| second.spare.disk.clone())
    }

    /// Makes a spare the replacement of the member of `slot`, in memory only. From now on it gets
    /// writes where its lane is not stale. [`Members::publish_replacement`] must follow once the
    /// lane is durable.
    pub fn stage_replacement(&self, slot: usize, spare: Spare, lane: Lane) {
        self.set_second(slot, Some(SecondDisk { spare, lane, role: SecondRole::Staged }));
    }

    /// Names a staged replacement in the superblock.
    pub fn publish_replacement(&self, slot: usize) {
        self.change_second(slot, SecondRole::Copying);
    }

    fn change_second(&self, slot: usize, role: SecondRole) {
        let mut second = self.slots[slot].second.borrow_mut();
        let Some(second) = second.as_mut() else { return };
        second.role = role;
        self.superblock.borrow_mut().slots[slot].replacement =
            (role == SecondRole::Copying).then(|| ReplacementMeta {
                member_id: second.spare.id,
                lane: second.lane,
                disk_hint: disk_hint(&second.spare.disk.info().name),
            });
        self.changes.note_membership();
    }

    /// Removes `disk` if it is the second disk of `slot`. Returns it, with its lane if it was the
    /// replacement.
    pub fn take_second(&self, slot: usize, disk: &Rc<dyn Disk>) -> Option<(Spare, Option<Lane>)> {
        let second = self.slots[slot].second.borrow().clone()?;
        if !is_same(Some(&second.spare.disk), disk) {
            return None;
        }
        self.set_second(slot, None);
        // No superblock names a staged disk.
        if second.role != SecondRole::Staged {
            self.superblock.borrow_mut().slots[slot].replacement = None;
            self.changes.note_membership();
        }
        let lane = (second.role != SecondRole::Replaced).then_some(second.lane);
        Some((second.spare, lane))
    }

    /// The member of `slot` is lost: its replacement takes the slot, as for a lost member. Returns
    /// false if there is none.
    pub fn promote(&self, slot: usize) -> bool {
        if self.second_role(slot) != Some(SecondRole::Copying) {
            return false;
        }
        let Some(second) = self.slots[slot].second.take() else { return false };
        self.note_seconds();
        self.take_slot(slot, second.spare, SlotState::Rebuilding { lane: second.lane });
        true
    }

    /// Makes the replacement of `slot` its member. The old member stays as second disk until that
    /// is in effect.
    pub fn swap(&self, slot: usize) {
        self.exchange(slot, SecondRole::Replaced);
    }

    /// Undoes all swaps that are not in effect. Returns whether there were any.
    pub fn unswap(&self) -> bool {
        (0..self.len()).filter(|slot| self.unswap_in(*slot)).count() > 0
    }

    /// Undoes the swap in `slot` if it is not in effect. Returns whether there was one.
    pub fn unswap_in(&self, slot: usize) -> bool {
        let swapped = self.second_role(slot) == Some(SecondRole::Replaced);
        if swapped {
            self.exchange(slot, SecondRole::Copying);
        }
        swapped
    }

    fn exchange(&self, slot: usize, role: SecondRole) {
        let (Some(second), Some(disk)) = (self.slots[slot].second.take(), self.disk(slot)) else {
            return;
        };
        let id = self.superblock.borrow().slots[slot].member_id;
        let spare = Spare::new(id.expect("a slot with a disk has a member"), disk);
        self.take_slot(slot, second.spare, SlotState::Active);
        self.set_second(slot, Some(SecondDisk { spare, lane: second.lane, role }));
        self.change_second(slot, role);
    }

    fn take_slot(&self, slot: usize, spare: Spare, state: SlotState) {
        {
            let meta = &mut self.superblock.borrow_mut().slots[slot];
            meta.member_id = Some(spare.id);
            meta.disk_hint = disk_hint(&spare.disk.info().name);
            meta.replacement = None;
        }
        let place = &self.slots[slot];
        *place.disk.borrow_mut() = Some(spare.disk);
        place.read_errors.set(0);
        place.repairs.set(0);
        self.set_state(slot, state);
    }

    /// Whether the member of `slot` is the only active one in the superblock in effect. It cannot
    /// be replaced then: after a swap, no other active member could tell that the old one is
    /// obsolete.
    pub fn is_only_active(&self, slot: usize) -> bool {
        let id = self.superblock.borrow().slots[slot].member_id;
        self.in_effect.borrow().active.iter().all(|active| Some(*active) == id)
    }

    /// Puts a disk into an empty slot, in memory only. From now on requests use it where its lane
    /// is not stale. [`Members::publish_rebuilding`] must follow once the lane is durable.
    pub fn stage_rebuilding(&self, slot: usize, disk: Rc<dyn Disk>, lane: Lane) {
        let place = &self.slots[slot];
        *place.disk.borrow_mut() = Some(disk);
        place.read_errors.set(0);
        place.repairs.set(0);
        place.state.set(SlotState::Rebuilding { lane });
        self.note_states();
    }

    /// Names a staged disk in the superblock.
    pub fn publish_rebuilding(&self, slot: usize, spare: &Spare) {
        let state = self.state(slot);
        let meta = &mut self.superblock.borrow_mut().slots[slot];
        meta.member_id = Some(spare.id);
        meta.disk_hint = disk_hint(&spare.disk.info().name);
        meta.state = state;
        meta.left = None;
        self.changes.note_membership();
    }

    /// Ends the rebuild of `slot`.
    pub fn set_active(&self, slot: usize) {
        self.set_state(slot, SlotState::Active);
    }

    fn set_state(&self, slot: usize, state: SlotState) {
        self.slots[slot].state.set(state);
        self.superblock.borrow_mut().slots[slot].state = state;
        self.note_states();
        self.changes.note_membership();
    }

    fn note_states(&self) {
        let active = self.slots.iter().all(|slot| slot.state.get() == SlotState::Active);
        self.all_active.set(active);
    }

    /// Old members that `in_effect` no longer names need no more writes.
    fn forget_replaced(&self, in_effect: &Superblock) {
        for (slot, meta) in in_effect.slots.iter().enumerate() {
            let replaced = self.second_role(slot) == Some(SecondRole::Replaced);
            let now = self.superblock.borrow().slots[slot].member_id;
            if replaced && meta.member_id == now {
                self.set_second(slot, None);
            }
        }
    }
}

fn is_same(held: Option<&Rc<dyn Disk>>, disk: &Rc<dyn Disk>) -> bool {
    held.is_some_and(|held| Rc::ptr_eq(held, disk))
}
