//! The ring of batches on one member, and the task that writes them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use weft_code::SlotNo;
use weft_rt::sync::{Sender, oneshot};
use weft_rt::{Buf, Frozen};
use weft_stripe::{HEADROOM, Payload};

use super::format::{ENTRIES_MAX, payload_max};
use super::{BATCH_ALIGN, BatchHeader, Entry, Log, LogHost, LogId};

/// Memory for a batch of small records, with its header.
const OPEN_BYTES: usize = 64 << 10;

#[derive(Debug)]
struct Queued {
    entry: Entry,
    payload: Option<Payload>,
    payload_len: usize,
    /// Shared by all records of a write.
    _done: Rc<Sender<()>>,
}

/// A batch on disk whose records may still be needed.
#[derive(Debug, Clone, Copy)]
struct Batch {
    /// Byte position in the log as if it had no end; modulo the ring's size it is the offset.
    at: u64,
    seq_max: u64,
}

#[derive(Debug)]
pub(super) struct Ring {
    area_offset: u64,
    bytes: u64,
    queue: RefCell<VecDeque<Queued>>,
    /// The memory of an earlier batch, for the next one.
    spare: RefCell<VecDeque<Queued>>,
    /// Memory for the payloads of the next batch, after the payloads already placed.
    open: RefCell<Option<Buf>>,
    writing: Cell<bool>,
    /// Wait until the ring's retirement is on disk; dropped then.
    notes: RefCell<Vec<Sender<()>>>,
    head: Cell<u64>,
    /// Records below this are retired according to this ring's own disk.
    durable_below: Cell<u64>,
    batches: RefCell<VecDeque<Batch>>,
}

impl Ring {
    pub fn new(area_offset: u64, bytes: u64) -> Self {
        Self {
            area_offset,
            bytes,
            queue: RefCell::default(),
            spare: RefCell::default(),
            open: RefCell::default(),
            writing: Cell::new(false),
            notes: RefCell::default(),
            head: Cell::new(0),
            durable_below: Cell::new(1),
            batches: RefCell::default(),
        }
    }

    /// See [`Ring::durable_below`].
    pub fn durable_below(&self) -> u64 {
        self.durable_below.get()
    }

    pub fn note_durable(&self, below: u64) {
        self.durable_below.set(self.durable_below.get().max(below));
    }

    /// Starts over, on another disk.
    pub fn renew(&self) {
        self.durable_below.set(1);
        self.batches.borrow_mut().clear();
    }

    /// Queues a record. It releases `done` once it is durable, its member has failed, or the array
    /// takes no more writes.
    pub fn enqueue(&self, entry: Entry, payload: Option<Payload>, done: Rc<Sender<()>>) {
        let payload_len = payload.as_ref().map_or(0, |payload| payload.bytes().len());
        self.queue.borrow_mut().push_back(Queued { entry, payload, payload_len, _done: done });
    }

    /// Room for the payload of a record of `len` bytes. Payloads are contiguous in memory as on
    /// disk, the first one after room for the header of the batch. If their records are queued in
    /// the same order, the batch need not be copied together ([`assemble`]).
    pub fn room(&self, len: usize) -> Payload {
        let mut open = self.open.borrow_mut();
        if let Some(rest) = open.as_mut().filter(|rest| rest.len() >= len) {
            let behind = rest.split_off(len);
            return Payload::Bare(std::mem::replace(rest, behind));
        }
        let mut block = Buf::new(OPEN_BYTES.max(HEADROOM + len));
        *open = Some(block.split_off(HEADROOM + len));
        Payload::WithHeadroom(block)
    }

    /// Starts this ring's writing task unless it is running. `slot` is the ring's slot.
    pub fn start(&self, host: &impl LogHost, slot: SlotNo) {
        if self.writing.replace(true) {
            return;
        }
        let host = host.handle();
        let rt = host.rt().clone();
        drop(rt.spawn(async move {
            let ring = &host.log().rings[slot.0];
            let mut batch = ring.spare.take();
            loop {
                ring.take(&mut batch);
                let notes = ring.notes.take();
                if batch.is_empty() && notes.is_empty() {
                    break;
                }
                ring.write(&*host, slot, &mut batch).await;
                batch.clear();
                drop(notes);
            }
            ring.spare.replace(batch);
            ring.writing.set(false);
        }));
    }

    /// Writes a batch without records: the first one on a new disk.
    pub async fn write_empty(&self, host: &impl LogHost, slot: SlotNo) {
        self.write(host, slot, &mut VecDeque::new()).await;
    }

