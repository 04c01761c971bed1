//! How a change of membership takes effect on disk, and what waits for that.
//!
//! **What must not happen.** A member's disk fails, and the array stops writing to it and flushing
//! it. If the program dies before the other members record that, the failed member comes back as an
//! active one with old data. Then acknowledged writes that it missed are lost, or a resync
//! overwrites the parity from which they could still be reconstructed. The request that met the
//! failure is not the only one that relies on the exclusion: so does every write that left the
//! member out, and every flush.
//!
//! **The rule.** Each change of membership is counted in memory when it is made
//! (`members/changes.rs`). An operation that relies on the membership waits, at its end, until
//! every change made so far is in effect ([`Engine::settled`]):
//!
//! - a write, before it is acknowledged and before its log records count as durable;
//! - a flush, before it is acknowledged and before records are retired: data in the cache of an
//!   excluded member is not durable;
//! - the region map: after writing a page, and after the flush that must precede clearing a mark;
//! - a log record, before it is made: it counts a lost unit with its new value, which is wrong if
//!   the member comes back with the old one. And again before the data is written: if a lost member
//!   should hold one of the records, and comes back without it, recovery does not use the remaining
//!   ones.
//!
//! Only changes made before the check matter. If a member is excluded later, it did get everything
//! that was written before. So a request waits for the changes that it relied on, not for later
//! ones.
//!
//! md has the same rule (`MD_SB_CHANGE_PENDING`: writes wait until the superblock records that the
//! disk is faulty).
//!
//! **One door.** What changes the superblock also starts the commit, in the same poll
//! (`members/change.rs`). [`Engine::change`] completes when its change is in effect; a removal
//! counts at once, and requests wait for it as above. A position up to which a job has written
//! something is published after a flush ([`Engine::change_after_flush`]). What need not be durable
//! at once (`Members::edit`) goes along with the next change.
//!
//! **The commit** is one task. It runs while there are changes that are not in effect,
//! independently of the requests that made them. Each round writes the current superblock to all
//! remaining members. A member that fails to take it is excluded, which is one more change. A round
//! completes its changes when every member that the superblock lists has it, and assembly needs no
//! majority of the members before it (`members/assemble.rs`, joint majorities). Otherwise another
//! round follows. The task waits for disks only, never for a request, a lock or a page of the
//! region map, which may all be waiting for it.
//!
//! If too few of the previously active members would remain, the change does not take effect: the
//! members left out could later be assembled as the array ([`may_take_effect`]). The array is then
//! broken, and waiting operations fail instead of being acknowledged. A broken array's metadata
//! stays as it was when the array broke.
//!
//! **Failures in the meantime.** This makes the order matter in which changes take effect. Take a
//! mirror whose second member has just been rebuilt. Once the superblock lists both members as
//! active, either may be lost. Until that is durable, only the first may continue as the array, so
//! it cannot be excluded. Therefore, if excluding a member would leave too few of the members that
//! are active in the superblock in effect, or in the one being written, the exclusion waits until
//! the earlier changes are in effect ([`Engine::exclude`]). Meanwhile the member stays, and
//! requests that met its failure wait, as they would for the exclusion. This cannot deadlock, since
//! the commit waits for no request. If the member can still take a superblock, the exclusion then
//! follows: one unwritable sector is no reason to stop. If not, the array breaks; no other order
//! would have saved it. A command is refused instead ([`Engine::await_removable`]). A member that
//! the array can do without is excluded at once, so nothing waits for a hung disk that is not
//! needed.
//!
//! [`may_take_effect`]: crate::members::assemble::may_take_effect

use std::rc::Rc;

use futures_util::future::{join_all, select};
use weft_code::{SlotNo, SlotSet};
use weft_disk::{Disk, DiskError, DiskErrorKind};
use weft_rt::{Nanos, SECOND};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::consistency::Consistency;
use crate::format::lane::Lane;
use crate::members::Removal;
use crate::members::preparation::clear_data;
use crate::members::slot::Slot;
use crate::members::{Change, Committer, Refusal, Spare};
use crate::state::events::Event;
use crate::superblock::{SlotState, SuperblockError, write_superblock};

