//! Writing a file's dirty blocks to the disks.
//!
//! ```text
//!   sort the blocks ── new lines:    columns, parity from the cache ─────────┐
//!                  └── active lines: read and check old contents, new parity │
//!                                    append to the RAID log, durably         │
//!                                                      write all blocks ◀────┘
//!                                                      flush the disks
//!                                    records, checksums, size: open transaction
//! ```
//!
//! The order is what a crash needs: the log is durable before a block is overwritten, blocks are
//! durable before a record names them, and a lost disk is on record before others get what it
//! misses. A flush takes as many blocks as its log record may name, and goes on with the next ones.
//!
//! If a disk is lost while new lines are written, they are laid out anew on others. Active lines do
//! without it.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;
use weft_stripe::{
    Band, Crash, Owner, Place, Segment, Stripe, StripeId, UnitWrite, Updated, store, update,
};

use crate::block::{BLOCK, BLOCK_BYTES};
use crate::checksum::crc32c;
use crate::error::{FsError, Result};
use crate::inode::Ino;
use crate::log::LoggedBand;
use crate::meta::Tx;
use crate::mounted::{Inner, Node};
use crate::pool::{Laid, Memory, part_of, runs_of};
use crate::record::{LINES_MAX, Record};
use crate::redundancy::Redundancy;

/// The most blocks that are written at a time.
const BLOCKS_MAX: usize = 1024;

/// Lines that are written together.
pub(crate) struct Target {
    /// The record's first block.
    pub(crate) first: u64,
    /// The record as the metadata has it; none for new lines.
    pub(crate) old: Option<Record>,
    /// The record as it will be.
    pub(crate) record: Record,
    /// New contents: line, unit, block.
    pub(crate) blocks: Vec<(u64, usize, Frozen)>,
}

impl Target {
    fn k(&self) -> u64 {
        self.record.k()
    }

    fn written(&self) -> impl Iterator<Item = u64> {
        let k = self.k();
        self.blocks.iter().map(move |(line, unit, _)| self.first + line * k + *unit as u64)
    }

    /// The units that become active.
    fn activated(&self) -> UnitSet {
        let is_new = |unit: &usize| match &self.old {
            Some(old) => old.columns[*unit].is_none() && self.record.columns[*unit].is_some(),
            None => self.record.columns[*unit].is_some(),
        };
        (0..self.record.columns.len()).filter(is_new).collect()
    }
}

/// A band of a target with its new parity.
struct Ready {
    target: usize,
    writes: Vec<UnitWrite>,
}

impl Inner {
    /// Writes all dirty blocks of a file, and its size. The caller holds its lock alone.
    pub(crate) async fn flush_node(&self, node: &Rc<Node>) -> Result<()> {
        while !node.dirty.borrow().is_empty() {
            let _one = self.flushing.acquire(1).await;
            self.flush_some(node).await?;
        }
        let Some(live) = node.live.get() else { return Ok(()) };
        self.meta
            .run(|tx| {
                let mut inode = tx.inode(node.ino)?;
                (inode.size, inode.modified) = (live.size, live.modified);
                inode.changed = inode.changed.max(live.modified);
                tx.put_inode(node.ino, &inode)
            })
            .await?;
        node.live.set(None);
        Ok(())
    }

    /// Writes some dirty blocks, or finds that a disk is lost.
    async fn flush_some(&self, node: &Rc<Node>) -> Result<()> {
        let dirty: Vec<(u64, Frozen)> = {
            let dirty = node.dirty.borrow();
            dirty.iter().take(BLOCKS_MAX).map(|(block, data)| (*block, data.clone())).collect()
        };
        self.cut_for_new_columns(node.ino, &dirty).await?;
        self.make_narrower(node.ino, &dirty).await?;
        let mut targets = self.plan(node.ino, &dirty).await?;
        self.write_targets(node.ino, &mut targets).await?;
        self.take_over(node, &targets).await
    }

