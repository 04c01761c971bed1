//! Scrub: reading everything and comparing it with its redundancy.
//!
//! *Check* counts and locates stripes whose parity disagrees with the data. *Repair* also corrects
//! them. Which unit is wrong is not always known: with one parity unit, data and parity merely
//! disagree, and the data is taken as correct. If the code has enough parity, a single wrong unit
//! can be *located*: it is the unit that, recomputed from the other units, makes all parity agree,
//! if only one unit does so. Read errors on the way are repaired in either mode, as for any read.
//!
//! Regions that were never written have nothing to compare, and regions that await a resync get
//! their parity from it. A scrub skips both; neither counts as done or left.
//!
//! The scrub's position is saved in the superblock now and then, and at a stop; the next assembly
//! continues from there. After a crash it repeats the work since the last save, at most half a
//! minute's. To save, it waits until no stripe is in flight, so that the counts cover exactly the
//! stripes before the position. The result of the last scrub stays in the superblock, with its
//! date.

use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use weft_rt::{Nanos, SECOND};
use weft_stripe::{Access, Checked, Stripe, Units, check, wrong_unit};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::log::Log;
use crate::maintenance::throttle::Window;
use crate::maintenance::{Mismatch, Progress, ScrubReport};
use crate::members::Change;
use crate::region_map::RegionNo;
use crate::state::events::Event;
use crate::superblock::{LastScrub, ScrubMode, ScrubProgress};

/// Interval at which the scrub's position is made durable.
const NOTE_PERIOD: Nanos = 30 * SECOND;

/// Most mismatches whose places are kept.
const PLACES_MAX: usize = 64;

/// The findings in one stripe.
#[derive(Debug, Default)]
struct StripeFindings {
    /// Ranges of offsets that did not match, and how many of these were corrected.
    mismatches: u32,
    repaired: u32,
    /// The wrong unit, if known.
    unit: Option<usize>,
    unreadable: bool,
    /// Some of it could not be read or reconstructed.
    failed: bool,
}

impl Engine {
    /// Scrubs the whole array.
    ///
    /// # Errors
    /// If a scrub is running already.
    pub(crate) async fn scrub(&self, mode: ScrubMode) -> Result<ScrubReport, ArrayError> {
        if self.jobs().scrub().is_running() {
            return Err(ArrayError::Refused("a scrub is running already; cancel it first".into()));
        }
        self.check_settled()?;
        if mode == ScrubMode::Repair {
            self.check_writable()?;
        }
        let from = ScrubProgress {
            mode,
            next_stripe: 0,
            stripes: 0,
            mismatches: 0,
            repaired: 0,
            unreadable: 0,
        };
        self.jobs().scrub().begin(from, self.rt().now());
        if self.check_writable().is_ok() {
            self.repair_metadata().await;
        }
        Ok(self.scrub_from(from).await)
    }

    /// Continues the scrub that was running when the array was last stopped, or crashed.
    pub(super) fn resume_scrub(self: &Rc<Self>) {
        let from = self.members().superblock().scrub;
        if let Some(from) = from {
            self.jobs().scrub().begin(from, self.rt().now());
            let array = self.clone();
            drop(self.rt().spawn(async move { array.scrub_from(from).await }));
        }
    }

    /// Runs a scrub that was started.
    async fn scrub_from(&self, from: ScrubProgress) -> ScrubReport {
        let state = self.jobs().scrub();
        self.note_scrub(Some(from), None).await;
        let next_stripe = self.scrub_stripes(from).await;
        let complete = next_stripe >= self.geometry().stripes();
        let ended = self.clock().unix_s(self.rt().now());
        if self.must_end() && !complete && !state.is_cancelled() {
            // The stop that ends it makes this durable; otherwise the next run continues a little
            // further back.
            let progress = self.scrub_progress(from.mode, next_stripe);
            self.members().edit(|superblock| superblock.scrub = progress);
            return state.end(false, ended);
        }
        let report = state.report().expect("made when it began");
        let last = LastScrub {
            ended_unix_s: ended,
            mode: from.mode,
            complete,
            stripes: report.stripes,
            mismatches: report.mismatches,
            repaired: report.repaired,
            unreadable: report.unreadable,
        };
        self.note_scrub(None, Some(last)).await;
        let report = state.end(complete, ended);
        let (mismatches, repaired) = (report.mismatches, report.repaired);
        self.events().emit(Event::ScrubFinished { mismatches, repaired });
        report
    }

