//! More room for the metadata, from the free blocks of the disks.
//!
//! The metadata array lies on slices of the disks. When its database is nearly full, each slice
//! gets another piece, a run of free blocks; the array gets larger; and the database gets the new
//! part of it. redb's file doubles, so the database does, until it has 4 GiB; then it gets a
//! quarter more.
//!
//! ```text
//!   1  header of the metadata: its parts stay where they are    once
//!   2  labels of all disks: the slice has another piece         each disk for itself
//!   3  superblocks of the array: it has more rows               weft-array's growth
//!   4  header of the metadata: the database has another piece   one sector
//! ```
//!
//! *A crash* between any two of these leaves a file system that has the room that it had before.
//! What labels say is taken: a mount takes these blocks before it looks at records. So nothing has
//! to be undone, and the next growth begins with what is there: a disk whose label has the piece
//! needs no other, and an array that is larger needs no growth.
//!
//! *Disks that have a copy* must have room for the piece, as all copies are of the same size.
//! Spares get it as well, so that they can take over; one that has no room is too small from then
//! on, and gets its piece when it has room, as does a disk that comes back and has missed it. A
//! disk that joins gets a slice that is as large as the others together. While a copy is missing,
//! or is on a disk that is about to leave, the array does not grow; a spare is filled first.
//!
//! *Several nodes*: node 0 lets the metadata grow, for itself and when another node asks for it
//! ([`weft_wire::Question::MoreMetadata`]). Before that a node commits what it has added: with the
//! answer its keeper tells how much it may add then.
//!
//! *When*: an operation that needs room for rows asks before it takes any lock or token, and waits
//! if less than an eighth of what everyone may fill is left, or this node may add little. Blocks
//! that are promised to writes are not taken. `df` and `df -i` report what can be had when the
//! metadata grows as far as the disks allow.

use std::rc::Rc;

use weft_array::MemberState;
use weft_rt::{Nanos, SECOND};
use weft_wire::Question;

use crate::disks::member::Member;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::label::{PIECES_MAX, slice_name};
use crate::format::redundancy::Redundancy;
use crate::meta::{LongFiles, Meta, row_bytes_for_all};
use crate::state::mounted::{Fs, FsState};

/// Bytes of rows that are left when more room is wanted, or an eighth of what there may be.
const LEFT_BYTES_MIN: u64 = 128 << 10;
/// Bytes of rows that one of several nodes may add when more room is wanted: with less, it commits
/// after few operations.
const SHARE_BYTES_MIN: u64 = 32 << 10;
/// Pieces of slices are whole numbers of these: they cut no unit of the array in two.
const UNIT_BLOCKS: u64 = 16;
/// What a slice has more than the array uses: a label at its end.
const SPARE_BYTES: u64 = 64 << 10;
/// The most steps that are looked ahead: none is so large.
const STEPS_MAX: usize = 24;
/// Bytes of rows that one operation may need.
const URGENT_BYTES: u64 = 8 << 10;
/// How long it is not tried again after it failed.
const WAIT: Nanos = 5 * SECOND;
/// How long it is not tried again after a keeper elsewhere had no room.
const WAIT_FOR_OTHERS: Nanos = SECOND;

/// What the metadata can become.
struct Step {
    /// Bytes of the database.
    capacity: u64,
    /// Bytes of the array's members.
    member_bytes: u64,
    /// Blocks that each disk gives, in the order of the disks.
    blocks: Vec<u64>,
}

/// What growth goes by: as it is now.
struct Now {
    members: Vec<Rc<Member>>,
    /// Whether each of them has a copy, or is about to.
    has_copy: Vec<bool>,
    array_bytes: u64,
    member_bytes: u64,
    unit_bytes: u64,
    /// Whether a copy is missing, and nothing will take its place.
    is_short: bool,
    /// Whether all copies are complete.
    is_complete: bool,
}

