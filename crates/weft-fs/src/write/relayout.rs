//! Rewriting lines: as narrow as the remaining disks require, or with another redundancy.
//!
//! The blocks of records are read, laid out as new lines, and replace the records. Many records are
//! taken at a time: all disks read and write side by side, in long requests, and are flushed once.
//!
//! Jobs do it without the lock of the file, and take it only to put the lines in the place of a
//! record that is what it was ([`crate::jobs::migration`] has the theory).

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::{Buf, Frozen};
use weft_token::Mode::Exclusive;

use crate::disks::extent_stripe::part_of;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::format::redundancy::Redundancy;
use crate::meta::{ExtentWatch, Tx};
use crate::state::job_pace::COPIES_MAX;
use crate::state::mounted::FsState;
use crate::state::open_files::Dirty;
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::new_lines::LineWrite;

/// A record to rewrite.
pub(crate) struct OldLines {
    pub(crate) ino: Ino,
    pub(crate) first: u64,
    /// The first block of the file after it.
    pub(crate) end: u64,
    pub(crate) record: Extent,
}

/// What became of a record that was to be rewritten without the lock of its file.
pub(crate) enum Rewritten {
    /// Its blocks.
    Done(u64),
    /// It stays as it is: [`FsError::Unreadable`] or [`FsError::NoSpace`].
    Failed(FsError),
    /// It has changed meanwhile.
    Changed,
    /// It cannot be read without the lock.
    Hard,
}

/// New lines for records, by the numbers of these.
type NewLines = Vec<(usize, Vec<LineWrite>)>;

/// Contents of records, by the numbers of these.
type Contents = Vec<(usize, Dirty)>;

/// How many of these extents are moved at a time: as many as hold about this many blocks.
pub(crate) fn at_a_time<T>(records: &[T], most: u64, blocks: impl Fn(&T) -> u64) -> usize {
    let mut sum = 0;
    let fits = |record: &&T| {
        sum += blocks(record);
        sum <= most
    };
    records.iter().take_while(fits).count().max(1)
}

/// The units of a record that have data.
fn data_units(record: &Extent) -> UnitSet {
    let active: UnitSet = record.active().map(|(unit, _)| unit).collect();
    active.intersection(&UnitSet::first(record.coded.k()))
}

impl OldLines {
    /// Zeros for all of its blocks with a place.
    fn zeros(&self) -> Dirty {
        let bytes = part_of(0, self.record.lines - 1).end;
        self.blocks_in(data_units(&self.record).iter().map(|unit| (unit, Frozen::zeros(bytes))))
    }

    /// Its blocks among all lines of these units.
    fn blocks_of(&self, read: Vec<(usize, Buf)>) -> Dirty {
        self.blocks_in(read.into_iter().map(|(unit, buf)| (unit, buf.freeze())))
    }

    fn blocks_in(&self, units: impl Iterator<Item = (usize, Frozen)>) -> Dirty {
        let Self { first, end, record, .. } = self;
        let units: Vec<_> = units.collect();
        let mut blocks = Vec::new();
        for line in 0..record.lines {
            for (unit, data) in &units {
                let block = first + line * record.k() + *unit as u64;
                if block < *end {
                    let part = part_of(0, line);
                    blocks.push((block, data.slice(part.start, part.len())));
                }
            }
        }
        blocks
    }

    fn covers(&self, target: &LineWrite) -> bool {
        target.ino == self.ino && (self.first..self.end).contains(&target.first)
    }
}

impl FsState {
    /// A record to rewrite; `first` is its first block.
    pub(crate) async fn old(&self, ino: Ino, first: u64, record: Extent) -> Result<OldLines> {
        let next = self.meta().run(|tx| tx.next_record(ino, first + 1)).await?;
        let end = (first + record.blocks()).min(next.unwrap_or(u64::MAX));
        Ok(OldLines { ino, first, end, record })
    }