    /// Whether the scrub must end because the array is stopped or broken.
    fn must_end(&self) -> bool {
        self.service().is_stopped() || self.service().is_broken()
    }

    fn scrub_progress(&self, mode: ScrubMode, next_stripe: u64) -> Option<ScrubProgress> {
        let report = self.jobs().scrub().report()?;
        let ScrubReport { stripes, mismatches, repaired, unreadable, .. } = report;
        Some(ScrubProgress { mode, next_stripe, stripes, mismatches, repaired, unreadable })
    }

    /// The running scrub, or the last one.
    pub(crate) fn scrub_report(&self) -> Option<ScrubReport> {
        let last = || self.members().superblock().last_scrub.map(ScrubReport::from);
        self.jobs().scrub().report().or_else(last)
    }

    /// The progress of the running scrub.
    pub(super) fn scrub_job(&self) -> Option<Progress> {
        let state = self.jobs().scrub();
        let mut progress = state.progress()?;
        progress.total = state.begun() + self.stripes_to_scrub(state.next());
        Some(progress)
    }

    /// Whether a scrub compares the region.
    fn is_scrubbed(&self, region: RegionNo) -> bool {
        self.map().is_written(region) && !self.map().needs_resync(region)
    }

    /// Stripes that a scrub compares, from `from` on.
    fn stripes_to_scrub(&self, from: u64) -> u64 {
        if from >= self.geometry().stripes() {
            return 0;
        }
        let left = (self.geometry().regions().holding(from..self.geometry().stripes()))
            .filter(|region| self.is_scrubbed(*region))
            .map(|region| self.geometry().regions().stripes_of(region));
        left.map(|stripes| stripes.end - stripes.start.max(from)).sum()
    }

    /// The first stripe from `from` on that a scrub compares.
    fn next_to_scrub(&self, mut from: u64) -> u64 {
        while from < self.geometry().stripes()
            && !self.is_scrubbed(self.geometry().regions().of(from))
        {
            from = self.geometry().regions().stripes_of(self.geometry().regions().of(from)).end;
        }
        from
    }

