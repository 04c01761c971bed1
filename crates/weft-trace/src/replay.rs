//! Replays requests to a volume, and measures its answers.
//!
//! **Open loop**: every request is issued at the time of the trace (scaled by the speed), whether
//! or not the previous ones are complete. A slow target makes requests wait, so the response time
//! counts from when a request was *due*: a stalled target cannot hide its stall by delaying the
//! requests that would have seen it. Memory limits how many requests can be in flight; a request
//! that waits for that, or for the processor, starts late, and the outcome shows how many did and
//! how late. **Closed loop**: a fixed number of requests is always in flight, and the response time
//! counts from the issue.
//!
//! Older tools of this kind (RAIDmeter) had errors that this design rules out: a completion cannot
//! be lost, since each request is a task that ends with it, and the run waits for all (`issued ==
//! completed`); every request owns its buffer; lengths are never cut, long requests go in pieces
//! and are complete with the last; addresses are scaled in integers; a failed request is counted
//! and described, and is in no latency; the number of requests is unlimited.
//!
//! The clock is [`Rt::now`], so the same replay runs in real time against real devices and in
//! virtual time against modelled ones.

mod address;
mod meter;
mod options;
mod outcome;
mod stamp;
mod verify;

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{join_all, select};
use weft_disk::{Volume, VolumeError};
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Buf, Frozen, Nanos, Rt};

use crate::record::{Op, Record};

pub use address::{AddressMap, Fit, GRANULE_BYTES, Placed, Volumes};
pub use meter::{DiskTimes, Live};
pub use options::{Options, Pace, Speed, Verify, Writes};
pub use outcome::{Failed, Late, Latency, Outcome, Point, Utilisation};
pub use verify::Verified;

use meter::Begun;
use verify::Tracker;

/// Requests issued before completions are processed.
const BATCH: u32 = 16;

/// Pieces of one long request in flight together.
const PIECES_AT_ONCE: u64 = 64;

/// Buffers are counted in pages.
const PAGE_BYTES: u64 = 4096;

/// State that the requests of a run share.
struct Run {
    rt: Rt,
    target: Rc<dyn Volume>,
    live: Live,
    tracker: Option<RefCell<Tracker>>,
    memory: Semaphore,
    memory_pages: usize,
    piece_bytes: u64,
    /// The data written when nothing is verified: never changes, so all writes may share it.
    noise: Frozen,
}

/// Replays `records` to `target`, each where `map` places it, and returns when all issued requests
/// are complete. `live` observes the run, and can end it early.
///
/// # Errors
/// The first error of `records`; requests issued before are completed first.
pub async fn run<E>(
    rt: &Rt,
    target: Rc<dyn Volume>,
    map: &AddressMap,
    records: impl Iterator<Item = Result<Record, E>>,
    options: &Options,
    live: &Live,
) -> Result<Outcome, E> {
    let run = Rc::new(Run::new(rt, target, options, map, live));
    let places = match options.pace {
        Pace::Open { in_flight_max, .. } => in_flight_max.max(1),
        Pace::Closed { outstanding } => outstanding.max(1),
    };
    let free = Semaphore::new(places);
    live.0.meter.borrow_mut().start(options.late_after_ns, options.interval_ns);
    let issued = issue_all(&run, map, records, options, &free).await;
    // Every request holds a permit until it is complete.
    drop(free.acquire(places).await);
    issued?;
    let mut outcome = live.0.meter.borrow_mut().outcome();
    if let Some(tracker) = &run.tracker {
        if options.verify == Verify::All {
            run.read_again(tracker, &mut outcome).await;
        }
        outcome.verified = Some(tracker.borrow().verified());
    }
    Ok(outcome)
}