impl Now {
    fn of(fs: &FsState) -> Result<Self> {
        let status = fs.meta().array()?.status();
        let members = fs.pool().members();
        let has_copy = |member: &Rc<Member>| {
            let name = slice_name(member.number);
            let is_in = |slot: &weft_array::SlotStatus| {
                slot.disk == name
                    && matches!(slot.state, MemberState::Active | MemberState::Rebuilding)
            };
            status.slots.iter().any(is_in)
        };
        let is_missing = |slot: &&weft_array::SlotStatus| slot.state == MemberState::Missing;
        let missing = status.slots.iter().filter(is_missing).count();
        let mut has_copies: Vec<bool> = members.iter().map(has_copy).collect();
        // Older versions called slices otherwise: then all of them need room.
        if !has_copies.contains(&true) {
            has_copies.fill(true);
        }
        Ok(Self {
            has_copy: has_copies,
            members,
            array_bytes: status.size_bytes,
            member_bytes: status.member_bytes,
            unit_bytes: status.unit_bytes,
            is_short: status.broken.is_some() || missing > status.spares.len(),
            is_complete: status.slots.iter().all(|slot| slot.state == MemberState::Active),
        })
    }
}

/// Blocks that a disk has to give so that its slice has so many bytes.
fn missing_blocks(member: &Member, slice_bytes: u64) -> u64 {
    let Some(present) = member.present().filter(|_| !member.is_lost()) else { return 0 };
    let has = present.label.borrow().metadata_bytes();
    slice_bytes.saturating_sub(has).div_ceil(BLOCK_BYTES).next_multiple_of(UNIT_BLOCKS)
}

impl FsState {
    /// The steps in which the metadata can grow now, if disks have so many free blocks.
    fn steps_now(&self, free: &[u64]) -> Vec<Step> {
        Now::of(self).map_or_else(|_| self.steps_elsewhere(free), |now| self.steps(&now, free))
    }

    /// About the steps in which a keeper elsewhere can let the metadata grow: each disk gives what
    /// the database gets, and checksums of that.
    fn steps_elsewhere(&self, free: &[u64]) -> Vec<Step> {
        let (mut steps, now) = (Vec::new(), self.meta().capacity());
        let working: Vec<bool> =
            self.pool().members().iter().map(|member| !member.is_lost()).collect();
        let mut capacity = now;
        for _ in 0..STEPS_MAX {
            capacity = Meta::next_capacity(capacity);
            let more = (capacity - now).div_ceil(BLOCK_BYTES);
            let more = (more + more / 512).next_multiple_of(UNIT_BLOCKS);
            let blocks: Vec<u64> =
                working.iter().map(|works| if *works { more } else { 0 }).collect();
            if blocks.iter().zip(free).any(|(wanted, free)| wanted > free) {
                return steps;
            }
            steps.push(Step { capacity, member_bytes: 0, blocks });
        }
        steps
    }

    /// The steps in which the metadata can grow, if disks have so many free blocks.
    fn steps(&self, now: &Now, free: &[u64]) -> Vec<Step> {
        let (mut steps, mut capacity) = (Vec::new(), self.meta().capacity());
        if self.is_read_only() || !self.meta().may_grow() || now.is_short {
            return steps;
        }
        for _ in 0..STEPS_MAX {
            capacity = Meta::next_capacity(capacity);
            let Ok(array_bytes) = self.meta().array_bytes_for(capacity) else { return steps };
            let more = array_bytes.saturating_sub(now.array_bytes);
            let member_bytes = now.member_bytes + more.next_multiple_of(now.unit_bytes);
            let slice_bytes = member_bytes + SPARE_BYTES;
            let missing: Vec<u64> =
                now.members.iter().map(|member| missing_blocks(member, slice_bytes)).collect();
            let has_room = |n: usize| missing[n] <= free[n];
            if (0..free.len()).any(|n| now.has_copy[n] && !has_room(n)) {
                return steps;
            }
            let blocks = (0..free.len()).map(|n| if has_room(n) { missing[n] } else { 0 });
            steps.push(Step { capacity, member_bytes, blocks: blocks.collect() });
        }
        steps
    }

    /// Blocks that long files of a redundancy may have on disks with so many free blocks, and how
    /// many these have room for, if the metadata has so many bytes of rows and grows as it is best.
    pub(crate) fn described(
        &self,
        free: Vec<u64>,
        redundancy: Redundancy,
        rows: u64,
    ) -> (u64, u64) {
        let on = |free: Vec<u64>, capacity: u64| {
            let files = LongFiles::on(free, redundancy);
            let left = row_bytes_for_all(capacity).saturating_sub(rows);
            (files.described(left), files.blocks)
        };
        let now = on(free.clone(), self.meta().capacity());
        if now.0 == now.1 {
            return now;
        }
        let steps = self.steps_now(&free);
        let grown = steps.iter().map(|step| {
            let left = free.iter().zip(&step.blocks).map(|(free, taken)| free - taken);
            on(left.collect(), step.capacity)
        });
        grown.chain([now]).max_by_key(|(described, _)| *described).unwrap_or(now)
    }

