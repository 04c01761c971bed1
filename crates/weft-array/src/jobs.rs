//! Maintenance: the jobs that the array runs by itself (take spares, rebuild, resync, clean), and
//! scrub.
//!
//! One task runs everything that changes redundancy, most urgent first: resync of the regions that
//! a crash left dirty (their parity protects nothing), then rebuild. It sleeps until something
//! changes: a member fails, a spare is added, a job is resumed. A second task clears the dirty
//! marks of idle regions. A scrub runs on request, concurrently with users and with the other jobs.
//!
//! Every job works stripe by stripe, several at a time, each under its stripe's lock. Between two
//! stripes a job can be paused, throttled or stopped without losing progress.

mod rebuild;
mod replace;
mod resync;
mod scrub;
mod throttle;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::select;
use weft_rt::sync::{Notify, Permit};
use weft_rt::{Nanos, SECOND, Task};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::room::JOB_PERIOD;
pub use crate::superblock::ScrubMode;
pub(crate) use rebuild::RebuildState;
pub use rebuild::{HotZone, RebuildCounts, RebuildStatus};
pub use scrub::{Mismatch, ScrubReport};
pub use throttle::Bounds;
pub(crate) use throttle::Throttle;

/// A region's dirty mark is cleared one to two periods after its last write.
const CLEAN_PERIOD: Nanos = 3 * SECOND;

/// Most memory that the stripes of a job in flight take together.
const WINDOW_BYTES: usize = 32 << 20;

/// Most stripes of a job in flight.
const WINDOW_MAX: usize = 64;

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Reconstructing lost members onto replacements.
    Rebuild,
    /// Copying working members to their replacements.
    Replace,
    /// Making parity agree with the data after a crash.
    Resync,
    /// Verifying all stripes.
    Scrub,
}

/// The progress of a job. Times and rates are measured, never guessed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct JobStatus {
    /// The kind of job.
    pub kind: JobKind,
    /// Stripes to do in total.
    pub stripes_total: u64,
    /// Stripes done.
    pub stripes_done: u64,
    /// Bytes per second and member over the last seconds; `None` before there is a measurement.
    pub rate_bytes_s: Option<u64>,
    /// Seconds left at that rate.
    pub eta_s: Option<u64>,
    /// Whether it is paused.
    pub paused: bool,
}

/// The jobs of an array.
pub(crate) struct Jobs {
    bell: Notify,
    pub throttle: Throttle,
    pub rebuild: RebuildState,
    pub paused: Cell<bool>,
    current: RefCell<Option<Progress>>,
    pub scrub: scrub::ScrubState,
    /// The rebuild cannot continue, and waits for a change.
    stalled: Cell<bool>,
    /// The same for the resync.
    resync_stalled: Cell<bool>,
    tasks: RefCell<Vec<Task<()>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Progress {
    kind: JobKind,
    total: u64,
    done: u64,
    meter: Meter,
}

/// Measures a rate over a sliding window of some seconds.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    samples: std::collections::VecDeque<(Nanos, u64)>,
}

const METER_SPAN: Nanos = 10 * SECOND;
const METER_STEP: Nanos = SECOND / 4;

impl Meter {
    /// Begins with `done` units done before the measurement.
    fn from(now: Nanos, done: u64) -> Self {
        Self { samples: [(now, done)].into() }
    }

    fn note(&mut self, now: Nanos, done: u64) {
        if self.samples.back().is_none_or(|(last, _)| now >= last + METER_STEP) {
            self.samples.push_back((now, done));
        }
        while self.samples.len() > 2 && self.samples[0].0 + METER_SPAN < now {
            self.samples.pop_front();
        }
    }

    /// Units per second, given `done` units at `now`.
    fn per_second(&self, now: Nanos, done: u64) -> Option<f64> {
        let (then, before) = *self.samples.front()?;
        let span = now.checked_sub(then).filter(|span| *span >= METER_STEP)?;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = (done - before) as f64 * SECOND as f64 / span as f64;
        (rate > 0.0).then_some(rate)
    }
}

impl Jobs {
    pub fn new() -> Self {
        Self {
            bell: Notify::default(),
            throttle: Throttle::default(),
            rebuild: RebuildState::new(),
            paused: Cell::new(false),
            current: RefCell::default(),
            scrub: scrub::ScrubState::default(),
            stalled: Cell::new(false),
            resync_stalled: Cell::new(false),
            tasks: RefCell::default(),
        }
    }

    /// Something changed: jobs look again for work.
    pub fn wake(&self) {
        self.stalled.set(false);
        self.resync_stalled.set(false);
        self.bell.notify_all();
    }

    /// The way jobs work was changed, or something they wait for: waiting jobs look again.
    pub fn changed(&self) {
        self.bell.notify_all();
    }

    /// Completes at the next change.
    pub fn bell(&self) -> impl Future<Output = ()> + '_ {
        self.bell.wait()
    }

    /// A job of `total` stripes begins, or continues with the `left` that remain of them.
    fn begin(&self, kind: JobKind, total: u64, left: u64, now: Nanos) {
        let done = total.saturating_sub(left);
        let progress = Progress { kind, total, done, meter: Meter::from(now, done) };
        *self.current.borrow_mut() = Some(progress);
    }

    fn step(&self, now: Nanos) {
        if let Some(progress) = &mut *self.current.borrow_mut() {
            progress.done += 1;
            progress.meter.note(now, progress.done);
        }
    }

    fn end(&self) {
        *self.current.borrow_mut() = None;
    }
}