/// Issues requests at the chosen pace.
async fn issue_all<E>(
    run: &Rc<Run>,
    map: &AddressMap,
    records: impl Iterator<Item = Result<Record, E>>,
    options: &Options,
    free: &Semaphore,
) -> Result<(), E> {
    let start_ns = run.rt.now();
    let end_ns = options.duration_ns.map_or(u64::MAX, |len| start_ns.saturating_add(len));
    let mut issued = 0u64;
    let mut batch = 0;
    for record in records {
        let record = record?;
        let Some((offset, len)) = run.place(map, &record, options) else { continue };
        let due_ns = match options.pace {
            Pace::Open { speed, .. } => Some(start_ns.saturating_add(speed.due_ns(record.at_ns))),
            Pace::Closed { .. } => None,
        };
        if let Some(due_ns) = due_ns
            && due_ns <= end_ns
        {
            run.wait_until(due_ns).await;
        }
        let permit = match free.try_acquire(1) {
            Some(permit) => permit,
            None => {
                batch = 0;
                free.acquire(1).await
            }
        };
        let due_ns = due_ns.unwrap_or_else(|| run.rt.now());
        if due_ns > end_ns || run.live.is_stopped() {
            break;
        }
        let measured = issued >= options.warm_up_requests
            && due_ns >= start_ns.saturating_add(options.warm_up_ns);
        let open = matches!(options.pace, Pace::Open { .. });
        run.live.0.meter.borrow_mut().trace_ns = record.at_ns;
        run.issue(Request { op: record.op, offset, len, due_ns, open, measured }, permit);
        issued += 1;
        batch += 1;
        if batch == BATCH {
            batch = 0;
            run.rt.yield_now().await;
        }
    }
    Ok(())
}

/// A request to issue.
struct Request {
    op: Op,
    offset: u64,
    len: u64,
    due_ns: Nanos,
    /// Whether its time counts from when it was due.
    open: bool,
    measured: bool,
}

impl Run {
    fn new(
        rt: &Rt,
        target: Rc<dyn Volume>,
        options: &Options,
        map: &AddressMap,
        live: &Live,
    ) -> Self {
        let sector = map.sector_bytes().max(512);
        let piece_bytes = (options.piece_bytes_max / sector).max(1) * sector;
        let memory_pages = options.memory_bytes_max.max(piece_bytes).div_ceil(PAGE_BYTES);
        let memory_pages = usize::try_from(memory_pages).unwrap_or(usize::MAX);
        let tracker = (options.verify != Verify::Off)
            .then(|| RefCell::new(Tracker::new(sector, options.verify_blocks_max, options.seed)));
        let noise_len = if tracker.is_none() && options.writes == Writes::Perform {
            usize::try_from(piece_bytes).unwrap_or(usize::MAX)
        } else {
            0
        };
        let mut noise = Buf::new(noise_len);
        stamp::fill(&mut noise, 512, options.seed, 0, 0);
        Self {
            rt: rt.clone(),
            target,
            live: live.clone(),
            tracker,
            memory: Semaphore::new(memory_pages),
            memory_pages,
            piece_bytes,
            noise: noise.freeze(),
        }
    }

    /// The place of a request; `None` if it is not to be issued, which is counted.
    fn place(&self, map: &AddressMap, record: &Record, options: &Options) -> Option<(u64, u64)> {
        let mut meter = self.live.0.meter.borrow_mut();
        let changes = matches!(record.op, Op::Write | Op::Trim);
        if changes && options.writes == Writes::Skip {
            meter.writes_skipped += 1;
            return None;
        }
        if record.op == Op::Flush {
            return Some((0, 0));
        }
        match map.place(record) {
            Placed::At { offset, len } => {
                meter.widened += u64::from(len > record.len);
                Some((offset, len))
            }
            Placed::Beyond => {
                meter.beyond += 1;
                None
            }
            Placed::Nothing => {
                meter.trims_too_small += 1;
                None
            }
        }
    }

    /// Waits until `due_ns`, or until the run is stopped.
    async fn wait_until(&self, due_ns: Nanos) {
        if self.rt.now() >= due_ns {
            return;
        }
        let stop = pin!(self.live.0.stop.wait());
        if !self.live.is_stopped() {
            let _ = select(pin!(self.rt.sleep_until(due_ns)), stop).await;
        }
    }

    /// Starts a request as a task. `permit` is its place among those in flight.
    fn issue(self: &Rc<Self>, request: Request, permit: Permit) {
        let run = self.clone();
        let task = async move {
            let Request { op, offset, len, due_ns, open, measured } = request;
            let issued_ns = run.rt.now();
            let due_ns = if open { due_ns } else { issued_ns };
            let begun = Begun { op, bytes: len, due_ns, issued_ns, measured };
            run.live.0.meter.borrow_mut().begin(&begun);
            let result = run.carry_out(op, offset, len).await;
            let error = result.err().map(|error| error.to_string());
            run.live.0.meter.borrow_mut().end(&begun, run.rt.now(), error);
            drop(permit);
        };
        drop(self.rt.spawn(task));
    }

