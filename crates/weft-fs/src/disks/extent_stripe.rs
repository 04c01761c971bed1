//! A record's lines as a stripe of weft-stripe.
//!
//! All lines of a record are one stripe: a column is a unit, and a line is a range of 4 KiB at the
//! same offset in all units ([`ExtentStripe`]). Columns that are not active lie on a disk of their
//! own, the *void*, which reads as zeros and is never written. So nothing below knows of them.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::{Buf, Frozen};
use weft_stripe::{
    Access, Coding, DeviceEvent, Generation, Location, Owner, Stripe, StripeId, gather,
    gather_exactly,
};

use crate::disks::bad_blocks::Suspect;
use crate::disks::member::Member;
use crate::disks::old_block_cache::{UNKNOWN, sum_of};
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::{crc32c, tells_versions};
use crate::format::extent::{Extent, Run};
use crate::format::inode::Ino;

/// Where columns lie that are not active.
const VOID: SlotNo = SlotNo(usize::MAX);

impl Pool {
    /// A record's lines as a stripe.
    pub(crate) fn lay(self: &Rc<Self>, record: &Extent) -> Result<ExtentStripe> {
        let place = |column: &Option<crate::format::extent::Column>| {
            let Some(column) = column else { return Ok(None) };
            let member = self.member(column.disk);
            let unknown = || FsError::Damaged(format!("there is no disk {}", column.disk));
            Ok(Some((member.ok_or_else(unknown)?, column.start)))
        };
        let columns = record.columns.iter().map(place).collect::<Result<_>>()?;
        Ok(ExtentStripe {
            pool: self.clone(),
            coding: self.coding(record.coded)?,
            pattern: record.pattern,
            columns,
            idle: Cell::new(0),
            failed_blocks: Cell::new(false),
        })
    }
}

/// A record's lines as a stripe, with the disks of its columns.
pub(crate) struct ExtentStripe {
    pool: Rc<Pool>,
    coding: Rc<Coding>,
    pattern: u64,
    columns: Vec<Option<(Rc<Member>, u64)>>,
    /// Requests to the void.
    idle: Cell<u32>,
    /// Whether blocks could not be read of disks that work.
    failed_blocks: Cell<bool>,
}

