//! Whether records, places, inode maps and the map of free blocks agree, for `fsck`.
//!
//! *Steps.* The records of a file are looked at within one operation of the metadata, or, if there
//! are many, under the file's lock. Users continue during this.
//!
//! *Two owners.* Each block of a disk is one bit, for [`BITS_MAX`] blocks of all disks at a time,
//! with a walk through all records for each such part. A block that seems to have two owners may
//! have gone from one file to another during the walk: so its owners are looked for once more, and
//! both must have it within one operation.

use std::collections::{BTreeMap, BTreeSet};

use crate::disks::pool::runs_of;
use crate::error::{FsError, Result};
use crate::format::extent::{Extent, Run};
use crate::format::inode::{Ino, Inode, Kind, ROOT};
use crate::jobs::findings::FsckReport;
use crate::meta::{RingRun, Tx};
use crate::state::mounted::FsState;

/// Blocks whose owners are counted in one walk: 32 MiB of bits, for a TiB of disks.
const BITS_MAX: u64 = 1 << 28;
/// The most blocks with two owners that are named.
const NAMED_MAX: usize = 1000;

/// What was counted of a file.
#[derive(Default)]
pub(crate) struct FileCount {
    blocks: u64,
    /// Records with a column on each disk.
    mapped: BTreeMap<u16, u64>,
}

/// A part of the blocks of all disks, in sequence, and which of them have an owner.
struct Owned {
    first: u64,
    end: u64,
    bits: Vec<u64>,
    /// Where the blocks of each disk start.
    begins: BTreeMap<u16, u64>,
}

impl Owned {
    /// Notes that a run has an owner. Returns its first block that had one before.
    fn note(&mut self, run: Run) -> Option<u64> {
        let begin = self.begins.get(&run.disk)?;
        let from = (begin + run.start).clamp(self.first, self.end);
        let to = (begin + run.start.saturating_add(run.blocks)).clamp(self.first, self.end);
        let mut twice = None;
        for at in from..to {
            let bit = at - self.first;
            let word = &mut self.bits[usize::try_from(bit / 64).expect("in memory")];
            if *word >> (bit % 64) & 1 == 1 {
                twice = twice.or(Some(at - begin));
            }
            *word |= 1 << (bit % 64);
        }
        twice
    }
}

impl FsState {
    /// Checks records of a file, and adds them to the counts.
    fn look_at_records(
        &self,
        ino: Ino,
        records: &[(u64, Extent)],
        count: &mut FileCount,
        report: &mut FsckReport,
    ) {
        for (first, record) in records {
            count.blocks += record.data_blocks();
            let mut disks = BTreeSet::new();
            for run in runs_of(record) {
                if !disks.insert(run.disk) {
                    report.find(ino, format!("two columns of block {first} are on the same disk"));
                }
                *count.mapped.entry(run.disk).or_default() += 1;
                let member = self.pool().member(run.disk);
                let end = run.start.saturating_add(run.blocks);
                let Some(member) = member.filter(|member| end <= member.blocks()) else {
                    report.find(ino, format!("block {first} is beyond disk {}", run.disk));
                    continue;
                };
                let space = member.space.borrow();
                // What is reserved gets other places when it is written.
                let bad = space.bad_blocks().range(run.start..end).filter(|_| !record.unwritten);
                for block in bad {
                    // One that has failed moves soon, unless nothing gives its contents.
                    let spot = format!("block {block} of disk {}", run.disk);
                    report.find(ino, format!("it uses {spot}, which is bad (from {first} on)"));
                }
                if let Some(block) = space.first_free(run.start, run.blocks) {
                    let spot = format!("block {block} of disk {}", run.disk);
                    report.find(ino, format!("it uses {spot}, which is free (from {first} on)"));
                }
            }
        }
    }

    /// Reports the faults of a file whose records were all checked.
    fn judge_file(
        &self,
        tx: &Tx<'_>,
        (ino, inode): (Ino, &Inode),
        count: FileCount,
        report: &mut FsckReport,
    ) -> Result<()> {
        let FileCount { blocks, mut mapped } = count;
        if inode.blocks != blocks {
            report.find(ino, format!("it has {blocks} blocks, and not {}", inode.blocks));
        }
        for member in self.pool().members() {
            mapped.entry(member.number).or_default();
        }
        for (disk, there) in mapped {
            match tx.mapped(disk, ino)? {
                records if records == there => {}
                0 => {
                    let what =
                        format!("the map of disk {disk} lacks it: {there} records are there");
                    report.find(ino, what);
                }
                records => report.find(ino, wrong_map(disk.into(), records, there)),
            }
        }
        Ok(())
    }

