//! The disks of a file system, and how a record's lines become a stripe of weft-stripe.
//!
//! All lines of a record are one stripe: a column is a unit, and a line is a range of 4 KiB at the
//! same offset in all units ([`Laid`]). Columns that are not active lie on a disk of their own, the
//! *void*, which reads as zeros and is never written. So nothing below knows of them.
//!
//! A disk that fails a request is *lost*. What a lost disk misses is not tracked: it is never
//! trusted again. So its loss must be durable in the metadata before anything is written that it
//! misses ([`Pool::unrecorded_losses`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::{Code, SlotNo, UnitSet};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, Frozen};
use weft_stripe::{
    Access, Coding, Generation, Met, Owner, Place, Stripe, StripeId, gather, gather_exactly,
};

use crate::at_hand::AtHand;
use crate::block::{BLOCK, BLOCK_BYTES};
use crate::checksum::crc32c;
use crate::error::{FsError, Result};
use crate::inode::Ino;
use crate::meta::DiskRow;
use crate::record::{Record, Run};
use crate::redundancy::Coded;
use crate::space::Space;

/// Where columns lie that are not active.
const VOID: SlotNo = SlotNo(usize::MAX);

/// A disk of the file system.
pub(crate) struct Member {
    pub(crate) number: u16,
    pub(crate) row: DiskRow,
    /// All of it; none if it is missing.
    whole: Option<Rc<dyn Disk>>,
    /// Its data blocks.
    disk: Option<Rc<dyn Disk>>,
    lost: Cell<bool>,
    /// Whether it is being emptied: nothing new goes to it.
    pub(crate) leaving: Cell<bool>,
    busy: Cell<u32>,
    /// Whether writes to it have completed since its last flush began.
    written: Cell<bool>,
    pub(crate) space: RefCell<Space>,
}

impl Member {
    /// A disk: all of it and its data blocks, unless it is missing.
    pub(crate) fn new(number: u16, row: DiskRow, disks: Option<[Rc<dyn Disk>; 2]>) -> Self {
        let [whole, disk] = disks.map_or([None, None], |disks| disks.map(Some));
        let lost = Cell::new(row.lost || disk.is_none());
        let space = RefCell::new(Space::new(row.blocks));
        let (leaving, busy, written) = (Cell::new(false), Cell::new(0), Cell::new(false));
        Self { number, row, whole, disk, lost, leaving, busy, written, space }
    }

    /// Whether it may not be used.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// All of it, label and metadata as well; none if it is missing.
    pub(crate) fn whole(&self) -> Option<&Rc<dyn Disk>> {
        self.whole.as_ref()
    }

    /// Whether it was given at all.
    pub(crate) fn is_present(&self) -> bool {
        self.disk.is_some()
    }

    /// Blocks that are free, if it takes any.
    pub(crate) fn free_blocks(&self) -> u64 {
        match self.is_lost() || self.leaving.get() {
            true => 0,
            false => self.space.borrow().free_blocks(),
        }
    }
}

/// What the pool has seen since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks that did not match their checksum.
    pub wrong_blocks: u64,
    /// Blocks that could not be read.
    pub unreadable_blocks: u64,
    /// Blocks rewritten from redundancy.
    pub repaired_blocks: u64,
}

/// The disks.
pub(crate) struct Pool {
    members: RefCell<BTreeMap<u16, Rc<Member>>>,
    void: Rc<dyn Disk>,
    codings: RefCell<HashMap<Coded, Rc<Coding>>>,
    /// Losses so far, and how many of them are in the metadata.
    losses: Cell<u64>,
    recorded: Cell<u64>,
    flushing: Semaphore,
    pub(crate) counts: Cell<Counts>,
    pub(crate) at_hand: AtHand,
}

impl Pool {
    pub(crate) fn new(members: Vec<Member>, at_hand: AtHand) -> Rc<Self> {
        // Disks that are missing for the first time.
        let losses = members.iter().filter(|member| member.is_lost() && !member.row.lost).count();
        let members = members.into_iter().map(|member| (member.number, Rc::new(member)));
        Rc::new(Self {
            members: RefCell::new(members.collect()),
            void: Rc::new(Memory::void()),
            codings: RefCell::default(),
            losses: Cell::new(losses as u64),
            recorded: Cell::new(0),
            flushing: Semaphore::new(1),
            counts: Cell::default(),
            at_hand,
        })
    }