/// How long a command waits for earlier changes to take effect.
const COMMAND_PATIENCE: Nanos = 5 * SECOND;

/// How long a command waits for the other disks to answer before it takes one out.
const PROBE_PATIENCE: Nanos = 2 * SECOND;

/// How long a spare may take to get a superblock before another spare is preferred.
const SPARE_PATIENCE: Nanos = SECOND;

/// Whether a request was refused before it was sent, because it was malformed. (A kernel that
/// answers the same gives an error number.)
fn is_malformed(error: &DiskError) -> bool {
    error.kind == DiskErrorKind::Invalid && error.source.raw_os_error().is_none()
}

/// Whether a member that leaves still holds its data, so that it may come back with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// It does, as far as is known.
    Kept,
    /// What it holds may be lost: it is rebuilt completely if it comes back.
    Lost,
}

impl Trust {
    /// That in a disk which failed with this error. A disk that answers with errors may have lost
    /// more than the sectors asked for.
    pub fn after(error: &DiskError) -> Self {
        if error.keeps_contents() { Self::Kept } else { Self::Lost }
    }
}

impl Committer for Engine {
    fn start_commit(&self) {
        let changes = self.members.changes();
        // A read-only array is never changed on disk.
        let may_write = !self.service.is_read_only() && !self.service.is_closed();
        let is_due = may_write && !changes.is_in_effect(changes.made());
        if is_due && changes.begin_committing() {
            let array = self.handle();
            let commit = async move {
                array.commit_changes().await;
                array.members.changes().end_committing();
            };
            drop(self.rt.spawn(commit));
        }
    }
}

impl Engine {
    /// Waits until every change of membership made so far is in effect. If they are already, it
    /// returns at once, without I/O.
    ///
    /// # Errors
    /// If the array broke: what relies on the changes must not be acknowledged.
    pub async fn settled(&self) -> Result<(), ArrayError> {
        let changes = self.members.changes();
        if changes.is_settled() {
            return Ok(());
        }
        Box::pin(self.in_effect(changes.membership())).await
    }

