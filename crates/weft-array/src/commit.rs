//! How a change of membership comes into effect on disk, and what waits for that.
//!
//! **What must not happen.** A member is taken out because its disk failed. From that moment writes
//! go around it and flushes do not ask it. If the program dies before the others say so, the member
//! comes back as an active one with old data – and what was acknowledged without it is lost, or a
//! resync overwrites the parity that still knew it. The request that met the failure is only one of
//! many that rely on the exclusion: every write that left the member out does, and every flush.
//!
//! **The rule.** Each change of the membership is counted in memory when it is made
//! (`members/changes.rs`). Whatever relies on the membership waits, at its end, until every change
//! made so far is in effect ([`Inner::settled`]):
//!
//! - a write, before it is acknowledged or its log records count as durable;
//! - a flush, before it is acknowledged or records are retired: what sits in the cache of a member
//!   that was taken out is not durable;
//! - the region map: a page, and a flush before a mark is cleared;
//! - a log record, before it is made: it takes a lost unit for one with its new value, which is not
//!   so if the member comes back with the old one; and again before data is written: a record that
//!   a lost member should hold too is not used after a crash if that member comes back without it.
//!
//! The question is about the changes made until it is asked. Later ones do not matter: what had
//! been written to a member that is taken out later is there. So a request waits for the change
//! that it relied on, and not for those that follow.
//!
//! md has the same rule (`MD_SB_CHANGE_PENDING`: writes wait until the superblock says that the
//! disk is faulty).
//!
//! **The commit** is one task. It runs while there are changes that are not in effect, and does
//! not depend on whoever made them. Each round writes the superblock as it is then to all members
//! that are left. A member that fails to take it is taken out, which is one more change. A round
//! completes the changes in it when every member that it lists has it, and none of them asks an
//! assembly for the majority before (`assemble.rs`, joint majorities); otherwise another follows.
//! The task waits for disks only, never for a request, a lock or a page of the region map: these
//! may be waiting for it.
//!
//! If too few of the members that were active before would be left, the change does not take
//! effect: those left out could later be taken for the array ([`may_take_effect`]). The array is
//! then broken, and what waits fails instead of being acknowledged. A broken array's metadata stays
//! as it was when it broke.
//!
//! **Failures meanwhile.** So it matters in which order changes come into effect. A mirror whose last
//! member but one was just rebuilt can lose either, once the superblock says that both are active;
//! until it is durable that the second one is, the first is the only one that may go on as the
//! array, and cannot be left out. Therefore the taking out of a member, from which too few of those
//! in effect, or about to be, would be left, waits until the changes before it are in effect
//! ([`Inner::exclude`]). Meanwhile the member stays, and whoever met its failure waits, as it would
//! for the exclusion. That is no deadlock: the commit waits for none of them. It ends well if the
//! member can still take a superblock – one sector that cannot be written is no reason to stop –
//! and else with the array broken, as before: then no order would have helped. A command is refused
//! instead ([`Inner::sparable_soon`]). Members that others can go on without are taken out at once,
//! so nothing waits for a disk that hangs and is not needed.
//!
//! [`may_take_effect`]: crate::assemble::may_take_effect

use std::rc::Rc;

use futures_util::future::select;
use weft_code::UnitSet;
use weft_disk::{Disk, DiskError};
use weft_rt::{Nanos, SECOND};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::members::{Refusal, Spare};
use crate::superblock::{SlotState, SuperblockError, write_superblock};

/// A command waits this long for changes that have to come before its own.
const COMMAND_PATIENCE: Nanos = 5 * SECOND;

/// A spare may take this long to be told of a change before another one is preferred.
const SPARE_PATIENCE: Nanos = SECOND;

impl Inner {
    /// Returns when every change of the membership made so far is in effect. Without I/O and in
    /// one poll if they are.
    ///
    /// # Errors
    /// If the array broke before: what relies on the changes must not be acknowledged.
    pub async fn settled(&self) -> Result<(), ArrayError> {
        let changes = &self.members.changes;
        if changes.is_settled() {
            return Ok(());
        }
        Box::pin(self.in_effect(changes.membership())).await
    }

    /// Has the metadata as it is now made durable, on all members. Returns when it is, or when the
    /// array is broken.
    pub async fn commit_members(&self) {
        let change = self.members.changes.note();
        let _ = self.in_effect(change).await;
    }

