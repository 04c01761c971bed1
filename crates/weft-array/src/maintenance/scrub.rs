//! The state of a scrub, and what it found.

use std::cell::{Cell, RefCell};

use serde::{Deserialize, Serialize};
use weft_code::SlotNo;
use weft_rt::Nanos;
use weft_rt::sync::Notify;

use super::{JobKind, Meter, Progress};
use crate::superblock::{LastScrub, ScrubMode, ScrubProgress};

/// A stripe whose redundancy did not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The stripe.
    pub stripe: u64,
    /// Byte offset of its data on the array.
    pub offset_bytes: u64,
    /// The unit known to be wrong; `None` if the code cannot tell.
    pub unit: Option<usize>,
    /// The slot that holds that unit.
    pub slot: Option<SlotNo>,
}

/// The result of a scrub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// What it did about mismatches.
    pub mode: ScrubMode,
    /// Whether it is still running.
    pub running: bool,
    /// Whether it covered the whole array; false also if it was cancelled.
    pub complete: bool,
    /// Stripes compared.
    pub stripes: u64,
    /// Stripes that did not match.
    pub mismatches: u64,
    /// Stripes corrected.
    pub repaired: u64,
    /// Stripes that could not be read, or with sectors that could be reconstructed but not
    /// rewritten.
    pub unreadable: u64,
    /// The places of the first mismatches; kept until the array is stopped.
    pub places: Vec<Mismatch>,
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: Option<u64>,
}

impl From<LastScrub> for ScrubReport {
    fn from(last: LastScrub) -> Self {
        let LastScrub { ended_unix_s, mode, complete, stripes, mismatches, repaired, unreadable } =
            last;
        Self {
            mode,
            running: false,
            complete,
            stripes,
            mismatches,
            repaired,
            unreadable,
            places: Vec::new(),
            ended_unix_s: Some(ended_unix_s),
        }
    }
}

#[derive(Default)]
pub(crate) struct ScrubState {
    report: RefCell<Option<ScrubReport>>,
    progress: RefCell<Option<Progress>>,
    /// The next stripe to compare.
    next: Cell<u64>,
    /// Stripes begun, including those of earlier assemblies.
    begun: Cell<u64>,
    cancel: Cell<bool>,
    ended: Notify,
}

impl ScrubState {
    pub fn report(&self) -> Option<ScrubReport> {
        self.report.borrow().clone()
    }

    /// Ends the running scrub after the stripes in flight.
    pub fn cancel(&self) {
        self.cancel.set(true);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel.get()
    }

    /// The progress of the running scrub.
    pub fn progress(&self) -> Option<Progress> {
        self.progress.borrow().clone()
    }

    /// The next stripe to compare.
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    pub fn set_next(&self, stripe: u64) {
        self.next.set(stripe);
    }

    /// Stripes begun, including those of earlier assemblies.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    pub fn count_begun(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    /// One more stripe is done.
    pub fn step(&self, now: Nanos) {
        if let Some(progress) = &mut *self.progress.borrow_mut() {
            progress.done += 1;
            progress.meter.note(now, progress.done);
        }
    }

    /// Adds findings to the report.
    pub fn note(&self, change: impl FnOnce(&mut ScrubReport)) {
        if let Some(report) = &mut *self.report.borrow_mut() {
            change(report);
        }
    }

    pub fn is_running(&self) -> bool {
        self.progress.borrow().is_some()
    }

    /// Waits until no scrub is running.
    pub async fn ended(&self) {
        while self.is_running() {
            self.ended.wait().await;
        }
    }

    pub fn begin(&self, from: ScrubProgress, now: Nanos) {
        let ScrubProgress { mode, next_stripe, stripes, mismatches, repaired, unreadable } = from;
        let (kind, meter) = (JobKind::Scrub, Meter::from(now, stripes));
        let (total, done) = (stripes, stripes);
        *self.progress.borrow_mut() = Some(Progress { kind, total, done, meter });
        self.next.set(next_stripe);
        self.begun.set(stripes);
        *self.report.borrow_mut() = Some(ScrubReport {
            mode,
            running: true,
            complete: false,
            stripes,
            mismatches,
            repaired,
            unreadable,
            places: Vec::new(),
            ended_unix_s: None,
        });
        self.cancel.set(false);
    }

    pub fn end(&self, complete: bool, ended_unix_s: u64) -> ScrubReport {
        *self.progress.borrow_mut() = None;
        let mut report = self.report.borrow_mut();
        let report = report.as_mut().expect("made when it began");
        (report.running, report.complete) = (false, complete);
        report.ended_unix_s = Some(ended_unix_s);
        self.ended.notify_all();
        report.clone()
    }
}