    /// Makes a change in memory, and starts to write it. The future completes when it is in effect:
    /// durable on every member that the superblock lists.
    ///
    /// # Errors
    /// If the array broke or was stopped before that.
    pub fn change(
        &self,
        change: impl FnOnce(&Change<'_>),
    ) -> impl Future<Output = Result<(), ArrayError>> {
        self.in_effect(self.members.change(self, change))
    }

    /// As [`Engine::change`], for a position up to which something was written: that is durable
    /// before the superblock records it.
    pub async fn change_after_flush(
        &self,
        change: impl FnOnce(&Change<'_>),
    ) -> Result<(), ArrayError> {
        self.flush_members().await;
        self.change(change).await
    }

    async fn in_effect(&self, change: u64) -> Result<(), ArrayError> {
        let changes = self.members.changes();
        loop {
            let progress = changes.progress();
            // A read-only array is never changed on disk.
            if changes.is_in_effect(change) || self.service.is_read_only() {
                return Ok(());
            }
            self.check_whole()?;
            if self.service.is_closed() {
                return Err(ArrayError::Stopped);
            }
            progress.await;
        }
    }

    /// A lane for a disk that joins in the poll in which this ends: one that no superblock gives to
    /// another disk. It may have to become that first, and may be taken from a former member.
    pub async fn lane_to_join(&self) -> Option<Lane> {
        let changes = self.members.changes();
        loop {
            if let Some(lane) = self.members.unused_lane() {
                return Some(lane);
            }
            self.check_writable().ok()?;
            if !changes.is_in_effect(changes.made()) {
                self.in_effect(changes.made()).await.ok()?;
                continue;
            }
            let lane = self.members.lane_to_give()?;
            self.change(|change| change.forget_left(lane)).await.ok()?;
        }
    }

    /// Writes superblocks until all changes are in effect, or the array is broken.
    async fn commit_changes(&self) {
        let changes = self.members.changes();
        while !self.service.is_closed() && !changes.is_in_effect(changes.made()) {
            let turn = self.members.turn_to_commit().await;
            if self.service.is_broken() {
                return;
            }
            if let Err(cause) = self.members.check_majority() {
                // The replacement can be swapped in later.
                let unswap = |slot: &SlotNo| self.members.remove(self, |out| out.unswap(*slot));
                if self.members.slots().filter(unswap).count() > 0 {
                    continue;
                }
                // A slot can end later.
                if self.members.undo_releases() {
                    continue;
                }
                self.set_broken(SlotSet::new(), &cause);
                return;
            }
            let round = self.members.commit(turn).await;
            // In the same poll: a lane that is free now may be taken next.
            self.map.end_absence_outside(self.members.used_lanes());
            let complete = round.is_complete();
            if !self.take_out_all(round.refusals) {
                return;
            }
            if complete {
                let was_settled = changes.is_settled();
                changes.take_effect(round.change);
                for spare in self.members.spares().begin_updating(round.superblock) {
                    let array = self.handle();
                    drop(self.rt.spawn(async move { array.update_spare(spare, None).await }));
                }
                if !was_settled && changes.is_settled() {
                    self.jobs.wake();
                }
            }
        }
    }

    /// Writes superblocks to a spare until it has the newest one. It `has` the one of that number.
    async fn update_spare(&self, spare: Spare, mut has: Option<u64>) {
        while let Some(superblock) = self.members.spares().next_for(&spare, has) {
            match write_superblock(&*spare.disk, &superblock, spare.id).await {
                Ok(()) => has = Some(superblock.seq),
                Err(error) => self.spare_failed(&spare, error.to_string()).await,
            }
        }
        // A slot may be waiting for it.
        self.jobs.changed();
    }

    /// Takes a spare that has the newest superblock: the one added last, unless it hangs. Where the
    /// array relies on that, it reads as zeros: one that was in a slot before may hold units of
    /// that, in rows that belong to regions not written so far.
    pub async fn take_ready_spare(&self) -> Option<Spare> {
        let spares = self.members.spares();
        loop {
            self.await_spares(|| spares.is_last_ready()).await;
            let spare = spares.last_ready()?;
            let member_bytes = self.members.superblock().member_bytes();
            if spare.is_zeroed(member_bytes) || !self.members_zeroed() {
                spares.remove(&spare);
                return Some(spare);
            }
            let has = spares.begin_zeroing(&spare);
            let superblock = self.members.superblock().clone();
            match clear_data(&*spare.disk, &superblock).await {
                Ok(()) => spares.note_zeroed(&spare, member_bytes),
                Err(error) => self.spare_failed(&spare, error.to_string()).await,
            }
            self.update_spare(spare, has).await;
        }
    }

    /// Removes a spare that failed, unless it has been removed before.
    async fn spare_failed(&self, spare: &Spare, cause: String) {
        if !self.members.spares().remove(spare) {
            return;
        }
        let disk = spare.disk.info().name.clone();
        self.events.emit(Event::SpareFailed { disk, cause });
        if !self.service.is_stopped() {
            let _ = self.change(|_| ()).await;
        }
    }

    /// Waits until all spares have the newest superblock, but not long for one that hangs.
    pub async fn spares_updated(&self) {
        self.await_spares(|| self.members.spares().all_ready()).await;
    }

    /// Waits until a spare can be taken, if there are any, for a limited time.
    pub async fn spare_updated(&self) {
        let spares = self.members.spares();
        self.await_spares(|| spares.any_ready() || spares.usable() == 0).await;
    }

    async fn await_spares(&self, done: impl Fn() -> bool) {
        let deadline = self.rt.now() + SPARE_PATIENCE;
        loop {
            let change = std::pin::pin!(self.members.spares().change());
            if done() || self.rt.now() >= deadline {
                return;
            }
            select(change, std::pin::pin!(self.rt.sleep_until(deadline))).await;
        }
    }

    /// Handles a disk that failed an operation. When this returns, its exclusion is in effect. If
    /// the code cannot do without that member, the array takes no more writes instead, and its
    /// metadata is left unchanged.
    ///
    /// A request that no disk could carry out, and that was not even sent, is no fault of the
    /// member: it comes from damaged metadata, or is an error of this program, and the next members
    /// would be excluded for the same. The array takes no more writes instead.
    pub async fn member_failed(&self, slot: SlotNo, disk: &Rc<dyn Disk>, error: &DiskError) {
        if is_malformed(error) {
            return self.set_broken(SlotSet::new(), &error.to_string());
        }
        self.exclude(slot, disk, &error.to_string(), Trust::after(error)).await;
    }

    /// The member of `slot` has just left; the slot `was` in that state before. Remembers it if the
    /// map can tell what it will miss: under policy `none` the map keeps no dirty regions.
    pub(crate) fn remember_member(&self, removal: &Removal<'_>, slot: SlotNo, was: Slot) {
        // While the array is reshaped, moved data is written everywhere.
        let reshaped = self.geometries.former().is_some();
        if self.members.superblock().consistency == Consistency::None || reshaped {
            return;
        }
        match was {
            Slot::Active | Slot::ReplacementStaged { .. } => {
                if let Some(lane) = self.members.unused_lane() {
                    self.map.start_absence(lane);
                    removal.remember(slot, lane);
                }
            }
            Slot::Staged { lane, left } if left.is_none_or(|left| left.lane != lane) => {
                // A spare that no superblock names yet.
            }
            Slot::Rebuilding { lane } | Slot::Staged { lane, .. } => {
                self.map.resume_absence(lane);
                removal.remember(slot, lane);
            }
            Slot::Missing | Slot::Left(_) | Slot::Copying { .. } | Slot::Swapped { .. } => {}
        }
    }

    /// As [`Engine::member_failed`], for any cause.
    pub async fn exclude(&self, slot: SlotNo, disk: &Rc<dyn Disk>, cause: &str, trust: Trust) {
        while self.must_wait_before_removing(slot, disk) {
            self.members.changes().progress().await;
        }
        self.take_out(slot, disk, cause, trust);
        // Callers that rely on it check for themselves whether the array is broken.
        let _ = self.settled().await;
    }

    /// Whether pending changes must take effect before `disk` is removed from `slot`, because
    /// otherwise too few of the members that are active on disk would remain.
    fn must_wait_before_removing(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        !self.members.changes().is_settled()
            && !self.service.is_read_only()
            && !self.service.is_broken()
            && self.members.uses(slot, disk)
            && !self.members.may_remove(slot, disk)
            && !self.would_lose_data(slot)
    }

    /// Waits until `disk` can be removed from `slot` without waiting for other changes. That is
    /// immediately unless too few of the members that are active on disk would remain.
    ///
    /// # Errors
    /// If it takes too long: a superblock is being written to a disk that does not answer, perhaps
    /// this one.
    pub async fn await_removable(
        &self,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
    ) -> Result<(), ArrayError> {
        if self.changed_soon(|| !self.must_wait_before_removing(slot, disk)).await {
            return Ok(());
        }
        Err(ArrayError::Refused(format!(
            "slot {slot} cannot be failed now: the members that would be left are not active on disk yet, because a superblock is still being written; try again in a while"
        )))
    }

    /// Waits until pending changes have taken effect, as far as `done` requires. Returns false if a
    /// command should not wait any longer.
    pub async fn changed_soon(&self, done: impl Fn() -> bool) -> bool {
        let deadline = self.rt.now() + COMMAND_PATIENCE;
        loop {
            let progress = std::pin::pin!(self.members.changes().progress());
            if done() || self.service.is_broken() {
                return true;
            }
            if self.rt.now() >= deadline {
                return false;
            }
            select(progress, std::pin::pin!(self.rt.sleep_until(deadline))).await;
        }
    }

    /// Finds out whether the other members answer, before one is taken out by command. Two that
    /// leave at once may be a majority; one after the other they are not.
    pub async fn probe_others(&self, slot: SlotNo) {
        let others = self.members.disks().into_iter().filter(|(other, _)| *other != slot);
        let probes = others.map(|(other, disk)| async move {
            if let Err(error) = disk.flush().await {
                self.member_failed(other, &disk, &error).await;
            }
        });
        // One that hangs is not waited for.
        let patience = self.rt.sleep(PROBE_PATIENCE);
        select(join_all(probes), std::pin::pin!(patience)).await;
    }

    /// Removes a failed disk in memory, unless that has happened already. If it is one failure too
    /// many, the array is broken instead. Requests in progress on the disk end now, however long
    /// the disk itself would take: their waiters hold locks, log space and memory that other
    /// requests need.
    fn take_out(&self, slot: SlotNo, disk: &Rc<dyn Disk>, cause: &str, trust: Trust) {
        let name = disk.info().name.clone();
        let cause = cause.to_owned();
        if self.members.holds(slot, disk) {
            // If it was just swapped in for another disk, the swap is undone if that is still
            // possible.
            self.members.remove(self, |removal| removal.unswap(slot));
        }
        if let Some((_, lane)) = self.take_second(slot, disk) {
            disk.sever(&cause);
            if lane.is_some() {
                self.events.emit(Event::ReplacementFailed { slot, disk: name, cause });
            }
            return;
        }
        if !self.members.holds(slot, disk) {
            return;
        }
        // A broken array's metadata stays as it was when the array broke.
        if self.service.is_broken() || self.would_lose_data(slot) {
            return self.set_broken(SlotSet::one(slot), &cause);
        }
        self.empty_slot(slot, trust);
        disk.sever(&cause);
        self.events.emit(Event::MemberFailed { slot, disk: name, cause });
    }

    /// Removes members that failed to take a superblock. Returns false if the array is broken.
    pub fn take_out_all(&self, failed: Vec<Refusal>) -> bool {
        for (slot, disk, error) in failed {
            match error {
                SuperblockError::Disk(error) if !is_malformed(&error) => {
                    self.take_out(slot, &disk, &error.to_string(), Trust::after(&error));
                }
                // No member is at fault, and nothing was written: the superblocks on the members
                // are valid.
                error => self.set_broken(SlotSet::new(), &error.to_string()),
            }
            if self.service.is_broken() {
                return false;
            }
        }
        true
    }

    /// Removes `disk` if it is the second disk of `slot`. Returns it, with its lane if it was the
    /// replacement.
    pub fn take_second(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> Option<(Spare, Option<Lane>)> {
        let taken = self.members.remove(self, |removal| removal.take_second(slot, disk))?;
        taken.1.iter().for_each(|lane| self.map.end_lane(*lane));
        Some(taken)
    }

    /// Empties a slot in memory, or gives it to the replacement of its member.
    pub fn empty_slot(&self, slot: SlotNo, trust: Trust) {
        let was = self.members.slot(slot);
        if matches!(was, Slot::ReplacementStaged { .. })
            && let Some(staged) = self.members.second_disk(slot)
            && let Some((spare, _)) = self.take_second(slot, &staged)
        {
            drop(self.change(|change| change.add_spare(spare.touched())));
        }
        if !matches!(was, Slot::Copying { .. }) {
            if let SlotState::Rebuilding { lane } = was.holds() {
                self.map.end_lane(lane);
            }
            if let Some(log) = &self.log {
                log.forget_ring(slot);
            }
        }
        self.members.remove(self, |removal| {
            removal.lose(slot);
            if trust == Trust::Kept {
                self.remember_member(removal, slot, was);
            }
        });
        self.note_copies_left_out();
    }

    /// Reads leave out a member from now on. What a crash interrupted may read as old or new, by
    /// the members that are asked.
    fn note_copies_left_out(&self) {
        if self.map.resync_count() > 0 {
            self.note_correction();
        }
    }

    /// Stops the array from taking writes.
    pub fn set_broken(&self, slots: SlotSet, cause: &str) {
        if !slots.is_subset(&self.service.broken_slots()) {
            self.service.note_broken_slots(slots);
            self.note_copies_left_out();
        }
        if self.service.break_off(|| cause.to_owned()) {
            self.events.emit(Event::ArrayBroken { cause: cause.to_owned() });
            self.end_waits();
        }
    }

    /// The array is broken: no change takes effect, and no log record is retired any more. What
    /// waits for that looks again.
    pub fn end_waits(&self) {
        self.members.changes().give_up();
        self.moving.look_again();
        if let Some(log) = &self.log {
            log.give_up();
        }
    }
}
