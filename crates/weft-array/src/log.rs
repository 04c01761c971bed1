//! The partial parity log (policy `ppl`): what closes the write hole.
//!
//! *The hole.* A crash in the middle of a stripe write leaves some units new and some old. If a disk
//! is lost as well, its unit – which nobody was writing – would be computed from parity that
//! belongs to neither state, and come out as garbage.
//!
//! *The remedy* (md's for RAID-5, here for every row of any linear code). Before the units of a
//! band are written, a record is made durable on each touched parity unit's own disk: the sum Σ coef·d_j over
//! the data units that are **not** being written. After a crash parity := record + Σ coef·d_j over
//! the written units *as they are found*: whatever mixture of old and new that is, parity agrees with
//! it, and every unit that was not being written can be reconstructed.
//!
//! *What "being written" means.* Disks have volatile caches: a write that has completed may still
//! be gone after a crash. So a unit counts as being written until a flush that began after its write
//! has completed, and a new record for the same columns leaves out all of these units
//! (`written_since_flush`). The newest record of a column is therefore always sufficient, and
//! only the newest is used.
//!
//! *Lost units.* A unit whose member is missing has no place of its own; it counts as not written,
//! with its **new** value. So a degraded write is atomic for it: after a crash it is new.
//!
//! *Retirement.* A record is needed until a flush began after its stripe write completed. The sequence number
//! below which all records are retired travels in every batch header; a record below the highest such
//! number found is ignored. A record that is retired in memory but not yet so on disk
//! would still be used: as long as there can be one, a write of the same columns makes a new record,
//! even one that writes every byte and needs none for itself. Only the record's own ring counts
//! for that: the disk that knows of its retirement must not be lost without the record.
//!
//! *On disk.* Each member's log area is a ring of batches (a header block, then the payloads), written with FUA; a batch
//! never straddles the end. Records wait for the batch in flight and share the next.
//! An area is reused only after its records are retired, which may call for a flush.

mod format;
mod ring;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::Frozen;
use weft_rt::sync::Notify;

use crate::array::Inner;

pub(crate) use format::{BATCH_ALIGN, BatchHeader, Entry, FoundRecord, LogId, parse};
use ring::Ring;

/// Longest payload of one record; longer bands become several records.
const PAYLOAD_MAX: usize = 128 << 10;

/// Stripes remembered before records that no longer matter are looked for.
const PRUNE_AT: usize = 4096;

/// What must be durable before one parity unit's columns are written.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The slot that holds the parity unit, and the record.
    pub slot: usize,
    /// The parity unit.
    pub unit: usize,
    pub from: u64,
    pub len: usize,
    /// The data units that the payload leaves out.
    pub written: UnitSet,
    /// The sum over all others; `None` if there are no others.
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
    /// Records that are on disk and not durably retired, by stripe.
    records: RefCell<BTreeMap<u64, Vec<OnDisk>>>,
    /// Stripes remembered at which dead records are looked for next.
    prune_at: Cell<usize>,
    /// A flush to make room is under way in the background.
    flushing: Cell<bool>,
    progress: Notify,
}

/// What is remembered of a record: one for all parity units of a band.
#[derive(Debug, Clone, Copy)]
struct OnDisk {
    seq: u64,
    from: u64,
    len: usize,
    written: UnitSet,
    /// The slots whose rings hold it.
    slots: UnitSet,
}

impl OnDisk {
    fn meets(&self, from: u64, len: usize) -> bool {
        self.from < from + len as u64 && from < self.from + self.len as u64
    }
}

/// A logged stripe write under way; completes when dropped.
pub(crate) struct LiveOp<'a> {
    log: &'a Log,
    seq: u64,
}

impl Drop for LiveOp<'_> {
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
            records: RefCell::default(),
            prune_at: Cell::new(PRUNE_AT),
            flushing: Cell::new(false),
            progress: Notify::default(),
        }
    }

    /// The data units of these columns that may still be old after a crash.
    pub fn written_since_flush(&self, stripe: u64, from: u64, len: usize) -> UnitSet {
        let retired = self.retired_below.get();
        let table = self.records.borrow();
        let records = table.get(&stripe).into_iter().flatten();
        let live = records.filter(|record| record.seq >= retired && record.meets(from, len));
        live.fold(UnitSet::new(), |all, record| all.union(&record.written))
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

    /// Makes `records` of one stripe write durable. The returned guard lives until the write
    /// itself has completed. A ring whose member fails is given up: its parity is lost with it.
    pub async fn append(&self, array: &Inner, stripe: u64, records: Vec<Record>) -> LiveOp<'_> {
        let seq = self.next_seq.get();
        self.next_seq.set(seq + 1);
        self.in_flight.borrow_mut().insert(seq);
        let op = LiveOp { log: self, seq };
        self.remember(seq, stripe, &records);
        // All records of one write enter all queues in the same turn. The queues are first in,
        // first out, so no two writes can wait for each other's room.
        let mut waits = Vec::new();
        for record in records {
            for (entry, payload) in cut(seq, stripe, &record) {
                waits.push(self.rings[record.slot].enqueue(entry, payload));
            }
            self.rings[record.slot].start(array, record.slot);
        }
        join_all(waits).await;
        op
    }

    fn remember(&self, seq: u64, stripe: u64, records: &[Record]) {
        let mut table = self.records.borrow_mut();
        if table.len() >= self.prune_at.get() {
            for known in table.values_mut() {
                known.retain(|record| self.may_be_found(record));
            }
            table.retain(|_, known| !known.is_empty());
            self.prune_at.set(PRUNE_AT.max(2 * table.len()));
        }
        let known = table.entry(stripe).or_default();
        known.retain(|record| self.may_be_found(record));
        for Record { slot, from, len, written, .. } in records {
            match known.last_mut() {
                // The next parity unit of the same band.
                Some(last) if last.seq == seq && last.from == *from => last.slots.insert(*slot),
                _ => {
                    let slots = UnitSet::one(*slot);
                    known.push(OnDisk { seq, from: *from, len: *len, written: *written, slots });
                }
            }
        }
    }

    /// The sequence number below which every write has completed: what a flush that starts now
    /// will retire.
    pub fn completed_below(&self) -> u64 {
        self.in_flight.borrow().first().copied().unwrap_or_else(|| self.next_seq.get())
    }

    /// All disks were flushed after every write below `seq` had completed.
    pub fn retire_below(&self, seq: u64) {
        if seq > self.retired_below.get() {
            self.retired_below.set(seq);
            self.progress.notify_all();
        }
    }

    fn is_retired(&self, seq: u64) -> bool {
        seq < self.retired_below.get()
    }
}

/// Cuts a record into entries whose payloads fit a batch.
fn cut(seq: u64, stripe: u64, record: &Record) -> Vec<(Entry, Option<Frozen>)> {
    let step = if record.payload.is_some() { PAYLOAD_MAX } else { record.len };
    (0..record.len)
        .step_by(step.max(1))
        .map(|done| {
            let len = step.min(record.len - done);
            let payload = record.payload.as_ref().map(|payload| payload.slice(done, len));
            let from = record.from + done as u64;
            let entry =
                Entry::new(seq, stripe, record.unit, from, len, record.written, payload.as_deref());
            (entry, payload)
        })
        .collect()
}
