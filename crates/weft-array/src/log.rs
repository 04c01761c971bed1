//! The partial parity log (policy `ppl`): what closes the write hole.
//!
//! *The hole.* A crash in the middle of a stripe write leaves some units new and some old. If a
//! disk is lost as well, its unit – which nobody was writing – would be computed from parity that
//! belongs to neither state, and come out as garbage.
//!
//! *The remedy* (md's for RAID-5, here for every row of any linear code). Before the units of a
//! band are written, a record is made durable on each touched parity unit's own disk: the sum Σ
//! coef·d_j over the data units that are **not** being written. After a crash parity := record + Σ
//! coef·d_j over the written units *as they are found*: whatever mixture of old and new that is,
//! parity agrees with it, and every unit that was not being written can be reconstructed.
//!
//! *What "being written" means.* Disks have volatile caches: a write that has completed may still
//! be gone after a crash. So a unit counts as being written until a flush that began after its
//! write has completed, and a new record for the same columns leaves out all of these units
//! ([`Log::live`]). The newest record of a column is therefore always sufficient, and only the
//! newest is used. A write of all units of its columns needs no record, but is remembered as well:
//! a later record must not count on it.
//!
//! What *has* been made durable must count as written, on the other hand: a flush acknowledged it,
//! and a later record that left it out could not restore it if its disk is lost. A flush covers the
//! writes that had completed when it began, whichever they are: not only those before the oldest
//! that had not ([`Mark`]). Nor does a record hand on what it left out: the next one leaves a unit
//! out only for its own write's sake, or under steady writes it would never be counted again.
//!
//! *What a flush must wait for.* A record that leaves out units written by *others* cannot restore
//! them if their disk is lost with the crash. So once those others are to be durable – a flush is
//! to be acknowledged, or a write with FUA – every such record must be retired first
//! ([`Inner::flush`]).
//!
//! *Lost units.* A unit whose member is missing has no place of its own; it counts as not written,
//! with its **new** value. So a degraded write is atomic for it: after a crash it is new. If it was
//! being written when its member was lost, members are flushed before the next record, so that not
//! one row's record leaves it out and another's counts it.
//!
//! *Retirement.* A record is needed until a flush began after its stripe write completed. The
//! sequence number below which all records are retired travels in every batch header; a record
//! below the highest such number found is ignored. A record that is retired in memory but not yet
//! so on disk would still be used: as long as there can be one, a write of the same columns makes a
//! new record, even one that writes every byte and needs none for itself. Only the record's own
//! ring counts for that: the disk that knows of its retirement must not be lost without the record.
//!
//! *All or nothing.* A crash may leave the records of one write on some rings and not on others.
//! Its units were then not touched, and applying half of the records would set rows against each
//! other (a lost unit's new value in one, its old one in the next). So each record names all parity
//! units of its write, and one without its siblings is not used (`recover.rs`).
//!
//! *On disk.* Each member's log area is a ring of batches (a header block, then the payloads),
//! written with FUA; a batch never straddles the end. Records wait for the batch in flight and
//! share the next. An area is reused only after its records are retired, which may call for a
//! flush.

mod format;
mod ring;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::Frozen;
use weft_rt::sync::Notify;

use crate::array::Inner;
use crate::error::ArrayError;
use crate::geometry::to_len;

pub(crate) use format::{BATCH_ALIGN, BatchHeader, Entry, FoundRecord, LogId, Scan, pieces};
use ring::Ring;

/// Longest payload of one record; longer bands become several records.
const PAYLOAD_MAX: usize = 128 << 10;

/// Stripes with writes not flushed at which a flush is begun: what bounds the memory for them.
const STRIPES_MAX: usize = 16 << 10;

/// Stripes remembered before records that no longer matter are looked for.
const PRUNE_AT: usize = 4096;

/// A band of a stripe write, and what must be durable before it is written.
#[derive(Debug)]
pub(crate) struct Record {
    pub from: u64,
    pub len: usize,
    /// The data units that the payloads leave out.
    pub written: UnitSet,
    /// Those of them that this write itself writes.
    pub own: UnitSet,
    /// One for each parity unit; none if the band writes everything and needs no record.
    pub parities: Vec<ParityRecord>,
}

impl Record {
    /// Whether units are left out that this write does not write, but earlier ones did that were
    /// not flushed.
    pub fn leaves_out_others(&self) -> bool {
        self.written != self.own
    }
}

