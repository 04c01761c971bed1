//! A drill: what would happen if a disk failed now. Nothing is written to any disk.
//!
//! **A second array.** The members of the array that is in use are assembled once more, over disks
//! that keep their writes in memory ([`weft_disk::CopyOnWriteDisk`]) and that refuse to pass on
//! anything but reads. There the disk fails, and its rebuild runs as it would: with the same code,
//! order, pace and throttle, and below the same queues of the same disks as the requests of users.
//!
//! **The replacement.** No new disk is needed: what would be written to it takes the time that a
//! disk of the same kind would need. For a second at the most the drill reads the member that is to
//! fail from its begin on, which gives the rate (`Replacement`).
//!
//! **What users feel.** Their requests go to the array in use and are served from it as ever. Those
//! reads that the lost disk answered would have to be reconstructed: the drill repeats them on the
//! second array, beside the real ones, up to [`REPEATED_MAX`] at a time. So the other disks carry
//! what they would carry, and a repeated read counts in the place of the real one. Of a mirror,
//! where other copies would be read instead, each n-th of such reads is repeated, for n copies.
//! Writes are measured, and not repeated: they cost the remaining disks about the same.
//!
//! **Limits.** The second array reads disks that change under it, and does not recover what is
//! being written: what it reconstructs may be wrong, is not checked, and not used. Its rate is that
//! of the time of the drill, at the place where the rebuild began: hard disks are slower towards
//! their ends. Users who ask less because answers take longer are not foreseen.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_code::{Margin, SlotNo, SlotSet};
use weft_disk::{
    Class, CopyOnWriteDisk, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, Histogram, Latency,
    ReadFuture, Volume as _, WriteOpts,
};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, SECOND};

use crate::api::array::Array;
use crate::engine::Engine;
use crate::engine::status::ArrayState;
use crate::error::ArrayError;
use crate::lifecycle::start_stop::assemble_copies;
use crate::maintenance::{JobKind, JobStatus};
use crate::state::observer::{Observer, ServedRequest};

/// Repeated reads in progress at a time; further ones are counted and left out.
pub const REPEATED_MAX: usize = 256;

/// How often the progress is looked at.
const STEP: Nanos = 100 * MILLISECOND;

/// What is asked of a drill.
#[derive(Debug, Clone, Copy)]
pub struct DrillOptions {
    /// The slot whose disk fails.
    pub slot: SlotNo,
    /// How long users are observed before, nanoseconds.
    pub before: Nanos,
    /// How long the rebuild runs at the most, nanoseconds.
    pub during: Nanos,
    /// Most bytes of memory for what the second array writes.
    pub memory_bytes: u64,
    /// As in [`AssembleOptions::nonce`](crate::AssembleOptions::nonce).
    pub nonce: u64,
}

/// The requests of users in one phase of a drill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRequests {
    /// How long the phase took, in milliseconds.
    pub phase_ms: u64,
    /// Reads.
    pub reads: Latency,
    /// Writes.
    pub writes: Latency,
}

/// What a drill found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrillReport {
    /// The slot.
    pub slot: SlotNo,
    /// Its disk.
    pub disk: String,
    /// How many more disks the array can lose during the rebuild.
    pub redundancy_remaining: usize,
    /// Whether one more is known to be too many; if not, the number is a lower bound.
    pub redundancy_exact: bool,
    /// Disks whose loss during the rebuild would lose data.
    pub exposed: Vec<String>,
    /// Bytes that the replacement would get.
    pub rebuild_bytes: u64,
    /// Bytes of them that the drill rebuilt.
    pub rebuilt_bytes: u64,
    /// Bytes per second at which it did, in the second half of its time if it did not end.
    pub rate_bytes_s: u64,
    /// How long the whole rebuild would take, in seconds; `None` if too little was rebuilt to tell.
    pub rebuild_s: Option<u64>,
    /// Whether the drill rebuilt all of it.
    pub complete: bool,
    /// Users' requests before.
    pub before: UserRequests,
    /// Users' requests during the rebuild, as they would have been without the disk.
    pub during: UserRequests,
    /// Of the reads during the rebuild, those that the lost disk could not have answered.
    pub reconstructed: Latency,
    /// Reads of this kind that were not repeated, as too many were in progress.
    pub reads_left_out: u64,
}

