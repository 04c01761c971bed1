//! Disks that wait to replace a member, and how they get superblocks.
//!
//! A change of membership takes effect without the spares. They get the superblock afterwards, and
//! nothing waits for them, so a hung spare blocks nothing. One superblock at a time is written to a
//! spare; if newer ones take effect before it ends, the spare gets the newest one next.
//!
//! A spare becomes the target of a rebuild only when it has the newest superblock and none is being
//! written to it. Otherwise a late write could overwrite the superblock that it gets as a member.
//! While it is zeroed for that it remains a spare: superblocks list it, and it cannot be added once
//! more.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::sync::Notify;

use crate::format::uuid::Id;
use crate::superblock::{SpareMeta, Superblock, disk_hint};

/// A disk that waits to replace a member.
#[derive(Clone)]
pub(crate) struct Spare {
    pub id: Id,
    pub disk: Rc<dyn Disk>,
    /// It was prepared or zeroed in this run, and has been in no slot since: if the array's members
    /// are zeroed, it reads as zeros up to here. Other spares may hold data written for a slot that
    /// they did not get in the end, or before a crash.
    zeroed_to: u64,
    /// A superblock is being written to it, or it is being zeroed.
    busy: Rc<Cell<bool>>,
}

impl Spare {
    /// A disk that may hold anything.
    pub fn new(id: Id, disk: Rc<dyn Disk>) -> Self {
        Self { id, disk, zeroed_to: 0, busy: Rc::default() }
    }

    /// A disk with `member_bytes` just prepared.
    pub fn prepared(id: Id, disk: Rc<dyn Disk>, member_bytes: u64) -> Self {
        Self { zeroed_to: member_bytes, ..Self::new(id, disk) }
    }

    /// It has been in a slot.
    pub fn touched(self) -> Self {
        Self { zeroed_to: 0, ..self }
    }

    /// Whether it reads as zeros in an array that uses `member_bytes` of it.
    pub fn is_zeroed(&self, member_bytes: u64) -> bool {
        self.zeroed_to >= member_bytes
    }

    pub fn meta(&self) -> SpareMeta {
        SpareMeta { member_id: self.id, disk_hint: disk_hint(&self.disk.info().name) }
    }
}

/// The spares of an array, in the order of their adding. When the array uses more of its members,
/// some may be too small for it: they stay spares, and are not taken.
pub(crate) struct Spares {
    waiting: RefCell<Vec<Spare>>,
    /// Bytes of each member that the array uses.
    member_bytes: Cell<u64>,
    /// The newest superblock in effect.
    superblock: RefCell<Option<Rc<Superblock>>>,
    /// Rings when a spare has got a superblock, or was removed.
    bell: Notify,
}

impl Spares {
    pub fn new(waiting: Vec<Spare>, member_bytes: u64) -> Self {
        Self {
            waiting: RefCell::new(waiting),
            member_bytes: Cell::new(member_bytes),
            superblock: RefCell::default(),
            bell: Notify::default(),
        }
    }

    pub fn all(&self) -> Ref<'_, Vec<Spare>> {
        self.waiting.borrow()
    }

    /// The array uses `member_bytes` of each member from now on.
    pub(super) fn need(&self, member_bytes: u64) {
        self.member_bytes.set(member_bytes);
    }

    /// Whether a spare is large enough.
    pub fn fits(&self, spare: &Spare) -> bool {
        spare.disk.size_now() >= self.member_bytes.get()
    }

    /// The spares that are large enough.
    pub fn usable(&self) -> usize {
        self.all().iter().filter(|spare| self.fits(spare)).count()
    }

    /// Whether it is large enough and has the newest superblock.
    fn is_ready(&self, spare: &Spare) -> bool {
        !spare.busy.get() && self.fits(spare)
    }

    pub fn metas(&self) -> Vec<SpareMeta> {
        self.all().iter().map(Spare::meta).collect()
    }

    pub(super) fn push(&self, spare: Spare) {
        self.waiting.borrow_mut().push(spare);
    }

    /// Removes a spare. Returns false if it had been removed before.
    pub fn remove(&self, spare: &Spare) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|other| other.id != spare.id);
        let removed = waiting.len() < before;
        drop(waiting);
        self.bell.notify_all();
        removed
    }

    /// Waits until nothing is being written to a disk that was a spare.
    pub async fn until_idle(&self, spare: &Spare) {
        loop {
            let change = self.change();
            if !spare.busy.get() {
                return;
            }
            change.await;
        }
    }

    /// Whether any spare has the newest superblock, so that it can be taken.
    pub fn any_ready(&self) -> bool {
        self.all().iter().any(|spare| self.is_ready(spare))
    }

    /// Whether all spares have the newest superblock.
    pub fn all_ready(&self) -> bool {
        self.all().iter().all(|spare| !spare.busy.get())
    }

    /// Whether the large enough spare added last has the newest superblock, or there is none.
    pub fn is_last_ready(&self) -> bool {
        self.all().iter().rfind(|spare| self.fits(spare)).is_none_or(|spare| !spare.busy.get())
    }

    /// The spare added last among the ready ones.
    pub fn last_ready(&self) -> Option<Spare> {
        self.all().iter().rfind(|spare| self.is_ready(spare)).cloned()
    }

    /// A ready spare is being zeroed from now on. Returns the number of the superblock that it has.
    pub fn begin_zeroing(&self, spare: &Spare) -> Option<u64> {
        spare.busy.set(true);
        self.superblock.borrow().as_ref().map(|superblock| superblock.seq)
    }

    /// A spare was zeroed up to here. It counts as ready only after [`Spares::next_for`].
    pub fn note_zeroed(&self, spare: &Spare, member_bytes: u64) {
        let mut waiting = self.waiting.borrow_mut();
        let zeroed = waiting.iter_mut().filter(|other| other.id == spare.id);
        zeroed.for_each(|one| one.zeroed_to = member_bytes);
    }

    /// Completes when a spare has got a superblock since this call, or was removed.
    pub fn change(&self) -> impl Future<Output = ()> + '_ {
        self.bell.wait()
    }

    /// A superblock has taken effect. Returns the spares that must get it now. The other spares are
    /// being zeroed, or get an older superblock; they get this one next.
    pub fn begin_updating(&self, superblock: Rc<Superblock>) -> Vec<Spare> {
        *self.superblock.borrow_mut() = Some(superblock);
        let mut idle = self.all().clone();
        idle.retain(|spare| !spare.busy.replace(true));
        idle
    }

    /// The next superblock for a spare that has the one numbered `has`: the newest. `None` if it
    /// has that already, or is no spare any more; it then counts as ready.
    pub fn next_for(&self, spare: &Spare, has: Option<u64>) -> Option<Rc<Superblock>> {
        let newest = self.superblock.borrow().clone();
        let waits = self.all().iter().any(|other| other.id == spare.id);
        let next = newest.filter(|newest| waits && has != Some(newest.seq));
        if next.is_none() {
            spare.busy.set(false);
            self.bell.notify_all();
        }
        next
    }
}