    /// Cuts records so that lines of which a block becomes active stand alone.
    async fn cut_for_new_columns(&self, ino: Ino, dirty: &[(u64, Frozen)]) -> Result<()> {
        self.meta
            .run(|tx| {
                for (block, _) in dirty {
                    let Some((first, mut record)) = covering(tx, ino, *block)? else { continue };
                    let (line, unit) = record.locate(block - first);
                    if record.columns[unit].is_some() || record.lines == 1 {
                        continue;
                    }
                    let k = record.k();
                    if line + 1 < record.lines {
                        let rest = record.split_off(line + 1);
                        tx.put_record(ino, first + (line + 1) * k, &rest)?;
                    }
                    if line > 0 {
                        let alone = record.split_off(line);
                        tx.put_record(ino, first + line * k, &alone)?;
                    }
                    tx.put_record(ino, first, &record)?;
                }
                Ok(())
            })
            .await
    }

    /// Lays out anew, as narrow as needed, lines of which a block becomes active for which no disk is
    /// left: they were made when there were more.
    async fn make_narrower(&self, ino: Ino, dirty: &[(u64, Frozen)]) -> Result<()> {
        for (block, _) in dirty {
            let covering = self.meta.run(|tx| covering(tx, ino, *block)).await?;
            let Some((first, record)) = covering else { continue };
            let is_new = |block: u64| record.columns[record.locate(block - first).1].is_none();
            let range = first..first + record.blocks();
            let new = dirty.iter().filter(|(block, _)| range.contains(block) && is_new(*block));
            let new = new.count();
            if !is_new(*block) || self.pool.has_columns_for(&record, new) {
                continue;
            }
            let redundancy = self.meta.run(|tx| tx.inode(ino)).await?.redundancy;
            if self.pool.coded_now(redundancy)? != record.coded {
                self.lay_anew(ino, first, &record, redundancy).await?;
            }
        }
        Ok(())
    }

