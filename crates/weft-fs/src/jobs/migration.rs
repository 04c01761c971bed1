//! Moving columns of records to other places: for a rebuild, a disk that leaves
//! ([`crate::jobs::rebuild`]) and disks that are evened out ([`crate::jobs::balance`]). Which
//! columns move, and where to, each of them decides ([`Decide`]).
//!
//! Many records are moved at a time, of several files if they are small: all disks read and write
//! side by side, in long requests, and are flushed once. The records of a file change in one
//! transaction, so a crash leaves each of them old or new.
//!
//! ```text
//!   plan     tokens, shared      records, watched from now on; columns get new places
//!   copy     no lock, no token   old places ── read, checked ──▶ new places, flushed
//!   switch   tokens, lock        each record, if it is what it was
//! ```
//!
//! *Users do not wait for a copy.* They may read, overwrite and delete what is being copied. The
//! lock of the file is held for the last step only, which needs nothing from the disks: with it no
//! write has changed blocks and not yet its record, and no reader has an old place in its hands. A
//! record that has changed since it was planned ([`ExtentWatch`](crate::meta::ExtentWatch)) stays
//! as it is; its copy is dropped, and it is planned again. If that is in vain, too, or the copy
//! needs more than to read and write ([`crate::jobs::column_copy`]), few records of one file are
//! moved under its lock. So a job ends, whatever users do.
//!
//! *Pace.* While users have requests, few records are copied side by side
//! ([`crate::state::job_pace`]).
//!
//! *What stays put meanwhile.* A batch holds the token of everything: disks stay, and nobody counts
//! the free blocks, which its new places are not, although no record names them. It holds room
//! back, and an unmount waits for that.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, stream};
use weft_code::UnitSet;
use weft_token::Mode::{Exclusive, Shared};
use weft_wire::Moved;

use crate::disks::extent_stripe::ExtentStripe;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::jobs::column_copy::{Copied, ExtentMove};
use crate::meta::{ExtentWatch, Tx};
use crate::state::job_pace::COPIES_MAX;
use crate::state::mounted::FsState;
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::relayout::{OldLines, Rewritten, at_a_time};

/// Blocks of records between two flushes of the disks.
pub(super) const BATCH_BLOCKS: u64 = 16384;
/// How often a record is copied without the lock of its file.
const ATTEMPTS: usize = 2;
/// Records that are moved at a time under the lock of their file: users wait for them.
const LOCKED_RECORDS: usize = 4;

/// What becomes of a record.
pub(crate) enum Decision {
    /// It stays as it is.
    Stays,
    /// It should move, but there is no room.
    LacksRoom,
    /// These columns get the places that the new record has, which are allocated.
    Moves(Extent, UnitSet),
    /// No column finds a place: its lines are rewritten.
    Anew,
}

/// Decides which columns of records move, and where to.
pub(crate) trait Decide {
    /// How many columns of a record are to move, as far as it is known before its file is locked.
    fn count(&self, record: &Extent) -> u64;
    /// What becomes of it, when its file is locked.
    fn decide(&self, record: &Extent) -> Decision;
}

/// The counts of moved and unmoved records.
#[derive(Debug, Default)]
pub(crate) struct MigrationReport {
    /// Blocks read or computed, and written.
    pub(crate) blocks: u64,
    /// Of these, by other nodes.
    pub(crate) elsewhere: u64,
    /// Blocks that stay where they are, on a disk that has come back.
    pub(crate) kept: u64,
    /// Files with blocks that could not be read, and stay where they are.
    pub(crate) damaged: BTreeSet<Ino>,
    /// Files that are unchanged in part for want of room or disks.
    pub(crate) waiting: BTreeSet<Ino>,
    /// Records that moved to a disk that has come back, although some of their blocks are wrong
    /// there: the file, and the first block of the record.
    moved_damaged: BTreeSet<(Ino, u64)>,
}

impl MigrationReport {
    /// A walk starts: it finds again what an earlier one could not move.
    pub(crate) fn start_walk(&mut self) {
        self.damaged.clear();
        self.waiting.clear();
    }

    /// What this node did, for node 0.
    pub(crate) fn into_part(self, found: u64) -> Moved {
        Moved {
            found,
            blocks: self.blocks,
            kept: self.kept,
            damaged: self.damaged.into_iter().collect(),
            waiting: self.waiting.into_iter().collect(),
            wrong: self.moved_damaged.into_iter().collect(),
        }
    }

    /// What another node did. What it lacked room for is left.
    pub(crate) fn add_part(&mut self, part: Moved) {
        self.blocks += part.blocks;
        self.elsewhere += part.blocks;
        self.kept += part.kept;
        self.damaged.extend(part.damaged);
        self.moved_damaged.extend(part.wrong);
    }

