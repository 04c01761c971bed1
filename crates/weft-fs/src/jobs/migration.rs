//! Moving columns of records to other places: for a rebuild, a disk that leaves
//! ([`crate::jobs::rebuild`]) and disks that are evened out ([`crate::jobs::balance`]). Which
//! columns move, and where to, each of them decides ([`Decide`]).
//!
//! Many records are moved at a time, of several files if they are small: all disks read and write
//! side by side, in long requests, and are flushed once. These files are locked during this. The
//! records change in one transaction, so a crash leaves each of them old or new.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use futures_util::{StreamExt as _, stream};
use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Buf;
use weft_stripe::{UnitWrite, store};
use weft_wire::Moved;

use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::disks::old_block_cache::{UNKNOWN, sum_of};
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Column, Extent};
use crate::format::inode::{Ino, Time};
use crate::meta::Tx;
use crate::state::hot_parts::{Part, blocks_of_part, part_of_block};
use crate::state::mounted::FsState;
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::relayout::at_a_time;

/// Records that are read and written side by side: 16 MiB, if they are of usual length.
const RECORDS_MAX: usize = 16;
/// Blocks of records between two flushes of the disks.
const BATCH_BLOCKS: u64 = 16384;
/// The most blocks of files that another node gets at a time, or a file that has more: node 0 looks
/// for its outcome between two batches of its own.
const PART_BLOCKS: u64 = 4 * BATCH_BLOCKS;
/// The most files of them.
const PART_FILES: usize = 10_000;

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

/// Where the next records are looked for.
pub(crate) struct Walk {
    /// Parts that were looked through before their turn. A part that cannot move is not hot again.
    hot: BTreeSet<Part>,
    files: VecDeque<FoundFile>,
    /// Those that another node could not move.
    left_over: Vec<Ino>,
    /// The next file, and the first block of its next record.
    next: Option<(Ino, u64)>,
    found: MoveQueue,
}

/// A file with a column that may have to move.
struct FoundFile {
    ino: Ino,
    blocks: u64,
}

impl Walk {
    fn through(files: VecDeque<FoundFile>) -> Self {
        let (hot, found) = (BTreeSet::new(), MoveQueue::default());
        let mut walk = Self { hot, files, left_over: Vec::new(), next: None, found };
        walk.next = walk.next_file();
        walk
    }

    fn next_file(&mut self) -> Option<(Ino, u64)> {
        let ino = self.left_over.pop().or_else(|| Some(self.files.pop_front()?.ino));
        ino.map(|ino| (ino, 0))
    }

    /// Takes some files out for another node, one of so many that have nothing to do: none if there
    /// are none left.
    pub(crate) fn take_files(&mut self, idle: usize) -> Vec<Ino> {
        let left: u64 = self.files.iter().map(|file| file.blocks).sum();
        // Node 0 has a share, and what is left in the end is in smaller parts.
        let most = (left / (2 * (idle as u64 + 1))).min(PART_BLOCKS);
        let mut blocks = 0;
        let mut taken = Vec::new();
        while (taken.is_empty() || blocks < most)
            && taken.len() < PART_FILES
            && let Some(file) = self.files.pop_front()
        {
            blocks += file.blocks;
            taken.push(file.ino);
        }
        taken
    }

    /// Another node could not move these.
    pub(crate) fn put_back(&mut self, files: impl IntoIterator<Item = Ino>) {
        self.left_over.extend(files);
        if self.next.is_none() {
            self.next = self.next_file();
        }
    }
}

/// Records that were found and not yet given out, each once: one in a hot part is in a file, too.
#[derive(Default)]
struct MoveQueue {
    records: Vec<MovableExtent>,
    places: BTreeSet<(Ino, u64)>,
}

impl MoveQueue {
    fn add(&mut self, record: MovableExtent) {
        if self.places.insert((record.ino, record.first)) {
            self.records.push(record);
        }
    }