/// Rehearses the loss of a disk of `array`. `rt` is a domain of its own
/// ([`weft_rt::Rt::domain`]), which the caller ends afterwards, also if this future is dropped.
///
/// # Errors
/// [`ArrayError::Refused`] if the array is not healthy and idle of jobs, would lose data, or
/// changes during the drill; or if the second array cannot be assembled.
pub async fn run(
    rt: &Rt,
    array: &Array,
    options: &DrillOptions,
) -> Result<DrillReport, ArrayError> {
    let slot = options.slot;
    array.0.check_writable()?;
    let margin = check(array, slot)?;
    let members = array.0.members().disks();
    let failing = members.iter().find(|(of, _)| *of == slot).map(|(_, disk)| disk.clone());
    let failing = failing.ok_or_else(|| refused(format!("slot {slot} has no member")))?;
    let changes = array.changes();
    let second = assemble_second(rt, &members, options).await?;
    let meter = Rc::new(Meter::new(rt, &second, slot));
    let _observed = Observed::begin(&array.0, &meter)?;
    let before = observe(rt, &meter, options.before, || unchanged(array, changes)).await?;
    let rate_bytes_s = sequential_rate(rt, &*failing).await;
    second.add_spare(Rc::new(Replacement::of(rt, failing.info(), rate_bytes_s))).await?;
    second.fail(slot).await?;
    meter.repeats.set(true);
    let mut progress = Progress { begun: rt.now(), ..Progress::default() };
    let during = observe(rt, &meter, options.during, || {
        unchanged(array, changes)?;
        progress.note(rt.now(), &second)
    })
    .await?;
    let is_exposed = |of: SlotNo| of != slot && !array.0.survives(SlotSet::one(slot).with(of));
    Ok(DrillReport {
        slot,
        disk: failing.info().name.clone(),
        redundancy_remaining: margin.losses,
        redundancy_exact: margin.exact,
        exposed: members
            .iter()
            .filter(|(of, _)| is_exposed(*of))
            .map(|(_, disk)| disk.info().name.clone())
            .collect(),
        rebuild_bytes: progress.total * array.0.geometry().unit_bytes,
        rebuilt_bytes: progress.done * array.0.geometry().unit_bytes,
        rate_bytes_s: progress.stripes_s_times(array.0.geometry().unit_bytes),
        rebuild_s: progress.whole_s(),
        complete: progress.complete,
        before,
        during,
        reconstructed: Latency::from(&*meter.repeated.borrow()),
        reads_left_out: meter.left_out.get(),
    })
}

fn refused(why: impl Into<String>) -> ArrayError {
    ArrayError::Refused(why.into())
}

/// Checks that the array can be used for a drill. Returns what it could lose besides.
fn check(array: &Array, slot: SlotNo) -> Result<Margin, ArrayError> {
    let status = array.status();
    if slot.0 >= status.slots.len() {
        return Err(refused(format!("there is no slot {slot}")));
    }
    if status.state != ArrayState::Healthy || !status.jobs.is_empty() {
        return Err(refused(
            "a drill needs a healthy array without a running job: wait until it is one",
        ));
    }
    array.redundancy_without(slot).ok_or_else(|| {
        refused(format!("without slot {slot} the array would lose data: there is no rebuild"))
    })
}

/// Ends the drill if the array in use is not any more what it was.
fn unchanged(array: &Array, changes: u64) -> Result<Phase, ArrayError> {
    let status = array.status();
    let same = array.changes() == changes && status.state == ArrayState::Healthy;
    // A clean stop changes none of these.
    let same = same && array.0.check_writable().is_ok();
    match same && status.jobs.is_empty() {
        true => Ok(Phase::GoesOn),
        false => Err(refused("the array changed during the drill, which was ended")),
    }
}

