//! The partial parity log (policy `ppl`), which closes the write hole.
//!
//! *The hole.* A crash in the middle of a stripe write leaves some units new and some old. If a
//! disk is lost as well, its unit is reconstructed from parity that matches neither state, and
//! comes out as garbage, even though no write touched that unit.
//!
//! *The remedy* (md's PPL for RAID-5, extended to every parity row of any linear code). Before a
//! band's units are written, a record is made durable for each parity unit that the band touches,
//! on that parity unit's own disk: the sum Σ coef·d_j over the data units that are **not** being
//! written. After a crash, recovery sets parity := record + Σ coef·d_j over the written units *as
//! found*. Whatever mixture of old and new that is, parity agrees with it, and every unit that was
//! not being written can be reconstructed.
//!
//! *Example:* raid6 4+2 (P = d0 + d1 + d2 + d3, Q = d0 + 2·d1 + 4·d2 + 8·d3), and a write of 4 KiB
//! to d1 at offset 0 of the unit. The new contents d1' determine P' and Q'; before these three are
//! written, two batches of 8 KiB go to the log:
//!
//! ```text
//! member of          d0      d1      d2      d3      P                   Q
//! 1. log, FUA                                        header     4 KiB    header       4 KiB
//!                                                    d0+d2+d3   4 KiB    d0+4d2+8d3   4 KiB
//! 2. data area               d1'                     P'                  Q'
//! ```
//!
//! Each batch has one entry here, with the write's sequence number, the stripe, the parity unit
//! that it is for, the offset, the length and the units {d1, P, Q}: the data unit left out, and the
//! parity units with a record. The payload is computed as P' - d1', so it costs no further reads.
//! If a write to d2 at the same offset follows before any flush, d1' may still be only in a disk's
//! cache: the new record leaves out d1 and d2, and its payload for P is d0 + d3. Had a flush
//! covered d1' in between, the payload would be d0 + d1' + d3.
//!
//! *What "being written" means.* Disks have volatile caches: a completed write may still be gone
//! after a crash. So a unit counts as being written until a flush that started after its write has
//! completed, unless that write is durable without a flush (FUA, or disks without a volatile
//! cache), and a new record for the same offsets leaves out all such units ([`Log::unflushed`]).
//! The newest record for an offset is therefore always sufficient, and recovery uses only the
//! newest. A write of all units at its offsets needs no record, but is remembered too: a later
//! record must not count on its units.
//!
//! A unit that *is* durable, on the other hand, must be counted: a flush acknowledged it, and a
//! later record that left it out could not restore it if its disk is lost. A flush covers every
//! write that had completed when the flush started, also those newer than the oldest incomplete
//! write ([`Mark`]). A record does not pass on what it left out: the next one leaves a unit out
//! only if that unit's own write is not flushed. Otherwise, under steady writes, a unit would never
//! be counted again.
//!
//! *What a flush must wait for.* A record that leaves out units of *other* writes cannot restore
//! them if their disk is lost with the crash. So before those other writes may count as durable –
//! before a flush or a FUA write is acknowledged – every such record must be retired
//! (`Inner::flush`).
//!
//! *Lost units.* A unit whose member is missing has no disk of its own. Records count it, with its
//! **new** value, so a degraded write is atomic for it: after a crash it is new. If it was being
//! written when its member was lost, members are flushed before the next record is made. Otherwise
//! the record of one parity unit could leave it out while that of another counts it.
//!
//! *Retirement.* A record is needed until a flush has completed that started after the record's
//! stripe write had completed. Every batch header carries the sequence number below which all
//! records are retired; recovery takes the highest such number and ignores older records. A record
//! that is retired in memory, but not yet on disk, would still be used. As long as there may be
//! one, a write at the same offsets makes a new record, even if it writes every byte and needs none
//! for itself. Only a retirement noted in the record's own ring counts here: if another disk held
//! the only note, losing that disk would bring the record back. What writes stripes without records
//! that once had some - a reshape that turns back, a scrub that corrects one - has every ring note
//! the retirement first (`Inner::retire_durably`).
//!
//! *All or nothing.* A crash may leave the records of one write on only some rings. The units of
//! that write are then untouched, and applying half of its records would make parity units
//! contradict each other (one with a lost unit's new value, one with its old value). So each record
//! names all parity units of its write, and recovery does not use an incomplete set
//! (`recover/logs.rs`).
//!
//! *On disk.* Each member's log area is a ring of batches (a header block, then the payloads),
//! written with FUA. A batch never wraps around the end. While a batch is in flight new records
//! queue, and share the next one. Space is reused only after its records are retired, which may
//! take a flush.