    /// Sorts blocks into lines, and allocates places for those that have none. Takes as many as the
    /// log can name at a time.
    async fn plan(&self, ino: Ino, dirty: &[(u64, Frozen)]) -> Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::new();
        let planned = self.meta.run(|tx| {
            let redundancy = tx.inode(ino)?.redundancy;
            let mut room = self.log.record_bytes_max();
            let mut at = 0;
            while let Some((block, data)) = dirty.get(at) {
                if let Some((first, record)) = covering(tx, ino, *block)? {
                    let need = LoggedBand::bytes_max(&record, 1);
                    if need > room && !targets.is_empty() {
                        break;
                    }
                    room = room.saturating_sub(need);
                    let (line, unit) = record.locate(block - first);
                    self.add_active(tx, ino, &mut targets, (first, record), unit)?;
                    let target = targets.last_mut().expect("just added");
                    target.blocks.push((line, unit, data.clone()));
                    at += 1;
                } else {
                    let target = self.new_lines(tx, ino, redundancy, &dirty[at..], &targets)?;
                    at += target.blocks.len();
                    targets.push(target);
                }
            }
            Ok(())
        });
        match planned.await {
            Ok(()) => Ok(targets),
            Err(error) => {
                self.release_new(&targets);
                Err(error)
            }
        }
    }

    /// The target of an active line's record, with a column for `unit`, becomes the last one.
    fn add_active(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        targets: &mut Vec<Target>,
        (first, record): (u64, Record),
        unit: usize,
    ) -> Result<()> {
        if targets.last().is_none_or(|target| target.first != first) {
            let old = Some(record.clone());
            targets.push(Target { first, old, record, blocks: Vec::new() });
        }
        let record = &mut targets.last_mut().expect("just added").record;
        if record.columns[unit].is_none() {
            let before = tx.record_before(ino, first)?.filter(|(at, before)| {
                at + before.blocks() == first && before.coded == record.coded
            });
            let behind = before.and_then(|(_, before)| {
                let column = before.columns[unit].as_ref()?;
                Some((column.disk, column.start + before.lines))
            });
            record.columns[unit] = Some(self.pool.allocate_column(record, behind)?);
        }
        Ok(())
    }

    /// New lines for the first of these blocks, and those behind it that fill lines alike.
    fn new_lines(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        redundancy: Redundancy,
        dirty: &[(u64, Frozen)],
        targets: &[Target],
    ) -> Result<Target> {
        let block = dirty[0].0;
        // Lines begin behind the record before them, stored or planned.
        let stored = tx.record_before(ino, block)?;
        let stored = stored.as_ref().map(|(first, record)| (*first, record));
        let planned = targets.iter().rfind(|target| target.old.is_none());
        let planned = planned.map(|target| (target.first, &target.record));
        let before = stored.into_iter().chain(planned).max_by_key(|(first, _)| *first);
        let end = tx.next_record(ino, block)?.unwrap_or(u64::MAX);
        self.new_lines_between(before, (0, end), ino, redundancy, dirty)
    }

    /// The same, for lines behind `before` (or a block) and before another block.
    pub(crate) fn new_lines_between(
        &self,
        before: Option<(u64, &Record)>,
        (start, end): (u64, u64),
        ino: Ino,
        redundancy: Redundancy,
        dirty: &[(u64, Frozen)],
    ) -> Result<Target> {
        let block = dirty[0].0;
        let coded = self.pool.coded_now(redundancy)?;
        let k = coded.k() as u64;
        let start = before.map_or(start, |(first, record)| first + record.blocks());
        let first = start + (block - start) / k * k;
        let mut blocks = Vec::new();
        let mut units = UnitSet::new();
        let mut lines = 0;
        let mut rest = dirty;
        while lines < LINES_MAX {
            let from = first + lines * k;
            let to = from.saturating_add(k).min(end);
            let unit = |block: u64| usize::try_from(block - from).expect("a unit");
            let count = rest.iter().take_while(|(block, _)| *block < to).count();
            let line: UnitSet = rest[..count].iter().map(|(block, _)| unit(*block)).collect();
            if line.is_empty() || (lines > 0 && line != units) {
                break;
            }
            units = line;
            let placed = |(block, data): &(u64, Frozen)| (lines, unit(*block), data.clone());
            blocks.extend(rest[..count].iter().map(placed));
            rest = &rest[count..];
            lines += 1;
        }
        let before = before.filter(|(at, record)| at + record.blocks() == first);
        let before = before.map(|(_, record)| record);
        let units = units.union(&(coded.k()..coded.columns).collect());
        let turn = ino.wrapping_add(first / k);
        let record = self.pool.allocate(coded, units, lines, before, turn)?;
        blocks.retain(|(line, _, _)| *line < record.lines);
        Ok(Target { first, old: None, record, blocks })
    }

    /// Writes targets to the disks, durably. New lines of which a disk was lost meanwhile are taken
    /// out: their blocks are free again.
    pub(crate) async fn write_targets(&self, ino: Ino, targets: &mut Vec<Target>) -> Result<()> {
        let written = self.try_write_targets(ino, targets).await;
        if written.is_err() {
            self.release_new(targets);
            targets.clear();
        }
        written
    }

    async fn try_write_targets(&self, ino: Ino, targets: &mut Vec<Target>) -> Result<()> {
        let (mut ready, mut log) = (Vec::new(), Vec::new());
        for (index, target) in targets.iter_mut().enumerate() {
            self.prepare(ino, index, target, &mut ready, &mut log).await?;
        }
        if !log.is_empty() {
            while !self.append(&log).await? {
                self.commit_anyway().await?;
            }
        }
        if self.pool.unrecorded_losses().is_some() {
            self.commit().await?;
        }
        let laid = targets.iter().map(|target| self.pool.lay(&target.record));
        let laid = laid.collect::<Result<Vec<_>>>()?;
        let stores = ready.iter().map(|Ready { target, writes }| {
            let laid = &laid[*target];
            async move { (laid, store(laid, laid.stripe(), writes, WriteOpts::USER).await) }
        });
        let mut no_space = false;
        for (laid, stored) in join_all(stores).await {
            for failed in stored.failed {
                no_space |= failed.error.is_no_space();
                laid.fail_write(failed.slot, &failed.error);
            }
        }
        laid.iter().for_each(Laid::written);
        if no_space {
            if !log.is_empty() {
                // Lines may be half written. Their log record stays live, and the next mount
                // replays it.
                self.meta.fail("there is no room left below a disk");
            }
            return Err(FsError::NoSpace);
        }
        self.pool.flush().await;
        let mut laid = laid.iter();
        targets.retain(|target| {
            let laid = laid.next().expect("one for each");
            let whole = target.old.is_some() || laid.stripe().lost.is_empty();
            if !whole {
                self.pool.release(runs_of(&target.record));
            }
            whole
        });
        Ok(())
    }

    /// Gives back what was allocated for targets.
    pub(crate) fn release_new(&self, targets: &[Target]) {
        for target in targets {
            let activated = target.activated();
            let columns = target.record.active().filter(|(unit, _)| activated.contains(*unit));
            self.pool.release(columns.map(|(_, column)| column.run()));
        }
    }

    /// Appends to the log. After a failure nothing is known of the log's end.
    async fn append(&self, bands: &[LoggedBand]) -> Result<bool> {
        let appended = self.log.append(&self.meta.array, bands).await;
        if let Err(error) = &appended {
            self.meta.fail(&error.to_string());
        }
        appended
    }

    /// Computes what a target's disks must get, its checksums, and what must be in the log.
    async fn prepare(
        &self,
        ino: Ino,
        index: usize,
        target: &mut Target,
        ready: &mut Vec<Ready>,
        log: &mut Vec<LoggedBand>,
    ) -> Result<()> {
        let laid = self.pool.lay(&target.record)?;
        let segment = |(line, unit, data): &(u64, usize, Frozen)| Segment {
            unit: *unit,
            from: line * BLOCK_BYTES,
            data: data.clone(),
        };
        let segments = Segment::joined(target.blocks.iter().map(segment).collect());
        for band in Band::of(&segments) {
            let lines = lines_of(band.from, band.len);
            let known = self.old_contents(ino, target, &laid, &band, lines.clone()).await?;
            let stripe = laid.stripe();
            let block = target.first + lines.start * target.k();
            let unreadable = || FsError::Unreadable { inode: ino, block };
            if !laid.is_readable() {
                return Err(unreadable());
            }
            let crash = target.old.is_some().then_some(Crash {
                lost: stripe.lost,
                unflushed: UnitSet::EMPTY,
                superseding: true,
            });
            let owner = Knowing::new(&laid, band.from, &known);
            let now = owner.resolve(stripe.id);
            let mut updated = Updated::default();
            let done = update(&owner, now, &band, &known, crash, &mut updated).await;
            done.map_err(|_| unreadable())?;
            let Updated { writes, records } = updated;
            // Parity that is lost changes without being computed.
            let k = target.record.coded.k();
            for unit in stripe.lost.iter().filter(|unit| *unit >= k) {
                set_sums(&mut target.record, unit, lines.clone(), |_| 0);
            }
            for UnitWrite { unit, data, .. } in &writes {
                let sum = |line| crc32c(&data[part_of(lines.start, line)]);
                set_sums(&mut target.record, *unit, lines.clone(), sum);
            }
            for record in records {
                let partial = |parity: weft_stripe::ParityRecord| {
                    let payload = parity.payload.map(|payload| payload.bytes().to_vec());
                    (parity.unit, payload)
                };
                let several = band.units.len() > 1 && target.record.coded.p() > 0;
                let data =
                    band.data().filter(|(unit, _)| several && record.written.contains(*unit));
                let data = data.map(|(unit, data)| (unit, data.to_vec())).collect();
                log.push(LoggedBand {
                    ino,
                    data,
                    block,
                    record: target.record.part(lines.clone()),
                    written: record.written,
                    parities: record.parities.into_iter().map(partial).collect(),
                });
            }
            ready.push(Ready { target: index, writes });
        }
        Ok(())
    }

    /// Old contents of units over a band: enough for the cheaper way to update its parity. What has
    /// no place yet counts as zeros.
    async fn old_contents(
        &self,
        ino: Ino,
        target: &Target,
        laid: &Laid,
        band: &Band<'_>,
        lines: Range<u64>,
    ) -> Result<Vec<(usize, Frozen)>> {
        let coded = target.record.coded;
        let data = UnitSet::first(coded.k());
        let activated = target.activated().intersection(&data);
        let active: UnitSet = target.record.active().map(|(unit, _)| unit).collect();
        let zeros = activated.union(&data.difference(&active));
        let zeros = zeros.iter().map(|unit| (unit, Frozen::zeros(band.len)));
        let mut known: Vec<(usize, Frozen)> = zeros.collect();
        let Some(old) = target.old.as_ref().filter(|_| coded.p() > 0) else { return Ok(known) };
        let parity = active.difference(&data).difference(&laid.stripe().lost);
        let others = active.intersection(&data).difference(&band.units).difference(&activated);
        let olds = band.units.difference(&activated).union(&parity);
        let wanted = if others.len() <= olds.len() { others } else { olds };
        if wanted.is_empty() {
            return Ok(known);
        }
        let read = self.pool.lay(old)?.read(old, (ino, target.first), wanted, lines).await?;
        known.extend(read.into_iter().map(|(unit, buf)| (unit, buf.freeze())));
        Ok(known)
    }

    /// Puts written targets into the open transaction; their blocks are not dirty any more.
    async fn take_over(&self, node: &Node, targets: &[Target]) -> Result<()> {
        self.meta
            .run(|tx| {
                let mut inode = tx.inode(node.ino)?;
                for target in targets {
                    let had = target.old.as_ref().map_or(0, Record::data_blocks);
                    inode.blocks = inode.blocks + target.record.data_blocks() - had;
                    put_joined(tx, node.ino, target.first, &target.record)?;
                }
                tx.put_inode(node.ino, &inode)
            })
            .await?;
        self.log.complete();
        let mut dirty = node.dirty.borrow_mut();
        let mut left = self.dirty_blocks.get();
        for block in targets.iter().flat_map(Target::written) {
            left -= u64::from(dirty.remove(&block).is_some());
        }
        self.dirty_blocks.set(left);
        Ok(())
    }
}

