//! Copying columns of a record to other places.
//!
//! *Without the lock of the file* a record may change meanwhile, and its places may be freed and
//! used by other files. So a copy writes only to places that were allocated for it, and that no
//! record names. What it reads counts only if it matches the checksums of the record, and nothing
//! is repaired: what does not match may be newer. What needs more is *hard*, and is done under the
//! lock: blocks that cannot be read at once, and those that a disk which has come back has missed.
//! They are written in their places.

use std::collections::BTreeSet;
use std::ops::Range;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Buf;
use weft_stripe::{UnitWrite, store};

use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::disks::old_block_cache::{UNKNOWN, sum_of};
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Column, Extent};
use crate::format::inode::Ino;
use crate::meta::ExtentWatch;
use crate::state::mounted::FsState;

/// A record with columns that move.
pub(super) struct ExtentMove {
    pub(super) ino: Ino,
    pub(super) first: u64,
    pub(super) record: Extent,
    /// Whether the record has changed since. None: the caller holds the lock of its file.
    pub(super) watch: Option<ExtentWatch>,
    /// The record as it will be.
    pub(super) fresh: Extent,
    /// The columns that move.
    pub(super) units: UnitSet,
    /// Those of them that stay where they are, on a disk that has come back under another number.
    pub(super) back: UnitSet,
    /// Blocks of these that are there.
    pub(super) kept: u64,
    /// Whether some of them can neither be read nor computed.
    pub(super) is_damaged: bool,
}

/// What became of a copy.
pub(super) enum Copied {
    /// The new places have it. They may be in the caches of disks only.
    Whole(ExtentStripe),
    /// It needs the lock of the file.
    Hard,
}

impl ExtentMove {
    pub(super) fn new(
        pool: &Pool,
        (ino, first): (Ino, u64),
        (record, watch): (Extent, Option<ExtentWatch>),
        (fresh, units): (Extent, UnitSet),
    ) -> Self {
        let is_back = |unit: &usize| match (&record.columns[*unit], &fresh.columns[*unit]) {
            (Some(old), Some(new)) => {
                old.start == new.start
                    && old.disk != new.disk
                    && pool.last_number(old.disk) == new.disk
            }
            _ => false,
        };
        let back = units.iter().filter(is_back).collect();
        Self { ino, first, record, watch, fresh, units, back, kept: 0, is_damaged: false }
    }

    /// The columns that it has in one of its records, and not in the other.
    pub(super) fn columns<'a>(&'a self, of: &'a Extent) -> impl Iterator<Item = &'a Column> {
        let moves =
            |(unit, _): &(usize, &Column)| self.units.contains(*unit) && !self.back.contains(*unit);
        of.active().filter(moves).map(|(_, column)| column)
    }

    /// Blocks that are read or computed, and written.
    pub(super) fn blocks(&self) -> u64 {
        self.record.lines * self.units.len() as u64 - self.kept
    }
}

impl FsState {
    /// Its new places are free again.
    pub(super) fn release_copy(&self, moving: &ExtentMove) {
        self.pool().release(moving.columns(&moving.fresh).map(Column::run));
    }

    /// Reads or computes columns, and writes them to their other places; of those that stay, what
    /// is not there.
    pub(super) async fn copy_columns(&self, moving: &mut ExtentMove) -> Result<Copied> {
        if moving.record.unwritten {
            return self.pool().lay(&moving.fresh).map(Copied::Whole);
        }
        let (at, old) = ((moving.ino, moving.first), self.pool().lay(&moving.record)?);
        let (moves, lines) = (moving.units.difference(&moving.back), 0..moving.record.lines);
        let mut writes = Vec::new();
        if !moves.is_empty() {
            let read = match moving.watch {
                Some(_) => old.read_unlocked(&moving.record, moves, lines.clone()).await,
                None => Some(old.read(&moving.record, at, moves, lines.clone()).await?),
            };
            let Some(read) = read else { return Ok(Copied::Hard) };
            let write = |(unit, buf): (usize, Buf)| UnitWrite { unit, from: 0, data: buf.freeze() };
            writes.extend(read.into_iter().map(write));
        }
        for unit in moving.back.iter() {
            let missed = old.missed_lines(&moving.record, unit).await;
            if moving.watch.is_some() && missed != 0 {
                return Ok(Copied::Hard);
            }
            self.read_missed(&old, moving, (unit, missed), &mut writes).await?;
        }
        self.write_copy(&old, moving, writes).await.map(Copied::Whole)
    }

    /// Writes what was read of columns.
    async fn write_copy(
        &self,
        old: &ExtentStripe,
        moving: &mut ExtentMove,
        mut writes: Vec<UnitWrite>,
    ) -> Result<ExtentStripe> {
        // Users wait for the lock.
        let opts = if moving.watch.is_some() { WriteOpts::MAINTENANCE } else { WriteOpts::USER };
        let at = (moving.ino, moving.first);
        let ExtentMove { record, fresh, units, back, .. } = moving;
        // Each time that this is repeated, bad blocks were found that are not given out again.
        loop {
            for write in &writes {
                put_sums(fresh, record, write);
            }
            let laid = self.pool().lay(fresh)?;
            let stored = store(&laid, laid.stripe(), &writes, opts).await;
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
        (unit, missed): (usize, u64),
        writes: &mut Vec<UnitWrite>,
    ) -> Result<()> {
        let (at, record) = ((moving.ino, moving.first), &moving.record);
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
