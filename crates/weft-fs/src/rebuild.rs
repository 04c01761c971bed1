//! Rebuilding what lay on lost disks.
//!
//! Each record with a column on a lost disk gets another column on a disk that it does not use,
//! computed from checked blocks. If there is no such disk, its lines are laid out anew, as narrow as
//! the disks that are left demand ([`crate::anew`]). No spare is needed, only live blocks are read,
//! and a crash leaves each record as it was or as it is to be. When no record names the disk any
//! more, it leaves the file system. A working disk that is to leave ([`crate::disks`]) is emptied in
//! the same way; its columns are read instead of computed.
//!
//! Many records are moved at a time, of several files if they are small: all disks read and write
//! side by side, in long requests, and are flushed once. These files are locked meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::{StreamExt as _, stream};
use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Buf;
use weft_stripe::{UnitWrite, store};

use crate::anew::at_a_time;
use crate::at_hand::{UNKNOWN, sum_of};
use crate::checksum::crc32c;
use crate::error::{FsError, Result};
use crate::inode::{Ino, Time};
use crate::job::Job;
use crate::laid::{Laid, part_of};
use crate::meta::Tx;
use crate::mounted::{BLOCKS_MAX, Fs, Inner, Node};
use crate::record::{Column, Record};

/// Records that are read and written side by side: 16 MiB, if they are of usual length.
const RECORDS_MAX: usize = 16;
/// Blocks of records between two flushes of the disks.
const BATCH_BLOCKS: u64 = 16384;

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RebuildReport {
    /// Blocks computed and written.
    pub blocks: u64,
    /// Lost disks that no file needs any more: they left the file system.
    pub removed_disks: Vec<u16>,
    /// Files with blocks that could not be had, as they had too little redundancy.
    pub damaged: BTreeSet<Ino>,
    /// Files that still need a lost disk's place: there are too few disks, or too little room.
    pub waiting: BTreeSet<Ino>,
}

impl RebuildReport {
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

/// A record with columns on disks that are to be left.
struct RecordOn {
    ino: Ino,
    first: u64,
    /// Blocks of these columns.
    blocks: u64,
    /// Blocks of all its columns.
    all_blocks: u64,
}

/// A record of which columns move.
struct Moving {
    ino: Ino,
    first: u64,
    record: Record,
    /// The record as it will be.
    fresh: Record,
    /// The columns that move.
    units: UnitSet,
}

impl Moving {
    fn columns<'a>(&'a self, of: &'a Record) -> impl Iterator<Item = &'a Column> {
        let moves = |(unit, _): &(usize, &Column)| self.units.contains(*unit);
        of.active().filter(moves).map(|(_, column)| column)
    }

    fn blocks(&self) -> u64 {
        self.record.lines * self.units.len() as u64
    }
}

impl Inner {
    pub(crate) async fn rebuild(&self) -> Result<RebuildReport> {
        self.check()?;
        let members = self.pool.members();
        let lost = members.iter().filter(|member| member.is_lost()).map(|member| member.number);
        self.move_off(&lost.collect()).await
    }

    /// Gives every column on these disks another place. Disks that no record names any more leave the
    /// file system.
    pub(crate) async fn move_off(&self, disks: &BTreeSet<u16>) -> Result<RebuildReport> {
        let mut report = RebuildReport::default();
        let used =
            |number: &u16| self.pool.member(*number).map_or(0, |member| member.used_blocks());
        self.job_total(disks.iter().map(used).sum());
        let mut files = self.files_on(disks).await?.into_iter();
        // The file of which records come next, and from which block on.
        let mut next = files.next().map(|ino| (ino, 0));
        let mut found: Vec<RecordOn> = Vec::new();
        loop {
            while let Some((ino, from)) = next
                && found.iter().map(|found| found.all_blocks).sum::<u64>() < BATCH_BLOCKS
            {
                let max = self.meta.at_a_time();
                let on = |tx: &Tx<'_>| records_on(tx, (ino, from), max, disks, &mut found);
                let rest = self.meta.run(on).await?;
                next = rest.map(|from| (ino, from)).or_else(|| files.next().map(|ino| (ino, 0)));
            }
            if found.is_empty() {
                break;
            }
            let behind = found.split_off(at_a_time(&found, BATCH_BLOCKS, |found| found.all_blocks));
            let some = std::mem::replace(&mut found, behind);
            self.move_some(&some, disks, &mut report).await?;
            self.job_done(some.iter().map(|found| found.blocks).sum());
            self.job_may_go_on()?;
        }
        self.commit().await?;
        self.job_nears_end()?;
        // A record may have come to a disk meanwhile, before it was lost.
        for number in disks {
            if self.meta.run(|tx| tx.is_disk_used(*number)).await? {
                continue;
            }
            self.let_go(*number).await?;
            report.removed_disks.push(*number);
        }
        Ok(report)
    }