mod format;
mod ring;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;

use weft_code::{SlotNo, SlotSet, UnitSet};
use weft_rt::rng::Fold;
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{Frozen, Rt};
use weft_stripe::{BandRecord, ParityRecord, Payload, StripeId};

use crate::error::ArrayError;
use crate::format::length::to_len;

use format::PAYLOAD_MAX;
pub(crate) use format::{BATCH_ALIGN, BatchHeader, Entry, FoundRecord, LogId, Scan, pieces};
use ring::Ring;

/// Number of stripes with unflushed writes at which a flush starts: it bounds the memory for them.
const STRIPES_MAX: usize = 16 << 10;

/// Number of remembered stripes at which records that no longer matter are dropped.
const PRUNE_AT: usize = 4096;

/// What the log needs of its array.
pub(crate) trait LogHost: 'static {
    /// An owning handle, for tasks.
    fn handle(&self) -> Rc<Self>;

    fn rt(&self) -> &Rt;

    /// The log itself.
    fn log(&self) -> &Log;

    /// Writes a batch to the member of a slot. When this ends it is durable, or the member is
    /// excluded, or the array takes no more writes. Returns whether it is durable.
    async fn write_batch(&self, slot: SlotNo, offset: u64, batch: Frozen) -> bool;

    /// Flushes all members, and retires records accordingly ([`Log::flushed`]).
    async fn flush_members(&self);

    /// Waits until every change of membership made so far is in effect.
    async fn settled(&self) -> Result<(), ArrayError>;

    /// Fails if the array is broken: nothing can be retired or written any more.
    fn check_whole(&self) -> Result<(), ArrayError>;
}

/// The log of an array.
pub(crate) struct Log {
    id: LogId,
    rings: Vec<Ring>,
    next_seq: Cell<u64>,
    /// Sequence numbers of logged stripe writes that have not completed, ascending.
    in_flight: RefCell<Vec<u64>>,
    /// Records below this are retired: a flush that started after their writes completed has ended.
    retired_below: Cell<u64>,
    /// The writes that the latest of the ended flushes covers.
    flushed: RefCell<Mark>,
    /// Flushes that have ended.
    flushes: Cell<u64>,
    /// The newest write whose record leaves out units of other writes.
    others_seq: Cell<u64>,
    /// By stripe: writes that are not flushed, and records that are not durably retired.
    records: RefCell<HashMap<StripeId, Vec<OnDisk>, BuildHasherDefault<Fold>>>,
    /// Number of stripes at which records that no longer matter are dropped next.
    prune_at: Cell<usize>,
    /// A flush that makes space is running in the background.
    flushing: Cell<bool>,
    progress: Notify,
}

/// What is kept in memory of a band's write and its records.
#[derive(Debug, Clone, Copy)]
struct OnDisk {
    seq: u64,
    from: u64,
    len: usize,
    /// Data units that the records leave out.
    written: UnitSet,
    /// Those that this write wrote itself: a crash may turn them old again unless a flush covered
    /// them.
    own: UnitSet,
    /// The slots whose rings hold the records.
    slots: SlotSet,
}

impl OnDisk {
    fn end(&self) -> u64 {
        self.from + self.len as u64
    }

    /// Notes that what `durable` wrote is durable: in its range those units no longer count as
    /// unflushed. The parts of this record before and after that range go to `rest`.
    fn settle(&mut self, durable: &Self, rest: &mut Vec<Self>) {
        if self.seq > durable.seq || !self.meets(durable.from, durable.len) {
            return;
        }
        let whole = *self;
        let (from, end) = (durable.from.max(self.from), durable.end().min(self.end()));
        for (from, end) in [(whole.from, from), (end, whole.end())] {
            if from < end {
                rest.push(Self { from, len: to_len(end - from), ..whole });
            }
        }
        (self.from, self.len) = (from, to_len(end - from));
        self.written = self.written.difference(&durable.written);
        self.own = self.own.difference(&durable.written);
    }