    /// Makes the scrub's position durable, or its result: the corrections before it first.
    async fn note_scrub(&self, progress: Option<ScrubProgress>, last: Option<LastScrub>) {
        if self.members().superblock().scrub == progress {
            return;
        }
        let note = |change: &Change<'_>| {
            let superblock = &mut *change.superblock();
            superblock.scrub = progress;
            superblock.last_scrub = last.or(superblock.last_scrub);
        };
        let mode = progress.map(|progress| progress.mode).or_else(|| last.map(|last| last.mode));
        // If the array breaks, its metadata stays unchanged.
        let _ = match mode {
            Some(ScrubMode::Repair) => self.change_after_flush(note).await,
            Some(ScrubMode::Check) | None => self.change(note).await,
        };
    }

    /// Returns the first stripe that was not compared.
    async fn scrub_stripes(&self, from: ScrubProgress) -> u64 {
        let state = self.jobs().scrub();
        let mut window = Window::default();
        let mut in_flight = FuturesUnordered::new();
        let mut next = from.next_stripe;
        let mut note_at = self.rt().now() + NOTE_PERIOD;
        let mut undone: Option<u64> = None;
        loop {
            next = self.next_to_scrub(next);
            state.set_next(next);
            let ending = self.must_end() || state.is_cancelled();
            if in_flight.is_empty() && !ending {
                // Nothing is in flight: all stripes before this one are done.
                if self.rt().now() >= note_at {
                    self.note_scrub(self.scrub_progress(from.mode, next), None).await;
                    note_at = self.rt().now() + NOTE_PERIOD;
                }
                if self.jobs().is_paused() {
                    self.jobs().bell().await;
                    continue;
                }
            }
            let now = self.rt().now();
            // Even at a low rate, little is queued ahead, so that the scrub can stop soon.
            let is_behind = in_flight.is_empty() || self.jobs().throttle().backlog(now) < SECOND;
            let open = !ending && !self.jobs().is_paused() && now < note_at && is_behind;
            let flying = in_flight.len();
            let most = window.stripes(self.jobs().throttle(), now, flying, self.window());
            if open && flying < most && next < self.geometry().stripes() {
                window.count(self.geometry().unit_bytes);
                in_flight.push(self.scrub_stripe(next, from.mode));
                state.count_begun();
                next += 1;
                continue;
            }
            match in_flight.next().await {
                Some(Ok(())) => {}
                Some(Err(stripe)) => undone = Some(undone.map_or(stripe, |old| old.min(stripe))),
                None if ending || next >= self.geometry().stripes() => {
                    return undone.unwrap_or(next);
                }
                None => continue,
            }
            state.step(self.rt().now());
        }
    }

    /// Compares a stripe; returns its number as error if it was not compared.
    async fn scrub_stripe(&self, stripe: u64, mode: ScrubMode) -> Result<(), u64> {
        if !self.pace(|| self.must_end() || self.jobs().scrub().is_cancelled()).await {
            return Err(stripe);
        }
        let id = self.id(stripe);
        let Ok(_memory) = self.job_memory(self.geometry_of(id)).await else { return Err(stripe) };
        let _lock = self.locks().exclusive(id).await;
        if !self.is_scrubbed(self.region_of(id)) {
            return Ok(());
        }
        if self.check_not_torn(id).is_err() {
            return Err(stripe);
        }
        let mut seen = StripeFindings::default();
        for (from, len) in self.runs(self.geometry()) {
            let (resolved, at) = (self.stripe(id), Access::maintenance(from));
            match check(self, resolved, at, len).await {
                Ok(checked) => {
                    seen.unreadable |= !checked.unrepaired.is_empty();
                    if !checked.wrong.is_empty() {
                        self.mismatch(resolved, at, mode, checked, &mut seen).await;
                    }
                }
                Err(_) => (seen.unreadable, seen.failed) = (true, true),
            }
        }
        let offset_bytes = self.geometry().offset(stripe, 0, 0);
        let found = seen.mismatches > 0;
        self.jobs().scrub().note(|report| {
            report.stripes += u64::from(found || !seen.failed);
            report.mismatches += u64::from(found);
            report.repaired += u64::from(found && seen.repaired == seen.mismatches);
            report.unreadable += u64::from(seen.unreadable);
            if found && report.places.len() < PLACES_MAX {
                let unit = seen.unit;
                let slot = unit.map(|unit| self.slot_of(id, unit));
                report.places.push(Mismatch { stripe, offset_bytes, unit, slot });
            }
        });
        Ok(())
    }

    /// Handles a mismatch in a range of offsets; corrects it in repair mode.
    async fn mismatch(
        &self,
        stripe: Stripe<'_>,
        at: Access,
        mode: ScrubMode,
        checked: Checked,
        seen: &mut StripeFindings,
    ) {
        let located = if stripe.lost.is_empty() { wrong_unit(stripe, &checked) } else { None };
        let unit = located.as_ref().map(|(unit, _)| *unit);
        // Only if it is the same unit in every range.
        seen.unit =
            if seen.mismatches == 0 { unit } else { seen.unit.filter(|u| unit == Some(*u)) };
        seen.mismatches += 1;
        if mode == ScrubMode::Repair && self.check_writable().is_ok() {
            let correct: Units = match located {
                Some((unit, value)) => vec![(unit, value)],
                None => checked.wrong,
            };
            // Recovery would compute parity from what the stripe held until now.
            let has_records = |log: &Log| log.has_records(stripe.id, 0, self.geometry().unit_len());
            if self.log().is_some_and(has_records) {
                self.retire_durably().await;
            }
            // A former member must not come back without the correction.
            let region = self.region_of(stripe.id);
            let noted = self.map().note_missed(self, region).await;
            let written = noted.is_ok() && self.write_back(stripe.id, at, correct).await.is_ok();
            // What was read of the stripe before, or is being read, may be the wrong contents.
            self.note_correction();
            seen.repaired += u32::from(written);
        }
    }
}