    /// Lays the lines of records out as new ones. Returns for each the number of its blocks, or why
    /// it stays as it is: [`FsError::Unreadable`] or [`FsError::NoSpace`]. The caller holds the
    /// locks of the files exclusively, and the lock of flushes.
    pub(crate) async fn relayout(&self, records: &[OldLines]) -> Result<Vec<Result<u64>>> {
        let olds: Vec<&OldLines> = records.iter().collect();
        let read = join_all(records.iter().map(|old| self.contents_of(old))).await;
        // What is not read yet counts as done.
        let mut outcomes: Vec<Result<u64>> = Vec::with_capacity(records.len());
        let mut left = Contents::new();
        for (n, read) in read.into_iter().enumerate() {
            outcomes.push(read.map(|blocks| {
                let count = blocks.len() as u64;
                left.push((n, blocks));
                count
            }));
        }
        // Each time that it has to be repeated there is a disk less.
        while !left.is_empty() {
            let (done, again) = self.lay_out(&olds, left, &mut outcomes, true).await?;
            let replace = |tx: &Tx<'_>| {
                done.iter().try_for_each(|(n, lines)| self.replace_record(tx, olds[*n], lines))
            };
            self.meta().run(replace).await?;
            left = again;
        }
        Ok(outcomes)
    }

    /// As [`FsState::relayout`], for a caller that holds no lock, but the token of everything. The
    /// records are of files in the order of their numbers.
    pub(crate) async fn relayout_unlocked(
        &self,
        records: &[(OldLines, Option<ExtentWatch>)],
    ) -> Result<Vec<Rewritten>> {
        let olds: Vec<&OldLines> = records.iter().map(|(old, _)| old).collect();
        let read = olds.iter().map(|old| async {
            let _turn = self.job_pace().turn(self.rt()).await;
            self.contents_unlocked(old).await
        });
        let read: Vec<_> = stream::iter(read).buffered(COPIES_MAX).collect().await;
        let mut rewritten: Vec<Rewritten> = Vec::with_capacity(records.len());
        let mut outcomes: Vec<Result<u64>> = Vec::with_capacity(records.len());
        let mut left = Contents::new();
        for (n, read) in read.into_iter().enumerate() {
            let blocks = read?;
            rewritten.push(if blocks.is_some() { Rewritten::Changed } else { Rewritten::Hard });
            outcomes.push(Ok(blocks.as_ref().map_or(0, |blocks| blocks.len() as u64)));
            left.extend(blocks.map(|blocks| (n, blocks)));
        }
        while !left.is_empty() {
            let (done, again) = self.lay_out(&olds, left, &mut outcomes, false).await?;
            for of_file in done.chunk_by(|(a, _), (b, _)| olds[*a].ino == olds[*b].ino) {
                let ino = olds[of_file[0].0].ino;
                let tokens = self.hold_files_of_batch([ino], Exclusive).await;
                let file = self.lock(ino).await;
                let mut is_new = vec![false; of_file.len()];
                let replace = |tx: &Tx<'_>| {
                    for ((n, lines), is_new) in of_file.iter().zip(&mut is_new) {
                        let (old, watch) = &records[*n];
                        let has_changed = watch.as_ref().is_some_and(ExtentWatch::has_changed);
                        let record = tx.record_at(old.ino, old.first)?;
                        if !has_changed && record.as_ref() == Some(&old.record) {
                            self.replace_record(tx, old, lines)?;
                            *is_new = true;
                        }
                    }
                    Ok(())
                };
                self.meta().run(replace).await?;
                drop((file, tokens));
                for ((n, lines), is_new) in of_file.iter().zip(is_new) {
                    match is_new {
                        true => {
                            rewritten[*n] = Rewritten::Done(outcomes[*n].as_ref().map_or(0, |n| *n))
                        }
                        false => self.release_new(lines),
                    }
                }
            }
            left = again;
        }
        for (rewritten, outcome) in rewritten.iter_mut().zip(outcomes) {
            match outcome {
                // The file is deleted.
                Ok(_) | Err(FsError::NotFound) => {}
                Err(error) => *rewritten = Rewritten::Failed(error),
            }
        }
        Ok(rewritten)
    }

    /// Rewrites extents one part at a time; all must succeed.
    pub(crate) async fn relayout_all(&self, records: &[OldLines]) -> Result<()> {
        let mut rest = records;
        while !rest.is_empty() {
            let (some, behind) =
                rest.split_at(at_a_time(rest, BLOCKS_MAX as u64, |old| old.record.active_blocks()));
            self.relayout(some).await?.into_iter().try_for_each(|laid| laid.map(drop))?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes new lines for those that are left, durably. Returns the lines, and what must be tried
    /// again: a disk was lost during this. `is_locked`: the caller holds the lock of flushes, and
    /// waits for nothing that a flush may hold.
    async fn lay_out(
        &self,
        records: &[&OldLines],
        left: Contents,
        outcomes: &mut [Result<u64>],
        is_locked: bool,
    ) -> Result<(NewLines, Contents)> {
        let mut targets: Vec<LineWrite> = Vec::new();
        let mut planned = Vec::new();
        for (n, blocks) in left {
            match self.lines_for(records[n], &blocks).await {
                Ok(lines) => {
                    planned.push((n, blocks, lines.len()));
                    targets.extend(lines);
                }
                Err(error) => outcomes[n] = Err(error),
            }
        }
        if self.has_unrecorded_losses() {
            match is_locked {
                true => self.commit_within_flush().await?,
                false => self.commit().await?,
            }
        }
        let opts = if is_locked { WriteOpts::USER } else { WriteOpts::MAINTENANCE };
        let written = self.write_new(&mut targets, opts).await;
        if written.is_err() {
            self.release_new(&targets);
            targets.clear();
        }
        match written {
            Ok(()) => {}
            Err(FsError::NoSpace) => {
                planned.iter().for_each(|(n, _, _)| outcomes[*n] = Err(FsError::NoSpace));
                return Ok((NewLines::new(), Contents::new()));
            }
            Err(error) => return Err(error),
        }
        // What they replace is intact, and stays so until they are durable.
        self.pool().flush().await;
        targets.retain(|target| {
            let laid = self.pool().lay(&target.record);
            let whole = laid.is_ok_and(|laid| laid.stripe().lost.is_empty());
            if !whole {
                self.release_new(std::slice::from_ref(target));
            }
            whole
        });
        // Lines that lost a disk are not among the targets any more.
        let mut targets = targets.into_iter().peekable();
        let (mut again, mut done) = (Contents::new(), NewLines::new());
        for (n, blocks, count) in planned {
            let mut lines = Vec::with_capacity(count);
            while let Some(target) = targets.next_if(|target| records[n].covers(target)) {
                lines.push(target);
            }
            if lines.len() == count {
                done.push((n, lines));
            } else {
                self.release_new(&lines);
                again.push((n, blocks));
            }
        }
        Ok((done, again))
    }

    /// New lines for the blocks of a record.
    async fn lines_for(&self, old: &OldLines, blocks: &[(u64, Frozen)]) -> Result<Vec<LineWrite>> {
        let OldLines { ino, first, end, .. } = *old;
        let redundancy = self.meta().run(|tx| tx.inode(ino)).await?.redundancy;
        let mut lines: Vec<LineWrite> = Vec::new();
        let mut rest = blocks;
        while !rest.is_empty() {
            let before = lines.last().map(|target| (target.first, &target.record));
            match self.new_lines_between(before, (first, end), ino, redundancy, rest, BLOCKS_MAX) {
                Ok(mut target) => {
                    rest = &rest[target.blocks.len()..];
                    if old.record.unwritten {
                        // It gets places, and nothing is written there.
                        target.record.unwritten = true;
                        target.blocks.clear();
                    }
                    lines.push(target);
                }
                Err(error) => {
                    self.release_new(&lines);
                    return Err(error);
                }
            }
        }
        Ok(lines)
    }

    fn replace_record(&self, tx: &Tx<'_>, old: &OldLines, lines: &[LineWrite]) -> Result<()> {
        let mut inode = tx.inode(old.ino)?;
        tx.remove_record(old.ino, old.first)?;
        inode.blocks -= old.record.data_blocks();
        for target in lines {
            inode.blocks += target.record.data_blocks();
            tx.put_record(old.ino, target.first, &target.record)?;
        }
        self.free_later(&old.record);
        tx.put_inode(old.ino, &inode)
    }

    /// The contents of a record's active data blocks, as far as no other record covers them.
    async fn contents_of(&self, old: &OldLines) -> Result<Dirty> {
        let OldLines { ino, first, record, .. } = old;
        let (units, lines) = (data_units(record), 0..record.lines);
        if record.unwritten {
            return Ok(old.zeros());
        }
        let read = self.pool().lay(record)?.read(record, (*ino, *first), units, lines).await?;
        Ok(old.blocks_of(read))
    }

    /// As [`FsState::contents_of`], without the lock of the file. None: they cannot be had so.
    async fn contents_unlocked(&self, old: &OldLines) -> Result<Option<Dirty>> {
        let record = &old.record;
        if record.unwritten {
            return Ok(Some(old.zeros()));
        }
        let (units, lines) = (data_units(record), 0..record.lines);
        let read = self.pool().lay(record)?.read_unlocked(record, units, lines).await;
        Ok(read.map(|read| old.blocks_of(read)))
    }

    /// Fails if there are too few disks for this.
    pub(crate) fn check_redundancy(&self, redundancy: Redundancy) -> Result<()> {
        self.check_writable()?;
        let members = self.pool().members();
        let usable = members.iter().filter(|member| !member.is_lost()).count();
        match redundancy.coded(usable) {
            Some(_) => Ok(()),
            None => Err(FsError::Invalid(format!(
                "{redundancy} needs more disks than the {usable} that are there"
            ))),
        }
    }
}