    async fn carry_out(&self, op: Op, offset: u64, len: u64) -> Result<(), VolumeError> {
        match op {
            Op::Read => self.in_pieces(offset, len, Piece::Read).await,
            Op::Write => {
                let ticket = self.begin_write(offset, len, false);
                let write = ticket.as_ref().map_or(0, |ticket| ticket.began);
                let result = self.in_pieces(offset, len, Piece::Write(write)).await;
                self.end_write(ticket, result.is_ok());
                result
            }
            Op::Trim => {
                let ticket = self.begin_write(offset, len, true);
                let result = self.target.discard(offset, len).await;
                self.end_write(ticket, result.is_ok());
                result
            }
            Op::Flush => self.target.flush().await,
        }
    }

    fn begin_write(&self, offset: u64, len: u64, trim: bool) -> Option<verify::WriteTicket> {
        let tracker = self.tracker.as_ref()?;
        Some(tracker.borrow_mut().begin_write(offset, len, trim))
    }

    fn end_write(&self, ticket: Option<verify::WriteTicket>, done: bool) {
        if let (Some(tracker), Some(ticket)) = (&self.tracker, ticket) {
            tracker.borrow_mut().end_write(&ticket, done);
        }
    }

    fn step(&self) -> usize {
        usize::try_from(self.piece_bytes).unwrap_or(usize::MAX)
    }

    /// Issues the pieces of a request, many at once; returns the first error when all are complete.
    async fn in_pieces(&self, offset: u64, len: u64, piece: Piece) -> Result<(), VolumeError> {
        if len <= self.piece_bytes {
            return self.one_piece(offset, len, piece).await;
        }
        let mut result = Ok(());
        let mut from = 0;
        while from < len {
            let until = len.min(from + PIECES_AT_ONCE * self.piece_bytes);
            let pieces = (from..until).step_by(self.step()).map(|from| {
                self.one_piece(offset + from, (until - from).min(self.piece_bytes), piece)
            });
            let results: Result<Vec<()>, VolumeError> =
                join_all(pieces).await.into_iter().collect();
            if let (Ok(()), Err(error)) = (&result, results) {
                result = Err(error);
            }
            from = until;
        }
        result
    }

    async fn one_piece(&self, offset: u64, len: u64, piece: Piece) -> Result<(), VolumeError> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let pages = usize::try_from(len.div_ceil(PAGE_BYTES)).unwrap_or(usize::MAX);
        let pages = pages.min(self.memory_pages);
        let _memory = match self.memory.try_acquire(pages) {
            Some(permit) => permit,
            None => self.memory.acquire(pages).await,
        };
        match piece {
            Piece::Read => self.read_piece(offset, bytes).await,
            Piece::Write(write) => {
                let data = match &self.tracker {
                    None => self.noise.slice(0, bytes),
                    Some(tracker) => {
                        let mut data = Buf::new(bytes);
                        tracker.borrow().stamp(write, offset, &mut data);
                        data.freeze()
                    }
                };
                self.target.write(offset, data, false).await
            }
        }
    }

    async fn read_piece(&self, offset: u64, bytes: usize) -> Result<(), VolumeError> {
        let len = bytes as u64;
        let ticket = self.tracker.as_ref().map(|t| t.borrow_mut().begin_read(offset, len));
        let (result, data) = self.target.read(offset, Buf::new(bytes)).await;
        if result.is_ok()
            && let (Some(tracker), Some(ticket)) = (&self.tracker, ticket)
        {
            tracker.borrow_mut().end_read(&ticket, offset, &data);
        }
        result
    }

    /// Reads everything that was written, one run of blocks after another.
    async fn read_again(&self, tracker: &RefCell<Tracker>, outcome: &mut Outcome) {
        let runs = tracker.borrow().written(self.piece_bytes.min(1 << 20));
        for (offset, len) in runs {
            let bytes = usize::try_from(len).unwrap_or(usize::MAX);
            if let Err(error) = self.read_piece(offset, bytes).await {
                outcome.failed.reads += 1;
                outcome.failed.first.push(error.to_string());
            }
        }
    }
}

/// The operation on a piece.
#[derive(Clone, Copy)]
enum Piece {
    Read,
    /// Written by this write.
    Write(u64),
}