/// The record of one parity unit.
#[derive(Debug)]
pub(crate) struct ParityRecord {
    /// The slot that holds the parity unit, and the record.
    pub slot: usize,
    /// The parity unit.
    pub unit: usize,
    /// The sum over all data units not left out; `None` if there are none.
    pub payload: Option<Frozen>,
}

/// The log of an array.
pub(crate) struct Log {
    id: LogId,
    rings: Vec<Ring>,
    next_seq: Cell<u64>,
    /// Stripe writes that are logged and not completed.
    in_flight: RefCell<BTreeSet<u64>>,
    /// Records below this are retired, since a flush began after their writes completed.
    retired_below: Cell<u64>,
    /// What the last of the flushes that have ended found completed.
    flushed: RefCell<Mark>,
    /// The newest write whose record leaves out units written by others.
    others_seq: Cell<u64>,
    /// Writes not flushed, and records on disk and not durably retired, by stripe.
    records: RefCell<BTreeMap<u64, Vec<OnDisk>>>,
    /// Stripes remembered at which dead records are looked for next.
    prune_at: Cell<usize>,
    /// A flush to make room is under way in the background.
    flushing: Cell<bool>,
    progress: Notify,
}

/// What is remembered of a band's write and its records.
#[derive(Debug, Clone, Copy)]
struct OnDisk {
    seq: u64,
    from: u64,
    len: usize,
    /// Data units that it leaves out.
    written: UnitSet,
    /// Those of them that it wrote itself: they may be old again after a crash, unless a flush
    /// covered it.
    own: UnitSet,
    /// The slots whose rings hold it.
    slots: UnitSet,
}

impl OnDisk {
    fn end(&self) -> u64 {
        self.from + self.len as u64
    }

    /// The record after all that `durable` wrote has become durable, cut at the ends of its
    /// columns.
    fn settled_by(&self, durable: &Self) -> impl Iterator<Item = Self> + use<> {
        let (from, end) = (durable.from.max(self.from), durable.end().min(self.end()));
        let part = |from: u64, end: u64, settled: UnitSet| {
            let (written, own) = (self.written.difference(&settled), self.own.difference(&settled));
            (from < end).then(|| Self { from, len: to_len(end - from), written, own, ..*self })
        };
        let parts = if self.seq > durable.seq || from >= end {
            [Some(*self), None, None]
        } else {
            [
                part(self.from, from, UnitSet::new()),
                part(from, end, durable.written),
                part(end, self.end(), UnitSet::new()),
            ]
        };
        parts.into_iter().flatten()
    }

    fn meets(&self, from: u64, len: usize) -> bool {
        self.from < from + len as u64 && from < self.end()
    }
}

/// An instant as a flush that begins then sees it: which writes it covers.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    /// Sequence number of the next write.
    next: u64,
    /// The writes that had not completed.
    in_flight: BTreeSet<u64>,
}

impl Mark {
    fn covers(&self, seq: u64) -> bool {
        seq < self.next && !self.in_flight.contains(&seq)
    }

    /// The sequence number below which every write had completed.
    fn completed_below(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.next)
    }

    /// Whether it is of a later instant: then it covers all that the other covers.
    fn is_after(&self, other: &Self) -> bool {
        (self.next, other.in_flight.len()) > (other.next, self.in_flight.len())
    }
}

/// Columns in which the same units may be old after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unflushed {
    pub from: u64,
    pub len: usize,
    pub units: UnitSet,
}

/// A logged stripe write under way; completes when dropped.
pub(crate) struct LoggedWrite<'a> {
    log: &'a Log,
    seq: u64,
    stripe: u64,
}

impl LoggedWrite<'_> {
    /// All that was written is durable already, and with it what earlier writes brought to the same
    /// places: a later record that left these out could not restore them, and nobody would wait
    /// for its retirement.
    pub fn mark_durable(&self) {
        let mut table = self.log.records.borrow_mut();
        let Some(known) = table.get_mut(&self.stripe) else { return };
        let own: Vec<OnDisk> = known.iter().filter(|r| r.seq == self.seq).copied().collect();
        for durable in own {
            *known = known.iter().flat_map(|record| record.settled_by(&durable)).collect();
        }
    }
}

impl Drop for LoggedWrite<'_> {
    fn drop(&mut self) {
        self.log.in_flight.borrow_mut().remove(&self.seq);
        self.log.progress.notify_all();
    }
}