/// Assembles the members once more.
async fn assemble_second(
    rt: &Rt,
    members: &[(SlotNo, Rc<dyn Disk>)],
    options: &DrillOptions,
) -> Result<Array, ArrayError> {
    let room = Rc::new(Cell::new(options.memory_bytes));
    let copy = |(_, disk): &(SlotNo, Rc<dyn Disk>)| {
        let lent: Rc<dyn Disk> = Rc::new(LentDisk(disk.clone()));
        Rc::new(CopyOnWriteDisk::new(lent, &room)) as Rc<dyn Disk>
    };
    let copies: Vec<_> = members.iter().map(copy).collect();
    assemble_copies(rt, &copies, options.nonce).await.map(Array)
}

/// Whether a phase goes on.
enum Phase {
    GoesOn,
    Ended,
}

/// Measures a phase until it has ended or `span` has passed.
async fn observe(
    rt: &Rt,
    meter: &Meter,
    span: Nanos,
    mut check: impl FnMut() -> Result<Phase, ArrayError>,
) -> Result<UserRequests, ArrayError> {
    meter.clear();
    let begun = rt.now();
    loop {
        let past = rt.now() - begun;
        if matches!(check()?, Phase::Ended) || past >= span {
            return Ok(meter.requests(past));
        }
        rt.sleep(STEP.min(span - past)).await;
    }
}

/// How far the second array's rebuild is, and how fast it was.
#[derive(Debug, Default)]
struct Progress {
    begun: Nanos,
    total: u64,
    done: u64,
    complete: bool,
    /// Time and stripes done, at each look.
    seen: Vec<(Nanos, u64)>,
}

impl Progress {
    fn note(&mut self, now: Nanos, second: &Array) -> Result<Phase, ArrayError> {
        let status = second.status();
        if let Some(cause) = status.broken {
            return Err(refused(format!("the drill's array failed: {cause}")));
        }
        let rebuild = |job: &&JobStatus| job.kind == JobKind::Rebuild;
        if let Some(job) = status.jobs.iter().find(rebuild) {
            (self.total, self.done) = (job.stripes_total, job.stripes_done);
        } else if status.state == ArrayState::Healthy {
            let counts = second.rebuild_counts();
            // A short one may have ended before the first look.
            self.total = self.total.max(counts.stripes_rebuilt + counts.stripes_piggybacked);
            (self.done, self.complete) = (self.total, true);
        }
        self.seen.push((now, self.done));
        Ok(if self.complete { Phase::Ended } else { Phase::GoesOn })
    }

    /// Nanoseconds and stripes by which the rate is measured: of all if it is complete, else of the
    /// second half.
    fn measured(&self) -> (Nanos, u64) {
        let Some((end, done)) = self.seen.last().copied() else { return (0, 0) };
        let from = match self.complete {
            true => (self.begun, 0),
            false => self.seen[self.seen.len() / 2],
        };
        (end - from.0, done - from.1)
    }

    fn stripes_s_times(&self, bytes: u64) -> u64 {
        let (span, stripes) = self.measured();
        let rate = u128::from(stripes) * u128::from(bytes) * u128::from(SECOND);
        u64::try_from(rate / u128::from(span.max(1))).unwrap_or(u64::MAX)
    }

    /// Seconds of the whole rebuild.
    fn whole_s(&self) -> Option<u64> {
        let (span, stripes) = self.measured();
        let (end, done) = *self.seen.last()?;
        if self.complete {
            return Some((end - self.begun).div_ceil(SECOND));
        }
        let left = u128::from(self.total - done) * u128::from(span);
        let left = left.checked_div(u128::from(stripes))?;
        u64::try_from((u128::from(end - self.begun) + left).div_ceil(u128::from(SECOND))).ok()
    }
}

/// The array's observer for as long as this lives.
struct Observed(Rc<Engine>);

