//! The members of an array: which disk is in which slot, in what state, and how that changes.
//!
//! The state of a slot is one value ([`Slot`]), and everything that happens to it goes through one
//! function ([`Members::apply`]), which also describes the new state in the superblock. Nothing
//! else changes the slots of the superblock. Outside this module it takes a [`Change`] or a
//! [`Removal`] (`change.rs`) to do so; metadata that can wait for the next superblock is changed by
//! [`Members::edit`].
//!
//! In memory, every change is made at once: the next request avoids a failed member. The change is
//! counted ([`Changes`]), and operations that rely on it wait until it is in effect on disk
//! (`engine/membership.rs`).

pub mod assemble;
mod change;
mod changes;
pub(crate) mod preparation;
mod round;
pub(crate) mod slot;
mod spares;

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use weft_code::{SLOTS_MAX, SlotNo, SlotSet};
use weft_disk::Disk;
use weft_rt::sync::Semaphore;

use crate::format::lane::{Lane, LaneSet};
use crate::format::uuid::Id;
use crate::members::slot::{Slot, SlotEvent};
use crate::superblock::{Predecessor, SlotMeta, SlotState, SpareMeta, Superblock};
pub(crate) use change::{Change, Committer, Removal};
use changes::Changes;
pub(crate) use round::Refusal;
pub(crate) use spares::Spare;
use spares::Spares;

/// A slot while the array runs: its state, and its disks.
#[derive(Default)]
struct SlotDisks {
    slot: Cell<Slot>,
    member: RefCell<Option<Spare>>,
    /// The replacement of the member, or after a swap the old member.
    second: RefCell<Option<Spare>>,
    in_flight: Cell<u32>,
    read_errors: Cell<u64>,
    repairs: Cell<u64>,
}

pub(crate) struct Members {
    /// For every slot that an array can have; the first `len` are in use.
    places: Vec<SlotDisks>,
    len: Cell<usize>,
    spares: Spares,
    /// The array's metadata, as it is on disk or is about to be.
    superblock: RefCell<Superblock>,
    changes: Changes,
    /// Held while a superblock is written: one at a time.
    turn: Semaphore,
    /// The slots that are not active.
    incomplete: Cell<SlotSet>,
    /// The superblock in effect.
    in_effect: RefCell<Predecessor>,
    /// The superblock that is being written.
    writing: RefCell<Option<Predecessor>>,
    /// The last superblock written, if it did not take effect.
    without_effect: RefCell<Option<Rc<Superblock>>>,
    /// The lanes that a superblock gives to a member and that may still count after a crash: the
    /// one in effect, the one being written, and those written since without effect.
    lanes_on_disk: Cell<LaneSet>,
    /// Whether any slot has a second disk.
    any_second: Cell<bool>,
    /// Members that became spares by a change that is not in effect: they could become active
    /// again.
    released: RefCell<Vec<(SlotNo, Spare, SlotMeta)>>,
    /// Whether any member has rotating platters.
    any_rotational: Cell<bool>,
}

