//! The most requested stripes first (PRO: Tian et al., FAST '07 and MSST '07, §2.1).
//!
//! The scheduler gives a slice of a fixed number of stripes to the hottest zone of the [`Monitor`],
//! then chooses again. The rebuild of a zone starts where users first accessed it, and wraps
//! around, so that a hot spot is done before the rest of its zone. If no zone is hot, a slice goes
//! to the whole space, ascending.
//!
//! *No starvation.* One slice of every [`COLD_EVERY`] goes to the whole space even if zones are
//! hot: the first n stripes there are all rebuilt within n·`COLD_EVERY` stripes. And no stripe
//! becomes stale again, so the rebuild ends.
//!
//! *Preemptive* (the paper's future work): a slice is left as soon as another zone is
//! [`PREEMPT_FACTOR`] times as popular as its own. The factor keeps two zones from alternating.

use weft_rt::Nanos;

use super::ascending::Ascending;
use super::{Order, Pick};
use crate::format::rebuild_policy::RebuildPolicy;
use crate::jobs::rebuild::work::Work;
use crate::maintenance::Monitor;

/// One of this many slices goes to the whole space.
pub(crate) const COLD_EVERY: u64 = 16;

const PREEMPT_FACTOR: f64 = 2.0;

/// Where the current slice goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// To a hot zone: its number, and the next stripe to look at.
    Zone(u64, u64),
    Cold,
}

#[derive(Debug)]
pub(crate) struct Popularity {
    slice: u64,
    preemptive: bool,
    turn: Turn,
    /// Stripes left of the slice.
    left: u64,
    slices: u64,
    cold: Ascending,
}

impl Popularity {
    pub fn new(policy: &RebuildPolicy) -> Self {
        Self {
            slice: policy.slice_stripes,
            preemptive: policy.preemptive,
            turn: Turn::Cold,
            left: 0,
            slices: 0,
            cold: Ascending::default(),
        }
    }

    fn choose(&mut self, monitor: &Monitor, now: Nanos) {
        self.left = self.slice;
        self.slices += 1;
        self.turn = match monitor.hottest(now) {
            Some(zone) if !self.slices.is_multiple_of(COLD_EVERY) => {
                Turn::Zone(zone.number, zone.next)
            }
            _ => Turn::Cold,
        };
    }

    fn is_preempted(&self, monitor: &Monitor, now: Nanos) -> bool {
        let Some(best) = monitor.hottest(now) else { return false };
        match self.turn {
            Turn::Zone(number, _) => {
                best.number != number
                    && best.popularity > PREEMPT_FACTOR * monitor.popularity(number)
            }
            // This slice went to the whole space because nothing was hot, not because it was its
            // turn.
            Turn::Cold => !self.slices.is_multiple_of(COLD_EVERY),
        }
    }
}

impl Order for Popularity {
    fn next(&mut self, work: &Work<'_>, monitor: &mut Monitor, now: Nanos) -> Pick {
        loop {
            if self.left == 0 || self.preemptive && self.is_preempted(monitor, now) {
                self.choose(monitor, now);
            }
            let Turn::Zone(number, from) = self.turn else {
                self.left -= 1;
                return self.cold.step(work);
            };
            let zone = monitor.stripes_of(number);
            let found = work.next_in(from.max(zone.start)..zone.end);
            match found.or_else(|| work.next_in(zone.start..from.min(zone.end))) {
                Some(stripe) => {
                    self.left -= 1;
                    self.turn = Turn::Zone(number, stripe + 1);
                    monitor.reached(number, stripe + 1);
                    return Pick::Stripe(stripe);
                }
                None => {
                    // Rebuilt, or the rest of it is in flight.
                    monitor.retire(number);
                    self.left = 0;
                }
            }
        }
    }
}