impl ExtentStripe {
    /// The stripe, as it is now.
    pub(crate) fn stripe(&self) -> Stripe<'_> {
        self.resolve(StripeId { generation: Generation::default(), number: self.pattern })
    }

    /// Writes to its disks have completed.
    pub(crate) fn written(&self) {
        self.columns.iter().flatten().for_each(|(member, _)| member.written.set(true));
    }

    /// Whether all of it can be read.
    pub(crate) fn is_readable(&self) -> bool {
        let stripe = self.stripe();
        stripe.lost.is_empty() || stripe.code().decodable(self.pattern, stripe.lost)
    }

    /// The disk and first block of a column.
    pub(crate) fn column(&self, unit: usize) -> Option<(&Rc<Member>, u64)> {
        self.columns[unit].as_ref().map(|(member, start)| (member, *start))
    }

    /// The unit whose column lies on a disk.
    pub(crate) fn unit_on(&self, slot: SlotNo) -> Option<usize> {
        let is_it = |column: &Option<(Rc<Member>, u64)>| {
            column.as_ref().is_some_and(|(member, _)| usize::from(member.number) == slot.0)
        };
        self.columns.iter().position(is_it)
    }

    pub(crate) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    fn member(&self, slot: SlotNo) -> Option<&Rc<Member>> {
        let is_it = |(member, _): &&(Rc<Member>, u64)| usize::from(member.number) == slot.0;
        self.columns.iter().flatten().find(is_it).map(|(member, _)| member)
    }

    /// Units of some lines, read and checked. `at` is where the record stands in a file.
    ///
    /// # Errors
    /// [`FsError::Unreadable`] if they cannot be had.
    pub(crate) async fn read(
        &self,
        record: &Extent,
        at: (Ino, u64),
        units: UnitSet,
        lines: std::ops::Range<u64>,
    ) -> Result<Vec<(usize, Buf)>> {
        let len = usize::try_from(lines.end - lines.start).expect("few lines") * BLOCK;
        let wanted: Vec<_> = units.iter().map(|unit| (unit, Buf::new(len))).collect();
        let access = Access::user(lines.start * BLOCK_BYTES);
        let known = match self.sources_to_check(record, units, &lines) {
            None => Vec::new(),
            Some(data) => Box::pin(self.read(record, at, data, lines.clone())).await?,
        };
        let known: Vec<_> = known.into_iter().map(|(unit, buf)| (unit, buf.freeze())).collect();
        self.failed_blocks.set(false);
        let read = gather(self, self.stripe(), access, &known, wanted).await;
        let failed = read.result.is_err() || self.failed_blocks.get();
        let mut units = read.units;
        for line in lines.clone() {
            let part = part_of(lines.start, line);
            let wrong = |(unit, buf): &(usize, Buf)| {
                failed || !is_right(record, *unit, line, &buf[part.clone()])
            };
            if units.iter().any(wrong) {
                self.read_line(record, at, line, &mut units, part).await?;
            }
        }
        Ok(units)
    }

    /// The data units from which lost parity of some lines is to be computed, if this has no
    /// checksum that would tell whether what was read for it is right.
    fn sources_to_check(
        &self,
        record: &Extent,
        units: UnitSet,
        lines: &std::ops::Range<u64>,
    ) -> Option<UnitSet> {
        let lost = self.stripe().lost.intersection(&units);
        let is_unknown = |unit: usize| {
            let column = record.columns[unit].as_ref().filter(|_| unit >= record.coded.k());
            column.is_some_and(|column| lines.clone().any(|line| sum_of(column, line) == UNKNOWN))
        };
        let data = UnitSet::first(record.coded.k()).difference(&units);
        lost.iter().any(is_unknown).then_some(data).filter(|data| !data.is_empty())
    }

    /// Units of some lines, read and checked, for a job that does not hold the lock of the file.
    /// None if they are not as the record says at the first attempt: the line may have changed
    /// since, so nothing is repaired.
    pub(crate) async fn read_unlocked(
        &self,
        record: &Extent,
        units: UnitSet,
        lines: std::ops::Range<u64>,
    ) -> Option<Vec<(usize, Buf)>> {
        let len = usize::try_from(lines.end - lines.start).expect("few lines") * BLOCK;
        let wanted: Vec<_> = units.iter().map(|unit| (unit, Buf::new(len))).collect();
        let access = Access::maintenance(lines.start * BLOCK_BYTES);
        let known = match self.sources_to_check(record, units, &lines) {
            None => Vec::new(),
            Some(data) => Box::pin(self.read_unlocked(record, data, lines.clone())).await?,
        };
        let known: Vec<_> = known.into_iter().map(|(unit, buf)| (unit, buf.freeze())).collect();
        self.failed_blocks.set(false);
        let read = gather(self, self.stripe(), access, &known, wanted).await;
        let is_right = |(unit, buf): &(usize, Buf)| {
            let part = |line| &buf[part_of(lines.start, line)];
            lines.clone().all(|line| is_right(record, *unit, line, part(line)))
        };
        let is_all_right = read.result.is_ok() && !self.failed_blocks.get();
        (is_all_right && read.units.iter().all(is_right)).then_some(read.units)
    }

    /// Reads one line block by block: only blocks that match their checksums serve as sources.
    /// Those that do not are rewritten; blocks that cannot be read are suspects.
    async fn read_line(
        &self,
        record: &Extent,
        (ino, first): (Ino, u64),
        line: u64,
        wanted: &mut [(usize, Buf)],
        part: std::ops::Range<usize>,
    ) -> Result<()> {
        let access = Access::user(line * BLOCK_BYTES);
        let stripe = self.stripe();
        let (mut good, mut wrong) = (UnitSet::new(), UnitSet::new());
        let mut known: Vec<(usize, Frozen)> = Vec::new();
        for (unit, column) in self.columns.iter().enumerate() {
            if stripe.lost.contains(unit) {
                if let Some(block) = self.salvage(record, unit, line).await {
                    good.insert(unit);
                    known.push((unit, block));
                }
                continue;
            }
            let one = UnitSet::one(unit);
            match gather_exactly(self, stripe, access, BLOCK, one).await {
                Ok(read) if is_right(record, unit, line, &read[0].1) => good.insert(unit),
                Ok(_) => {
                    wrong.insert(unit);
                    self.pool.count(|counts| counts.wrong_blocks += 1);
                }
                Err(_) => {
                    let Some((member, start)) = column else { continue };
                    if self.pool.diagnose(member).await {
                        let suspect = Suspect { ino, block: first + line * record.k(), unit };
                        if self.pool.bad.suspect(member, start + line, suspect) {
                            self.pool.count(|counts| counts.unreadable_blocks += 1);
                        }
                    }
                }
            }
        }
        let trusted = self.stripe().with_lost(self.coding.units().difference(&good));
        let unreadable = || FsError::Unreadable { inode: ino, block: first + line * record.k() };
        for (unit, buf) in wanted.iter_mut() {
            if let Some((_, block)) = known.iter().find(|(of, _)| of == unit) {
                buf[part.clone()].copy_from_slice(block);
                continue;
            }
            let one = vec![(*unit, Buf::new(BLOCK))];
            let computed = gather(self, trusted, access, &known, one).await;
            let value = &computed.units[0].1;
            if computed.result.is_err() || !is_right(record, *unit, line, value) {
                return Err(unreadable());
            }
            buf[part.clone()].copy_from_slice(value);
        }
        for unit in wrong.iter() {
            let one = vec![(unit, Buf::new(BLOCK))];
            let mut computed = gather(self, trusted, access, &known, one).await;
            let (_, value) = computed.units.remove(0);
            let Some((member, start)) = &self.columns[unit] else { continue };
            if computed.result.is_err() || !is_right(record, unit, line, &value) {
                continue;
            }
            let Some(disk) = member.data() else { continue };
            self.pool.at_hand.forget(Run { disk: member.number, start: start + line, blocks: 1 });
            match disk.write((start + line) * BLOCK_BYTES, value.freeze(), WriteOpts::USER).await {
                Ok(()) => {
                    member.written.set(true);
                    self.pool.count(|counts| counts.repaired_blocks += 1);
                }
                Err(error) if error.is_no_space() => {}
                Err(_) => {
                    if self.pool.diagnose(member).await {
                        let suspect = Suspect { ino, block: first + line * record.k(), unit };
                        self.pool.bad.suspect(member, start + line, suspect);
                    }
                }
            }
        }
        Ok(())
    }
}

