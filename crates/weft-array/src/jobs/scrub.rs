//! Scrub: reading everything and comparing it with its redundancy.
//!
//! *Check* counts and locates stripes whose parity disagrees with the data. *Repair* also corrects them.
//! What is wrong is not always known: with one parity, data and parity merely disagree, and the data is
//! taken for right. Where the code has enough rows, a single wrong unit can be *located*: it is the one
//! whose replacement by what the others say makes every row agree, if there is only one such unit.
//! Read errors met on the way are repaired in either mode, as on any read.

use std::cell::{Cell, RefCell};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use weft_code::UnitSet;
use weft_disk::{Class, WriteOpts};
use weft_rt::Buf;

use super::{JobKind, Meter, Progress};
use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::gather::{Columns, Units};
use crate::recover::Checked;
use crate::superblock::ScrubMode;

/// Places kept of the mismatches found.
const PLACES_MAX: usize = 64;

/// A stripe that disagreed with itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The stripe.
    pub stripe: u64,
    /// Byte offset of its data on the array.
    pub offset: u64,
    /// The unit known to be wrong; `None` if the code cannot tell.
    pub unit: Option<usize>,
    /// The slot that holds that unit.
    pub slot: Option<usize>,
}

/// What a scrub found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// What it did about mismatches.
    pub mode: ScrubMode,
    /// Whether it is still running.
    pub running: bool,
    /// Stripes looked at.
    pub stripes: u64,
    /// Stripes that disagreed.
    pub mismatches: u64,
    /// Stripes corrected.
    pub repaired: u64,
    /// Stripes that could not be read.
    pub unreadable: u64,
    /// The first mismatches' places.
    pub places: Vec<Mismatch>,
}

#[derive(Default)]
pub(crate) struct ScrubState {
    report: RefCell<Option<ScrubReport>>,
    progress: RefCell<Option<Progress>>,
    cancel: Cell<bool>,
}

impl ScrubState {
    pub fn progress(&self) -> Option<Progress> {
        self.progress.borrow().clone()
    }

    pub fn report(&self) -> Option<ScrubReport> {
        self.report.borrow().clone()
    }

    /// Ends the running scrub after the stripes in flight.
    pub fn cancel(&self) {
        self.cancel.set(true);
    }

    pub fn is_running(&self) -> bool {
        self.progress.borrow().is_some()
    }
}

impl Inner {
    /// Scrubs the whole array.
    ///
    /// # Errors
    /// If a scrub is running already.
    pub(crate) async fn scrub(&self, mode: ScrubMode) -> Result<ScrubReport, ArrayError> {
        let state = &self.jobs.scrub;
        if state.is_running() {
            return Err(ArrayError::Refused("a scrub is running already; cancel it first".into()));
        }
        if mode == ScrubMode::Repair {
            self.check_writable()?;
        }
        let (total, now) = (self.geometry.stripes, self.rt.now());
        let (kind, meter) = (JobKind::Scrub, Meter::new(now));
        *state.progress.borrow_mut() = Some(Progress { kind, total, done: 0, meter });
        *state.report.borrow_mut() = Some(ScrubReport {
            mode,
            running: true,
            stripes: 0,
            mismatches: 0,
            repaired: 0,
            unreadable: 0,
            places: Vec::new(),
        });
        state.cancel.set(false);
        self.scrub_stripes(mode).await;
        *state.progress.borrow_mut() = None;
        let mut report = state.report.borrow_mut();
        let report = report.as_mut().expect("set above");
        report.running = false;
        let (mismatches, repaired) = (report.mismatches, report.repaired);
        self.events.emit(Event::ScrubFinished { mismatches, repaired });
        Ok(report.clone())
    }

    async fn scrub_stripes(&self, mode: ScrubMode) {
        let state = &self.jobs.scrub;
        let mut in_flight = FuturesUnordered::new();
        let mut stripes = 0..self.geometry.stripes;
        loop {
            if self.jobs.paused.get()
                && in_flight.is_empty()
                && !self.stopped.get()
                && !state.cancel.get()
            {
                self.jobs.bell.wait().await;
                continue;
            }
            let open = !self.must_yield() && !state.cancel.get();
            let window = self.jobs.throttle.window(self.rt.now(), self.window());
            if open
                && in_flight.len() < window
                && let Some(stripe) = stripes.next()
            {
                in_flight.push(self.scrub_stripe(stripe, mode));
                continue;
            }
            if in_flight.next().await.is_none()
                && !(self.jobs.paused.get() && !state.cancel.get() && !self.stopped.get())
            {
                return;
            }
            if let Some(progress) = &mut *state.progress.borrow_mut() {
                progress.done += 1;
                progress.meter.note(self.rt.now(), progress.done);
            }
        }
    }