impl Log {
    /// An empty log of `slots` rings of `ring_bytes` each, whose records carry `id`.
    pub fn new(id: LogId, slots: usize, area_offset: u64, ring_bytes: u64) -> Self {
        Self {
            id,
            rings: (0..slots).map(|_| Ring::new(area_offset, ring_bytes)).collect(),
            next_seq: Cell::new(1),
            in_flight: RefCell::default(),
            retired_below: Cell::new(1),
            flushed: RefCell::new(Mark { next: 1, in_flight: BTreeSet::new() }),
            others_seq: Cell::new(0),
            records: RefCell::default(),
            prune_at: Cell::new(PRUNE_AT),
            flushing: Cell::new(false),
            progress: Notify::default(),
        }
    }

    /// The data units beside `own` that may still be old after a crash, for each run of the columns
    /// in which they are the same. What a flush covered is not among them because a later record
    /// left it out, too: records made now must be able to restore it.
    pub fn unflushed(&self, stripe: u64, from: u64, len: usize, own: UnitSet) -> Vec<Unflushed> {
        let flushed = self.flushed.borrow();
        let table = self.records.borrow();
        let records = table.get(&stripe).into_iter().flatten();
        let known: Vec<&OnDisk> = records
            .filter(|r| r.meets(from, len) && !flushed.covers(r.seq) && !r.own.is_subset(&own))
            .collect();
        let end = from + len as u64;
        let mut cuts: Vec<u64> = known
            .iter()
            .flat_map(|r| [r.from, r.end()])
            .filter(|c| from < *c && *c < end)
            .collect();
        cuts.extend([from, end]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut runs: Vec<Unflushed> = Vec::new();
        for range in cuts.windows(2) {
            let (from, len) = (range[0], to_len(range[1] - range[0]));
            let meeting = known.iter().filter(|r| r.meets(from, len));
            let units = meeting.fold(UnitSet::new(), |all, r| all.union(&r.own));
            let units = units.difference(&own);
            match runs.last_mut() {
                Some(last) if last.units == units => last.len += len,
                _ => runs.push(Unflushed { from, len, units }),
            }
        }
        runs
    }

    /// Whether any of `units` of the stripe may still be old after a crash, or is left out of a
    /// record that may still be used.
    pub fn any_unflushed(&self, stripe: u64, units: UnitSet) -> bool {
        let flushed = self.flushed.borrow();
        let table = self.records.borrow();
        let mut records = table.get(&stripe).into_iter().flatten();
        records.any(|record| record.written.intersects(&units) && !flushed.covers(record.seq))
    }

    /// Whether a crash now could find and use a record of these columns.
    pub fn has_records(&self, stripe: u64, from: u64, len: usize) -> bool {
        let table = self.records.borrow();
        let mut records = table.get(&stripe).into_iter().flatten();
        records.any(|record| record.meets(from, len) && self.may_be_found(record))
    }

    /// Whether some ring holds the record and not yet its retirement.
    fn may_be_found(&self, record: &OnDisk) -> bool {
        record.slots.iter().any(|slot| self.rings[slot].durable_below() <= record.seq)
    }

    /// A member is gone, and its ring with it.
    pub fn forget_ring(&self, slot: usize) {
        self.rings[slot].note_durable(u64::MAX);
    }

    /// A new member has taken a slot, with an empty ring.
    pub fn renew_ring(&self, slot: usize) {
        self.rings[slot].renew();
    }

    /// Tells a new member's ring what is retired: records that lost a sibling with the slot's last
    /// member must not look like ones that never had it.
    pub async fn begin_ring(&self, array: &Inner, slot: usize) {
        self.rings[slot].write_empty(array, slot).await;
    }

    /// The newest write so far.
    pub fn newest_seq(&self) -> u64 {
        self.next_seq.get() - 1
    }

    /// Begins a stripe write: makes its records durable. The returned guard lives until the write
    /// itself has completed. A ring whose member fails is given up: its parity is lost with it. The
    /// exclusion of those that lack a record is in effect on return.
    ///
    /// The write must follow, even if the array is being stopped meanwhile. Its records may give a
    /// lost unit its new value. If the write did not bring that to the replacement, and the
    /// region's rebuild then ended, parity and unit would disagree after a crash.
    ///
    /// # Errors
    /// If the array is broken: the records may not be durable, and no rebuild ends any more.
    pub async fn append(
        &self,
        array: &Inner,
        stripe: u64,
        records: Vec<Record>,
    ) -> Result<LoggedWrite<'_>, ArrayError> {
        let seq = self.next_seq.get();
        self.next_seq.set(seq + 1);
        self.in_flight.borrow_mut().insert(seq);
        let op = LoggedWrite { log: self, seq, stripe };
        self.remember(seq, stripe, &records);
        // All records of one write enter all queues in the same turn. The queues are first in,
        // first out, so no two writes can wait for each other's room.
        let mut waits = Vec::new();
        for record in &records {
            for parity in &record.parities {
                for (entry, payload) in cut(seq, stripe, record, parity) {
                    waits.push(self.rings[parity.slot].enqueue(entry, payload));
                }
                self.rings[parity.slot].start(array, parity.slot);
            }
        }
        if self.records.borrow().len() > STRIPES_MAX {
            self.retire_in_background(array);
        }
        join_all(waits).await;
        array.settled().await?;
        array.check_whole()?;
        Ok(op)
    }