impl ExtentStripe {
    /// A block of a lost disk that is back, if it matches the record's checksum.
    pub(crate) async fn salvage(&self, record: &Extent, unit: usize, line: u64) -> Option<Frozen> {
        let (member, start) = self.column(unit)?;
        let sum = sum_of(record.columns[unit].as_ref()?, line);
        let successor = self.pool().successor(member.number).filter(|_| sum != UNKNOWN)?;
        let disk = successor.data()?.clone();
        let at = (start + line) * BLOCK_BYTES;
        let (result, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
        (result.is_ok() && crc32c(&block) == sum).then(|| block.freeze())
    }

    /// The lines of a unit that a lost disk which is back does not have any more, a bit for each.
    pub(crate) async fn missed_lines(&self, record: &Extent, unit: usize) -> u64 {
        let all = (0..record.lines).fold(0, |lines, line| lines | 1 << line);
        let (Some(column), Some((member, start))) =
            (record.columns[unit].as_ref(), self.column(unit))
        else {
            return all;
        };
        let successor = self.pool().successor(member.number);
        let Some(disk) = successor.as_ref().and_then(|member| member.data().cloned()) else {
            return all;
        };
        let len = usize::try_from(record.lines).expect("at most 64 lines") * BLOCK;
        let (result, found) =
            disk.read(start * BLOCK_BYTES, Buf::new(len), Class::Maintenance).await;
        let mut missed = 0;
        for (line, block) in (0..record.lines).zip(found.chunks_exact(BLOCK)) {
            let is_there = match result {
                // It may be what was there before.
                _ if !tells_missed(record, unit, line) => false,
                Ok(()) => {
                    let sum = sum_of(column, line);
                    sum != UNKNOWN && crc32c(block) == sum
                }
                // One bad block fails all of the request.
                Err(_) => self.salvage(record, unit, line).await.is_some(),
            };
            missed |= u64::from(!is_there) << line;
        }
        missed
    }
}

/// Where a line is in a buffer that starts with line `first`.
pub(crate) fn part_of(first: u64, line: u64) -> std::ops::Range<usize> {
    let at = usize::try_from(line - first).expect("few lines") * BLOCK;
    at..at + BLOCK
}

/// Whether a block that matches its checksum was not overwritten while its disk was lost. Parity
/// does not change its checksum either if that of the data does not.
fn tells_missed(record: &Extent, unit: usize, line: u64) -> bool {
    let tells = |unit: usize| {
        let column = record.columns[unit].as_ref();
        column.is_none_or(|column| tells_versions(sum_of(column, line)))
    };
    let k = record.coded.k();
    tells(unit) && (unit < k || (0..k).all(tells))
}

/// Whether a block matches its checksum.
fn is_right(record: &Extent, unit: usize, line: u64, block: &[u8]) -> bool {
    let Some(column) = &record.columns[unit] else { return true };
    let sum = column.sums[usize::try_from(line).expect("few lines")];
    sum == 0 || sum == crc32c(block)
}

impl Owner for ExtentStripe {
    // It repairs nothing: only blocks that match their checksums may be written back, as
    // `read_line` does.

    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let lost = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.as_ref().is_some_and(|(member, _)| member.is_lost()));
        let lost = lost.map(|(unit, _)| unit).collect();
        Stripe { id, coding: &self.coding, lost, pinned: false, unsure: false }
    }

    fn place(&self, _: StripeId, unit: usize, from: u64) -> Location {
        match &self.columns[unit] {
            None => Location { slot: VOID, offset: from },
            Some((member, start)) => {
                Location { slot: SlotNo(member.number.into()), offset: start * BLOCK_BYTES + from }
            }
        }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        if slot == VOID {
            return Some(self.pool.void.clone());
        }
        self.member(slot)?.data().cloned()
    }

    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.disk(slot).is_some_and(|held| Rc::ptr_eq(&held, disk))
    }

    fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        self.member(slot).map_or(&self.idle, |member| &member.busy)
    }

    fn sector_bytes(&self) -> usize {
        BLOCK
    }

    fn met(&self, _: SlotNo, what: DeviceEvent) {
        if what == DeviceEvent::ReadError {
            self.failed_blocks.set(true);
        }
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        _: &'a Rc<dyn Disk>,
        _: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(member) = self.member(slot) else { return };
            if self.pool.diagnose(member).await {
                self.failed_blocks.set(true);
            }
        })
    }
}
