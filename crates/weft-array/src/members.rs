//! The members of an array: which disk is in which slot, in what state, and how that changes.
//!
//! A change of membership takes effect in memory at once (the next request works around a failed
//! member), is then written to the superblocks of all members that are left, and only after that may a request be
//! acknowledged that relied on it: otherwise a crash could bring the failed member back with old data.
//! One change is written at a time; a member that fails to take it becomes part of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::{join, join_all};
use weft_disk::Disk;
use weft_rt::sync::Semaphore;

use crate::assemble::may_take_effect;
use crate::superblock::{
    SlotState, SpareMeta, Superblock, SuperblockError, disk_hint, write_superblock,
};
use crate::uuid::Id;

/// A slot while the array runs.
pub(crate) struct Slot {
    disk: RefCell<Option<Rc<dyn Disk>>>,
    state: Cell<SlotState>,
    in_flight: Cell<u32>,
    read_errors: Cell<u64>,
    repairs: Cell<u64>,
}

/// A disk that waits to replace a member.
#[derive(Clone)]
pub(crate) struct Spare {
    pub id: Id,
    pub disk: Rc<dyn Disk>,
}

impl Spare {
    fn meta(&self) -> SpareMeta {
        SpareMeta { member_id: self.id, disk_hint: disk_hint(&self.disk.info().name) }
    }
}

pub(crate) struct Members {
    slots: Vec<Slot>,
    pub spares: RefCell<Vec<Spare>>,
    /// The array's metadata as it is, or is about to be, on disk.
    pub superblock: RefCell<Superblock>,
    commit: Semaphore,
    all_active: Cell<bool>,
    /// Slots active in the superblock that is in effect.
    in_effect: RefCell<Vec<usize>>,
}

/// A request under way on a member; ends when dropped.
pub(crate) struct Busy<'a>(&'a Cell<u32>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Members {
    pub fn new(
        superblock: Superblock,
        disks: Vec<Option<Rc<dyn Disk>>>,
        spares: Vec<Spare>,
    ) -> Self {
        let slots = superblock.slots.iter().zip(disks).map(|(meta, disk)| Slot {
            disk: RefCell::new(disk),
            state: Cell::new(meta.state),
            in_flight: Cell::new(0),
            read_errors: Cell::new(0),
            repairs: Cell::new(0),
        });
        let in_effect = superblock.active_slots().collect();
        let members = Self {
            in_effect: RefCell::new(in_effect),
            slots: slots.collect(),
            spares: RefCell::new(spares),
            superblock: RefCell::new(superblock),
            commit: Semaphore::new(1),
            all_active: Cell::new(false),
        };
        members.note_states();
        members
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no unit of the array is lost anywhere.
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

    /// All disks in slots.
    pub fn disks(&self) -> Vec<(usize, Rc<dyn Disk>)> {
        (0..self.len()).filter_map(|slot| Some((slot, self.disk(slot)?))).collect()
    }

    /// Slots with nothing in them.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.len()).filter(|slot| self.state(*slot) == SlotState::Missing).collect()
    }

    /// Slots that are being rebuilt, each with its lane of the region map.
    pub fn rebuilding(&self) -> Vec<(usize, u8)> {
        let lane = |slot| match self.state(slot) {
            SlotState::Rebuilding { lane } => Some((slot, lane)),
            _ => None,
        };
        (0..self.len()).filter_map(lane).collect()
    }

