//! How fast jobs run: never above the maximum rate, and held back for users only above the minimum.
//!
//! A rebuild may start a stripe whenever the bounds allow it ([`WithinBounds`]), and lets users go
//! first disk by disk. Resync and scrub need whole stripes under their lock. Their [`Window`] is a
//! single stripe while users are active, and as many as they like otherwise. If the job then falls
//! below the minimum, it works in *batches*: it starts a batch of stripes, and no other stripe
//! before all of these have ended. The reason is that a hard disk serves the nearest request first,
//! and a job's next request always is the nearest: as long as there is one, users elsewhere on the
//! disk wait. Between two batches it is their turn, and a batch is long enough to make the seeks
//! there and back cheap.
//!
//! With a *latency target* a controller sets the maximum while users are active (`latency.rs`), and
//! jobs may have more than one stripe in flight below it.

use std::cell::Cell;

use weft_rt::{MICROSECOND, MILLISECOND, Nanos, SECOND};

use super::latency::{self, LatencyTarget, Now};
pub use crate::format::preferences::Bounds;

/// Users count as active for this long after their last request.
const ACTIVE_FOR: Nanos = 50 * MILLISECOND;

/// Users count as away from this time after their last request.
const AWAY_AFTER: Nanos = 250 * MILLISECOND;

/// Bytes of a batch on each member. On a hard disk that is some 40 ms of sequential access, then
/// one or two accesses elsewhere of some 8 ms each.
const BATCH_BYTES: u64 = 5 << 19;

/// A stripe that starts late by less than this (timers are not exact) does not shift the later
/// ones.
const SLACK: Nanos = 20 * MILLISECOND;

/// The bounds of the jobs' rate, and the activity of users. Bytes are counted per member.
#[derive(Debug, Default)]
pub struct Throttle {
    min_bytes_s: Cell<u64>,
    max_bytes_s: Cell<Option<u64>>,
    /// When the next stripe may start under the maximum, and when the job is late under the
    /// minimum.
    next_at: Cell<Nanos>,
    late_at: Cell<Nanos>,
    last_user: Cell<Option<Nanos>>,
    user_bytes: Cell<u64>,
    latency: LatencyTarget,
    /// Times that bounds or target were set: earlier reservations no longer hold.
    settings: Cell<u64>,
}

/// When one more stripe may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Now.
    Now,
    /// Not before this time.
    At(Nanos),
    /// When one of the stripes in flight has ended.
    AfterOne,
}

/// How fast a rebuild runs between the bounds.
pub trait Pace {
    /// When one more stripe may start, with `in_flight` of at most `window` in flight.
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission;

    /// Notes that a stripe started, with `bytes` on each member.
    fn begun(&mut self, throttle: &Throttle, now: Nanos, bytes: u64);
}

impl Throttle {
    /// Sets the bounds in bytes per second and member; `None` for `max_bytes_s` means unbounded. A
    /// minimum above the maximum is lowered to it.
    pub fn set(&self, min_bytes_s: u64, max_bytes_s: Option<u64>) {
        self.min_bytes_s.set(max_bytes_s.map_or(min_bytes_s, |max| min_bytes_s.min(max)));
        self.max_bytes_s.set(max_bytes_s);
        self.next_at.set(0);
        self.late_at.set(0);
        self.settings.set(self.settings.get() + 1);
    }

    /// Sets the latency target; `None` means none.
    pub fn set_latency_target(&self, target: Option<Nanos>) {
        self.latency.set(target);
        self.next_at.set(0);
        self.settings.set(self.settings.get() + 1);
    }

    /// How often the bounds or the target were set: a start that was reserved before the last time
    /// has to be reserved again.
    pub fn settings(&self) -> u64 {
        self.settings.get()
    }

    /// Restores the stored bounds and latency target.
    pub fn restore(&self, bounds: &Bounds) {
        self.set(bounds.min_bytes_s, bounds.max_bytes_s);
        self.set_latency_target(bounds.latency_us.map(|us| us.saturating_mul(MICROSECOND)));
    }

    /// The bounds.
    pub fn get(&self) -> Bounds {
        let (min_bytes_s, max_bytes_s) = (self.min_bytes_s.get(), self.max_bytes_s.get());
        let latency_us = self.latency.get().map(|target| target / MICROSECOND);
        Bounds { min_bytes_s, max_bytes_s, latency_us }
    }

    /// The highest rate now.
    fn max_now(&self, now: Nanos) -> Option<u64> {
        let max = self.max_bytes_s.get();
        if self.latency.get().is_none() || !self.users_are_active(now) {
            return max;
        }
        let paced = self.latency.max_bytes_s();
        Some(max.map_or(paced, |max| max.min(paced)))
    }

