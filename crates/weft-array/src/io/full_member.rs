//! When the storage below a member is full: a sparse file on a full file system, or a thin volume
//! whose pool is exhausted.
//!
//! Such a member works: everything on it can be read, and blocks that are allocated can be written.
//! So it stays, and a write that gets "no space" *waits*, as on a ZFS pool (`failmode=wait`) or
//! under QEMU (`werror=enospc`). Its client gets no answer, its stripe stays locked, its region
//! stays dirty and its log record stays in use. It is retried until
//!
//! - there is space: it ends like any other write;
//! - the member is failed: its unit is lost with the member, and the write ends degraded;
//! - the array is stopped, and one more attempt finds no space, or it breaks: the write fails, and
//!   the array is not marked clean.
//!
//! So a crash or a stop in that state looks to recovery like one in the middle of a stripe write,
//! and no other code has to deal with it. Of the writes that wait for the same member only the
//! first retries; the other writes follow it.
//!
//! *Maintenance does not wait*: that would keep other jobs from running. A resync or rebuild that
//! finds no space leaves the region marked, and is retried every few seconds. This also holds for
//! unreadable sectors whose repair finds no space (`weft_stripe::gather`): reads reconstruct them,
//! and resync does not count their stripe as done. The last write to such sectors may or may not
//! have reached the disk, and the disk may return them one day. Until a resync that lacks space has
//! finished, its member does not count towards redundancy.
//!
//! *Metadata* is allocated at creation (`lifecycle/create.rs`), but on a copy-on-write file system
//! writing it may need more space. The log then waits like data. A member whose region map or
//! superblock finds no space is excluded, since a change of membership must not wait for a member.

use std::rc::Rc;

use futures_util::future::select;
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::{Frozen, Nanos, SECOND};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::state::events::Event;

/// Interval between retries of a write that waits for space.
const WRITE_PERIOD: Nanos = 2 * SECOND;

/// Interval between retries of a job that found no space.
pub(crate) const JOB_PERIOD: Nanos = 10 * SECOND;

impl Engine {
    /// Writes to the disk of a slot. A user's write waits while there is no space.
    ///
    /// # Errors
    /// As [`Disk::write`]. A user's write fails for lack of space only if the disk has left its
    /// slot or the array takes no more writes.
    pub(crate) async fn write_with_room(
        &self,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let len = data.len() as u64;
        let write = || disk.write(offset, data.clone(), opts);
        self.with_room(slot, disk, len, opts.class, write).await
    }

    /// As [`Engine::write_with_room`], with zeros.
    pub(crate) async fn zero_with_room(
        &self,
        slot: SlotNo,
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
        slot: SlotNo,
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

    pub(crate) async fn wait_for_room<F: Future<Output = Result<(), DiskError>>>(
        &self,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        len: u64,
        write: impl Fn() -> F,
        mut error: DiskError,
    ) -> Result<(), DiskError> {
        if self.members().holds(slot, disk) && self.waiting_bytes(slot) == 0 {
            self.emit_no_space(slot);
        }
        let _waiting = self.space().begin_waiting(slot, len);
        let _turn = self.space().turn(slot).await;
        loop {
            if !self.members().holds(slot, disk) {
                return Err(error);
            }
            let is_last = self.check_writable().is_err();
            if is_last && self.service().is_broken() {
                return Err(error);
            }
            let bell = self.jobs().bell();
            match write().await {
                Err(again) if again.is_no_space() => error = again,
                result => return result,
            }
            if is_last {
                self.abandon(disk);
                return Err(error);
            }
            let end = self.rt().sleep_until(self.rt().now() + WRITE_PERIOD);
            select(end, std::pin::pin!(bell)).await;
        }
    }

    /// The array is stopped, and a write still finds no room on this disk.
    fn abandon(&self, disk: &Rc<dyn Disk>) {
        let name = &disk.info().name;
        let cause = || format!("it was stopped while writes waited for space on {name}");
        if self.service().break_off(cause) {
            self.space().abandon(name.clone());
            // From now on nothing may be retired, committed or marked clean.
            self.end_waits();
        }
    }

    /// Excludes the disk that failed a user's write. If the array was stopped or broke while the
    /// write waited for space, the disk is not at fault and stays.
    pub(crate) async fn data_write_failed(
        &self,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        error: &DiskError,
    ) {
        if !error.is_no_space() || self.check_writable().is_ok() {
            self.member_failed(slot, disk, error).await;
        }
    }

    /// Handles a job's failed write. If the disk, still in its slot, only lacks space, it stays.
    /// Otherwise it is excluded.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if it stays.
    pub(crate) async fn job_write_failed(
        &self,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        error: &DiskError,
    ) -> Result<(), ArrayError> {
        if error.is_no_space() && self.members().holds(slot, disk) {
            return Err(self.note_no_space(slot));
        }
        self.member_failed(slot, disk, error).await;
        Ok(())
    }

    /// Bytes that wait for space in a slot.
    pub(crate) fn waiting_bytes(&self, slot: SlotNo) -> u64 {
        let job = if self.space().short().contains(slot) { self.geometry().unit_bytes } else { 0 };
        self.space().waiting_bytes(slot) + job
    }

    /// Notes that a job found no space in a slot; it is retried automatically.
    pub(crate) fn note_no_space(&self, slot: SlotNo) -> ArrayError {
        if self.waiting_bytes(slot) == 0 {
            self.emit_no_space(slot);
        }
        self.space().note_short(slot);
        ArrayError::NoSpace { disk: self.members().name(slot) }
    }

    fn emit_no_space(&self, slot: SlotNo) {
        let disk = self.members().name(slot);
        self.events().emit(Event::NoSpace { slot, disk });
    }

    /// Retries the jobs that found no space.
    pub(crate) fn try_room(&self) {
        if self.space().begin_retry() {
            self.jobs().wake();
        }
    }
}