    /// Counts a request on `slot` for as long as the guard lives.
    pub fn busy(&self, slot: usize) -> Busy<'_> {
        let count = &self.slots[slot].in_flight;
        count.set(count.get() + 1);
        Busy(count)
    }

    /// Requests under way on `slot`.
    pub fn load(&self, slot: usize) -> u32 {
        self.slots[slot].in_flight.get()
    }

    pub fn count_read_error(&self, slot: usize) {
        let count = &self.slots[slot].read_errors;
        count.set(count.get() + 1);
    }

    pub fn count_repair(&self, slot: usize) {
        let count = &self.slots[slot].repairs;
        count.set(count.get() + 1);
    }

    /// Read errors seen and repaired on `slot`.
    pub fn error_counts(&self, slot: usize) -> (u64, u64) {
        (self.slots[slot].read_errors.get(), self.slots[slot].repairs.get())
    }

    /// Whether `disk` is still what `slot` holds.
    pub fn holds(&self, slot: usize, disk: &Rc<dyn Disk>) -> bool {
        self.slots[slot].disk.borrow().as_ref().is_some_and(|held| Rc::ptr_eq(held, disk))
    }

    /// Empties a slot, in memory; [`Members::commit`] must follow.
    pub fn set_missing(&self, slot: usize) {
        *self.slots[slot].disk.borrow_mut() = None;
        self.set_state(slot, SlotState::Missing);
    }

    /// Puts a disk into an empty slot, in memory only: requests use it from now on where its lane
    /// is not stale. [`Members::publish_rebuilding`] must follow once that lane is durable.
    pub fn stage_rebuilding(&self, slot: usize, disk: Rc<dyn Disk>, lane: u8) {
        let place = &self.slots[slot];
        *place.disk.borrow_mut() = Some(disk);
        place.read_errors.set(0);
        place.repairs.set(0);
        place.state.set(SlotState::Rebuilding { lane });
        self.note_states();
    }

    /// Puts a staged replacement into the superblock; [`Members::commit`] must follow.
    pub fn publish_rebuilding(&self, slot: usize, spare: &Spare) {
        let state = self.state(slot);
        let meta = &mut self.superblock.borrow_mut().slots[slot];
        meta.member_id = Some(spare.id);
        meta.disk_hint = disk_hint(&spare.disk.info().name);
        meta.state = state;
    }

    /// Ends a rebuild, in memory; [`Members::commit`] must follow.
    pub fn set_active(&self, slot: usize) {
        self.set_state(slot, SlotState::Active);
    }

    fn set_state(&self, slot: usize, state: SlotState) {
        self.slots[slot].state.set(state);
        self.superblock.borrow_mut().slots[slot].state = state;
        self.note_states();
    }

    fn note_states(&self) {
        let active = self.slots.iter().all(|slot| slot.state.get() == SlotState::Active);
        self.all_active.set(active);
    }

    /// Whether the membership as it is now may take effect after the one that is.
    pub fn check_majority(&self) -> Result<(), String> {
        let before = self.in_effect.borrow();
        let kept = before.iter().filter(|slot| self.state(**slot) == SlotState::Active).count();
        if may_take_effect(before.len(), kept) {
            return Ok(());
        }
        let lost = before.len() - kept;
        Err(format!(
            "{lost} of {} active members failed at once; assemble the array again with all of them, or force it degraded",
            before.len()
        ))
    }

    /// Waits for a commit that is under way.
    pub async fn committed(&self) {
        drop(self.commit.acquire(1).await);
    }

    /// Writes the superblock as it is now, with the next sequence number, to every member and
    /// spare. Returns the members that failed to take it: the caller must exclude them and commit again.
    pub async fn commit(&self) -> Vec<(usize, Rc<dyn Disk>, SuperblockError)> {
        let _one_at_a_time = self.commit.acquire(1).await;
        let spares = self.spares.borrow().clone();
        let superblock = {
            let mut superblock = self.superblock.borrow_mut();
            superblock.seq += 1;
            superblock.spares = spares.iter().map(Spare::meta).collect();
            superblock.clone()
        };
        let to_spares =
            spares.iter().map(|spare| write_superblock(&*spare.disk, &superblock, spare.id));
        let mut members = self.disks();
        // A replacement that is staged and not published yet is no member so far.
        members.retain(|(slot, _)| superblock.slots[*slot].state != SlotState::Missing);
        let to_members = members.iter().filter_map(|(slot, disk)| {
            let id = superblock.slots[*slot].member_id?;
            Some(write_superblock(&**disk, &superblock, id))
        });
        let (results, _) = join(join_all(to_members), join_all(to_spares)).await;
        if results.iter().all(Result::is_ok) {
            *self.in_effect.borrow_mut() = superblock.active_slots().collect();
        }
        let failed = members.into_iter().zip(results);
        failed.filter_map(|((slot, disk), result)| Some((slot, disk, result.err()?))).collect()
    }
}