    /// All disks, by number.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().values().cloned().collect()
    }

    pub(crate) fn member(&self, number: u16) -> Option<Rc<Member>> {
        self.members.borrow().get(&number).cloned()
    }

    /// A disk joins.
    pub(crate) fn add(&self, member: Member) {
        self.members.borrow_mut().insert(member.number, Rc::new(member));
    }

    /// A disk goes.
    pub(crate) fn remove(&self, number: u16) {
        self.members.borrow_mut().remove(&number);
    }

    /// A disk is not used any more.
    pub(crate) fn lose(&self, member: &Member) {
        if !member.lost.replace(true) {
            self.losses.set(self.losses.get() + 1);
        }
    }

    /// The number of losses so far, if not all of them are in the metadata.
    pub(crate) fn unrecorded_losses(&self) -> Option<u64> {
        let losses = self.losses.get();
        (losses != self.recorded.get()).then_some(losses)
    }

    /// The first `losses` losses are in the metadata, durably.
    pub(crate) fn recorded(&self, losses: u64) {
        self.recorded.set(self.recorded.get().max(losses));
    }

    pub(crate) fn count(&self, note: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        note(&mut counts);
        self.counts.set(counts);
    }

    /// Gives the blocks of a record's columns back.
    pub(crate) fn release(&self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            self.at_hand.forget(run);
            if let Some(member) = self.member(run.disk) {
                member.space.borrow_mut().release(run.start, run.blocks);
            }
        }
    }

    fn coding(&self, coded: Coded) -> Result<Rc<Coding>> {
        if let Some(coding) = self.codings.borrow().get(&coded) {
            return Ok(coding.clone());
        }
        let code = Code::new(coded.spec, coded.columns);
        let code = code.map_err(|error| FsError::Damaged(error.to_string()))?;
        let coding = Rc::new(Coding::new(code, false));
        self.codings.borrow_mut().insert(coded, coding.clone());
        Ok(coding)
    }

    /// A record's lines as a stripe.
    pub(crate) fn lay(self: &Rc<Self>, record: &Record) -> Result<Laid> {
        let place = |column: &Option<crate::record::Column>| {
            let Some(column) = column else { return Ok(None) };
            let member = self.member(column.disk);
            let unknown = || FsError::Damaged(format!("there is no disk {}", column.disk));
            Ok(Some((member.ok_or_else(unknown)?, column.start)))
        };
        let columns = record.columns.iter().map(place).collect::<Result<_>>()?;
        Ok(Laid {
            pool: self.clone(),
            coding: self.coding(record.coded)?,
            pattern: record.pattern,
            columns,
            idle: Cell::new(0),
            bad_sectors: Cell::new(false),
        })
    }

    /// Flushes all disks that were written. Those that fail are lost.
    pub(crate) async fn flush(&self) {
        // A flush that is under way may be the one that covers our writes.
        let _alone = self.flushing.acquire(1).await;
        let members = self.members();
        let written = members.iter().filter(|member| member.written.replace(false));
        join_all(written.map(|member| async move {
            let Some(disk) = member.disk.as_ref().filter(|_| !member.is_lost()) else { return };
            if disk.flush().await.is_err() {
                self.lose(member);
            }
        }))
        .await;
    }
}

/// The blocks that a record has.
pub(crate) fn runs_of(record: &Record) -> impl Iterator<Item = Run> {
    record.active().map(|(_, column)| column.run())
}

/// A record's lines as a stripe, with the disks of its columns.
pub(crate) struct Laid {
    pool: Rc<Pool>,
    coding: Rc<Coding>,
    pattern: u64,
    columns: Vec<Option<(Rc<Member>, u64)>>,
    /// Requests to the void.
    idle: Cell<u32>,
    /// Whether sectors could not be read.
    bad_sectors: Cell<bool>,
}

impl Laid {
    /// The stripe, as it is now.
    pub(crate) fn stripe(&self) -> Stripe<'_> {
        self.resolve(StripeId { generation: Generation::default(), number: self.pattern })
    }

    /// A disk failed a write. It is lost, unless it only has no room left below it.
    pub(crate) fn fail_write(&self, slot: SlotNo, error: &DiskError) {
        if let Some(member) = self.member(slot).filter(|_| !error.is_no_space()) {
            self.pool.lose(member);
        }
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
        record: &Record,
        at: (Ino, u64),
        units: UnitSet,
        lines: std::ops::Range<u64>,
    ) -> Result<Vec<(usize, Buf)>> {
        let len = usize::try_from(lines.end - lines.start).expect("few lines") * BLOCK;
        let wanted: Vec<_> = units.iter().map(|unit| (unit, Buf::new(len))).collect();
        let access = Access::user(lines.start * BLOCK_BYTES);
        self.bad_sectors.set(false);
        let read = gather(self, self.stripe(), access, &[], wanted).await;
        let failed = read.result.is_err() || self.bad_sectors.get();
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

    /// Reads one line block by block: only blocks that match their checksums serve as sources. Those
    /// that do not are rewritten.
    async fn read_line(
        &self,
        record: &Record,
        (ino, first): (Ino, u64),
        line: u64,
        wanted: &mut [(usize, Buf)],
        part: std::ops::Range<usize>,
    ) -> Result<()> {
        let access = Access::user(line * BLOCK_BYTES);
        let stripe = self.stripe();
        let mut good = UnitSet::new();
        let mut bad = UnitSet::new();
        for (unit, column) in self.columns.iter().enumerate() {
            if stripe.lost.contains(unit) {
                continue;
            }
            let one = UnitSet::one(unit);
            match gather_exactly(self, stripe, access, BLOCK, one).await {
                Ok(read) if is_right(record, unit, line, &read[0].1) => good.insert(unit),
                Ok(_) => {
                    bad.insert(unit);
                    self.pool.count(|counts| counts.wrong_blocks += 1);
                }
                Err(_) if column.as_ref().is_some_and(|(member, _)| !member.is_lost()) => {
                    bad.insert(unit);
                    self.pool.count(|counts| counts.unreadable_blocks += 1);
                }
                Err(_) => {}
            }
        }
        let trusted = self.stripe().with_lost(self.coding.units().difference(&good));
        let unreadable = || FsError::Unreadable { inode: ino, block: first + line * record.k() };
        for (unit, buf) in wanted.iter_mut() {
            let one = vec![(*unit, Buf::new(BLOCK))];
            let computed = gather(self, trusted, access, &[], one).await;
            let value = &computed.units[0].1;
            if computed.result.is_err() || !is_right(record, *unit, line, value) {
                return Err(unreadable());
            }
            buf[part.clone()].copy_from_slice(value);
        }
        for unit in bad.iter() {
            let one = vec![(unit, Buf::new(BLOCK))];
            let mut computed = gather(self, trusted, access, &[], one).await;
            let (_, value) = computed.units.remove(0);
            let Some((member, start)) = &self.columns[unit] else { continue };
            if computed.result.is_err() || !is_right(record, unit, line, &value) {
                continue;
            }
            let Some(disk) = member.disk.as_ref().filter(|_| !member.is_lost()) else { continue };
            let offset = (start + line) * BLOCK_BYTES;
            self.pool.at_hand.forget(Run { disk: member.number, start: start + line, blocks: 1 });
            if disk.write(offset, value.freeze(), WriteOpts::USER).await.is_ok() {
                member.written.set(true);
                self.pool.count(|counts| counts.repaired_blocks += 1);
            }
        }
        Ok(())
    }
}