    async fn in_effect(&self, change: u64) -> Result<(), ArrayError> {
        let changes = &self.members.changes;
        loop {
            let progress = changes.progress();
            // An array that is only read is never changed on disk.
            if changes.is_in_effect(change) || self.read_only.get() {
                return Ok(());
            }
            self.check_whole()?;
            self.start_commit();
            progress.await;
        }
    }

    /// Starts the committing task unless it runs.
    fn start_commit(&self) {
        if self.members.changes.begin_committing() {
            let array = self.handle();
            let commit = async move {
                array.commit_changes().await;
                array.members.changes.end_committing();
            };
            drop(self.rt.spawn(commit));
        }
    }

    /// Writes superblocks until all changes are in effect, or the array is broken.
    async fn commit_changes(&self) {
        let changes = &self.members.changes;
        while !changes.is_in_effect(changes.made()) {
            let turn = self.members.turn_to_commit().await;
            if self.broken.borrow().is_some() {
                return;
            }
            if let Err(cause) = self.members.check_majority() {
                // A member may be replaced some other time.
                if self.members.unswap() {
                    continue;
                }
                self.set_broken(UnitSet::new(), &cause);
                return;
            }
            let round = self.members.commit(turn).await;
            let complete = round.is_complete();
            if !self.take_out_all(round.refusals) {
                return;
            }
            if complete {
                let was_settled = changes.is_settled();
                changes.take_effect(round.change);
                for spare in self.members.spares.begin_telling(round.superblock) {
                    let array = self.handle();
                    drop(self.rt.spawn(async move { array.tell(spare).await }));
                }
                if !was_settled && changes.is_settled() {
                    self.jobs.wake();
                }
            }
        }
    }

    /// Writes superblocks to a spare until it has the newest.
    async fn tell(&self, spare: Spare) {
        let mut has = None;
        while let Some(superblock) = self.members.spares.next_for(&spare, has) {
            match write_superblock(&*spare.disk, &superblock, spare.id).await {
                Ok(()) => has = Some(superblock.seq),
                Err(error) => {
                    if self.members.spares.remove(&spare) {
                        let disk = spare.disk.info().name.clone();
                        self.events.emit(Event::SpareFailed { disk, cause: error.to_string() });
                        if !self.stopped.get() {
                            self.commit_members().await;
                        }
                    }
                }
            }
        }
        // There may be a slot for it.
        self.jobs.changed();
    }

    /// Takes a spare that has the newest superblock: the one that came last, unless that hangs.
    pub async fn take_ready_spare(&self) -> Option<Spare> {
        let spares = &self.members.spares;
        self.await_spares(|| spares.is_last_ready()).await;
        spares.take_ready()
    }

    /// Returns when all spares have the newest superblock, but for one that hangs.
    pub async fn spares_told(&self) {
        self.await_spares(|| self.members.spares.all_ready()).await;
    }

    async fn await_spares(&self, done: impl Fn() -> bool) {
        let deadline = self.rt.now() + SPARE_PATIENCE;
        loop {
            let change = std::pin::pin!(self.members.spares.change());
            if done() || self.rt.now() >= deadline {
                return;
            }
            select(change, std::pin::pin!(self.rt.sleep_until(deadline))).await;
        }
    }

    /// A disk failed an operation. On return its exclusion is in effect – or, if it is a member
    /// that the code cannot do without, the array has stopped taking writes and its metadata is
    /// left as it was.
    pub async fn member_failed(&self, slot: usize, disk: &Rc<dyn Disk>, error: &DiskError) {
        self.exclude(slot, disk, &error.to_string()).await;
    }

    /// As [`Inner::member_failed`], for any cause.
    pub async fn exclude(&self, slot: usize, disk: &Rc<dyn Disk>, cause: &str) {
        while self.must_wait_before_losing(slot, disk) {
            let progress = self.members.changes.progress();
            self.start_commit();
            progress.await;
        }
        self.take_out(slot, disk, cause);
        // Whoever relies on it asks for himself whether the array is broken.
        let _ = self.settled().await;
    }

    /// Whether changes that are being made must be in effect before `disk` is taken out of `slot`:
    /// otherwise too few of the members that are active on disk would be left.
    fn must_wait_before_losing(&self, slot: usize, disk: &Rc<dyn Disk>) -> bool {
        !self.members.changes.is_settled()
            && !self.read_only.get()
            && self.broken.borrow().is_none()
            && self.members.uses(slot, disk)
            && !self.members.may_lose(slot, disk)
            && !self.cannot_spare(slot)
    }