    /// How many small files there may be yet.
    pub(crate) fn left_files(&self) -> u64 {
        let free: Vec<u64> = self.pool().members().iter().map(|member| member.room()).collect();
        let steps = self.steps_now(&free);
        let capacity = steps.last().map_or_else(|| self.meta().capacity(), |step| step.capacity);
        let (rows, _) = self.meta().usage();
        Meta::files_in(row_bytes_for_all(capacity).saturating_sub(rows))
    }

    /// Whether the metadata is to have more room.
    fn is_room_scarce(&self) -> bool {
        let (rows, most) = self.meta().usage();
        // One of several nodes may add a part of what is left.
        most.saturating_sub(rows) < (most / 8).max(LEFT_BYTES_MIN)
            || self.meta().left_bytes() < SHARE_BYTES_MIN
    }

    /// Whether the metadata is to have more room, by what the keeper says now.
    async fn is_room_scarce_now(&self) -> Result<bool> {
        if self.is_room_scarce() && self.meta().is_kept_elsewhere() {
            self.commit().await?;
            self.meta().ask_keeper(Question::Alive).await?;
        }
        Ok(self.is_room_scarce())
    }

    /// Before an operation that changes metadata and holds nothing yet.
    pub(crate) async fn begin_change(self: &Rc<Self>) -> Result<()> {
        self.check_writable()?;
        self.make_metadata_room().await;
        self.commit_if_crowded().await
    }

    /// Before an operation that may need rows: lets the metadata grow if it is nearly full, and
    /// that is possible. The caller holds nothing. A growth that has started goes on if the
    /// operation is dropped.
    pub(crate) async fn make_metadata_room(self: &Rc<Self>) {
        if self.is_room_scarce() && !self.is_read_only() && !self.meta().is_failed() {
            let fs = self.clone();
            self.rt().attach(|| async move { fs.grow_while_scarce().await }).await;
        }
    }

    /// Of node 0: as another node has found the metadata nearly full. This one may not have heard
    /// of that.
    pub(crate) async fn make_metadata_room_for_others(self: &Rc<Self>) {
        // If the keeper has ended there is no room, and who has asked is told so by the next one.
        if self.meta().ask_keeper(Question::Alive).await.is_ok() {
            self.make_metadata_room().await;
        }
    }

    async fn grow_while_scarce(&self) {
        while self.is_room_scarce() && !self.is_read_only() && !self.meta().is_failed() {
            let _one = self.metadata_growth().turn().await;
            // An operation that would fail asks in any case.
            let may_wait = self.meta().number() == 0 || self.meta().left_bytes() > URGENT_BYTES;
            let is_early = self.rt().now() < self.metadata_growth().not_before();
            if !self.is_room_scarce() || self.is_stopped() || is_early && may_wait {
                return;
            }
            let pause = match self.grow_if_scarce_now().await {
                Ok(true) => continue,
                // To ask others takes time, each time.
                Ok(false) if self.meta().is_kept_elsewhere() => WAIT_FOR_OTHERS,
                Ok(false) => return,
                Err(_) => WAIT,
            };
            self.metadata_growth().wait_until(self.rt().now() + pause);
            return;
        }
    }

    /// Lets the metadata grow by a step, or asks node 0 for that, if it is still scarce. Returns
    /// whether there may be more room.
    async fn grow_if_scarce_now(&self) -> Result<bool> {
        if !self.is_room_scarce_now().await? {
            return Ok(true);
        }
        match self.meta().number() {
            0 => self.grow_metadata().await,
            _ => {
                self.meta().ask_keeper(Question::MoreMetadata).await?;
                Ok(!self.is_room_scarce())
            }
        }
    }