    /// Looks at a file, within one operation. `false` if it has too many records for that.
    pub(crate) fn check_short_file(
        &self,
        tx: &Tx<'_>,
        file: (Ino, &Inode),
        report: &mut FsckReport,
    ) -> Result<bool> {
        let records = tx.first_records(file.0, 0..u64::MAX, self.meta().at_a_time())?;
        if records.len() >= self.meta().at_a_time() {
            return Ok(false);
        }
        let mut count = FileCount::default();
        self.look_at_records(file.0, &records, &mut count, report);
        self.judge_file(tx, file, count, report)?;
        Ok(true)
    }

    /// Looks at a file with many records, in steps.
    pub(crate) async fn check_long_file(&self, ino: Ino, report: &mut FsckReport) -> Result<()> {
        let _file = self.lock_to_check(ino).await;
        let (mut count, mut from) = (FileCount::default(), Some(0));
        while let Some(first) = from {
            let look = |tx: &Tx<'_>| {
                let max = self.meta().at_a_time();
                let mut records = tx.records_from((ino, first), max)?;
                let is_all = records.len() < max;
                records.retain(|(of, ..)| *of == ino);
                let next = records.last().filter(|_| !is_all).map(|(_, first, _)| first + 1);
                let records: Vec<_> =
                    records.into_iter().map(|(_, first, record)| (first, record)).collect();
                self.look_at_records(ino, &records, &mut count, report);
                Ok(next)
            };
            from = self.meta().run(look).await?;
            self.rt().yield_now().await;
        }
        let judged = |tx: &Tx<'_>| match tx.inode(ino) {
            Ok(inode) => self.judge_file(tx, (ino, &inode), count, report),
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error),
        };
        self.meta().run(judged).await
    }

    /// Finds rows of inode maps that belong to no file.
    pub(crate) async fn check_maps(&self, report: &mut FsckReport) -> Result<()> {
        let mut from = (0, 0);
        loop {
            let next = self.meta().run(|tx| {
                let rows = tx.mapped_from(from, self.meta().at_a_time())?;
                for (disk, ino, records) in &rows {
                    if !is_file(tx, *ino)? {
                        report.find(*ino, wrong_map(*disk, *records, 0));
                    }
                }
                Ok(rows.last().map(|(disk, ino, _)| (*disk, ino + 1)))
            });
            match next.await? {
                Some(next) => from = next,
                None => return Ok(()),
            }
            self.rt().yield_now().await;
        }
    }

    /// Finds blocks that two records have, and records without a file.
    pub(crate) async fn check_owners(&self, report: &mut FsckReport) -> Result<()> {
        let (mut begins, mut all) = (BTreeMap::new(), 0);
        for member in self.pool().members() {
            // A disk that has come back has the blocks of its old number.
            if self.pool().last_number(member.number) == member.number {
                begins.insert(member.number, all);
                all += member.blocks();
            }
        }
        let mut twice: BTreeSet<(u16, u64)> = BTreeSet::new();
        let mut first = 0;
        while first < all || first == 0 {
            let end = (first + BITS_MAX).min(all);
            let bits = vec![0; usize::try_from((end - first).div_ceil(64)).expect("in memory")];
            let mut owned = Owned { first, end, bits, begins: begins.clone() };
            let is_first = first == 0;
            let of_others = self.runs_of_others().await?;
            for (owner, run) in of_others.iter().filter(|_| is_first) {
                if let Some(block) = self.first_free(*run) {
                    let what =
                        format!("{owner} has block {block} of disk {}, which is free", run.disk);
                    report.find(ROOT, what);
                }
            }
            let mut last = None;
            self.each_run(|tx, ino, _, run| {
                if is_first && last.replace(ino) != Some(ino) && !is_file(tx, ino)? {
                    report.find(ino, "it has blocks and is no file");
                }
                let block = owned.note(run);
                let meets = |(_, other): &&(String, Run)| is_first && meet(*other, run);
                if let Some((owner, other)) = of_others.iter().find(meets) {
                    let block = run.start.max(other.start);
                    let spot = format!("block {block} of disk {}", run.disk);
                    report.find(ino, format!("{spot} is one of {owner}"));
                }
                twice.extend(block.filter(|_| twice.len() < NAMED_MAX).map(|at| (run.disk, at)));
                Ok(())
            })
            .await?;
            first = end.max(1);
        }
        if twice.is_empty() { Ok(()) } else { self.tell_owners(&twice, report).await }
    }

    /// The pieces of the metadata, as the labels of disks name them, and the rings of nodes: what
    /// each is, and its blocks.
    async fn runs_of_others(&self) -> Result<Vec<(String, Run)>> {
        let of_node = |(node, RingRun { run, .. }): (u16, RingRun)| {
            let disk = self.pool().last_number(run.disk);
            (format!("the log of node {node}"), Run { disk, ..run })
        };
        let rings = self.meta().run(|tx| tx.rings()).await?;
        let mut runs: Vec<_> = rings.into_iter().map(of_node).collect();
        for member in self.pool().members() {
            let Some(present) = member.present().filter(|_| !member.is_lost()) else { continue };
            let (disk, pieces) = (member.number, present.label.borrow().pieces.clone());
            runs.extend(pieces.into_iter().map(|piece| {
                let (start, blocks) = (piece.start, piece.end - piece.start);
                ("the metadata".to_owned(), Run { disk, start, blocks })
            }));
        }
        Ok(runs)
    }

    fn first_free(&self, run: Run) -> Option<u64> {
        let member = self.pool().member(run.disk)?;
        let space = member.space.borrow();
        space.first_free(run.start, run.blocks)
    }

    /// Tells of those of these blocks that have two owners.
    async fn tell_owners(
        &self,
        twice: &BTreeSet<(u16, u64)>,
        report: &mut FsckReport,
    ) -> Result<()> {
        let mut owners: BTreeMap<(u16, u64), Vec<(Ino, u64)>> = BTreeMap::new();
        self.each_run(|_, ino, first, run| {
            let end = run.start.saturating_add(run.blocks);
            for spot in twice.range((run.disk, run.start)..(run.disk, end)) {
                owners.entry(*spot).or_default().push((ino, first));
            }
            Ok(())
        })
        .await?;
        self.meta()
            .run(|tx| {
                for ((disk, block), mut of) in owners {
                    let mut has_it = Vec::new();
                    of.dedup();
                    for (ino, first) in of {
                        let records = tx.records(ino, first, first + 1)?;
                        let record = records.into_iter().find(|(at, _)| *at == first);
                        let runs = record.iter().flat_map(|(_, record)| runs_of(record));
                        let is_it = |run: &Run| {
                            self.pool().last_number(run.disk) == disk
                                && (run.start..run.start + run.blocks).contains(&block)
                        };
                        has_it.extend(runs.filter(is_it).map(|_| ino));
                    }
                    if let [other, rest @ ..] = &has_it[..] {
                        for ino in rest {
                            let what = format!("block {block} of disk {disk} is also {other}'s");
                            report.find(*ino, what);
                        }
                    }
                }
                Ok(())
            })
            .await
    }

    /// Calls `each` for each run of all records, under the last number of its disk, some in one
    /// operation.
    async fn each_run(
        &self,
        mut each: impl FnMut(&Tx<'_>, Ino, u64, Run) -> Result<()>,
    ) -> Result<()> {
        let mut from = (0, 0);
        loop {
            let next = self.meta().run(|tx| {
                let records = tx.records_from(from, self.meta().at_a_time())?;
                for (ino, first, record) in &records {
                    for run in runs_of(record) {
                        let disk = self.pool().last_number(run.disk);
                        each(tx, *ino, *first, Run { disk, ..run })?;
                    }
                }
                Ok(records.last().map(|(ino, first, _)| (*ino, first + 1)))
            });
            match next.await? {
                Some(next) => from = next,
                None => return Ok(()),
            }
            self.rt().yield_now().await;
        }
    }
}

fn meet(one: Run, other: Run) -> bool {
    one.disk == other.disk
        && one.start < other.start.saturating_add(other.blocks)
        && other.start < one.start.saturating_add(one.blocks)
}

fn wrong_map(disk: u64, records: u64, there: u64) -> String {
    format!("the map of disk {disk} has {records} of its records, not {there}")
}

fn is_file(tx: &Tx<'_>, ino: Ino) -> Result<bool> {
    match tx.inode(ino) {
        Ok(inode) => Ok(inode.kind() == Kind::File),
        Err(FsError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}