    /// Returns when `disk` can be taken out of `slot` without waiting for other changes. That is
    /// at once unless too few of the members that are active on disk would be left.
    ///
    /// # Errors
    /// If that takes too long: a superblock is being written to a disk that does not answer, which
    /// may be this one.
    pub async fn sparable_soon(&self, slot: usize, disk: &Rc<dyn Disk>) -> Result<(), ArrayError> {
        if self.changed_soon(|| !self.must_wait_before_losing(slot, disk)).await {
            return Ok(());
        }
        Err(ArrayError::Refused(format!(
            "slot {slot} cannot be failed now: the members that would be left are not active on disk yet, because a superblock is still being written; try again in a while"
        )))
    }

    /// Waits until changes that are being made are in effect, as far as `done` asks for them. False
    /// if a command should not wait any longer.
    pub async fn changed_soon(&self, done: impl Fn() -> bool) -> bool {
        let deadline = self.rt.now() + COMMAND_PATIENCE;
        loop {
            let progress = std::pin::pin!(self.members.changes.progress());
            if done() || self.broken.borrow().is_some() {
                return true;
            }
            if self.rt.now() >= deadline {
                return false;
            }
            self.start_commit();
            select(progress, std::pin::pin!(self.rt.sleep_until(deadline))).await;
        }
    }

    /// Takes a failed disk out, in memory, if it is not out already. If it is the one that is too
    /// many the array is broken instead. What is under way on it ends, however long the disk itself
    /// would take: who waits for it holds locks, log and memory that others need.
    fn take_out(&self, slot: usize, disk: &Rc<dyn Disk>, cause: &str) {
        let name = disk.info().name.clone();
        let cause = cause.to_owned();
        if self.members.holds(slot, disk) && self.members.copying(slot).is_none() {
            // One that has just taken the place of another gives it back, if it is not too late.
            self.members.unswap_in(slot);
        }
        if let Some((_, lane)) = self.members.take_second(slot, disk) {
            disk.sever(&cause);
            if let Some(lane) = lane {
                self.map.end_lane(lane);
                self.events.emit(Event::ReplacementFailed { slot, disk: name, cause });
            }
            return;
        }
        if !self.members.holds(slot, disk) {
            return;
        }
        // A broken array's metadata stays as it was when it broke.
        if self.broken.borrow().is_some() || self.cannot_spare(slot) {
            return self.set_broken(UnitSet::one(slot), &cause);
        }
        self.empty_slot(slot);
        disk.sever(&cause);
        self.events.emit(Event::MemberFailed { slot, disk: name, cause });
    }

    /// Takes out members that failed to take a superblock. False if the array is broken.
    pub fn take_out_all(&self, failed: Vec<Refusal>) -> bool {
        for (slot, disk, error) in failed {
            match error {
                SuperblockError::Disk(error) => self.take_out(slot, &disk, &error.to_string()),
                // No member's fault, and nothing was written: what stands on the members is good.
                error => self.set_broken(UnitSet::new(), &error.to_string()),
            }
            if self.broken.borrow().is_some() {
                return false;
            }
        }
        true
    }

    /// Empties a slot, or leaves it to its member's replacement, in memory.
    pub fn empty_slot(&self, slot: usize) {
        if self.members.promote(slot) {
            return;
        }
        if let Some(staged) = self.members.second_disk(slot)
            && let Some((spare, Some(lane))) = self.members.take_second(slot, &staged)
        {
            self.map.end_lane(lane);
            self.members.spares.push(spare);
        }
        if let SlotState::Rebuilding { lane } = self.members.state(slot) {
            self.map.end_lane(lane);
        }
        self.remember_member(slot);
        if let Some(log) = &self.log {
            log.forget_ring(slot);
        }
        self.members.set_missing(slot);
    }

    /// From now on the array takes no writes.
    pub fn set_broken(&self, slots: UnitSet, cause: &str) {
        self.broken_slots.set(self.broken_slots.get().union(&slots));
        let mut broken = self.broken.borrow_mut();
        if broken.is_none() {
            *broken = Some(cause.to_owned());
            drop(broken);
            self.events.emit(Event::ArrayBroken { cause: cause.to_owned() });
            self.members.changes.give_up();
        }
    }
}
