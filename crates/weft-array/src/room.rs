//! When there is no room under a member: a sparse file on a full file system, a thin volume whose
//! pool ran out.
//!
//! Such a member works: all that it holds can be read, and what has room can be written. So it
//! stays, and a write that finds no room *waits*, as on a ZFS pool (`failmode=wait`) or under QEMU
//! (`werror=enospc`): its client has no answer, its stripe stays locked, its region dirty and its
//! log record live. It is tried again until
//!
//! - there is room: it ends like any other;
//! - the member is failed: its unit is lost like all others of that member, and the write ends
//!   degraded;
//! - the array breaks or is stopped: the write fails, and the array is not marked clean.
//!
//! So to recovery, a crash or a stop in that state is one in the middle of a stripe write, and
//! nothing else has to know of it. Of the writes that wait for one member only the first tries
//! again; the others follow it.
//!
//! *Maintenance does not wait*, as it would keep other jobs from running. A resync or a rebuild
//! that finds no room leaves its region's mark as it is, and is tried again every few seconds. The
//! same goes for sectors that cannot be read and find no room for their repair (`gather.rs`):
//! readers compute them, and a resync does not count their stripe as done. The last that was
//! written there may have reached the disk or not, and a disk may read one day what it could not
//! before. Until a resync that lacks room has ended, its member does not count towards redundancy.
//!
//! *Metadata* has its room from the beginning (`create.rs`). On a copy-on-write file system it may
//! need more all the same. The log then waits like data; a member whose region map or superblock
//! finds no room is excluded, since a change of membership must not wait for a member.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::select;
use weft_code::UnitSet;
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::sync::Semaphore;
use weft_rt::{Frozen, Nanos, SECOND};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;

/// A write that waits for room is tried again after this time.
const WRITE_PERIOD: Nanos = 2 * SECOND;

/// A job that found no room is tried again after this time.
pub(crate) const JOB_PERIOD: Nanos = 10 * SECOND;

/// Who wants room, and where.
pub(crate) struct Room {
    /// For each slot, the bytes of writes that wait.
    wanted: Vec<Cell<u64>>,
    /// For each slot, the turn to try again.
    turns: Vec<Semaphore>,
    /// Slots under which a job has found no room since it was last tried again, and before that.
    short: Cell<(UnitSet, UnitSet)>,
    /// A stripe whose resync found no room: it is tried before any other.
    pub resync: Cell<Option<u64>>,
    /// The disk for which writes waited when the array was stopped.
    abandoned: RefCell<Option<String>>,
}

/// Bytes that a write wants, for as long as it lives.
struct Wanted<'a>(&'a Cell<u64>, u64);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl Room {
    pub fn new(slots: usize) -> Self {
        Self {
            wanted: vec![Cell::new(0); slots],
            turns: (0..slots).map(|_| Semaphore::new(1)).collect(),
            short: Cell::default(),
            resync: Cell::new(None),
            abandoned: RefCell::default(),
        }
    }

    /// Slots under which a job lacks room.
    pub fn short(&self) -> UnitSet {
        let (now, before) = self.short.get();
        now.union(&before)
    }

    /// The disk for which writes waited when the array was stopped.
    pub fn abandoned(&self) -> Option<String> {
        self.abandoned.borrow().clone()
    }

    fn want(&self, slot: usize, bytes: u64) -> Wanted<'_> {
        let wanted = &self.wanted[slot];
        wanted.set(wanted.get() + bytes);
        Wanted(wanted, bytes)
    }
}

impl Inner {
    /// Writes to the disk of a slot; for a user, waits while there is no room.
    ///
    /// # Errors
    /// As [`Disk::write`]; a user's write fails for lack of room only if the disk has left its
    /// slot, or the array takes no more writes.
    pub(crate) async fn write_with_room(
        &self,
        slot: usize,
        disk: &Rc<dyn Disk>,
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let len = data.len() as u64;
        let write = || disk.write(offset, data.clone(), opts);
        self.with_room(slot, disk, len, opts.class, write).await
    }

    /// As [`Inner::write_with_room`], with zeros.
    pub(crate) async fn zero_with_room(
        &self,
        slot: usize,
        disk: &Rc<dyn Disk>,
        offset: u64,
        len: u64,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let zero = || disk.write_zeroes(offset, len, opts);
        self.with_room(slot, disk, len, opts.class, zero).await
    }

    async fn with_room<F: Future<Output = Result<(), DiskError>>>(
        &self,
        slot: usize,
        disk: &Rc<dyn Disk>,
        len: u64,
        class: Class,
        write: impl Fn() -> F,
    ) -> Result<(), DiskError> {
        match write().await {
            Err(error) if error.is_no_space() && class == Class::User => {
                Box::pin(self.wait_for_room(slot, disk, len, write, error)).await
            }
            result => result,
        }
    }

    async fn wait_for_room<F: Future<Output = Result<(), DiskError>>>(
        &self,
        slot: usize,
        disk: &Rc<dyn Disk>,
        len: u64,
        write: impl Fn() -> F,
        mut error: DiskError,
    ) -> Result<(), DiskError> {
        if self.members.holds(slot, disk) && self.wants_bytes(slot) == 0 {
            self.emit_no_space(slot);
        }
        let _wanted = self.room.want(slot, len);
        let _turn = self.room.turns[slot].acquire(1).await;
        loop {
            if !self.members.holds(slot, disk) {
                return Err(error);
            }
            if self.check_writable().is_err() {
                let mut broken = self.broken.borrow_mut();
                if self.stopped.get() && broken.is_none() {
                    // Nothing may be retired, committed or marked clean any more.
                    self.members.changes.give_up();
                    let name = disk.info().name.clone();
                    *broken =
                        Some(format!("it was stopped while writes waited for space on {name}"));
                    *self.room.abandoned.borrow_mut() = Some(name);
                }
                return Err(error);
            }
            let bell = self.jobs.bell();
            match write().await {
                Err(again) if again.is_no_space() => error = again,
                result => return result,
            }
            let end = self.rt.sleep_until(self.rt.now() + WRITE_PERIOD);
            select(end, std::pin::pin!(bell)).await;
        }
    }

    /// A disk failed a user's write. Lack of room is no fault of the disk if the array was stopped,
    /// or broke, while the write waited.
    pub(crate) async fn data_write_failed(
        &self,
        slot: usize,
        disk: &Rc<dyn Disk>,
        error: &DiskError,
    ) {
        if !error.is_no_space() || self.check_writable().is_ok() {
            self.member_failed(slot, disk, error).await;
        }
    }

    /// Bytes that wait for room under the member of a slot.
    pub(crate) fn wants_bytes(&self, slot: usize) -> u64 {
        let job = if self.room.short().contains(slot) { self.geometry.unit_bytes } else { 0 };
        self.room.wanted[slot].get() + job
    }

    /// A job found no room under the member of a slot: it is tried again by itself.
    pub(crate) fn note_no_space(&self, slot: usize) -> ArrayError {
        if self.wants_bytes(slot) == 0 {
            self.emit_no_space(slot);
        }
        let (now, before) = self.room.short.get();
        self.room.short.set((now.with(slot), before));
        ArrayError::NoSpace { disk: self.members.name(slot) }
    }

    fn emit_no_space(&self, slot: usize) {
        let disk = self.members.name(slot);
        self.events.emit(Event::NoSpace { slot, disk });
    }

    /// Jobs that found no room are tried again now.
    pub(crate) fn try_room(&self) {
        let (now, _) = self.room.short.get();
        self.room.short.set((UnitSet::new(), now));
        if !now.is_empty() {
            self.jobs.wake();
        }
    }
}