    fn remember(&self, seq: u64, stripe: u64, records: &[Record]) {
        let mut table = self.records.borrow_mut();
        if table.len() >= self.prune_at.get() {
            for known in table.values_mut() {
                known.retain(|record| self.matters(record));
            }
            table.retain(|_, known| !known.is_empty());
            self.prune_at.set(PRUNE_AT.max(2 * table.len()));
        }
        let known = table.entry(stripe).or_default();
        known.retain(|record| self.matters(record));
        for record in records {
            let slots = record.parities.iter().map(|parity| parity.slot).collect();
            let &Record { from, len, written, own, .. } = record;
            known.push(OnDisk { seq, from, len, written, own, slots });
            if record.leaves_out_others() {
                self.others_seq.set(seq);
            }
        }
    }

    fn matters(&self, record: &OnDisk) -> bool {
        !self.is_retired(record.seq) || self.may_be_found(record)
    }

    /// Flushes in the background, unless that is under way.
    fn retire_in_background(&self, array: &Inner) {
        if self.completed_below() <= self.retired_below.get() || self.flushing.replace(true) {
            return;
        }
        let array = array.handle();
        let rt = array.rt.clone();
        drop(rt.spawn(async move {
            array.flush_members().await;
            if let Some(log) = &array.log {
                log.flushing.set(false);
            }
        }));
    }

    /// The newest write so far whose record leaves out units that others wrote.
    pub fn others_seq(&self) -> u64 {
        self.others_seq.get()
    }

    /// Returns when a write has completed or been retired.
    pub fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }

    /// The sequence number below which every write has completed: what a flush that starts now
    /// will retire.
    pub fn completed_below(&self) -> u64 {
        self.in_flight.borrow().first().copied().unwrap_or_else(|| self.next_seq.get())
    }

    /// What a flush that begins now covers.
    pub fn mark(&self) -> Mark {
        Mark { next: self.next_seq.get(), in_flight: self.in_flight.borrow().clone() }
    }

    /// A flush of all disks that began at `mark` has ended.
    pub fn flushed(&self, mark: Mark) {
        let seq = mark.completed_below();
        if mark.is_after(&self.flushed.borrow()) {
            *self.flushed.borrow_mut() = mark;
        }
        if seq > self.retired_below.get() {
            self.retired_below.set(seq);
            self.progress.notify_all();
        }
    }

    pub fn is_retired(&self, seq: u64) -> bool {
        seq < self.retired_below.get()
    }
}