impl Observed {
    fn begin(engine: &Rc<Engine>, meter: &Rc<Meter>) -> Result<Self, ArrayError> {
        if engine.observer().is_set() {
            return Err(refused("a drill of this array is running already"));
        }
        engine.observer().set(Some(meter.clone()));
        Ok(Self(engine.clone()))
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.0.observer().set(None);
    }
}

/// Measures users' requests, and repeats those that the lost disk would not answer.
struct Meter {
    rt: Rt,
    second: Array,
    slot: SlotNo,
    reads: Rc<RefCell<Histogram>>,
    writes: RefCell<Histogram>,
    /// Whether reads are repeated.
    repeats: Cell<bool>,
    repeated: Rc<RefCell<Histogram>>,
    in_progress: Rc<Cell<usize>>,
    left_out: Cell<u64>,
    /// Reads of mirrored data that the slot has a copy of.
    mirrored: Cell<usize>,
}

impl Meter {
    fn new(rt: &Rt, second: &Array, slot: SlotNo) -> Self {
        Self {
            rt: rt.clone(),
            second: second.clone(),
            slot,
            reads: Rc::default(),
            writes: RefCell::default(),
            repeats: Cell::new(false),
            repeated: Rc::default(),
            in_progress: Rc::default(),
            left_out: Cell::new(0),
            mirrored: Cell::new(0),
        }
    }

    fn clear(&self) {
        self.reads.borrow_mut().clear();
        self.writes.borrow_mut().clear();
    }

    fn requests(&self, phase: Nanos) -> UserRequests {
        UserRequests {
            phase_ms: phase / MILLISECOND,
            reads: Latency::from(&*self.reads.borrow()),
            writes: Latency::from(&*self.writes.borrow()),
        }
    }

    /// The parts of a read that the lost disk answered: offset and length.
    fn lost_parts(&self, offset: u64, len: usize) -> Vec<(u64, usize)> {
        let engine = &self.second.0;
        let mut at = offset;
        let mut lost = Vec::new();
        for piece in engine.geometries().pieces(offset, len) {
            let geometry = engine.geometry_of(piece.at.stripe);
            let is_lost = match geometry.mirrored {
                false => engine.slot_of(piece.at.stripe, piece.at.unit) == self.slot,
                true => {
                    let copies = geometry.units().len();
                    let read = engine.unit_on(piece.at.stripe, self.slot).map(|_| {
                        self.mirrored.set(self.mirrored.get() + 1);
                        self.mirrored.get().is_multiple_of(copies)
                    });
                    read == Some(true)
                }
            };
            if is_lost {
                lost.push((at, piece.len));
            }
            at += piece.len as u64;
        }
        lost
    }

    fn repeat(&self, offset: u64, len: usize) {
        if self.in_progress.get() >= REPEATED_MAX {
            self.left_out.set(self.left_out.get() + 1);
            return;
        }
        self.in_progress.set(self.in_progress.get() + 1);
        let (rt, second) = (self.rt.clone(), self.second.clone());
        let (reads, repeated) = (self.reads.clone(), self.repeated.clone());
        let in_progress = self.in_progress.clone();
        drop(self.rt.spawn(async move {
            let begun = rt.now();
            if second.read(offset, Buf::new(len)).await.0.is_ok() {
                repeated.borrow_mut().add(rt.now() - begun);
                reads.borrow_mut().add(rt.now() - begun);
            }
            in_progress.set(in_progress.get() - 1);
        }));
    }
}

impl Observer for Meter {
    fn served(&self, request: ServedRequest) {
        let ServedRequest { is_write, offset, len, begun, took, succeeded } = request;
        if !succeeded {
            return;
        }
        let repeats = self.repeats.get();
        let lost = if is_write || !repeats { Vec::new() } else { self.lost_parts(offset, len) };
        if lost.is_empty() {
            let of_kind = if is_write { &self.writes } else { &*self.reads };
            of_kind.borrow_mut().add(took);
        }
        if lost.is_empty() && repeats {
            // The rebuild gives way to all users.
            let throttle = self.second.0.jobs().throttle();
            throttle.note_user(begun, len as u64);
            throttle.note_served(begun, || begun + took);
        }
        lost.into_iter().for_each(|(offset, len)| self.repeat(offset, len));
    }
}

