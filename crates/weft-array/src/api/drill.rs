//! A drill: what would happen if a disk failed now. Nothing is written to any disk.
//!
//! **A second array.** The members of the array that is in use are assembled once more, over disks
//! that keep their writes in memory ([`weft_disk::CopyOnWriteDisk`]) and that refuse to pass on
//! anything but reads. There the disk fails, and its rebuild runs as it would: with the same code,
//! order, pace and throttle, and below the same queues of the same disks as the requests of users.
//!
//! **The replacement.** No new disk is needed: what would be written to it takes the time that a
//! disk of the same kind would need. For a second at the most the drill reads the member that is to
//! fail from its begin on, which gives the rate (`disks.rs`).
//!
//! **What users feel.** Their requests go to the array in use and are served from it as ever. Those
//! reads that the lost disk answered would have to be reconstructed: the drill repeats them on the
//! second array, beside the real ones, up to 256 at a time. So the other disks carry
//! what they would carry, and a repeated read counts in the place of the real one. Of a mirror,
//! where other copies would be read instead, each n-th of such reads is repeated, for n copies.
//! Writes are measured, and not repeated: they cost the remaining disks about the same.
//!
//! **Limits.** The second array reads disks that change under it, and does not recover what is
//! being written: what it reconstructs may be wrong, is not checked, and not used. Its rate is that
//! of the time of the drill, at the place where the rebuild began: hard disks are slower towards
//! their ends. Users who ask less because answers take longer are not foreseen.

mod disks;
mod meter;

use std::cell::Cell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_code::{Margin, SlotNo, SlotSet};
use weft_disk::{Bytes, CopyOnWriteDisk, Disk, Latency, Volume as _};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::api::array::Array;
use crate::engine::status::{ArrayState, Status};
use crate::error::ArrayError;
use crate::lifecycle::start_stop::assemble_copies;
use crate::maintenance::{JobKind, JobStatus};
use disks::{LentDisk, Replacement, sequential_rate};
use meter::{Meter, Observed};

/// How often the progress is looked at.
const STEP: Nanos = 100 * MILLISECOND;

/// With less left, the write of a sector may have found no room.
const ROOM_LEAST: u64 = 8 << 10;

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
    /// How long the whole rebuild would take, in milliseconds; `None` if too little was rebuilt to
    /// tell.
    pub rebuild_ms: Option<u64>,
    /// The same in seconds, rounded.
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
    array.0.check_writable()?;
    let margin = check(array, options.slot)?;
    let room = Rc::new(Cell::new(options.memory_bytes));
    rehearse(rt, array, (options, margin), &room).await.map_err(|error| {
        match room.get() < ROOM_LEAST {
            // Which of its disks or steps met the end of the memory says nothing to users.
            true => refused(format!(
                "what the drill writes takes more than {}: give it more memory",
                Bytes(options.memory_bytes)
            )),
            false => error,
        }
    })
}

async fn rehearse(
    rt: &Rt,
    array: &Array,
    (options, margin): (&DrillOptions, Margin),
    room: &Rc<Cell<u64>>,
) -> Result<DrillReport, ArrayError> {
    let slot = options.slot;
    let members = array.0.members().disks();
    let failing = members.iter().find(|(of, _)| *of == slot).map(|(_, disk)| disk.clone());
    let failing = failing.ok_or_else(|| refused(format!("slot {slot} has no member")))?;
    let changes = array.changes();
    let second = assemble_second(rt, &members, options.nonce, room).await?;
    let meter = Rc::new(Meter::new(rt, &second, slot));
    let _observed = Observed::begin(&array.0, &meter)?;
    let before = observe(rt, &meter, options.before, || unchanged(array, changes)).await?;
    let rate_bytes_s = sequential_rate(rt, &*failing).await;
    second.add_spare(Rc::new(Replacement::of(rt, failing.info(), rate_bytes_s))).await?;
    second.fail(slot).await?;
    meter.begin_repeats();
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
        rebuild_ms: progress.whole_ms(),
        rebuild_s: progress.whole_ms().map(|ms| (ms + 500) / 1000),
        complete: progress.complete,
        before,
        during,
        reconstructed: meter.reconstructed(),
        reads_left_out: meter.reads_left_out(),
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
    if !is_quiet(&status) {
        return Err(refused(
            "a drill needs a healthy array without a running job: wait until it is one",
        ));
    }
    array.redundancy_without(slot).ok_or_else(|| {
        refused(format!("without slot {slot} the array would lose data: there is no rebuild"))
    })
}

/// Whether the array has all of its members and no job; one that was stopped is not healthy.
fn is_quiet(status: &Status) -> bool {
    status.state == ArrayState::Healthy && status.jobs.is_empty()
}

/// Ends the drill if the array in use is not any more what it was.
fn unchanged(array: &Array, changes: u64) -> Result<Phase, ArrayError> {
    let status = array.status();
    match array.changes() == changes && is_quiet(&status) {
        true => Ok(Phase::GoesOn),
        false => Err(refused("the array changed during the drill, which was ended")),
    }
}

/// Assembles the members once more.
async fn assemble_second(
    rt: &Rt,
    members: &[(SlotNo, Rc<dyn Disk>)],
    nonce: u64,
    room: &Rc<Cell<u64>>,
) -> Result<Array, ArrayError> {
    let copy = |(_, disk): &(SlotNo, Rc<dyn Disk>)| {
        let lent: Rc<dyn Disk> = Rc::new(LentDisk::new(disk.clone()));
        Rc::new(CopyOnWriteDisk::new(lent, room)) as Rc<dyn Disk>
    };
    let copies: Vec<_> = members.iter().map(copy).collect();
    assemble_copies(rt, &copies, nonce).await.map(Array)
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

    /// Milliseconds of the whole rebuild.
    fn whole_ms(&self) -> Option<u64> {
        let (span, stripes) = self.measured();
        let (end, done) = *self.seen.last()?;
        if self.complete {
            return Some((end - self.begun) / MILLISECOND);
        }
        let left = u128::from(self.total - done) * u128::from(span);
        let left = left.checked_div(u128::from(stripes))?;
        u64::try_from((u128::from(end - self.begun) + left) / u128::from(MILLISECOND)).ok()
    }
}