/// Where a line is in a buffer that begins with line `first`.
pub(crate) fn part_of(first: u64, line: u64) -> std::ops::Range<usize> {
    let at = usize::try_from(line - first).expect("few lines") * BLOCK;
    at..at + BLOCK
}

/// Whether a block matches its checksum.
fn is_right(record: &Record, unit: usize, line: u64, block: &[u8]) -> bool {
    let Some(column) = &record.columns[unit] else { return true };
    let sum = column.sums[usize::try_from(line).expect("few lines")];
    sum == 0 || sum == crc32c(block)
}

impl Owner for Laid {
    // It repairs nothing: only blocks that match their checksums may be written back, as `read_line`
    // does.

    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let lost = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.as_ref().is_some_and(|(member, _)| member.is_lost()));
        let lost = lost.map(|(unit, _)| unit).collect();
        Stripe { id, coding: &self.coding, lost, pinned: false, unsure: false }
    }

    fn place(&self, _: StripeId, unit: usize, from: u64) -> Place {
        match &self.columns[unit] {
            None => Place { slot: VOID, offset: from },
            Some((member, start)) => {
                Place { slot: SlotNo(member.number.into()), offset: start * BLOCK_BYTES + from }
            }
        }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        if slot == VOID {
            return Some(self.pool.void.clone());
        }
        let member = self.member(slot).filter(|member| !member.is_lost())?;
        member.disk.clone()
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

    fn met(&self, _: SlotNo, what: Met) {
        if what == Met::ReadError {
            self.bad_sectors.set(true);
        }
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        _: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        if let Some(member) = self.member(slot).filter(|_| error.kind != DiskErrorKind::Medium) {
            self.pool.lose(member);
        }
        Box::pin(std::future::ready(()))
    }
}

/// A disk of zeros, or of a few bytes that are known and zeros around them. It is only read.
pub(crate) struct Memory {
    info: DiskInfo,
    at: u64,
    bytes: Frozen,
}

impl Memory {
    /// Zeros.
    fn void() -> Self {
        Self::holding(0, Frozen::zeros(0))
    }

    /// These bytes, at this offset.
    pub(crate) fn holding(at: u64, bytes: Frozen) -> Self {
        let info = DiskInfo {
            rotational: false,
            name: "blocks in memory".into(),
            size_bytes: u64::MAX / BLOCK_BYTES * BLOCK_BYTES,
            sector_bytes: 4096,
            fast_zeroes: true,
            volatile_cache: false,
        };
        Self { info, at, bytes }
    }

    fn refuse(&self, op: DiskOp, offset: u64, len: u64) -> DoneFuture<'_> {
        let why = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is only read");
        let error = DiskError::new(&self.info.name, op, offset, len, why);
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Disk for Memory {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        let from = offset.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
        let known = from.and_then(|from| self.bytes.get(from..)).unwrap_or_default();
        let len = known.len().min(buf.len());
        buf[..len].copy_from_slice(&known[..len]);
        buf[len..].fill(0);
        Box::pin(std::future::ready((Ok(()), buf)))
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::Write, offset, data.len() as u64)
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::WriteZeroes, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.refuse(DiskOp::Discard, offset, len)
    }
}
