//! Laying lines out anew: rebuilding lost columns, and changing the redundancy of a file.
//!
//! *Rebuild.* Each record with a column on a lost disk gets another column on a disk that it does not
//! use, computed from checked blocks. If there is no such disk, its lines are laid out anew, as
//! narrow as the disks that are left demand. No spare is needed, only live blocks are read, and a
//! crash leaves each record as it was or as it is to be. When no record names the disk any more, it
//! leaves the file system. A working disk that is to leave ([`crate::disks`]) is emptied in the same
//! way; its columns are read instead of computed.
//!
//! *Redundancy.* The blocks of a file are read, laid out as new lines, and replace the old records.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Frozen;
use weft_stripe::{UnitWrite, store};

use crate::checksum::crc32c;
use crate::error::{FsError, Result};
use crate::inode::{Ino, Kind};
use crate::job::Job;
use crate::mounted::{Fs, Inner, Node};
use crate::plan::Target;
use crate::pool::part_of;
use crate::record::{Column, Record};
use crate::redundancy::Redundancy;

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

/// A record with columns on disks that are to be left.
struct RecordOn {
    ino: Ino,
    first: u64,
    /// Blocks of these columns.
    blocks: u64,
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
        let records = self.records_on(disks).await?;
        self.job_total(records.iter().map(|found| found.blocks).sum());
        for RecordOn { ino, first, blocks } in records {
            let node = self.node(ino);
            let alone = node.alone().await;
            let done = self.rebuild_record(&node, first, disks).await;
            drop(alone);
            self.forget_clean(&node);
            self.job_done(blocks);
            match done {
                Ok(blocks) => report.blocks += blocks,
                Err(FsError::Unreadable { .. }) => drop(report.damaged.insert(ino)),
                Err(FsError::NoSpace) => drop(report.waiting.insert(ino)),
                Err(error) => return Err(error),
            }
        }
        self.commit().await?;
        // A record may have come to a disk meanwhile, before it was lost.
        let still: BTreeSet<u16> = {
            let mut still = BTreeSet::new();
            let each = |_, _, record: Record| {
                still.extend(record.active().map(|(_, column)| column.disk));
                Ok(())
            };
            self.meta.run(|tx| tx.each_record(each)).await?;
            still
        };
        for number in disks.difference(&still) {
            self.let_go(*number).await?;
            report.removed_disks.push(*number);
        }
        Ok(report)
    }

    /// The records with a column on one of these disks: those of files in use first, then those of
    /// files that were changed last.
    async fn records_on(&self, disks: &BTreeSet<u16>) -> Result<Vec<RecordOn>> {
        let mut found = Vec::new();
        let each = |ino, first, record: Record| {
            let columns = record.active().filter(|(_, column)| disks.contains(&column.disk));
            match columns.count() as u64 {
                0 => {}
                columns => found.push(RecordOn { ino, first, blocks: columns * record.lines }),
            }
            Ok(())
        };
        self.meta.run(|tx| tx.each_record(each)).await?;
        let mut changed = BTreeMap::new();
        self.meta
            .run(|tx| {
                for RecordOn { ino, .. } in &found {
                    if let Entry::Vacant(entry) = changed.entry(*ino) {
                        entry.insert(tx.inode(*ino)?.modified);
                    }
                }
                Ok(())
            })
            .await?;
        let heat =
            |record: &RecordOn| (self.is_used(record.ino), changed.get(&record.ino).copied());
        found.sort_by_cached_key(|record| Reverse(heat(record)));
        Ok(found)
    }

    /// Rebuilds a record, if it is still there. Returns the number of blocks computed. The caller
    /// holds the file's lock alone.
    async fn rebuild_record(
        &self,
        node: &Rc<Node>,
        first: u64,
        lost: &BTreeSet<u16>,
    ) -> Result<u64> {
        let ino = node.ino;
        let mut found = self.meta.run(|tx| tx.records(ino, first, first + 1)).await?;
        let Some((_, record)) = found.pop().filter(|(at, _)| *at == first) else { return Ok(0) };
        let is_lost = |column: &Column| lost.contains(&column.disk);
        let units: UnitSet =
            record.active().filter(|(_, column)| is_lost(column)).map(|(unit, _)| unit).collect();
        if units.is_empty() {
            return Ok(0);
        }
        let _one = self.flushing.acquire(1).await;
        let mut fresh = record.clone();
        let mut allocated = Vec::new();
        for unit in units.iter() {
            match self.pool.allocate_column(&fresh, None) {
                Ok(column) => {
                    allocated.push(column.run());
                    fresh.columns[unit] = Some(column);
                }
                Err(_) => {
                    self.pool.release(allocated);
                    let redundancy = self.meta.run(|tx| tx.inode(ino)).await?.redundancy;
                    return self.lay_anew(ino, first, &record, redundancy).await;
                }
            }
        }
        let laid = self.pool.lay(&record)?;
        let read = laid.read(&record, (ino, first), units, 0..record.lines).await;
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                self.pool.release(allocated);
                return Err(error);
            }
        };
        let mut writes = Vec::new();
        for (unit, buf) in read {
            let data = buf.freeze();
            if let Some(column) = &mut fresh.columns[unit] {
                let sums = (0..record.lines).map(|line| crc32c(&data[part_of(0, line)]));
                column.sums = sums.collect();
            }
            writes.push(UnitWrite { unit, from: 0, data });
        }
        let laid = self.pool.lay(&fresh)?;
        let stored = store(&laid, laid.stripe(), &writes, WriteOpts::MAINTENANCE).await;
        for failed in &stored.failed {
            laid.fail_write(failed.slot, &failed.error);
        }
        laid.written();
        self.pool.flush().await;
        if !stored.failed.is_empty() || laid.stripe().lost.intersects(&units) {
            self.pool.release(allocated);
            return Err(FsError::NoSpace);
        }
        self.meta
            .run(|tx| {
                tx.put_record(ino, first, &fresh)?;
                tx.note_reshaped(ino, first, &fresh);
                for (_, column) in record.active().filter(|(_, column)| is_lost(column)) {
                    self.free_run_later(column.run());
                }
                Ok(())
            })
            .await?;
        Ok(record.lines * units.len() as u64)
    }

    /// Lays the lines of a record out as new ones. The caller holds the file's lock alone, and that
    /// of flushes.
    pub(crate) async fn lay_anew(
        &self,
        ino: Ino,
        first: u64,
        record: &Record,
        redundancy: Redundancy,
    ) -> Result<u64> {
        loop {
            // Each time that it has to be repeated there is a disk less.
            if let Some(blocks) = self.try_lay_anew(ino, first, record, redundancy).await? {
                return Ok(blocks);
            }
        }
    }

    /// The same; none if a disk was lost meanwhile, and nothing is changed.
    async fn try_lay_anew(
        &self,
        ino: Ino,
        first: u64,
        record: &Record,
        redundancy: Redundancy,
    ) -> Result<Option<u64>> {
        let next = self.meta.run(|tx| tx.next_record(ino, first + 1)).await?;
        let end = (first + record.blocks()).min(next.unwrap_or(u64::MAX));
        let blocks = self.active_blocks(ino, first, record, end).await?;
        let mut targets: Vec<Target> = Vec::new();
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            let before = targets.last().map(|target| (target.first, &target.record));
            match self.new_lines_between(before, (first, end), ino, redundancy, rest) {
                Ok(target) => {
                    rest = &rest[target.blocks.len()..];
                    targets.push(target);
                }
                Err(error) => {
                    self.release_new(&targets);
                    return Err(error);
                }
            }
        }
        let count = targets.len();
        self.write_targets(&mut targets, &[]).await?;
        if targets.len() < count {
            self.release_new(&targets);
            return Ok(None);
        }
        self.meta
            .run(|tx| {
                let mut inode = tx.inode(ino)?;
                tx.remove_record(ino, first)?;
                inode.blocks -= record.data_blocks();
                for target in &targets {
                    inode.blocks += target.record.data_blocks();
                    tx.put_record(ino, target.first, &target.record)?;
                }
                self.free_later(record);
                tx.put_inode(ino, &inode)
            })
            .await?;
        Ok(Some(blocks.len() as u64))
    }

    /// The contents of a record's active data blocks before `end`.
    async fn active_blocks(
        &self,
        ino: Ino,
        first: u64,
        record: &Record,
        end: u64,
    ) -> Result<Vec<(u64, Frozen)>> {
        let data = UnitSet::first(record.coded.k());
        let active: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let units = active.intersection(&data);
        let laid = self.pool.lay(record)?;
        let read = laid.read(record, (ino, first), units, 0..record.lines).await?;
        let read: Vec<(usize, Frozen)> =
            read.into_iter().map(|(unit, buf)| (unit, buf.freeze())).collect();
        let mut blocks = Vec::new();
        for line in 0..record.lines {
            for (unit, data) in &read {
                let block = first + line * record.k() + *unit as u64;
                if block < end {
                    let part = part_of(0, line);
                    blocks.push((block, data.slice(part.start, part.len())));
                }
            }
        }
        Ok(blocks)
    }

    async fn set_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<()> {
        self.check()?;
        let members = self.pool.members();
        let usable = members.iter().filter(|member| !member.is_lost()).count();
        if redundancy.coded(usable).is_none() {
            return Err(FsError::Invalid(format!(
                "{redundancy} needs more disks than the {usable} that are there"
            )));
        }
        let node = self.node(ino);
        let alone = node.alone().await;
        let kind = self.meta.run(|tx| Ok(tx.inode(ino)?.kind())).await?;
        let changed = self.change_redundancy(&node, kind, redundancy).await;
        drop(alone);
        self.forget_clean(&node);
        changed
    }

    async fn change_redundancy(
        &self,
        node: &Rc<Node>,
        kind: Kind,
        redundancy: Redundancy,
    ) -> Result<()> {
        let (ino, now) = (node.ino, self.now());
        if kind == Kind::File {
            self.flush_node(node).await?;
        }
        self.meta
            .run(|tx| {
                let mut inode = tx.inode(ino)?;
                (inode.redundancy, inode.changed) = (redundancy, now);
                tx.put_inode(ino, &inode)
            })
            .await?;
        let _one = self.flushing.acquire(1).await;
        let records = self.meta.run(|tx| tx.records(ino, 0, u64::MAX)).await?;
        for (first, record) in records {
            if self.pool.coded_now(redundancy)? != record.coded {
                self.lay_anew(ino, first, &record, redundancy).await?;
            }
        }
        Ok(())
    }
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

    /// Sets the redundancy of a file, and lays out what it holds anew; of a folder: of files that
    /// will be made in it.
    ///
    /// # Errors
    /// If there are too few disks, or too little room.
    pub async fn set_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt.attach(|| async move { fs.set_redundancy(ino, redundancy).await }).await
    }
}