/// The record that covers a block.
pub(crate) fn covering(tx: &Tx<'_>, ino: Ino, block: u64) -> Result<Option<(u64, Record)>> {
    let found = tx.record_before(ino, block + 1)?;
    Ok(found.filter(|(first, record)| block < first + record.blocks()))
}

/// Stores a record, joined with the one before it if possible.
pub(crate) fn put_joined(tx: &Tx<'_>, ino: Ino, first: u64, record: &Record) -> Result<()> {
    if let Some((at, mut before)) = tx.record_before(ino, first)?
        && at + before.blocks() == first
        && before.join(record)
    {
        tx.remove_record(ino, first)?;
        return tx.put_record(ino, at, &before);
    }
    tx.put_record(ino, first, record)
}

fn set_sums(record: &mut Record, unit: usize, lines: Range<u64>, sum: impl Fn(u64) -> u32) {
    let Some(column) = &mut record.columns[unit] else { return };
    for line in lines {
        column.sums[usize::try_from(line).expect("few lines")] = sum(line);
    }
}

fn lines_of(from: u64, len: usize) -> Range<u64> {
    from / BLOCK_BYTES..(from + len as u64) / BLOCK_BYTES
}

/// Lines of which some contents are known: these are not read.
pub(crate) struct Knowing<'a> {
    laid: &'a Laid,
    known: Vec<(usize, Rc<dyn Disk>)>,
}