/// A member of the array in use, lent to the second one: to be read, and nothing else. Above all,
/// it is not severed when the second array has lost it.
struct LentDisk(Rc<dyn Disk>);

impl LentDisk {
    fn refuse(&self, op: DiskOp, offset: u64, len: u64) -> DoneFuture<'_> {
        let source = std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, "lent to a drill");
        let error = DiskError::new(&self.0.info().name, op, offset, len, source);
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Disk for LentDisk {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.0.read(offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::Write, offset, data.len() as u64)
    }

    fn flush(&self) -> DoneFuture<'_> {
        self.refuse(DiskOp::Flush, 0, 0)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.refuse(DiskOp::WriteZeroes, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.refuse(DiskOp::Discard, offset, len)
    }
}

/// The bytes per second at which a disk is read from its begin on.
async fn sequential_rate(rt: &Rt, disk: &dyn Disk) -> u64 {
    const PROBE_BYTES: usize = 1 << 20;
    const PROBES_MAX: u64 = 256;
    let begun = rt.now();
    let mut bytes = 0;
    // A first one, which seeks, is not counted.
    let mut counted_from = begun;
    for probe in 0..PROBES_MAX {
        let offset = probe * PROBE_BYTES as u64;
        let past_end = offset + PROBE_BYTES as u64 > disk.info().size_bytes;
        if past_end || rt.now() - begun > SECOND {
            break;
        }
        let (result, _) = disk.read(offset, Buf::new(PROBE_BYTES), Class::Maintenance).await;
        match (result, probe) {
            (Err(_), _) => break,
            (Ok(()), 0) => counted_from = rt.now(),
            (Ok(()), _) => bytes += PROBE_BYTES as u64,
        }
    }
    let rate =
        u128::from(bytes) * u128::from(SECOND) / u128::from((rt.now() - counted_from).max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A replacement that keeps nothing, and takes as long to write as a disk that is written one byte
/// after the other.
struct Replacement {
    info: DiskInfo,
    rt: Rt,
    /// None: writes take no time.
    rate_bytes_s: Option<NonZeroU64>,
    /// When what it was given so far will be written.
    written_at: Cell<Nanos>,
}

impl Replacement {
    fn of(rt: &Rt, failed: &DiskInfo, rate_bytes_s: u64) -> Self {
        let name = format!("a new disk for {}", failed.name);
        let info = DiskInfo { name, fast_zeroes: true, volatile_cache: false, ..failed.clone() };
        let rate_bytes_s = NonZeroU64::new(rate_bytes_s);
        Self { info, rt: rt.clone(), rate_bytes_s, written_at: Cell::new(0) }
    }

    async fn take_time(&self, bytes: u64) {
        let Some(rate) = self.rate_bytes_s else { return };
        let time = u128::from(bytes) * u128::from(SECOND) / u128::from(rate.get());
        let begins = self.written_at.get().max(self.rt.now());
        let ends = begins.saturating_add(Nanos::try_from(time).unwrap_or(Nanos::MAX));
        self.written_at.set(ends);
        self.rt.sleep(ends.saturating_sub(self.rt.now())).await;
    }
}

impl Disk for Replacement {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            if let Err(error) = self.info.check(DiskOp::Read, offset, buf.len() as u64) {
                return (Err(error), buf);
            }
            self.take_time(buf.len() as u64).await;
            buf.fill(0);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.info.check(DiskOp::Write, offset, data.len() as u64)?;
            self.take_time(data.len() as u64).await;
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(std::future::ready(self.info.check(DiskOp::WriteZeroes, offset, len)))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(std::future::ready(self.info.check(DiskOp::Discard, offset, len)))
    }
}