    /// Whether these are fewer than go into a batch.
    fn is_few(&self) -> bool {
        self.records.iter().map(|found| found.all_blocks).sum::<u64>() < BATCH_BLOCKS
    }

    /// Takes a batch out.
    fn take_batch(&mut self) -> Vec<MovableExtent> {
        let count = match self.records.is_empty() {
            true => 0,
            false => at_a_time(&self.records, BATCH_BLOCKS, |found| found.all_blocks),
        };
        let batch: Vec<_> = self.records.drain(..count).collect();
        for MovableExtent { ino, first, .. } in &batch {
            self.places.remove(&(*ino, *first));
        }
        batch
    }
}

/// A record with columns that are to move.
pub(crate) struct MovableExtent {
    ino: Ino,
    first: u64,
    /// Blocks of these columns; none if they were counted when they were found before.
    pub(crate) blocks: u64,
    /// Blocks of all its columns.
    all_blocks: u64,
}

/// A record with columns that move.
struct ExtentMove {
    ino: Ino,
    first: u64,
    record: Extent,
    /// The record as it will be.
    fresh: Extent,
    /// The columns that move.
    units: UnitSet,
    /// Those of them that stay where they are, on a disk that has come back under another number.
    back: UnitSet,
    /// Blocks of these that are there.
    kept: u64,
    /// Whether some of them can neither be read nor computed.
    is_damaged: bool,
}

impl ExtentMove {
    fn new(pool: &Pool, at: (Ino, u64), record: Extent, fresh: Extent, units: UnitSet) -> Self {
        let is_back = |unit: &usize| match (&record.columns[*unit], &fresh.columns[*unit]) {
            (Some(old), Some(new)) => {
                old.start == new.start
                    && old.disk != new.disk
                    && pool.last_number(old.disk) == new.disk
            }
            _ => false,
        };
        let back = units.iter().filter(is_back).collect();
        let (ino, first) = at;
        Self { ino, first, record, fresh, units, back, kept: 0, is_damaged: false }
    }

    fn columns<'a>(&'a self, of: &'a Extent) -> impl Iterator<Item = &'a Column> {
        let moves =
            |(unit, _): &(usize, &Column)| self.units.contains(*unit) && !self.back.contains(*unit);
        of.active().filter(moves).map(|(_, column)| column)
    }

    /// Blocks that are read or computed, and written.
    fn blocks(&self) -> u64 {
        self.record.lines * self.units.len() as u64 - self.kept
    }
}

impl FsState {
    /// A walk through the records of the files that have a column on one of these disks.
    pub(crate) async fn walk(&self, disks: &BTreeSet<u16>) -> Result<Walk> {
        Ok(Walk::through(self.files_on(disks).await?))
    }

    /// A walk through the records of these files.
    pub(crate) fn walk_of(&self, files: Vec<Ino>) -> Walk {
        Walk::through(files.into_iter().map(|ino| FoundFile { ino, blocks: 0 }).collect())
    }

    /// The files with a column on one of these disks: files in use first, then the most recently
    /// changed ones.
    async fn files_on(&self, disks: &BTreeSet<u16>) -> Result<VecDeque<FoundFile>> {
        let mut changed: BTreeMap<Ino, (Time, u64)> = BTreeMap::new();
        for disk in disks {
            let mut from = 0;
            loop {
                let some = self.meta().run(|tx| {
                    let inos = tx.inodes_on(*disk, from, self.meta().at_a_time())?;
                    let found = inos.into_iter().map(|ino| {
                        let inode = tx.inode(ino)?;
                        Ok((ino, (inode.modified, inode.blocks)))
                    });
                    found.collect()
                });
                let some: Vec<(Ino, (Time, u64))> = some.await?;
                let Some((last, _)) = some.last() else { break };
                from = last + 1;
                changed.extend(some);
            }
        }
        let mut files: Vec<_> = changed.into_iter().collect();
        files.sort_by_cached_key(|(ino, (changed, _))| {
            Reverse((self.open_files().is_used(*ino), *changed))
        });
        Ok(files.into_iter().map(|(ino, (_, blocks))| FoundFile { ino, blocks }).collect())
    }