/// Where known contents lie: the slot of unit 0, those of others below it.
const KNOWN: usize = usize::MAX - 1;

impl<'a> Knowing<'a> {
    pub(crate) fn new(laid: &'a Laid, from: u64, known: &[(usize, Frozen)]) -> Self {
        let disk = |(unit, data): &(usize, Frozen)| {
            (*unit, Rc::new(Memory::holding(from, data.clone())) as Rc<dyn Disk>)
        };
        Self { laid, known: known.iter().map(disk).collect() }
    }

    fn known(&self, slot: SlotNo) -> Option<&Rc<dyn Disk>> {
        let unit = KNOWN.checked_sub(slot.0)?;
        self.known.iter().find(|(known, _)| *known == unit).map(|(_, disk)| disk)
    }
}

impl Owner for Knowing<'_> {
    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let stripe = self.laid.resolve(id);
        let known: UnitSet = self.known.iter().map(|(unit, _)| *unit).collect();
        Stripe { lost: stripe.lost.difference(&known), ..stripe }
    }

    fn place(&self, id: StripeId, unit: usize, from: u64) -> Place {
        let slot = SlotNo(KNOWN - unit);
        match self.known(slot) {
            Some(_) => Place { slot, offset: from },
            None => self.laid.place(id, unit, from),
        }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.known(slot).cloned().or_else(|| self.laid.disk(slot))
    }

    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.disk(slot).is_some_and(|held| Rc::ptr_eq(&held, disk))
    }

    fn in_flight(&self, slot: SlotNo) -> &std::cell::Cell<u32> {
        self.laid.in_flight(slot)
    }

    fn sector_bytes(&self) -> usize {
        BLOCK
    }

    fn met(&self, slot: SlotNo, what: weft_stripe::Met) {
        self.laid.met(slot, what);
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> futures_util::future::LocalBoxFuture<'a, ()> {
        self.laid.failed(slot, disk, error)
    }
}