    /// The files with a column on one of these disks: those in use first, then those that were changed
    /// last.
    async fn files_on(&self, disks: &BTreeSet<u16>) -> Result<Vec<Ino>> {
        let mut changed: BTreeMap<Ino, Time> = BTreeMap::new();
        for disk in disks {
            let mut from = 0;
            loop {
                let some = self.meta.run(|tx| {
                    let inos = tx.inodes_on(*disk, from, self.meta.at_a_time())?;
                    inos.into_iter().map(|ino| Ok((ino, tx.inode(ino)?.modified))).collect()
                });
                let some: Vec<(Ino, Time)> = some.await?;
                let Some((last, _)) = some.last() else { break };
                from = last + 1;
                changed.extend(some);
            }
        }
        let mut files: Vec<(Ino, Time)> = changed.into_iter().collect();
        files.sort_by_cached_key(|(ino, changed)| Reverse((self.is_used(*ino), *changed)));
        Ok(files.into_iter().map(|(ino, _)| ino).collect())
    }

    /// Moves columns of some records, as far as these are still there.
    async fn move_some(
        &self,
        some: &[RecordOn],
        disks: &BTreeSet<u16>,
        report: &mut RebuildReport,
    ) -> Result<()> {
        let inos: BTreeSet<Ino> = some.iter().map(|found| found.ino).collect();
        let held = self.hold_files(inos.iter().copied()).await;
        let nodes: Vec<Rc<Node>> = inos.into_iter().map(|ino| self.node(ino)).collect();
        let mut locks = Vec::with_capacity(nodes.len());
        for node in &nodes {
            locks.push(node.alone().await);
        }
        let one = self.flush_alone().await;
        let moved = self.move_locked(some, disks, report).await;
        drop((one, locks, held));
        nodes.iter().for_each(|node| self.forget_clean(node));
        moved
    }

    async fn move_locked(
        &self,
        some: &[RecordOn],
        disks: &BTreeSet<u16>,
        report: &mut RebuildReport,
    ) -> Result<()> {
        let (mut moving, mut anew) = (Vec::new(), Vec::new());
        for RecordOn { ino, first, .. } in some {
            let mut found = self.meta.run(|tx| tx.records(*ino, *first, first + 1)).await?;
            let Some((_, record)) = found.pop().filter(|(at, _)| at == first) else { continue };
            let leaves = record.active().filter(|(_, column)| disks.contains(&column.disk));
            let units: UnitSet = leaves.map(|(unit, _)| unit).collect();
            if units.is_empty() {
                continue;
            }
            match self.with_other_columns(&record, units) {
                Some(fresh) => {
                    moving.push(Moving { ino: *ino, first: *first, record, fresh, units });
                }
                None => anew.push(self.old(*ino, *first, record).await?),
            }
        }
        self.move_columns(moving, report).await?;
        let mut rest = &anew[..];
        while !rest.is_empty() {
            let most = BLOCKS_MAX as u64;
            let (some, behind) =
                rest.split_at(at_a_time(rest, most, |old| old.record.active_blocks()));
            let laid = self.lay_anew(some).await?;
            some.iter().zip(laid).try_for_each(|(old, laid)| report.note(old.ino, laid))?;
            rest = behind;
        }
        Ok(())
    }

    /// A record with other places for some of its columns; none if there are too few disks.
    fn with_other_columns(&self, record: &Record, units: UnitSet) -> Option<Record> {
        let mut fresh = record.clone();
        let mut allocated = Vec::new();
        for unit in units.iter() {
            let Ok(column) = self.pool.allocate_column(&fresh, None) else {
                self.pool.release(allocated);
                return None;
            };
            allocated.push(column.run());
            fresh.columns[unit] = Some(column);
        }
        Some(fresh)
    }