    /// Notes that a user's request has ended, which started at `begun`.
    #[inline]
    pub fn note_served(&self, begun: Nanos, now: impl FnOnce() -> Nanos) {
        if self.latency.get().is_some() {
            let time = now();
            let (min_bytes_s, max_bytes_s) = (self.min_bytes_s.get(), self.max_bytes_s.get());
            let waits = time < self.next_at.get();
            self.latency.served(begun, &Now { time, min_bytes_s, max_bytes_s, waits });
        }
    }

    /// Notes a user's request of `bytes`.
    pub fn note_user(&self, now: Nanos, bytes: u64) {
        self.last_user.set(Some(now));
        self.user_bytes.set(self.user_bytes.get().wrapping_add(bytes));
    }

    /// Bytes that users requested in total, modulo 2^64.
    pub fn user_bytes(&self) -> u64 {
        self.user_bytes.get()
    }

    /// Whether users had requests lately.
    pub(crate) fn users_are_active(&self, now: Nanos) -> bool {
        let active_for = match self.latency.get() {
            Some(_) => latency::ACTIVE_FOR,
            None => ACTIVE_FOR,
        };
        self.last_user.get().is_some_and(|last| now < last + active_for)
    }

    /// Whether users have had no requests for some time.
    pub(crate) fn users_are_away(&self, now: Nanos) -> bool {
        self.last_user.get().is_none_or(|last| now >= last + AWAY_AFTER)
    }

    /// Whether the job is below its minimum.
    pub(crate) fn is_late(&self, now: Nanos) -> bool {
        self.min_bytes_s.get() > 0 && now > self.late_at.get()
    }

    /// A job that starts is not late.
    pub(super) fn begin(&self, now: Nanos) {
        self.late_at.set(self.late_at.get().max(now));
    }

    /// How long the work counted so far takes at the maximum rate.
    pub(crate) fn backlog(&self, now: Nanos) -> Nanos {
        self.max_now(now).map_or(0, |_| self.next_at.get().saturating_sub(now))
    }

    /// Counts `bytes` of work. Returns when it may start.
    pub fn reserve(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut start = now;
        self.latency.count(bytes);
        if let Some(max) = self.max_now(now) {
            let due = self.next_at.get();
            start = if due == 0 || due + SLACK < now { now } else { due };
            self.next_at.set(start + duration(bytes, max));
        }
        let min = self.min_bytes_s.get();
        if min > 0 {
            // At most a second of idle time counts towards the minimum.
            self.late_at
                .set(self.late_at.get().max(start.saturating_sub(SECOND)) + duration(bytes, min));
        }
        start
    }

    /// Counts `bytes` that users' requests rebuilt: the job slows down for them, but never for
    /// long.
    pub(crate) fn charge(&self, now: Nanos, bytes: u64) {
        if self.next_at.get() < now + DEBT_MAX {
            self.reserve(now, bytes);
        }
    }
}

/// The longest time for which the work of users' requests may hold a job back.
const DEBT_MAX: Nanos = SECOND;

/// Stripes that a resync or a scrub keeps in flight: see the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Bytes started on each member since nothing was in flight.
    batch_bytes: u64,
}

impl Window {
    /// How many stripes, of `most`, may be in flight now.
    pub fn stripes(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        most: usize,
    ) -> usize {
        if in_flight == 0 {
            self.batch_bytes = 0;
        }
        match (throttle.users_are_active(now), throttle.is_late(now)) {
            (false, _) => most,
            (true, true) if self.batch_bytes < BATCH_BYTES => most,
            // Little is queued ahead, as the rate will soon be another.
            (true, false) if throttle.latency.get().is_some() => {
                if throttle.backlog(now) > latency::STEP { in_flight.max(1) } else { most }
            }
            (true, _) => 1,
        }
    }

    /// Counts a stripe that starts, with `bytes` on each member.
    pub fn count(&mut self, bytes: u64) {
        self.batch_bytes = self.batch_bytes.saturating_add(bytes);
    }
}

/// The pace of rebuilds and reshapes: only the bounds, and the latency target.
#[derive(Debug)]
pub struct WithinBounds;

impl Pace for WithinBounds {
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission {
        match throttle.max_now(now) {
            _ if in_flight >= window => Admission::AfterOne,
            Some(_) if now < throttle.next_at.get() => Admission::At(throttle.next_at.get()),
            _ => Admission::Now,
        }
    }

    fn begun(&mut self, throttle: &Throttle, now: Nanos, bytes: u64) {
        throttle.reserve(now, bytes);
    }
}