    /// Lets the metadata grow by a step. `false` if the disks have no room for that, or a copy is
    /// not complete.
    async fn grow_metadata(&self) -> Result<bool> {
        let _slices = self.change_slices().await;
        self.check_writable()?;
        if !self.space_desk().knows_all() {
            return Ok(false);
        }
        let now = Now::of(self)?;
        let free: Vec<u64> = now.members.iter().map(|member| member.free_blocks()).collect();
        let Some(step) = self.steps(&now, &free).into_iter().next() else { return Ok(false) };
        if !now.is_complete {
            return Ok(false);
        }
        self.meta().prepare_growth().await?;
        let slice_bytes = step.member_bytes + SPARE_BYTES;
        for (member, has_copy) in now.members.iter().zip(&now.has_copy) {
            match self.extend_slice(member, slice_bytes).await {
                Ok(()) => {}
                Err(FsError::NoSpace) if *has_copy => return Ok(false),
                Err(error) if *has_copy => {
                    self.pool().diagnose(member).await;
                    return Err(error);
                }
                // It is too small for a copy until it has room.
                Err(_) => {}
            }
        }
        let array = self.meta().array()?;
        if array.status().member_bytes < step.member_bytes {
            array.grow(Some(step.member_bytes)).await?;
        }
        self.meta().grow(step.capacity).await?;
        Ok(true)
    }

    /// Gives spares of the metadata array that have become too small for it what they lack.
    pub(crate) async fn extend_spares(&self) {
        let Ok(array) = self.meta().array() else { return };
        let status = array.status();
        for member in self.pool().members() {
            if status.spares_too_small.contains(&slice_name(member.number)) {
                let _slices = self.change_slices().await;
                // It is tried again.
                let _ = self.fit_slice(&member).await;
            }
        }
    }

    /// Gives the slice of a disk what it lacks for a copy of the metadata as it is now. The caller
    /// holds `changing_slices`.
    ///
    /// # Errors
    /// As [`FsState::extend_slice`].
    pub(crate) async fn fit_slice(&self, member: &Member) -> Result<()> {
        let needed = self.meta().array()?.status().member_bytes;
        let is_due = member.present().is_some_and(|present| present.is_label_due.get());
        match missing_blocks(member, needed) {
            0 if !is_due => Ok(()),
            _ => self.extend_slice(member, needed + SPARE_BYTES).await,
        }
    }

    /// Gives the slice of a disk more pieces, so that it has so many bytes, durably. The caller
    /// holds `changing_slices`.
    ///
    /// # Errors
    /// If the disk has no room, which is not promised to writes, or cannot be written.
    pub(crate) async fn extend_slice(&self, member: &Member, slice_bytes: u64) -> Result<()> {
        let Some(present) = member.present().filter(|_| !member.is_lost()) else { return Ok(()) };
        let blocks = missing_blocks(member, slice_bytes);
        if blocks == 0 && !present.is_label_due.get() {
            return Ok(());
        }
        self.space_desk().known().await;
        let before = present.label.borrow().clone();
        let may_have = PIECES_MAX - before.pieces.len().min(PIECES_MAX);
        // Each growth may use half of what is left, so there is always some for the next one.
        let most = may_have.div_ceil(2);
        let taken = match blocks {
            0 => Vec::new(),
            _ => {
                let taken = member.space.borrow_mut().take_long(blocks, UNIT_BLOCKS, most);
                taken.ok_or(FsError::NoSpace)?
            }
        };
        let give_back = || {
            let mut space = member.space.borrow_mut();
            taken.iter().for_each(|run| space.release(run.start, run.end - run.start));
        };
        let dirty = self.unwritten().blocks();
        if blocks > 0 && !self.promised().fits_lines(self.pool(), dirty, 0, 0) {
            give_back();
            return Err(FsError::NoSpace);
        }
        let Some(label) = before.with_pieces(&taken) else {
            give_back();
            return Err(FsError::NoSpace);
        };
        // If it fails, the disk may have the label all the same: the blocks stay taken.
        present.put_label(label).await
    }
}

impl Fs {
    /// Lets the metadata grow by a step, as it does by itself when it is nearly full. Returns
    /// whether it has more room then: the disks may have none, or a copy is not complete.
    ///
    /// # Errors
    /// If it is mounted read-only, or a disk fails.
    pub async fn grow_metadata(&self) -> Result<bool> {
        self.0.check()?;
        let _one = self.0.metadata_growth().turn().await;
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.grow_metadata().await }).await
    }
}