/// Cuts a record into entries whose payloads fit a batch.
fn cut(
    seq: u64,
    stripe: u64,
    record: &Record,
    parity: &ParityRecord,
) -> Vec<(Entry, Option<Frozen>)> {
    // Alike for all rows: siblings are told by where they begin.
    let payloads = record.parities.iter().any(|parity| parity.payload.is_some());
    let step = if payloads { PAYLOAD_MAX } else { record.len };
    (0..record.len)
        .step_by(step.max(1))
        .map(|done| {
            let len = step.min(record.len - done);
            let payload = parity.payload.as_ref().map(|payload| payload.slice(done, len));
            let from = record.from + done as u64;
            let units = record.parities.iter().map(|parity| parity.unit).collect();
            let named = record.written.union(&units);
            let entry = Entry::new(seq, stripe, parity.unit, from, len, named, payload.as_deref());
            (entry, payload)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of these units to columns `from..from + 4096 * blocks`, under way.
    fn written(log: &Log, seq: u64, units: UnitSet, from: u64, blocks: usize) -> LoggedWrite<'_> {
        let parities = vec![ParityRecord { slot: 4, unit: 4, payload: None }];
        let (len, written, own) = (4096 * blocks, units, units);
        log.remember(seq, 9, &[Record { from, len, written, own, parities }]);
        LoggedWrite { log, seq, stripe: 9 }
    }

    #[test]
    fn what_a_flush_covered_is_not_left_out_for_a_later_records_sake() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        let first = written(&log, 1, UnitSet::one(0), 0, 1);
        log.next_seq.set(2);
        drop(first);
        let mark = log.mark();
        // Made while the flush was under way.
        let (own, all) = (UnitSet::one(1), UnitSet::first(2));
        let parities = vec![ParityRecord { slot: 4, unit: 4, payload: None }];
        let later = Record { from: 0, len: 4096, written: all, own, parities };
        log.remember(2, 9, &[later]);
        log.next_seq.set(3);
        assert_eq!(log.unflushed(9, 0, 4096, UnitSet::new())[0].units, all);
        log.flushed(mark);
        assert_eq!(log.unflushed(9, 0, 4096, UnitSet::new())[0].units, own);
        assert!(
            log.any_unflushed(9, UnitSet::one(0)),
            "a record that leaves it out may still be used"
        );
    }

    #[test]
    fn what_a_durable_write_brought_is_not_left_out_of_later_records_for_an_earlier_ones_sake() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        drop(written(&log, 1, UnitSet::first(4), 0, 4));
        written(&log, 2, UnitSet::one(1).with(2), 4096, 2).mark_durable();
        let unflushed: Vec<_> = log
            .unflushed(9, 0, 4 * 4096, UnitSet::new())
            .iter()
            .map(|l| (l.from, l.units))
            .collect();
        let without = UnitSet::one(0).with(3);
        let all = UnitSet::first(4);
        assert_eq!(unflushed, [(0, all), (4096, without), (12288, all)]);
        assert!(log.has_records(9, 0, 4096) && log.has_records(9, 8192, 4096), "still on disk");
        drop(written(&log, 3, UnitSet::one(1), 4096, 1));
        let later = log.unflushed(9, 4096, 4096, UnitSet::new());
        assert!(
            later.iter().all(|unflushed| unflushed.units.contains(1)),
            "written once more since"
        );
    }

    #[test]
    fn a_flush_covers_what_had_completed_although_an_older_write_had_not() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        let begin = |units: UnitSet| {
            let seq = log.next_seq.replace(log.next_seq.get() + 1);
            log.in_flight.borrow_mut().insert(seq);
            written(&log, seq, units, 0, 1)
        };
        let unflushed = || log.unflushed(9, 0, 4096, UnitSet::new())[0].units;
        let (older, newer) = (begin(UnitSet::one(0)), begin(UnitSet::one(1)));
        drop(newer);
        let (first, before) = (log.mark(), log.mark());
        log.flushed(first);
        assert_eq!(unflushed(), UnitSet::one(0));
        assert!(!log.is_retired(1), "the older one is under way");
        let last = begin(UnitSet::one(2));
        drop(older);
        assert_eq!(unflushed(), UnitSet::one(0).with(2), "no flush began since");
        let second = log.mark();
        log.flushed(second);
        log.flushed(before);
        assert_eq!(
            unflushed(),
            UnitSet::one(2),
            "an earlier flush that ends later takes nothing back"
        );
        assert!(log.is_retired(2) && !log.any_unflushed(9, UnitSet::first(2)));
        drop(last);
    }

    #[test]
    fn siblings_are_cut_at_the_same_places() {
        let len = 2 * PAYLOAD_MAX + 4096;
        let payload = Frozen::copy_from(&vec![1; len]);
        let parities = vec![
            ParityRecord { slot: 4, unit: 4, payload: Some(payload) },
            ParityRecord { slot: 5, unit: 5, payload: None },
        ];
        let written = UnitSet::one(0);
        let record = Record { from: 512, len, written, own: written, parities };
        let pieces = |parity| cut(1, 0, &record, parity).len();
        assert_eq!(record.parities.iter().map(pieces).collect::<Vec<_>>(), [3, 3]);
    }
}