    /// Whether nothing follows from this record that does not follow from `newer`, a later one of
    /// the same stripe: a flush that covers the newer write covers the older one.
    fn is_implied_by(&self, newer: &Self) -> bool {
        newer.from <= self.from
            && self.end() <= newer.end()
            && self.written.is_subset(&newer.written)
            && self.own.is_subset(&newer.own)
            && self.slots.is_subset(&newer.slots)
    }

    fn meets(&self, from: u64, len: usize) -> bool {
        self.from < from + len as u64 && from < self.end()
    }
}

/// A moment at which a flush starts: tells which writes that flush covers.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    /// Sequence number of the next write.
    next: u64,
    /// The writes that had not completed by then, ascending.
    in_flight: Vec<u64>,
}

impl Mark {
    fn covers(&self, seq: u64) -> bool {
        seq < self.next && self.in_flight.binary_search(&seq).is_err()
    }

    /// The sequence number below which every write had completed.
    fn completed_below(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.next)
    }

    /// Whether this mark is later than `other`; it then covers everything that `other` covers.
    fn is_after(&self, other: &Self) -> bool {
        (self.next, other.in_flight.len()) > (other.next, self.in_flight.len())
    }
}

/// A range of offsets in a stripe's units, and the units that a crash may turn old again there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unflushed {
    pub from: u64,
    pub len: usize,
    pub units: UnitSet,
}

/// A logged stripe write in progress; it completes when this is dropped.
pub(crate) struct LoggedWrite<'a> {
    log: &'a Log,
    seq: u64,
    stripe: StripeId,
}

impl LoggedWrite<'_> {
    /// Notes that this write is durable, and with it everything that earlier writes wrote at the
    /// same offsets. A later record must not leave these units out: it could not restore them, and
    /// no flush would wait for its retirement.
    pub fn mark_durable(&self) {
        let mut table = self.log.records.borrow_mut();
        let Some(known) = table.get_mut(&self.stripe) else { return };
        let (mut at, mut rest) = (0, Vec::new());
        while let Some(&durable) = known.get(at) {
            at += 1;
            if durable.seq == self.seq {
                known.iter_mut().for_each(|record| record.settle(&durable, &mut rest));
                known.append(&mut rest);
            }
        }
    }
}

