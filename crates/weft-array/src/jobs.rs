//! Maintenance: the jobs that the array starts automatically (take spares, rebuild, resync, clean),
//! and scrub.
//!
//! One task runs everything that changes redundancy, most urgent first: resync of the regions that
//! a crash left dirty (their parity protects nothing), then rebuild, then reshape. It sleeps until
//! something changes: a member fails, a spare is added, a job is resumed. A second task clears the
//! dirty marks of idle regions. A scrub runs on request, concurrently with users and with the other
//! jobs.
//!
//! Every job works stripe by stripe, several at a time, each under its stripe's lock. Between two
//! stripes a job can be paused, throttled or stopped without losing progress.

pub(crate) mod growth;
mod rebuild;
mod replace;
pub(crate) mod reshape;
mod resync;
mod scrub;

use std::rc::Rc;

use futures_util::future::select;
use weft_rt::{Nanos, SECOND};

use crate::engine::Engine;
use crate::io::full_member::JOB_PERIOD;
use crate::maintenance::{JobStatus, Meter, Progress};

/// A region's dirty mark is cleared one to two periods after its last write.
const CLEAN_PERIOD: Nanos = 3 * SECOND;

/// Most memory that the stripes of a job in flight take together.
const WINDOW_BYTES: usize = 32 << 20;

/// Most stripes of a job in flight.
const WINDOW_MAX: usize = 64;

impl Engine {
    /// Starts the maintenance tasks. They end when the array is stopped.
    pub(crate) fn start_jobs(self: &Rc<Self>) {
        let (one, other) = (self.clone(), self.clone());
        let tasks = [
            self.rt().spawn(async move { one.run_jobs().await }),
            self.rt().spawn(async move { other.clean_when_idle().await }),
        ];
        self.jobs().add_tasks(tasks);
        self.resume_scrub();
    }

    /// Waits until the tasks of a stopped array have ended.
    pub(crate) async fn end_jobs(&self) {
        self.jobs().wake();
        self.jobs().scrub().ended().await;
        for task in self.jobs().take_tasks() {
            task.await;
        }
    }

    async fn run_jobs(&self) {
        let mut try_at = None;
        while !self.service().is_stopped() {
            let bell = self.jobs().bell();
            if self.run_next_job().await {
                continue;
            }
            if self.space().short().is_empty() {
                try_at = None;
                bell.await;
                continue;
            }
            let deadline = *try_at.get_or_insert_with(|| self.rt().now() + JOB_PERIOD);
            select(std::pin::pin!(bell), std::pin::pin!(self.rt().sleep_until(deadline))).await;
            if self.rt().now() >= deadline {
                try_at = None;
                self.try_room();
            }
        }
    }

    /// Runs the most urgent job that is due. Returns false if none is.
    async fn run_next_job(&self) -> bool {
        if self.jobs().is_paused() || self.service().is_broken() || self.service().is_read_only() {
            return false;
        }
        if self.take_spares().await {
            return true;
        }
        if !self.jobs().is_resync_stalled() && self.map().resync_count() > 0 {
            self.resync().await;
            return true;
        }
        // A member that is coming back cannot complete before it belongs to the array.
        let joins = self.members().any_staged();
        if !joins && !self.members().rebuilding().is_empty() && !self.jobs().is_rebuild_stalled() {
            self.rebuild().await;
            return true;
        }
        if self.can_reshape() {
            self.reshape().await;
            return true;
        }
        false
    }

    async fn clean_when_idle(&self) {
        while !self.service().is_stopped() {
            self.idle_until(self.rt().now() + CLEAN_PERIOD).await;
            if self.check_writable().is_ok() {
                // A failure here is a member's, which has been excluded; the marks stay.
                let _ = self.map().clean_idle(self).await;
            }
        }
    }

    /// Waits until `deadline`, or until the array is stopped.
    async fn idle_until(&self, deadline: Nanos) {
        while !self.service().is_stopped() && self.rt().now() < deadline {
            let bell = std::pin::pin!(self.jobs().bell());
            select(self.rt().sleep_until(deadline), bell).await;
        }
    }

    /// Waits until the throttle admits one more stripe: the one that is in effect then. Returns
    /// false if the job has to end first.
    async fn pace(&self, ends: impl Fn() -> bool) -> bool {
        let throttle = self.jobs().throttle();
        loop {
            let settings = throttle.settings();
            let start = throttle.reserve(self.rt().now(), self.geometry().unit_bytes);
            while settings == throttle.settings() {
                if ends() {
                    return false;
                }
                if self.rt().now() >= start {
                    return true;
                }
                let bell = std::pin::pin!(self.jobs().bell());
                select(self.rt().sleep_until(start), bell).await;
            }
        }
    }

    /// Whether jobs should stop before the next stripe.
    fn must_yield(&self) -> bool {
        self.jobs().is_paused() || self.service().is_stopped() || self.service().is_broken()
    }

    /// Stripes that a job keeps in flight.
    fn window(&self) -> usize {
        let stripe = self.geometry().unit_len() * self.geometry().code().width();
        (WINDOW_BYTES / stripe).clamp(2, WINDOW_MAX)
    }

    /// The running jobs.
    pub(crate) fn job_status(&self) -> Vec<JobStatus> {
        let now = self.rt().now();
        // If stripes are narrower than the array, a member has units of some stripes only.
        let (width, slots) = (self.geometry().code().width() as u64, self.members().len() as u64);
        let bytes = self.geometry().unit_bytes * width / slots.max(1);
        let paused = self.jobs().is_paused();
        let current = self.jobs().current().or_else(|| self.paused_rebuild());
        let scrub = self.scrub_job();
        current.iter().chain(&scrub).map(|progress| progress.status(now, bytes, paused)).collect()
    }
}

impl Engine {
    /// A paused rebuild, for the list of jobs: it makes no progress now.
    fn paused_rebuild(&self) -> Option<Progress> {
        if !self.jobs().is_paused() || self.members().rebuilding().is_empty() {
            return None;
        }
        let total = self.map().live().count();
        let done = total.saturating_sub(self.map().stale_stripes(self.lanes()));
        let meter = Meter::from(self.rt().now(), done);
        Some(Progress { kind: self.rebuild_kind(), total, done, meter })
    }
}
