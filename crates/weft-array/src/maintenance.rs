//! The state of the jobs: what runs, how far it is, at which pace it may go, and by which policy.
//!
//! The jobs themselves work on the array (`jobs`); here is what they share with requests, commands
//! and the array's status.

pub mod experiment;
mod latency;
mod monitor;
mod rebuild;
mod scrub;
pub(crate) mod throttle;

use std::cell::{Cell, RefCell};

use weft_rt::sync::Notify;
use weft_rt::{Nanos, SECOND, Task};

use crate::format::enum_names::named;

pub(crate) use monitor::Monitor;
pub use rebuild::{HotZone, RebuildCounts, RebuildStatus};
pub(crate) use rebuild::{RebuildSource, RebuildState};
pub(crate) use scrub::ScrubState;
pub use scrub::{Mismatch, ScrubReport};
pub use throttle::Bounds;
pub(crate) use throttle::Throttle;

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
    /// Moving the array to another geometry.
    Reshape,
}

named!(
    JobKind,
    Rebuild = "rebuild",
    Replace = "replace",
    Resync = "resync",
    Scrub = "scrub",
    Reshape = "reshape"
);

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
    throttle: Throttle,
    rebuild: RebuildState,
    paused: Cell<bool>,
    current: RefCell<Option<Progress>>,
    scrub: ScrubState,
    /// The rebuild cannot continue, and waits for a change.
    rebuild_stalled: Cell<bool>,
    /// Neither can the resync.
    resync_stalled: Cell<bool>,
    /// Neither can the reshape.
    reshape_stalled: Cell<bool>,
    tasks: RefCell<Vec<Task<()>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Progress {
    pub kind: JobKind,
    pub total: u64,
    pub done: u64,
    pub meter: Meter,
}

/// Measures a rate over a sliding window of some seconds.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    samples: std::collections::VecDeque<(Nanos, u64)>,
}

const METER_SPAN: Nanos = 10 * SECOND;
const METER_STEP: Nanos = SECOND / 4;

impl Meter {
    /// Starts with `done` units done before the measurement.
    pub fn from(now: Nanos, done: u64) -> Self {
        Self { samples: [(now, done)].into() }
    }

    pub fn note(&mut self, now: Nanos, done: u64) {
        if self.samples.back().is_none_or(|(last, _)| now >= last + METER_STEP) {
            self.samples.push_back((now, done));
        }
        while self.samples.len() > 2 && self.samples[0].0 + METER_SPAN < now {
            self.samples.pop_front();
        }
    }

    /// Units per second, given `done` units at `now`.
    pub fn per_second(&self, now: Nanos, done: u64) -> Option<f64> {
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
            scrub: ScrubState::default(),
            rebuild_stalled: Cell::new(false),
            resync_stalled: Cell::new(false),
            reshape_stalled: Cell::new(false),
            tasks: RefCell::default(),
        }
    }

    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// The state of rebuilds.
    pub fn rebuild(&self) -> &RebuildState {
        &self.rebuild
    }

    /// The state of the scrub.
    pub fn scrub(&self) -> &ScrubState {
        &self.scrub
    }

    pub fn is_paused(&self) -> bool {
        self.paused.get()
    }

    /// Pauses the jobs, or resumes them.
    pub fn set_paused(&self, paused: bool) {
        self.paused.set(paused);
        self.wake();
    }

    /// The progress of the running job.
    pub fn current(&self) -> Option<Progress> {
        self.current.borrow().clone()
    }

    /// The rebuild cannot continue before something changes.
    pub fn stall_rebuild(&self) {
        self.rebuild_stalled.set(true);
    }

    pub fn is_rebuild_stalled(&self) -> bool {
        self.rebuild_stalled.get()
    }

    /// The resync cannot continue before something changes.
    pub fn stall_resync(&self) {
        self.resync_stalled.set(true);
    }

    pub fn is_resync_stalled(&self) -> bool {
        self.resync_stalled.get()
    }

    /// The reshape cannot continue before something changes.
    pub fn stall_reshape(&self) {
        self.reshape_stalled.set(true);
    }

    pub fn is_reshape_stalled(&self) -> bool {
        self.reshape_stalled.get()
    }

    /// These tasks run the jobs.
    pub fn add_tasks(&self, tasks: impl IntoIterator<Item = Task<()>>) {
        self.tasks.borrow_mut().extend(tasks);
    }

    /// Takes the tasks, to wait for their end.
    pub fn take_tasks(&self) -> Vec<Task<()>> {
        std::mem::take(&mut *self.tasks.borrow_mut())
    }

    /// Something changed: jobs look again for work.
    pub fn wake(&self) {
        self.rebuild_stalled.set(false);
        self.resync_stalled.set(false);
        self.reshape_stalled.set(false);
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

    /// A job of `total` stripes starts, or continues with the `left` that remain of them.
    pub fn begin(&self, kind: JobKind, total: u64, left: u64, now: Nanos) {
        self.throttle.begin(now);
        let done = total.saturating_sub(left);
        let progress = Progress { kind, total, done, meter: Meter::from(now, done) };
        *self.current.borrow_mut() = Some(progress);
    }

    /// So many more stripes are done.
    pub fn step(&self, now: Nanos, stripes: u64) {
        if let Some(progress) = &mut *self.current.borrow_mut() {
            progress.done += stripes;
            progress.meter.note(now, progress.done);
        }
    }

    /// So much of the job is done.
    pub fn reach(&self, done: u64) {
        if let Some(progress) = &mut *self.current.borrow_mut() {
            progress.done = done;
        }
    }

    pub fn end(&self) {
        *self.current.borrow_mut() = None;
    }
}

impl Progress {
    pub fn status(&self, now: Nanos, bytes: u64, paused: bool) -> JobStatus {
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