impl Drop for LoggedWrite<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.log.in_flight.borrow_mut();
        if let Ok(at) = in_flight.binary_search(&self.seq) {
            in_flight.remove(at);
        }
        drop(in_flight);
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
            flushed: RefCell::new(Mark { next: 1, in_flight: Vec::new() }),
            flushes: Cell::new(0),
            others_seq: Cell::new(0),
            records: RefCell::default(),
            prune_at: Cell::new(PRUNE_AT),
            flushing: Cell::new(false),
            progress: Notify::default(),
        }
    }

    /// The data units other than `own` that a crash may turn old again, as consecutive ranges;
    /// within a range they are the same; no ranges if there are none anywhere. A unit that a flush
    /// covered does not count, even if a later record left it out too: a record made now must be
    /// able to restore it.
    pub fn unflushed(
        &self,
        stripe: StripeId,
        from: u64,
        len: usize,
        own: UnitSet,
    ) -> Vec<Unflushed> {
        let flushed = self.flushed.borrow();
        let table = self.records.borrow();
        let records = table.get(&stripe).into_iter().flatten();
        let mut known = records
            .filter(|r| r.meets(from, len) && !flushed.covers(r.seq) && !r.own.is_subset(&own))
            .peekable();
        if known.peek().is_none() {
            return Vec::new();
        }
        let known: Vec<&OnDisk> = known.collect();
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

    /// The number of flushes that have ended. Only they make [`Log::unflushed`] less for a stripe
    /// that is locked, and nothing makes it more.
    pub fn flushes(&self) -> u64 {
        self.flushes.get()
    }

    /// Whether a crash may turn any of `units` old again, or a record that leaves one of them out
    /// may still be used.
    pub fn any_unflushed(&self, stripe: StripeId, units: UnitSet) -> bool {
        let flushed = self.flushed.borrow();
        let table = self.records.borrow();
        let mut records = table.get(&stripe).into_iter().flatten();
        records.any(|record| record.written.intersects(&units) && !flushed.covers(record.seq))
    }

    /// Whether recovery, after a crash now, could find a record for these offsets and use it.
    pub fn has_records(&self, stripe: StripeId, from: u64, len: usize) -> bool {
        let table = self.records.borrow();
        let mut records = table.get(&stripe).into_iter().flatten();
        records.any(|record| record.meets(from, len) && self.may_be_found(record))
    }

    /// Whether some ring holds the record but not yet its retirement.
    fn may_be_found(&self, record: &OnDisk) -> bool {
        record.slots.iter().any(|slot| self.rings[slot.0].durable_below() <= record.seq)
    }

    /// Drops the ring of a member that is gone.
    pub fn forget_ring(&self, slot: SlotNo) {
        self.rings[slot.0].note_durable(u64::MAX);
    }

    /// Starts an empty ring for a new member of a slot.
    pub fn renew_ring(&self, slot: SlotNo) {
        self.rings[slot.0].renew();
    }

    /// Writes to a new member's ring which records are retired. Recovery can then tell a record
    /// whose sibling went with the slot's last member from one whose sibling was never written.
    pub async fn begin_ring(&self, host: &impl LogHost, slot: SlotNo) {
        self.rings[slot.0].write_empty(host, slot).await;
    }

    /// Writes to the ring of `slot` which records are retired now.
    pub async fn note_retirement(&self, host: &impl LogHost, slot: SlotNo) {
        self.rings[slot.0].note_retirement(host, slot).await;
    }

    /// Room for the payload of a record of `len` bytes for the ring of `slot`.
    pub fn room(&self, slot: SlotNo, len: usize) -> Payload {
        self.rings[slot.0].room(len)
    }

    /// Sequence number of the newest write.
    pub fn newest_seq(&self) -> u64 {
        self.next_seq.get() - 1
    }

    /// Starts a stripe write by making its records durable. The returned guard must be kept until
    /// the write itself has completed. If a ring's member fails, the record is dropped: the parity
    /// unit is lost with it. When this returns, the exclusion of members that lack a record is in
    /// effect.
    ///
    /// The write must follow, even if the array is being stopped. Its records may give a lost unit
    /// its new value. If the write did not reach the replacement, and the region's rebuild then
    /// finished, parity and unit would disagree after a crash.
    ///
    /// # Errors
    /// If the array is broken: the records may not be durable, and no rebuild finishes any more.
    pub async fn append(
        &self,
        host: &impl LogHost,
        stripe: StripeId,
        records: Vec<BandRecord>,
    ) -> Result<LoggedWrite<'_>, ArrayError> {
        let seq = self.next_seq.get();
        self.next_seq.set(seq + 1);
        self.in_flight.borrow_mut().push(seq);
        let op = LoggedWrite { log: self, seq, stripe };
        self.remember(seq, stripe, &records);
        // All records of one write enter their queues in the same poll. The queues are first in,
        // first out, so two writes can never wait for each other's space.
        let (sender, durable) = oneshot::<()>();
        let sender = Rc::new(sender);
        for record in records {
            cut(seq, stripe, record, |slot, entry, payload| {
                self.rings[slot.0].enqueue(entry, payload, sender.clone());
                self.rings[slot.0].start(host, slot);
            });
        }
        if self.records.borrow().len() > STRIPES_MAX {
            self.retire_in_background(host);
        }
        // Ends once every ring has released its part.
        drop(sender);
        durable.await;
        host.settled().await?;
        host.check_whole()?;
        Ok(op)
    }

    fn remember(&self, seq: u64, stripe: StripeId, records: &[BandRecord]) {
        let mut table = self.records.borrow_mut();
        if table.len() >= self.prune_at.get() {
            for known in table.values_mut() {
                known.retain(|record| self.matters(record));
            }
            table.retain(|_, known| !known.is_empty());
            self.prune_at.set(PRUNE_AT.max(2 * table.len()));
        }
        let known = table.entry(stripe).or_default();
        for record in records {
            let slots = record.parities.iter().map(|parity| parity.slot).collect();
            let &BandRecord { from, len, written, own, .. } = record;
            let newer = OnDisk { seq, from, len, written, own, slots };
            known.retain(|older| !older.is_implied_by(&newer) && self.matters(older));
            known.push(newer);
            if record.leaves_out_others() {
                self.others_seq.set(seq);
            }
        }
    }

    fn matters(&self, record: &OnDisk) -> bool {
        !self.is_retired(record.seq) || self.may_be_found(record)
    }

    /// Starts a flush in the background unless one is running.
    fn retire_in_background(&self, host: &impl LogHost) {
        if self.completed_below() <= self.retired_below.get() || self.flushing.replace(true) {
            return;
        }
        let host = host.handle();
        let rt = host.rt().clone();
        drop(rt.spawn(async move {
            host.flush_members().await;
            host.log().flushing.set(false);
        }));
    }

    /// Sequence number of the newest write whose record leaves out units of other writes.
    pub fn others_seq(&self) -> u64 {
        self.others_seq.get()
    }

    /// The array is broken: nothing is retired any more.
    pub fn give_up(&self) {
        self.progress.notify_all();
    }

    /// Completes when the next write has completed or been retired, or the array breaks.
    pub fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }

    /// The sequence number below which every write has completed: a flush that starts now retires
    /// all of them.
    pub fn completed_below(&self) -> u64 {
        self.in_flight.borrow().first().copied().unwrap_or_else(|| self.next_seq.get())
    }

    /// The writes that a flush starting now covers.
    pub fn mark(&self) -> Mark {
        Mark { next: self.next_seq.get(), in_flight: self.in_flight.borrow().clone() }
    }

    /// Notes that a flush of all disks, started at `mark`, has ended.
    pub fn flushed(&self, mark: Mark) {
        self.flushes.set(self.flushes.get() + 1);
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

/// Cuts a record into entries whose payloads fit a batch, each for the ring of a slot.
fn cut(
    seq: u64,
    stripe: StripeId,
    record: BandRecord,
    mut each: impl FnMut(SlotNo, Entry, Option<Payload>),
) {
    let BandRecord { from, len, written, parities, .. } = record;
    // One step for all parity units: siblings are matched by their offset.
    let payloads = parities.iter().any(|parity| parity.payload.is_some());
    let step = if payloads { PAYLOAD_MAX } else { len };
    let named = parities.iter().fold(written, |named, parity| named.with(parity.unit));
    let entry = |unit, done: usize, len, payload: Option<&Payload>| {
        let payload = payload.map(Payload::bytes);
        Entry::new(seq, stripe, unit, from + done as u64, len, named, payload)
    };
    for ParityRecord { slot, unit, payload } in parities {
        if step >= len {
            each(slot, entry(unit, 0, len, payload.as_ref()), payload);
            continue;
        }
        let mut rest = payload;
        for done in (0..len).step_by(step) {
            let len = step.min(len - done);
            let mut payload = rest.take();
            rest = payload.as_mut().map(|payload| payload.split_off(len));
            each(slot, entry(unit, done, len, payload.as_ref()), payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_stripe::Generation;

    use super::*;

    const STRIPE: StripeId = StripeId { generation: Generation(0), number: 9 };

    /// A write in progress, of `units` at offsets `from..from + 4096 * blocks`.
    fn written(log: &Log, seq: u64, units: UnitSet, from: u64, blocks: usize) -> LoggedWrite<'_> {
        let parities = vec![ParityRecord { slot: SlotNo(4), unit: 4, payload: None }];
        let (len, written, own) = (4096 * blocks, units, units);
        log.remember(seq, STRIPE, &[BandRecord { from, len, written, own, parities }]);
        LoggedWrite { log, seq, stripe: STRIPE }
    }

    #[test]
    fn a_flushed_unit_is_counted_even_if_a_later_record_left_it_out() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        let first = written(&log, 1, UnitSet::one(0), 0, 1);
        log.next_seq.set(2);
        drop(first);
        let mark = log.mark();
        // This record is made while the flush runs.
        let (own, all) = (UnitSet::one(1), UnitSet::first(2));
        let parities = vec![ParityRecord { slot: SlotNo(4), unit: 4, payload: None }];
        let later = BandRecord { from: 0, len: 4096, written: all, own, parities };
        log.remember(2, STRIPE, &[later]);
        log.next_seq.set(3);
        assert_eq!(log.unflushed(STRIPE, 0, 4096, UnitSet::new())[0].units, all);
        log.flushed(mark);
        assert_eq!(log.unflushed(STRIPE, 0, 4096, UnitSet::new())[0].units, own);
        assert!(
            log.any_unflushed(STRIPE, UnitSet::one(0)),
            "a record that leaves it out may still be used"
        );
    }

    #[test]
    fn a_durable_unit_is_counted_even_if_an_earlier_write_of_it_was_not_flushed() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        drop(written(&log, 1, UnitSet::first(4), 0, 4));
        written(&log, 2, UnitSet::one(1).with(2), 4096, 2).mark_durable();
        let unflushed: Vec<_> = log
            .unflushed(STRIPE, 0, 4 * 4096, UnitSet::new())
            .iter()
            .map(|l| (l.from, l.units))
            .collect();
        let without = UnitSet::one(0).with(3);
        let all = UnitSet::first(4);
        assert_eq!(unflushed, [(0, all), (4096, without), (12288, all)]);
        assert!(
            log.has_records(STRIPE, 0, 4096) && log.has_records(STRIPE, 8192, 4096),
            "still on disk"
        );
        drop(written(&log, 3, UnitSet::one(1), 4096, 1));
        let later = log.unflushed(STRIPE, 4096, 4096, UnitSet::new());
        assert!(
            later.iter().all(|unflushed| unflushed.units.contains(1)),
            "written once more since"
        );
    }

    #[test]
    fn a_flush_covers_completed_writes_newer_than_an_incomplete_one() {
        let log = Log::new(LogId { array: [0; 16], epoch: 1 }, 5, 0, 1 << 20);
        let begin = |units: UnitSet| {
            let seq = log.next_seq.replace(log.next_seq.get() + 1);
            log.in_flight.borrow_mut().push(seq);
            written(&log, seq, units, 0, 1)
        };
        let unflushed = || log.unflushed(STRIPE, 0, 4096, UnitSet::new())[0].units;
        let (older, newer) = (begin(UnitSet::one(0)), begin(UnitSet::one(1)));
        drop(newer);
        let (first, before) = (log.mark(), log.mark());
        log.flushed(first);
        assert_eq!(unflushed(), UnitSet::one(0));
        assert!(!log.is_retired(1), "the older write is incomplete");
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
        assert!(log.is_retired(2) && !log.any_unflushed(STRIPE, UnitSet::first(2)));
        drop(last);
    }

    /// The piece of a cut payload that byte `n` is in.
    fn piece_of(n: usize) -> u8 {
        u8::try_from(n / PAYLOAD_MAX).expect("few pieces")
    }

    #[test]
    fn siblings_are_cut_at_the_same_places() {
        let len = 2 * PAYLOAD_MAX + 4096;
        let mut payload = Payload::new(len);
        (0..).zip(payload.bytes_mut()).for_each(|(n, byte)| *byte = piece_of(n));
        let parities = vec![
            ParityRecord { slot: SlotNo(4), unit: 4, payload: Some(payload) },
            ParityRecord { slot: SlotNo(5), unit: 5, payload: None },
        ];
        let written = UnitSet::one(0);
        let record = BandRecord { from: 512, len, written, own: written, parities };
        let mut cuts = Vec::new();
        cut(1, STRIPE, record, |slot, _, payload| {
            let pieces = payload.map(|payload| payload.bytes().to_vec()).unwrap_or_default();
            cuts.push((slot, pieces.len(), pieces.first().copied(), pieces.last().copied()));
        });
        let with = |len, piece| (SlotNo(4), len, Some(piece), Some(piece));
        let without = (SlotNo(5), 0, None, None);
        let expected = [with(PAYLOAD_MAX, 0), with(PAYLOAD_MAX, 1), with(4096, 2)];
        assert_eq!(cuts, [expected, [without; 3]].concat());
    }
}