impl Members {
    /// `in_effect` is the superblock in effect: its active members count when some are lost.
    /// `lanes_on_disk` are the lanes that the superblocks on disk give to members.
    pub fn new(
        superblock: Superblock,
        in_effect: Predecessor,
        lanes_on_disk: LaneSet,
        disks: Vec<Option<Rc<dyn Disk>>>,
        replacements: Vec<Option<Rc<dyn Disk>>>,
        spares: Vec<Spare>,
    ) -> Self {
        let places = superblock.slots.iter().zip(disks.into_iter().zip(replacements));
        let places = places.map(|(meta, (disk, replacement))| {
            let id = meta.replacement.as_ref().map(|replacement| replacement.member_id);
            let known = |(id, disk)| Spare::new(id, disk);
            SlotDisks {
                slot: Cell::new(Slot::of(meta)),
                member: RefCell::new(meta.member_id.zip(disk).map(known)),
                second: RefCell::new(id.zip(replacement).map(known)),
                ..SlotDisks::default()
            }
        });
        let mut places: Vec<SlotDisks> = places.collect();
        let len = Cell::new(places.len());
        places.resize_with(SLOTS_MAX, SlotDisks::default);
        let members = Self {
            places,
            len,
            in_effect: RefCell::new(in_effect),
            writing: RefCell::new(None),
            without_effect: RefCell::default(),
            spares: Spares::new(spares, superblock.member_bytes()),
            superblock: RefCell::new(superblock),
            changes: Changes::default(),
            turn: Semaphore::new(1),
            incomplete: Cell::default(),
            lanes_on_disk: Cell::new(lanes_on_disk),
            any_second: Cell::new(false),
            released: RefCell::default(),
            any_rotational: Cell::new(false),
        };
        members.note_states();
        members
    }

    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Which changes are in effect on disk.
    #[inline]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// All slots.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = SlotNo> + use<> {
        SlotNo::all(self.len.get())
    }

    /// The array's metadata, as it is on disk or is about to be.
    pub fn superblock(&self) -> Ref<'_, Superblock> {
        self.superblock.borrow()
    }

    /// Changes metadata that has nothing to do with the slots. It becomes durable with the next
    /// superblock; a [`Change`] writes that at once.
    pub fn edit<T>(&self, change: impl FnOnce(&mut Superblock) -> T) -> T {
        change(&mut self.superblock.borrow_mut())
    }

    /// Whether every slot is active, so that no unit is lost.
    pub fn all_active(&self) -> bool {
        self.incomplete.get().is_empty()
    }

    /// Whether any member has rotating platters.
    pub fn any_rotational(&self) -> bool {
        self.any_rotational.get()
    }

    /// Slots that lack some of their units.
    pub fn incomplete(&self) -> SlotSet {
        self.incomplete.get()
    }

    pub fn slot(&self, slot: SlotNo) -> Slot {
        self.places[slot.0].slot.get()
    }

    /// What the member of `slot` holds.
    pub fn state(&self, slot: SlotNo) -> SlotState {
        self.slot(slot).holds()
    }

    /// The disk in `slot`, unless the slot is missing.
    pub fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        disk_of(&self.places[slot.0].member)
    }

    /// All disks in slots, without the second disks.
    pub fn disks(&self) -> Vec<(SlotNo, Rc<dyn Disk>)> {
        self.slots().filter_map(|slot| Some((slot, self.disk(slot)?))).collect()
    }

    /// Slots without a member.
    pub fn missing(&self) -> Vec<SlotNo> {
        self.slots().filter(|slot| self.state(*slot) == SlotState::Missing).collect()
    }

    /// All disks, with the second disks.
    pub fn all_disks(&self) -> Vec<(SlotNo, Rc<dyn Disk>)> {
        let second = |slot| Some((slot, self.second_disk(slot)?));
        let seconds = self.slots().filter(|_| self.any_second.get()).filter_map(second);
        self.disks().into_iter().chain(seconds).collect()
    }

    /// Slots that are being rebuilt, or whose member is being copied to its replacement, each with
    /// its lane of the region map.
    pub fn rebuilding(&self) -> Vec<(SlotNo, Lane)> {
        self.slots().filter_map(|slot| Some((slot, self.slot(slot).filling()?))).collect()
    }

    /// Whether `slot` has a new disk that the superblock does not name yet.
    pub fn is_staged(&self, slot: SlotNo) -> bool {
        matches!(self.slot(slot), Slot::Staged { .. })
    }

    /// Whether any slot has such a disk.
    pub fn any_staged(&self) -> bool {
        self.slots().any(|slot| self.is_staged(slot))
    }

    /// Whether every rebuild in progress is a copy: the slot has its member.
    pub fn only_copies(&self) -> bool {
        self.rebuilding().iter().all(|(slot, _)| self.state(*slot) == SlotState::Active)
    }

    /// The lanes of the region map that are in use: by a slot, or by a superblock that may count
    /// after a crash. Such a crash finds the marks of the lane, which must still record what its
    /// member lacks: until a superblock without it is in effect, they belong to that member.
    pub fn used_lanes(&self) -> LaneSet {
        let lanes = self.places.iter().flat_map(|place| place.slot.get().lanes());
        lanes.collect::<LaneSet>().union(self.lanes_on_disk.get())
    }

    /// A lane of the region map that is not in use.
    pub fn unused_lane(&self) -> Option<Lane> {
        self.used_lanes().first_free()
    }

    /// A lane that can be taken from a former member, which then has to be rebuilt completely if it
    /// comes back.
    pub fn lane_to_give(&self) -> Option<Lane> {
        self.places.iter().find_map(|place| place.slot.get().lane_to_give())
    }

    /// Whether a joining disk can get a lane, perhaps after changes have taken effect.
    pub fn has_lane_to_join(&self) -> bool {
        let lanes = self.places.iter().flat_map(|place| place.slot.get().lanes());
        lanes.collect::<LaneSet>() != LaneSet::ALL || self.lane_to_give().is_some()
    }

    /// The disk to which the rebuild of `slot` writes.
    pub fn rebuilt_disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        if self.copying(slot).is_some() { self.second_disk(slot) } else { self.disk(slot) }
    }

    /// The number of requests in progress on `slot`, without those of rebuilds that read without
    /// a lock.
    pub fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        &self.places[slot.0].in_flight
    }

    pub fn count_read_error(&self, slot: SlotNo) {
        let count = &self.places[slot.0].read_errors;
        count.set(count.get() + 1);
    }

    pub fn count_repair(&self, slot: SlotNo) {
        let count = &self.places[slot.0].repairs;
        count.set(count.get() + 1);
    }

    /// Read errors on `slot`, met and repaired.
    pub fn error_counts(&self, slot: SlotNo) -> (u64, u64) {
        (self.places[slot.0].read_errors.get(), self.places[slot.0].repairs.get())
    }

    /// The name of the disk in `slot`; of a missing slot, the last one known.
    pub fn name(&self, slot: SlotNo) -> String {
        match self.disk(slot) {
            Some(disk) => disk.info().name.clone(),
            None => self.superblock().slots[slot.0].disk_hint.clone(),
        }
    }

    /// Whether `disk` is the member of `slot` or its second disk.
    pub fn uses(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.holds(slot, disk) || self.is_second(slot, disk)
    }

    /// Whether `disk` is still the member of `slot`.
    pub fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        is_same(&self.places[slot.0].member, disk)
    }

    /// Whether `disk` is still the second disk of `slot`.
    pub fn is_second(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        is_same(&self.places[slot.0].second, disk)
    }

    /// The second disk of `slot`.
    pub fn second_disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        if !self.any_second.get() {
            return None;
        }
        disk_of(&self.places[slot.0].second)
    }

    /// The lane in which the member of `slot` is being copied.
    pub fn copying(&self, slot: SlotNo) -> Option<Lane> {
        match self.slot(slot) {
            Slot::Copying { lane } => Some(lane),
            _ => None,
        }
    }

    /// The second disk of `slot`, if it must get what the member gets: unless the stripe is stale
    /// there.
    pub fn second_for_write(
        &self,
        slot: SlotNo,
        is_stale: impl Fn(Lane) -> bool,
    ) -> Option<Rc<dyn Disk>> {
        let second = self.second_disk(slot)?;
        let lane = self.slot(slot).replacement_lane();
        lane.is_none_or(|lane| !is_stale(lane)).then_some(second)
    }

    /// The old member of `slot` after a swap that is not in effect yet.
    pub fn replaced(&self, slot: SlotNo) -> Option<Spare> {
        let swapped = matches!(self.slot(slot), Slot::Swapped { .. });
        self.places[slot.0].second.borrow().clone().filter(|_| swapped)
    }

    /// The members that the superblock names, with the replacements.
    fn named(&self) -> Vec<(SlotNo, Spare)> {
        let of = |held: &RefCell<Option<Spare>>| held.borrow().clone();
        let members = self.slots().filter(|slot| !self.is_staged(*slot));
        let replaced = self.slots().filter(|slot| self.copying(*slot).is_some());
        let members = members.filter_map(|slot| Some((slot, of(&self.places[slot.0].member)?)));
        let second = replaced.filter_map(|slot| Some((slot, of(&self.places[slot.0].second)?)));
        members.chain(second).collect()
    }

    /// The disks that the superblock names, without the spares, each with its identity.
    pub fn named_disks(&self) -> Vec<(Id, Rc<dyn Disk>)> {
        self.named().into_iter().map(|(_, member)| (member.id, member.disk)).collect()
    }

    /// Whether the member of `slot` is the only active one in the superblock in effect. It cannot
    /// be replaced then: after a swap, no other active member could tell that the old one is
    /// obsolete.
    pub fn is_only_active(&self, slot: SlotNo) -> bool {
        let id = self.superblock().slots[slot.0].member_id;
        self.in_effect.borrow().active.iter().all(|active| Some(*active) == id)
    }

    /// The slots whose member holds everything, and that no crash now would find active: the
    /// superblock that makes it active is not in effect yet.
    pub fn active_in_memory_only(&self) -> SlotSet {
        if self.changes.is_settled() {
            return SlotSet::new();
        }
        let (superblock, in_effect) = (self.superblock(), self.in_effect.borrow());
        let is_new = |slot: &SlotNo| {
            let id = superblock.slots[slot.0].member_id;
            id.is_some_and(|id| !in_effect.active.contains(&id))
        };
        let swapped = |slot: &SlotNo| self.replaced(*slot).is_some();
        superblock.active_slots().filter(|slot| is_new(slot) && !swapped(slot)).collect()
    }

    /// Puts a disk into an empty slot, or next to its working member, in memory only. From now on
    /// requests use it where its lane is not stale. [`Change::publish`] must follow once the lane
    /// is durable.
    ///
    /// # Panics
    /// If a disk is joining there already, or being rebuilt or copied to.
    pub fn join(&self, slot: SlotNo, spare: Spare, lane: Lane) {
        let place = &self.places[slot.0];
        match place.slot.get() {
            Slot::Active => *place.second.borrow_mut() = Some(spare),
            _ => place.seat(Some(spare)),
        }
        assert!(self.apply(slot, SlotEvent::Join { lane }), "slot {slot} can take no disk");
    }

    /// The former member of `lane`, if any, has to be rebuilt completely.
    fn forget_left(&self, lane: Lane) {
        for slot in self.slots() {
            if self.slot(slot).left().is_some_and(|left| left.lane == lane) {
                self.apply(slot, SlotEvent::Forget);
            }
        }
    }

    /// Adds slots with these disks, as active members: nothing was written there yet.
    fn add_slots(&self, disks: Vec<Spare>) {
        for disk in disks {
            let SpareMeta { member_id, disk_hint } = disk.meta();
            let meta = SlotMeta {
                member_id: Some(member_id),
                state: SlotState::Active,
                disk_hint,
                left: None,
                replacement: None,
            };
            let place = &self.places[self.len.get()];
            place.slot.set(Slot::of(&meta));
            place.seat(Some(disk));
            self.superblock.borrow_mut().slots.push(meta);
            self.len.set(self.len.get() + 1);
        }
        self.note_states();
        self.changes.note_membership();
    }

    /// The member of a slot that the geometry no longer uses becomes a spare.
    fn release(&self, slot: SlotNo) {
        let member = self.places[slot.0].member.borrow().clone();
        let meta = self.superblock().slots[slot.0].clone();
        if let Some(member) = member.filter(|_| self.apply(slot, SlotEvent::MemberLost)) {
            self.spares.push(member.clone().touched());
            self.released.borrow_mut().push((slot, member, meta));
        }
    }

    /// Undoes what released members, as far as it is not in effect: they hold nothing that is
    /// needed, so they lack nothing. Returns whether there were any.
    pub fn undo_releases(&self) -> bool {
        let released = std::mem::take(&mut *self.released.borrow_mut());
        let mut any = false;
        for (slot, member, meta) in released {
            if !self.spares.remove(&member) {
                // It has failed since.
                continue;
            }
            let place = &self.places[slot.0];
            place.slot.set(Slot::of(&meta));
            place.seat(Some(member));
            self.superblock.borrow_mut().slots[slot.0] = meta;
            any = true;
        }
        self.note_states();
        self.changes.note_membership();
        any
    }

    /// Removes the slots from `keep` on, which have no members.
    fn remove_slots(&self, keep: usize) {
        for place in &self.places[keep..self.len.get()] {
            place.slot.set(Slot::default());
        }
        self.superblock.borrow_mut().slots.truncate(keep);
        self.len.set(keep);
        self.note_states();
        self.changes.note_membership();
    }

    /// Old members that `in_effect` no longer names need no more writes.
    fn forget_replaced(&self, in_effect: &Superblock) {
        for slot in self.slots() {
            let now = self.superblock().slots[slot.0].member_id;
            let then = in_effect.slots.get(slot.0);
            if then.is_some_and(|then| then.member_id == now) {
                self.apply(slot, SlotEvent::SwapInEffect);
            }
        }
    }

    /// What happens to a slot: changes its state, its disks, and the superblock's record of it.
    /// Returns false if that cannot happen in the state that it is in; nothing is changed then.
    fn apply(&self, slot: SlotNo, event: SlotEvent) -> bool {
        let place = &self.places[slot.0];
        let before = place.slot.get();
        let Some(after) = before.after(event) else { return false };
        place.slot.set(after);
        match (event, after) {
            (SlotEvent::MemberLost, _) => place.seat(place.second.take()),
            (SlotEvent::UndoSwap, _) | (_, Slot::Swapped { .. }) => {
                let old = place.member.take();
                place.seat(place.second.replace(old));
            }
            (SlotEvent::SecondLost | SlotEvent::SwapInEffect, _) => drop(place.second.take()),
            _ => {}
        }
        let meta = |disk: &RefCell<Option<Spare>>| disk.borrow().as_ref().map(Spare::meta);
        let described = &mut self.superblock.borrow_mut().slots[slot.0];
        after.write_to(described, meta(&place.member), meta(&place.second));
        self.note_states();
        if event.is_membership(before) {
            self.changes.note_membership();
        }
        true
    }

    fn note_states(&self) {
        let is_incomplete = |slot: &SlotNo| self.state(*slot) != SlotState::Active;
        self.incomplete.set(self.slots().filter(is_incomplete).collect());
        self.any_second.set(self.places.iter().any(|place| place.second.borrow().is_some()));
        let mut disks = self.disks().into_iter();
        self.any_rotational.set(disks.any(|(_, disk)| disk.info().rotational));
    }
}

impl SlotDisks {
    /// Gives the slot to a disk, whose errors are counted from now on.
    fn seat(&self, disk: Option<Spare>) {
        if disk.is_some() {
            self.read_errors.set(0);
            self.repairs.set(0);
        }
        *self.member.borrow_mut() = disk;
    }
}

fn disk_of(held: &RefCell<Option<Spare>>) -> Option<Rc<dyn Disk>> {
    held.borrow().as_ref().map(|held| held.disk.clone())
}

fn is_same(held: &RefCell<Option<Spare>>, disk: &Rc<dyn Disk>) -> bool {
    held.borrow().as_ref().is_some_and(|held| Rc::ptr_eq(&held.disk, disk))
}