    /// Blocks of a file were moved, or could not be.
    fn note(&mut self, ino: Ino, moved: Result<u64>) -> Result<()> {
        match moved {
            Ok(blocks) => self.blocks += blocks,
            Err(FsError::Unreadable { .. }) => drop(self.damaged.insert(ino)),
            Err(FsError::NoSpace) => drop(self.waiting.insert(ino)),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A record with columns that are to move.
pub(crate) struct MovableExtent {
    pub(super) ino: Ino,
    pub(super) first: u64,
    /// Blocks of these columns; none if they were counted when they were found before.
    pub(crate) blocks: u64,
    /// Blocks of all its columns.
    pub(super) all_blocks: u64,
}

/// A record, by its file and its first block.
type Place = (Ino, u64);

/// Records that were planned to be moved.
#[derive(Default)]
struct Plan {
    moves: Vec<ExtentMove>,
    /// Those to rewrite.
    anew: Vec<(OldLines, Option<ExtentWatch>)>,
}

/// Records that did not move.
#[derive(Default)]
struct Unmoved {
    /// They have changed meanwhile.
    changed: Vec<Place>,
    /// They need the lock of their file.
    hard: Vec<Place>,
}

impl FsState {
    /// The report at the end of a job: it leaves out files that are deleted, and files whose
    /// missing blocks came back with a disk during the job.
    pub(crate) async fn as_it_is_now(&self, mut moved: MigrationReport) -> Result<MigrationReport> {
        for (ino, first) in std::mem::take(&mut moved.moved_damaged) {
            if self.check_record(ino, first).await?.is_damaged() {
                moved.damaged.insert(ino);
            }
            self.job_may_go_on()?;
        }
        for files in [&mut moved.damaged, &mut moved.waiting] {
            let left = self.meta().run(|tx| {
                let mut left = BTreeSet::new();
                for ino in &*files {
                    if tx.has_inode(*ino)? {
                        left.insert(*ino);
                    }
                }
                Ok(left)
            });
            *files = left.await?;
        }
        Ok(moved)
    }
    /// Moves columns of some records, as far as these are still there.
    pub(crate) async fn move_some(
        &self,
        some: &[MovableExtent],
        decide: &impl Decide,
        moved: &mut MigrationReport,
    ) -> Result<()> {
        let room = self.hold_room(some.iter().map(|found| found.all_blocks).sum()).await;
        // An unmount has waited for the room of the last batch.
        self.check()?;
        let everything = self.hold_everything().await;
        let mut left: Vec<Place> = some.iter().map(|found| (found.ino, found.first)).collect();
        let mut hard = Vec::new();
        for _ in 0..ATTEMPTS {
            let mut unmoved = self.move_unlocked(&left, decide, moved).await?;
            hard.append(&mut unmoved.hard);
            left = unmoved.changed;
        }
        hard.append(&mut left);
        hard.sort_unstable();
        for of_file in hard.chunk_by(|a, b| a.0 == b.0) {
            for some in of_file.chunks(LOCKED_RECORDS) {
                self.move_locked(some, decide, moved).await?;
            }
        }
        drop((everything, room));
        self.commit_if_crowded().await
    }

    /// Decides what becomes of records. With `watches` they are watched from now on.
    async fn plan_moves(
        &self,
        some: &[Place],
        decide: &impl Decide,
        watches: bool,
        moved: &mut MigrationReport,
    ) -> Result<Plan> {
        let mut plan = Plan::default();
        for (ino, first) in some.iter().copied() {
            let found = self.meta().run(|tx| match watches {
                true => {
                    Ok(tx.watch_record(ino, first)?.map(|(record, watch)| (record, Some(watch))))
                }
                false => Ok(tx.record_at(ino, first)?.map(|record| (record, None))),
            });
            let Some((record, watch)) = found.await? else { continue };
            match decide.decide(&record) {
                Decision::Stays => {}
                Decision::LacksRoom => moved.note(ino, Err(FsError::NoSpace))?,
                Decision::Moves(fresh, units) => {
                    let (at, old) = ((ino, first), (record, watch));
                    plan.moves.push(ExtentMove::new(self.pool(), at, old, (fresh, units)));
                }
                Decision::Anew => plan.anew.push((self.old(ino, first, record).await?, watch)),
            }
            self.rt().yield_now().await;
        }
        Ok(plan)
    }

    /// Moves columns of records while users go on. Returns those that did not move.
    async fn move_unlocked(
        &self,
        some: &[Place],
        decide: &impl Decide,
        moved: &mut MigrationReport,
    ) -> Result<Unmoved> {
        let inos: BTreeSet<Ino> = some.iter().map(|(ino, _)| *ino).collect();
        let tokens = self.hold_files_of_batch(inos, Shared).await;
        let Plan { moves, anew } = self.plan_moves(some, decide, true, moved).await?;
        drop(tokens);
        let mut unmoved = Unmoved::default();
        let copies = moves.into_iter().map(|moving| self.copy_at_pace(moving));
        let copies: Vec<_> = stream::iter(copies).buffered(COPIES_MAX).collect().await;
        self.pool().flush().await;
        let mut of_files: BTreeMap<Ino, Vec<(ExtentMove, ExtentStripe)>> = BTreeMap::new();
        for (moving, copied) in copies {
            match copied {
                Ok(Copied::Whole(laid)) => {
                    of_files.entry(moving.ino).or_default().push((moving, laid));
                }
                // What it may be for want of is looked for again under the lock.
                Ok(Copied::Hard) | Err(FsError::NoSpace) => {
                    self.release_copy(&moving);
                    unmoved.hard.push((moving.ino, moving.first));
                }
                Err(error) => {
                    self.release_copy(&moving);
                    moved.note(moving.ino, Err(error))?;
                }
            }
        }
        for (ino, copies) in of_files {
            let tokens = self.hold_files_of_batch([ino], Exclusive).await;
            let file = self.lock(ino).await;
            let mut stayed = self.switch(copies, moved).await?;
            drop((file, tokens));
            unmoved.changed.append(&mut stayed);
            self.rt().yield_now().await;
        }
        let mut rest = &anew[..];
        while !rest.is_empty() {
            let most = BLOCKS_MAX as u64;
            let (some, behind) =
                rest.split_at(at_a_time(rest, most, |(old, _)| old.record.active_blocks()));
            let rewritten = self.relayout_unlocked(some).await?;
            for ((old, _), rewritten) in some.iter().zip(rewritten) {
                match rewritten {
                    Rewritten::Done(blocks) => moved.note(old.ino, Ok(blocks))?,
                    Rewritten::Failed(error) => moved.note(old.ino, Err(error))?,
                    Rewritten::Changed => unmoved.changed.push((old.ino, old.first)),
                    Rewritten::Hard => unmoved.hard.push((old.ino, old.first)),
                }
            }
            rest = behind;
        }
        Ok(unmoved)
    }

    async fn copy_at_pace(&self, mut moving: ExtentMove) -> (ExtentMove, Result<Copied>) {
        let _turn = self.job_pace().turn(self.rt()).await;
        let copied = self.copy_columns(&mut moving).await;
        (moving, copied)
    }

    /// Moves columns of a few records of one file under its lock.
    async fn move_locked(
        &self,
        some: &[Place],
        decide: &impl Decide,
        moved: &mut MigrationReport,
    ) -> Result<()> {
        let ino = some[0].0;
        let _tokens = self.hold_files_of_batch([ino], Exclusive).await;
        let _file = self.lock(ino).await;
        let Plan { moves, anew } = self.plan_moves(some, decide, false, moved).await?;
        let mut copies = Vec::new();
        for mut moving in moves {
            match self.copy_columns(&mut moving).await {
                Ok(Copied::Whole(laid)) => copies.push((moving, laid)),
                Ok(Copied::Hard) => unreachable!("the file is locked"),
                Err(error) => {
                    self.release_copy(&moving);
                    moved.note(ino, Err(error))?;
                }
            }
        }
        self.pool().flush().await;
        for _ in self.switch(copies, moved).await? {
            // A disk was lost when it was flushed.
            moved.note(ino, Err(FsError::NoSpace))?;
        }
        if !anew.is_empty() {
            let _one = self.flush_alone().await;
            let anew: Vec<OldLines> = anew.into_iter().map(|(old, _)| old).collect();
            for laid in self.relayout(&anew).await? {
                moved.note(ino, laid)?;
            }
        }
        Ok(())
    }

    /// Puts the records of copies of one file into the metadata, if nothing has changed since they
    /// were planned. The copies are durable, and the caller holds the lock of the file. Returns
    /// those that stay.
    async fn switch(
        &self,
        copies: Vec<(ExtentMove, ExtentStripe)>,
        report: &mut MigrationReport,
    ) -> Result<Vec<Place>> {
        let mut are_new = vec![false; copies.len()];
        let put = |tx: &Tx<'_>| {
            for ((moving, laid), is_new) in copies.iter().zip(&mut are_new) {
                let ExtentMove { ino, first, record, fresh, units, .. } = moving;
                let has_changed = moving.watch.as_ref().is_some_and(ExtentWatch::has_changed);
                let is_whole = !laid.stripe().lost.intersects(units);
                if has_changed || !is_whole || tx.record_at(*ino, *first)?.as_ref() != Some(record)
                {
                    continue;
                }
                tx.put_record(*ino, *first, fresh)?;
                tx.note_reshaped(*ino, *first, fresh);
                moving.columns(record).for_each(|left| self.free_run_later(left.run()));
                let back = moving.back.iter().filter_map(|unit| record.columns[unit].as_ref());
                back.for_each(|left| self.pool().leave_to_successor(left.run()));
                *is_new = true;
            }
            Ok(())
        };
        self.meta().run(put).await?;
        let mut stayed = Vec::new();
        for ((moving, _), is_new) in copies.into_iter().zip(are_new) {
            if !is_new {
                self.release_copy(&moving);
                stayed.push((moving.ino, moving.first));
                continue;
            }
            report.kept += moving.kept;
            if moving.is_damaged {
                report.moved_damaged.insert((moving.ino, moving.first));
            }
            report.note(moving.ino, Ok(moving.blocks()))?;
        }
        Ok(stayed)
    }
}
