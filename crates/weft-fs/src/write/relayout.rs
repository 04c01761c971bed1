//! Rewriting lines: as narrow as the remaining disks require, or with another redundancy.
//!
//! The blocks of records are read, laid out as new lines, and replace the records. Many records are
//! taken at a time: all disks read and write side by side, in long requests, and are flushed once.

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::Frozen;

use crate::disks::extent_stripe::part_of;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::format::redundancy::Redundancy;
use crate::meta::Tx;
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

/// How many of these extents are moved at a time: as many as hold about this many blocks.
pub(crate) fn at_a_time<T>(records: &[T], most: u64, blocks: impl Fn(&T) -> u64) -> usize {
    let mut sum = 0;
    let fits = |record: &&T| {
        sum += blocks(record);
        sum <= most
    };
    records.iter().take_while(fits).count().max(1)
}

impl OldLines {
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
        let read = join_all(records.iter().map(|old| self.contents_of(old))).await;
        // What is not read yet counts as done.
        let mut outcomes: Vec<Result<u64>> = Vec::with_capacity(records.len());
        let mut left: Vec<(usize, Dirty)> = Vec::new();
        for (n, read) in read.into_iter().enumerate() {
            outcomes.push(read.map(|blocks| {
                let count = blocks.len() as u64;
                left.push((n, blocks));
                count
            }));
        }
        // Each time that it has to be repeated there is a disk less.
        while !left.is_empty() {
            left = self.try_relayout(records, left, &mut outcomes).await?;
        }
        Ok(outcomes)
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

    /// Those that are left, by their numbers, with their blocks. Returns the records that must be
    /// tried again: a disk was lost during this.
    async fn try_relayout(
        &self,
        records: &[OldLines],
        left: Vec<(usize, Dirty)>,
        outcomes: &mut [Result<u64>],
    ) -> Result<Vec<(usize, Dirty)>> {
        let mut targets: Vec<LineWrite> = Vec::new();
        let mut planned = Vec::new();
        for (n, blocks) in left {
            match self.lines_for(&records[n], &blocks).await {
                Ok(lines) => {
                    planned.push((n, blocks, lines.len()));
                    targets.extend(lines);
                }
                Err(error) => outcomes[n] = Err(error),
            }
        }
        match self.write_targets(&mut targets, &[]).await {
            Ok(()) => {}
            Err(FsError::NoSpace) => {
                planned.iter().for_each(|(n, _, _)| outcomes[*n] = Err(FsError::NoSpace));
                return Ok(Vec::new());
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
        let (mut again, mut done) = (Vec::new(), Vec::new());
        for (n, blocks, count) in planned {
            let old = &records[n];
            let mut lines = Vec::with_capacity(count);
            while let Some(target) = targets.next_if(|target| old.covers(target)) {
                lines.push(target);
            }
            if lines.len() == count {
                done.push((old, lines));
            } else {
                self.release_new(&lines);
                again.push((n, blocks));
            }
        }
        let replace = |tx: &Tx<'_>| {
            done.iter().try_for_each(|(old, lines)| self.replace_record(tx, old, lines))
        };
        self.meta().run(replace).await?;
        Ok(again)
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
        let OldLines { ino, first, end, record } = old;
        let data = UnitSet::first(record.coded.k());
        let active: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let units = active.intersection(&data);
        let read: Vec<(usize, Frozen)> = if record.unwritten {
            let bytes = part_of(0, record.lines - 1).end;
            units.iter().map(|unit| (unit, Frozen::zeros(bytes))).collect()
        } else {
            let laid = self.pool().lay(record)?;
            let read = laid.read(record, (*ino, *first), units, 0..record.lines).await?;
            read.into_iter().map(|(unit, buf)| (unit, buf.freeze())).collect()
        };
        let mut blocks = Vec::new();
        for line in 0..record.lines {
            for (unit, data) in &read {
                let block = first + line * record.k() + *unit as u64;
                if block < *end {
                    let part = part_of(0, line);
                    blocks.push((block, data.slice(part.start, part.len())));
                }
            }
        }
        Ok(blocks)
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