    /// Writes to the ring which records are retired now: recovery finds no record of before. When
    /// this ends that is durable, or the member has failed, or the array takes no more writes.
    pub async fn note_retirement(&self, host: &impl LogHost, slot: SlotNo) {
        let (sender, noted) = oneshot::<()>();
        self.notes.borrow_mut().push(sender);
        self.start(host, slot);
        noted.await;
    }

    /// Moves as many queued records as fit in one batch to `batch`, which is empty.
    fn take(&self, batch: &mut VecDeque<Queued>) {
        let payload_max = payload_max(self.bytes_len());
        let mut queue = self.queue.borrow_mut();
        let mut bytes = 0;
        let fits = |queued: &&Queued| {
            bytes += queued.payload_len;
            bytes <= payload_max
        };
        let count = queue.iter().take(ENTRIES_MAX).take_while(fits).count();
        let count = count.max(1).min(queue.len());
        // What comes from now on is for the next batch, which has a header of its own.
        *self.open.borrow_mut() = None;
        if count == queue.len() {
            std::mem::swap(&mut *queue, batch);
        } else {
            batch.extend(queue.drain(..count));
        }
    }

    fn bytes_len(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    async fn write(&self, host: &impl LogHost, slot: SlotNo, batch: &mut VecDeque<Queued>) {
        let log = host.log();
        let payload_bytes = batch.iter().map(|queued| queued.payload_len).sum();
        let len = BatchHeader::batch_len(payload_bytes);
        let seq_max = batch.iter().map(|queued| queued.entry.seq()).max().unwrap_or(0);
        let Some(at) = self.reserve(host, len as u64).await else { return };
        self.batches.borrow_mut().push_back(Batch { at, seq_max });
        // Read only now: a flush that made the space may just have retired many records.
        let retired_below = log.retired_below.get();
        let data = assemble(log.id, retired_below, len, batch);
        if host.write_batch(slot, self.area_offset + at % self.bytes, data).await {
            self.note_durable(retired_below);
        }
    }

    /// Reserves `len` bytes, retiring old batches as needed. Returns `None` if the array has
    /// broken: nothing can be retired or written any more.
    async fn reserve(&self, host: &impl LogHost, len: u64) -> Option<u64> {
        let log = host.log();
        let mut at = self.head.get();
        if at % self.bytes + len > self.bytes {
            at = at.next_multiple_of(self.bytes);
        }
        self.head.set(at + len);
        loop {
            let Some(oldest) = self.oldest_needed(log) else { return Some(at) };
            if oldest.at + self.bytes >= at + len {
                self.retire_ahead(host, at + len - oldest.at);
                return Some(at);
            }
            if host.check_whole().is_err() {
                return None;
            }
            let progress = log.progress.wait();
            if log.completed_below() > oldest.seq_max {
                host.flush_members().await;
            } else {
                progress.await;
            }
        }
    }

    /// The oldest batch with a record that is not retired. Those before it are forgotten.
    fn oldest_needed(&self, log: &Log) -> Option<Batch> {
        let mut batches = self.batches.borrow_mut();
        while let Some(oldest) = batches.front().copied() {
            if !log.is_retired(oldest.seq_max) {
                return Some(oldest);
            }
            batches.pop_front();
        }
        None
    }

    /// Starts a background flush when half of the ring is needed, so that writers rarely have to
    /// wait.
    fn retire_ahead(&self, host: &impl LogHost, used: u64) {
        if used >= self.bytes / 2 {
            host.log().retire_in_background(host);
        }
    }
}

const _: () = assert!(HEADROOM == BATCH_ALIGN);

/// The bytes of a batch. Contiguous payloads are not copied ([`Ring::room`]); they are taken from
/// their records.
fn assemble(id: LogId, retired_below: u64, len: usize, batch: &mut VecDeque<Queued>) -> Frozen {
    let mut parts = Vec::with_capacity(batch.len() + 2);
    for payload in batch.iter_mut().filter_map(|queued| queued.payload.take()) {
        match payload {
            Payload::WithHeadroom(buf) if parts.is_empty() => parts.push(buf),
            Payload::WithHeadroom(mut buf) => parts.push(buf.split_off(HEADROOM)),
            Payload::Bare(buf) if parts.is_empty() => parts.extend([Buf::new(HEADROOM), buf]),
            Payload::Bare(buf) => parts.push(buf),
        }
    }
    if parts.is_empty() {
        parts.push(Buf::new(HEADROOM));
    }
    let rest = len - parts.iter().map(|part| part.len()).sum::<usize>();
    if rest > 0 {
        parts.push(Buf::zeroed(rest));
    }
    let mut bytes = Buf::rejoin(parts);
    let entries = batch.iter().map(|queued| (&queued.entry, queued.payload_len));
    BatchHeader::fill(&mut bytes, id, retired_below, len, entries);
    bytes.freeze()
}