impl Inner {
    /// Starts the maintenance tasks. They end when the array is stopped.
    pub(crate) fn start_jobs(self: &Rc<Self>) {
        let (one, other) = (self.clone(), self.clone());
        let tasks = [
            self.rt.spawn(async move { one.run_jobs().await }),
            self.rt.spawn(async move { other.clean_when_idle().await }),
        ];
        self.jobs.tasks.borrow_mut().extend(tasks);
        self.resume_scrub();
    }

    /// Waits until the tasks of a stopped array have ended.
    pub(crate) async fn end_jobs(&self) {
        self.jobs.wake();
        self.jobs.scrub.ended().await;
        let tasks = std::mem::take(&mut *self.jobs.tasks.borrow_mut());
        for task in tasks {
            task.await;
        }
    }

    async fn run_jobs(&self) {
        let mut try_at = None;
        while !self.stopped.get() {
            let bell = self.jobs.bell.wait();
            if self.run_next_job().await {
                continue;
            }
            if self.room.short().is_empty() {
                try_at = None;
                bell.await;
                continue;
            }
            let deadline = *try_at.get_or_insert_with(|| self.rt.now() + JOB_PERIOD);
            select(std::pin::pin!(bell), std::pin::pin!(self.rt.sleep_until(deadline))).await;
            if self.rt.now() >= deadline {
                try_at = None;
                self.try_room();
            }
        }
    }

    /// Runs the most urgent job that is due. Returns false if none is.
    async fn run_next_job(&self) -> bool {
        if self.jobs.paused.get() || self.broken.borrow().is_some() || self.read_only.get() {
            return false;
        }
        if self.take_spares().await {
            return true;
        }
        if !self.jobs.resync_stalled.get() && self.map.resync_count() > 0 {
            self.resync().await;
            return true;
        }
        // A member that is coming back cannot complete before it belongs to the array.
        let joins = self.members.any_staged();
        if !joins && !self.members.rebuilding().is_empty() && !self.jobs.stalled.get() {
            self.rebuild().await;
            return true;
        }
        false
    }

    async fn clean_when_idle(&self) {
        while !self.stopped.get() {
            self.idle_until(self.rt.now() + CLEAN_PERIOD).await;
            if self.check_writable().is_ok() {
                // A failure here is a member's, which has been excluded; the marks stay.
                let _ = self.map.clean_idle(self).await;
            }
        }
    }

    /// Waits until `deadline`, or until the array is stopped.
    async fn idle_until(&self, deadline: Nanos) {
        while !self.stopped.get() && self.rt.now() < deadline {
            let bell = std::pin::pin!(self.jobs.bell.wait());
            select(self.rt.sleep_until(deadline), bell).await;
        }
    }

    /// Waits until the throttle admits one more stripe.
    async fn pace(&self) {
        let start = self.jobs.throttle.reserve(self.rt.now(), self.geometry.unit_bytes);
        self.idle_until(start).await;
    }

    /// Waits for memory for the work on one stripe. Fails if the array was stopped meanwhile:
    /// nothing may be begun then.
    async fn job_memory(&self) -> Result<Permit, ArrayError> {
        let memory = self.budget.acquire(self.memory_of(self.geometry.unit_len())).await;
        if self.stopped.get() { Err(ArrayError::Stopped) } else { Ok(memory) }
    }

    /// Whether jobs should stop before the next stripe.
    fn must_yield(&self) -> bool {
        self.jobs.paused.get() || self.stopped.get() || self.broken.borrow().is_some()
    }

    /// Stripes that a job keeps in flight.
    fn window(&self) -> usize {
        let stripe = self.geometry.unit_len() * self.geometry.code().width();
        (WINDOW_BYTES / stripe).clamp(2, WINDOW_MAX)
    }

    /// The running jobs.
    pub(crate) fn job_status(&self) -> Vec<JobStatus> {
        let now = self.rt.now();
        // If stripes are narrower than the array, a member has units of some stripes only.
        let (width, slots) = (self.geometry.code().width() as u64, self.members.len() as u64);
        let bytes = self.geometry.unit_bytes * width / slots.max(1);
        let paused = self.jobs.paused.get();
        let current = self.jobs.current.borrow().clone().or_else(|| self.paused_rebuild());
        let scrub = self.scrub_job();
        current.iter().chain(&scrub).map(|progress| progress.status(now, bytes, paused)).collect()
    }
}

impl Inner {
    /// A paused rebuild, for the list of jobs: it makes no progress now.
    fn paused_rebuild(&self) -> Option<Progress> {
        if !self.jobs.paused.get() || self.members.rebuilding().is_empty() {
            return None;
        }
        let total = self.geometry.stripes;
        let done = total.saturating_sub(self.map.stale_stripes(self.lanes()));
        let meter = Meter::from(self.rt.now(), done);
        Some(Progress { kind: self.rebuild_kind(), total, done, meter })
    }
}

impl Progress {
    fn status(&self, now: Nanos, bytes: u64, paused: bool) -> JobStatus {
        let rate = if paused { None } else { self.meter.per_second(now, self.done) };
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and saturating"
        )]
        let (rate_bytes_s, eta_s) = match rate {
            Some(rate) => (
                Some((rate * bytes as f64) as u64),
                Some(((self.total.saturating_sub(self.done)) as f64 / rate).ceil() as u64),
            ),
            None => (None, None),
        };
        JobStatus {
            kind: self.kind,
            stripes_total: self.total,
            stripes_done: self.done.min(self.total),
            rate_bytes_s,
            eta_s,
            paused,
        }
    }
}
