//! Disks that wait to replace a member, and the superblocks that they get.
//!
//! A change of membership takes effect without the spares, so they are told of it afterwards, and
//! nothing waits for them: a spare that hangs holds nobody up. One superblock is under way to a
//! spare at a time. If another comes into effect meanwhile the spare gets the newest one next.
//!
//! A spare becomes a rebuild's target only when it has the newest superblock and none is under way.
//! A late write could otherwise overwrite the superblock that it gets as a member.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::sync::Notify;

use crate::superblock::{SpareMeta, Superblock, disk_hint};
use crate::uuid::Id;

/// A disk that waits to replace a member.
#[derive(Clone)]
pub(crate) struct Spare {
    pub id: Id,
    pub disk: Rc<dyn Disk>,
    /// A superblock is under way to it.
    busy: Rc<Cell<bool>>,
}

impl Spare {
    pub fn new(id: Id, disk: Rc<dyn Disk>) -> Self {
        Self { id, disk, busy: Rc::default() }
    }

    fn meta(&self) -> SpareMeta {
        SpareMeta { member_id: self.id, disk_hint: disk_hint(&self.disk.info().name) }
    }
}

/// The spares of an array, in the order in which they came.
pub(crate) struct Spares {
    waiting: RefCell<Vec<Spare>>,
    /// The newest superblock in effect.
    superblock: RefCell<Option<Rc<Superblock>>>,
    /// Rings when a spare has been told, or left.
    bell: Notify,
}

impl Spares {
    pub fn new(waiting: Vec<Spare>) -> Self {
        Self {
            waiting: RefCell::new(waiting),
            superblock: RefCell::default(),
            bell: Notify::default(),
        }
    }

    pub fn all(&self) -> Ref<'_, Vec<Spare>> {
        self.waiting.borrow()
    }

    pub fn metas(&self) -> Vec<SpareMeta> {
        self.all().iter().map(Spare::meta).collect()
    }

    pub fn push(&self, spare: Spare) {
        self.waiting.borrow_mut().push(spare);
    }

    /// Takes a spare away. False if it had left before.
    pub fn remove(&self, spare: &Spare) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|other| other.id != spare.id);
        let removed = waiting.len() < before;
        drop(waiting);
        self.bell.notify_all();
        removed
    }

    /// Returns when no superblock is under way to a disk that was a spare.
    pub async fn left_alone(&self, spare: &Spare) {
        loop {
            let change = self.change();
            if !spare.busy.get() {
                return;
            }
            change.await;
        }
    }

    /// Whether a spare has the newest superblock, so that it can be taken.
    pub fn any_ready(&self) -> bool {
        self.all().iter().any(|spare| !spare.busy.get())
    }

    /// Whether all have.
    pub fn all_ready(&self) -> bool {
        self.all().iter().all(|spare| !spare.busy.get())
    }

    /// Whether the one that came last has, or there is none.
    pub fn is_last_ready(&self) -> bool {
        self.all().last().is_none_or(|spare| !spare.busy.get())
    }

    /// Takes the one that came last of those that are ready.
    pub fn take_ready(&self) -> Option<Spare> {
        let mut waiting = self.waiting.borrow_mut();
        let last = waiting.iter().rposition(|spare| !spare.busy.get())?;
        Some(waiting.remove(last))
    }

    /// Returns when a spare has been told since this call, or left.
    pub fn change(&self) -> impl Future<Output = ()> + '_ {
        self.bell.wait()
    }

    /// A superblock has come into effect. Returns the spares that are now to be told; the others
    /// have an older one under way, and get this one next.
    pub fn begin_telling(&self, superblock: Rc<Superblock>) -> Vec<Spare> {
        *self.superblock.borrow_mut() = Some(superblock);
        let mut idle = self.all().clone();
        idle.retain(|spare| !spare.busy.replace(true));
        idle
    }

    /// The next superblock for a spare that is being told and has the one numbered `has`: the
    /// newest, unless it has that already or waits no more. Then it is ready.
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