    /// Writes columns to their other places, durably, and puts the records into the metadata.
    async fn move_columns(
        &self,
        mut moving: Vec<Moving>,
        report: &mut RebuildReport,
    ) -> Result<()> {
        let written = moving.iter_mut().map(|moving| self.write_columns(moving));
        let written: Vec<_> = stream::iter(written).buffered(RECORDS_MAX).collect().await;
        self.pool.flush().await;
        let mut done = Vec::new();
        for (moving, written) in moving.iter().zip(written) {
            let written =
                written.and_then(|laid| match laid.stripe().lost.intersects(&moving.units) {
                    true => Err(FsError::NoSpace),
                    false => Ok(moving.blocks()),
                });
            match written.is_ok() {
                true => done.push(moving),
                false => self.pool.release(moving.columns(&moving.fresh).map(Column::run)),
            }
            report.note(moving.ino, written)?;
        }
        self.meta
            .run(|tx| {
                for moved in done {
                    tx.put_record(moved.ino, moved.first, &moved.fresh)?;
                    tx.note_reshaped(moved.ino, moved.first, &moved.fresh);
                    moved.columns(&moved.record).for_each(|left| self.free_run_later(left.run()));
                }
                Ok(())
            })
            .await
    }

    /// Reads or computes columns, and writes them to their other places.
    async fn write_columns(&self, moving: &mut Moving) -> Result<Laid> {
        let Moving { ino, first, record, fresh, units } = moving;
        let laid = self.pool.lay(record)?;
        let read = laid.read(record, (*ino, *first), *units, 0..record.lines).await?;
        let write = |(unit, buf): (usize, Buf)| UnitWrite { unit, from: 0, data: buf.freeze() };
        let writes: Vec<UnitWrite> = read.into_iter().map(write).collect();
        // Each time that this is repeated, bad blocks were found that are not given out again.
        loop {
            for UnitWrite { unit, data, .. } in &writes {
                if let Some(column) = &mut fresh.columns[*unit] {
                    // What was read has the checksum that the record has, if it has one.
                    let known = record.columns[*unit].as_ref();
                    let sum = |line| match known.map(|known| sum_of(known, line)) {
                        None | Some(UNKNOWN) => crc32c(&data[part_of(0, line)]),
                        Some(sum) => sum,
                    };
                    column.sums = (0..record.lines).map(sum).collect();
                }
            }
            let laid = self.pool.lay(fresh)?;
            let stored = store(&laid, laid.stripe(), &writes, WriteOpts::MAINTENANCE).await;
            let no_space = laid.write_failed(&stored.failed, &writes).await;
            laid.written();
            if no_space || laid.stripe().lost.intersects(units) {
                return Err(FsError::NoSpace);
            }
            let is_on_bad = |write: &&UnitWrite| !laid.on_bad_blocks(write).is_empty();
            let failed: Vec<usize> =
                writes.iter().filter(is_on_bad).map(|write| write.unit).collect();
            if failed.is_empty() {
                return Ok(laid);
            }
            for unit in failed {
                self.allocate_again(fresh, unit)?;
            }
        }
    }

    /// Gives a column that is not in the metadata yet another place.
    fn allocate_again(&self, fresh: &mut Record, unit: usize) -> Result<()> {
        let left = fresh.columns[unit].take();
        let column = self.pool.allocate_column(fresh, None);
        match column {
            Ok(column) => fresh.columns[unit] = Some(column),
            Err(error) => {
                fresh.columns[unit] = left;
                return Err(error);
            }
        }
        self.pool.release(left.map(|left| left.run()));
        Ok(())
    }
}

/// Adds those of the next `max` records of a file, from a block on, that have a column on one of these
/// disks. Returns from which block on there may be more.
fn records_on(
    tx: &Tx<'_>,
    (ino, from): (Ino, u64),
    max: usize,
    disks: &BTreeSet<u16>,
    found: &mut Vec<RecordOn>,
) -> Result<Option<u64>> {
    let mut records = tx.records_from((ino, from), max)?;
    let is_all = records.len() < max;
    records.retain(|(of, ..)| *of == ino);
    let rest = records.last().filter(|_| !is_all).map(|(_, first, _)| first + 1);
    for (_, first, record) in records {
        let columns = record.active().map(|(_, column)| column.disk);
        let columns = columns.filter(|disk| disks.contains(disk)).count() as u64;
        let (blocks, all_blocks) = (columns * record.lines, record.active_blocks());
        if blocks > 0 {
            found.push(RecordOn { ino, first, blocks, all_blocks });
        }
    }
    Ok(rest)
}

impl Fs {
    /// Moves what lost disks held to others, and removes those disks.
    ///
    /// # Errors
    /// If the metadata has failed, or another job runs. Files that cannot be rebuilt are in the
    /// report.
    pub async fn rebuild(&self) -> Result<RebuildReport> {
        let fs = self.0.clone();
        let rebuild = || async move {
            let _running = fs.begin_job(Job::Rebuild)?;
            fs.rebuild().await
        };
        self.0.rt.attach(rebuild).await
    }
}