fn duration(bytes: u64, bytes_s: u64) -> Nanos {
    let nanos = u128::from(bytes) * u128::from(SECOND) / u128::from(bytes_s.max(1));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;
    const MOST: usize = 64;

    /// Number of stripes that start one after the other at `now`, if none of them ends.
    fn begun(window: &mut Window, throttle: &Throttle, now: Nanos, in_flight: usize) -> usize {
        let mut more = 0;
        while in_flight + more < window.stripes(throttle, now, in_flight + more, MOST) {
            window.count(UNIT);
            throttle.reserve(now, UNIT);
            more += 1;
        }
        more
    }

    fn throttle(min_bytes_s: u64, last_user: Option<Nanos>) -> Throttle {
        let throttle = Throttle::default();
        throttle.set(min_bytes_s, None);
        last_user.into_iter().for_each(|at| throttle.note_user(at, 4096));
        throttle
    }

    #[test]
    fn while_users_are_active_one_stripe_is_in_flight_or_a_batch_below_the_minimum() {
        let now = 100 * SECOND;
        let first = |throttle: &Throttle| begun(&mut Window::default(), throttle, now, 0);
        assert_eq!(first(&throttle(0, None)), MOST);
        assert_eq!(first(&throttle(0, Some(now))), 1);
        assert_eq!(first(&throttle(0, Some(now - ACTIVE_FOR))), MOST);
        // A minimum that cannot be reached, and one for which a second may be caught up.
        assert_eq!(first(&throttle(u64::MAX, Some(now))), to_usize(BATCH_BYTES / UNIT));
        assert_eq!(first(&throttle(10 * UNIT, Some(now))), 10);
    }

    #[test]
    fn a_batch_ends_before_the_next_begins() {
        let now = 100 * SECOND;
        let throttle = throttle(u64::MAX, Some(now));
        let mut window = Window::default();
        let batch = begun(&mut window, &throttle, now, 0);
        for in_flight in (1..batch).rev() {
            assert_eq!(begun(&mut window, &throttle, now, in_flight), 0, "{in_flight} in flight");
        }
        assert_eq!(begun(&mut window, &throttle, now, 0), batch);
        // Once users are gone the job does not wait for them.
        let later = now + ACTIVE_FOR;
        assert_eq!(begun(&mut window, &throttle, later, batch), MOST - batch);
    }

    #[test]
    fn a_latency_target_holds_jobs_back_while_users_are_active() {
        let now = 100 * SECOND;
        let throttle = throttle(0, Some(now));
        let admitted = |now| WithinBounds.admit(&throttle, now, 0, MOST);
        throttle.set_latency_target(Some(10 * MILLISECOND));
        throttle.reserve(now, UNIT);
        // It starts with four units per second.
        assert_eq!(admitted(now), Admission::At(now + SECOND / 4));
        let mut window = Window::default();
        assert_eq!(window.stripes(&throttle, now, 0, MOST), 1);
        assert_eq!(window.stripes(&throttle, now, 1, MOST), 1);
        assert_eq!(window.stripes(&throttle, now + SECOND / 4, 1, MOST), MOST);
        // Short pauses of users are left to them.
        throttle.reserve(now + SECOND - 1, UNIT);
        assert_ne!(admitted(now + SECOND - 1), Admission::Now);
        assert_eq!(admitted(now + SECOND), Admission::Now);
        // Without the target no time that was reserved under it counts.
        throttle.note_user(now + SECOND, 4096);
        throttle.reserve(now + SECOND, UNIT);
        assert_ne!(admitted(now + SECOND), Admission::Now);
        throttle.set_latency_target(None);
        assert_eq!(admitted(now + SECOND), Admission::Now);
    }

    #[test]
    fn a_latency_target_stays_within_the_bounds() {
        let throttle = Throttle::default();
        throttle.set(2 * UNIT, Some(100 * UNIT));
        throttle.set_latency_target(Some(10 * MILLISECOND));
        let mut now = SECOND;
        let mut rate_after = |took: Nanos| {
            for _ in 0..5000 {
                now += 10 * MILLISECOND;
                throttle.note_user(now, 4096);
                throttle.reserve(now, UNIT);
                throttle.note_served(now - took, || now);
            }
            throttle.max_now(now).unwrap()
        };
        assert_eq!(rate_after(SECOND), 4 * UNIT);
        throttle.set(20 * UNIT, Some(100 * UNIT));
        assert_eq!(rate_after(SECOND), 20 * UNIT);
        assert_eq!(rate_after(MILLISECOND), 100 * UNIT);
    }

    fn to_usize(n: u64) -> usize {
        usize::try_from(n).unwrap_or(usize::MAX)
    }
}