    /// The next records with columns that are to move, about [`BATCH_BLOCKS`]; none are left if
    /// there are none. Those of hot parts come first, then those of the files in their order.
    pub(crate) async fn next_found(
        &self,
        walk: &mut Walk,
        decide: &impl Decide,
    ) -> Result<Vec<MovableExtent>> {
        let max = self.meta().at_a_time();
        while walk.found.is_few()
            && let Some(part) = self.hot_parts().take_hottest(self.rt().now())
        {
            let mut range = Some(blocks_of_part(part)).filter(|_| walk.hot.insert(part));
            while let Some(blocks) = range {
                let (end, at) = (blocks.end, (part.0, blocks));
                let found = &mut walk.found;
                let look = |tx: &Tx<'_>| records_to_move(tx, at.clone(), max, decide, found);
                range = self.meta().run(look).await?.map(|from| from..end);
                self.job_may_go_on()?;
            }
        }
        while let Some((ino, from)) = walk.next
            && walk.found.is_few()
        {
            let at = (ino, from..u64::MAX);
            let Walk { hot, found, .. } = walk;
            let known = found.records.len();
            let look = |tx: &Tx<'_>| records_to_move(tx, at.clone(), max, decide, found);
            let rest = self.meta().run(look).await?;
            // Those of a hot part were given out before, and could not move.
            let again = found.records.iter_mut().skip(known);
            again
                .filter(|record| hot.contains(&part_of_block(record.ino, record.first)))
                .for_each(|record| record.blocks = 0);
            walk.next = rest.map(|from| (ino, from)).or_else(|| walk.next_file());
            self.job_may_go_on()?;
        }
        Ok(walk.found.take_batch())
    }

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
        let inos: BTreeSet<Ino> = some.iter().map(|found| found.ino).collect();
        let room = self.hold_room(some.iter().map(|found| found.all_blocks).sum()).await;
        let tokens = self.hold_files(inos.iter().copied()).await;
        let mut files = Vec::with_capacity(inos.len());
        for ino in inos {
            files.push(self.lock(ino).await);
        }
        let one = self.flush_alone().await;
        let result = self.move_locked(some, decide, moved).await;
        drop((one, files, tokens, room));
        result.and(self.commit_if_crowded().await)
    }

    async fn move_locked(
        &self,
        some: &[MovableExtent],
        decide: &impl Decide,
        moved: &mut MigrationReport,
    ) -> Result<()> {
        let (mut moving, mut anew) = (Vec::new(), Vec::new());
        for MovableExtent { ino, first, .. } in some {
            let mut found = self.meta().run(|tx| tx.records(*ino, *first, first + 1)).await?;
            let Some((_, record)) = found.pop().filter(|(at, _)| at == first) else { continue };
            match decide.decide(&record) {
                Decision::Stays => {}
                Decision::LacksRoom => moved.note(*ino, Err(FsError::NoSpace))?,
                Decision::Moves(fresh, units) => {
                    moving.push(ExtentMove::new(self.pool(), (*ino, *first), record, fresh, units));
                }
                Decision::Anew => anew.push(self.old(*ino, *first, record).await?),
            }
        }
        self.move_columns(moving, moved).await?;
        let mut rest = &anew[..];
        while !rest.is_empty() {
            let most = BLOCKS_MAX as u64;
            let (some, behind) =
                rest.split_at(at_a_time(rest, most, |old| old.record.active_blocks()));
            let laid = self.relayout(some).await?;
            some.iter().zip(laid).try_for_each(|(old, laid)| moved.note(old.ino, laid))?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes columns to their other places, durably, and puts the records into the metadata.
    async fn move_columns(
        &self,
        mut moving: Vec<ExtentMove>,
        report: &mut MigrationReport,
    ) -> Result<()> {
        let written = moving.iter_mut().map(|moving| self.write_columns(moving));
        let written: Vec<_> = stream::iter(written).buffered(RECORDS_MAX).collect().await;
        self.pool().flush().await;
        let mut done = Vec::new();
        for (moving, written) in moving.iter().zip(written) {
            let written =
                written.and_then(|laid| match laid.stripe().lost.intersects(&moving.units) {
                    true => Err(FsError::NoSpace),
                    false => Ok(moving.blocks()),
                });
            match written.is_ok() {
                true => done.push(moving),
                false => self.pool().release(moving.columns(&moving.fresh).map(Column::run)),
            }
            report.kept += if written.is_ok() { moving.kept } else { 0 };
            if moving.is_damaged {
                report.moved_damaged.insert((moving.ino, moving.first));
            }
            report.note(moving.ino, written)?;
        }
        self.meta()
            .run(|tx| {
                for moved in done {
                    tx.put_record(moved.ino, moved.first, &moved.fresh)?;
                    tx.note_reshaped(moved.ino, moved.first, &moved.fresh);
                    moved.columns(&moved.record).for_each(|left| self.free_run_later(left.run()));
                    let back =
                        moved.back.iter().filter_map(|unit| moved.record.columns[unit].as_ref());
                    back.for_each(|left| self.pool().leave_to_successor(left.run()));
                }
                Ok(())
            })
            .await
    }

    /// Reads or computes columns, and writes them to their other places; of those that stay, what
    /// is not there.
    async fn write_columns(&self, moving: &mut ExtentMove) -> Result<ExtentStripe> {
        if moving.record.unwritten {
            return self.pool().lay(&moving.fresh);
        }
        let (at, old) = ((moving.ino, moving.first), self.pool().lay(&moving.record)?);
        let moves = moving.units.difference(&moving.back);
        let mut writes = Vec::new();
        if !moves.is_empty() {
            let read = old.read(&moving.record, at, moves, 0..moving.record.lines).await?;
            let write = |(unit, buf): (usize, Buf)| UnitWrite { unit, from: 0, data: buf.freeze() };
            writes.extend(read.into_iter().map(write));
        }
        for unit in moving.back.iter() {
            self.read_missed(&old, moving, unit, &mut writes).await?;
        }
        let ExtentMove { record, fresh, units, back, .. } = moving;
        // Each time that this is repeated, bad blocks were found that are not given out again.
        loop {
            for write in &writes {
                put_sums(fresh, record, write);
            }
            let laid = self.pool().lay(fresh)?;
            let stored = store(&laid, laid.stripe(), &writes, WriteOpts::MAINTENANCE).await;
            let no_space = laid.write_failed(&stored.failed, &writes).await;
            // What is there already may be in the disk's cache only.
            laid.written();
            if no_space || laid.stripe().lost.intersects(units) {
                return Err(FsError::NoSpace);
            }
            let is_on_bad = |write: &&UnitWrite| !laid.on_bad_blocks(write).is_empty();
            let failed: BTreeSet<usize> =
                writes.iter().filter(is_on_bad).map(|write| write.unit).collect();
            if failed.is_empty() {
                return Ok(laid);
            }
            for unit in failed {
                if back.contains(unit) {
                    // All of it goes elsewhere.
                    let one = UnitSet::one(unit);
                    let read = old.read(record, at, one, 0..record.lines).await?;
                    self.replace_column(fresh, unit)?;
                    back.remove(unit);
                    writes.retain(|write| write.unit != unit);
                    let write =
                        |(unit, buf): (usize, Buf)| UnitWrite { unit, from: 0, data: buf.freeze() };
                    writes.extend(read.into_iter().map(write));
                } else {
                    self.allocate_again(fresh, unit)?;
                }
            }
        }
    }

    /// Reads or computes the blocks of a column that its disk, which has come back, does not have.
    async fn read_missed(
        &self,
        old: &ExtentStripe,
        moving: &mut ExtentMove,
        unit: usize,
        writes: &mut Vec<UnitWrite>,
    ) -> Result<()> {
        let (at, record) = ((moving.ino, moving.first), &moving.record);
        let missed = old.missed_lines(record, unit).await;
        moving.kept += record.lines - u64::from(missed.count_ones());
        for lines in runs_in(missed, record.lines) {
            let mut put = |first: u64, mut read: Vec<(usize, Buf)>| {
                let data = read.remove(0).1.freeze();
                writes.push(UnitWrite { unit, from: first * BLOCK_BYTES, data });
            };
            let one = UnitSet::one(unit);
            match old.read(record, at, one, lines.clone()).await {
                Ok(read) => {
                    put(lines.start, read);
                    continue;
                }
                Err(FsError::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
            for line in lines {
                let known = record.columns[unit].as_ref().map(|column| sum_of(column, line));
                match old.read(record, at, one, line..line + 1).await {
                    Ok(read) => put(line, read),
                    // Its checksum tells that it is not what it should be.
                    Err(FsError::Unreadable { .. }) if known != Some(UNKNOWN) => {
                        moving.is_damaged = true;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Gives a column that is not in the metadata yet another place.
    fn allocate_again(&self, fresh: &mut Extent, unit: usize) -> Result<()> {
        let left = self.replace_column(fresh, unit)?;
        self.pool().release(left.map(|left| left.run()));
        Ok(())
    }

    /// Gives a column another place, perhaps on the same disk. Returns the one that it had.
    fn replace_column(&self, fresh: &mut Extent, unit: usize) -> Result<Option<Column>> {
        let left = fresh.columns[unit].take();
        let column = self.pool().allocate_column(fresh, None);
        match column {
            Ok(column) => fresh.columns[unit] = Some(column),
            Err(error) => {
                fresh.columns[unit] = left;
                return Err(error);
            }
        }
        Ok(left)
    }
}

/// Puts the checksums of the written blocks into a record. What was read has the checksum that the
/// record has, if it has one.
fn put_sums(fresh: &mut Extent, record: &Extent, UnitWrite { unit, from, data }: &UnitWrite) {
    let Some(column) = &mut fresh.columns[*unit] else { return };
    let first = from / BLOCK_BYTES;
    for line in first..first + (data.len() / BLOCK) as u64 {
        let known = record.columns[*unit].as_ref().map(|known| sum_of(known, line));
        column.sums[usize::try_from(line).expect("few lines")] = match known {
            None | Some(UNKNOWN) => crc32c(&data[part_of(first, line)]),
            Some(sum) => sum,
        };
    }
}

/// Runs of lines; each line has a bit.
fn runs_in(lines: u64, count: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for line in (0..count).filter(|line| lines >> line & 1 == 1) {
        match runs.last_mut().filter(|run| run.end == line) {
            Some(run) => run.end += 1,
            None => runs.push(line..line + 1),
        }
    }
    runs
}

/// Adds those of the next `max` records that begin within blocks of a file and have columns which
/// are to move. Returns from which block on there may be more.
fn records_to_move(
    tx: &Tx<'_>,
    (ino, blocks): (Ino, Range<u64>),
    max: usize,
    decide: &impl Decide,
    found: &mut MoveQueue,
) -> Result<Option<u64>> {
    let mut records = tx.records_from((ino, blocks.start), max)?;
    let count = records.len();
    records.retain(|(of, first, _)| *of == ino && *first < blocks.end);
    let is_all = count < max || records.len() < count;
    let rest = records.last().filter(|_| !is_all).map(|(_, first, _)| first + 1);
    for (_, first, record) in records {
        let blocks = decide.count(&record) * record.lines;
        let all_blocks = record.active_blocks();
        if blocks > 0 {
            found.add(MovableExtent { ino, first, blocks, all_blocks });
        }
    }
    Ok(rest)
}