    async fn scrub_stripe(&self, stripe: u64, mode: ScrubMode) {
        let region = self.map.region_of(stripe);
        // What was never written has no redundancy to compare; what waits for resync will get it.
        if !self.map.is_written(region) || self.map.needs_resync(region) {
            self.note(|report| report.stripes += 1);
            return;
        }
        self.pace().await;
        let Ok(_memory) = self.job_memory().await else { return };
        let _lock = self.locks.exclusive(stripe).await;
        let lost = self.lost_units(stripe);
        let at = Columns { stripe, from: 0, class: Class::Maintenance };
        match self.check_stripe(at, lost).await {
            Ok(checked) if checked.wrong.is_empty() => self.note(|report| report.stripes += 1),
            Ok(checked) => self.mismatch(at, lost, mode, checked).await,
            Err(_) => self.note(|report| report.unreadable += 1),
        }
    }

    async fn mismatch(&self, at: Columns, lost: UnitSet, mode: ScrubMode, checked: Checked) {
        let located = if lost.is_empty() { self.locate_wrong(at.stripe, &checked) } else { None };
        let unit = located.as_ref().map(|(unit, _)| *unit);
        let slot = unit.map(|unit| self.geometry.slot(at.stripe, unit));
        let offset = self.geometry.offset(at.stripe, 0, 0);
        self.note(|report| {
            report.stripes += 1;
            report.mismatches += 1;
            if report.places.len() < PLACES_MAX {
                report.places.push(Mismatch { stripe: at.stripe, offset, unit, slot });
            }
        });
        if mode == ScrubMode::Repair && self.check_writable().is_ok() {
            let correct: Units = match located {
                Some((unit, value)) => vec![(unit, value)],
                None => checked.wrong,
            };
            self.write_back(at, correct, WriteOpts::MAINTENANCE).await;
            self.note(|report| report.repaired += 1);
        }
    }

    /// The only unit whose correction makes the whole stripe agree, and its correct value.
    fn locate_wrong(&self, stripe: u64, checked: &Checked) -> Option<(usize, Buf)> {
        let candidates = self.geometry.units().iter();
        let mut fitting = candidates.filter_map(|unit| {
            let value = self.correction(stripe, checked, unit)?;
            Some((unit, value))
        });
        let found = fitting.next()?;
        fitting.next().is_none().then_some(found)
    }

    /// What `unit` must be if all others are right; `None` if they disagree among themselves, or
    /// do not tell.
    fn correction(&self, stripe: u64, checked: &Checked, unit: usize) -> Option<Buf> {
        let len = self.geometry.unit_len();
        let value = |of: usize| {
            let mut all = checked.data.iter().chain(&checked.parity);
            all.find(|(held, _)| *held == of).map(|(_, buf)| &**buf)
        };
        let plan =
            self.plan(stripe, UnitSet::one(unit), UnitSet::one(unit), UnitSet::new()).ok()?;
        let (coefs, sources): (Vec<u8>, Vec<&[u8]>) = plan
            .output(unit)?
            .iter()
            .map(|(source, coef)| Some((*coef, value(*source)?)))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .unzip();
        let mut corrected = Buf::new(len);
        weft_gf::encode(&[&coefs], &sources, &mut [&mut corrected]);
        let code = &self.geometry.code;
        let with = |of: usize| if of == unit { Some(&*corrected) } else { value(of) };
        for row in 0..code.p() {
            let coefs = code.row(stripe, row);
            let sources: Vec<&[u8]> = (0..code.k()).map(with).collect::<Option<_>>()?;
            let mut parity = Buf::new(len);
            weft_gf::encode(&[coefs], &sources, &mut [&mut parity]);
            if *parity != *with(code.k() + row)? {
                return None;
            }
        }
        Some(corrected)
    }

    fn note(&self, change: impl FnOnce(&mut ScrubReport)) {
        if let Some(report) = &mut *self.jobs.scrub.report.borrow_mut() {
            change(report);
        }
    }
}
