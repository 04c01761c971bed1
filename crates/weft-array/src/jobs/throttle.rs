//! How fast jobs may go: never faster than the maximum, never held below the minimum.
//!
//! What lies between the two is a [`Pace`]. That of weft ([`UsersFirst`]): while users are active a job
//! keeps a single stripe in flight (its disk requests already yield to theirs in each disk's queue),
//! and the whole window otherwise. If even that stays below the minimum, the window opens
//! regardless of users. Linux MD's two ([`md`]) are there to be compared with.

pub(crate) mod md;

use std::cell::Cell;

use weft_rt::{MILLISECOND, Nanos, SECOND};

/// Users count as active this long after their last request.
const ACTIVE_FOR: Nanos = 50 * MILLISECOND;

/// A stripe that begins late by less than this (timers are) does not shift those after it.
const SLACK: Nanos = 20 * MILLISECOND;

/// The bounds of the jobs' rate, and what is known of users. Bytes are counted per member.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    min_bytes_s: Cell<u64>,
    max_bytes_s: Cell<Option<u64>>,
    /// When the next stripe may start under the maximum, and when it is late under the minimum.
    next_at: Cell<Nanos>,
    late_at: Cell<Nanos>,
    last_user: Cell<Option<Nanos>>,
    user_bytes: Cell<u64>,
}

/// When one more stripe may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    /// Not before this time.
    At(Nanos),
    /// When one of those in flight has ended.
    AfterOne,
}

/// How a job moves between the bounds.
pub(crate) trait Pace {
    /// When one more stripe may begin, beside `in_flight` others of at most `window`.
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission;

    /// A stripe began, with `bytes` on each member.
    fn begun(&mut self, throttle: &Throttle, now: Nanos, bytes: u64);
}

impl Throttle {
    /// Bounds in bytes per second and member; `max` `None` is without bound. A minimum above the
    /// maximum is the maximum.
    pub fn set(&self, min_bytes_s: u64, max_bytes_s: Option<u64>) {
        self.min_bytes_s.set(max_bytes_s.map_or(min_bytes_s, |max| min_bytes_s.min(max)));
        self.max_bytes_s.set(max_bytes_s);
        self.next_at.set(0);
        self.late_at.set(0);
    }

    /// The bounds.
    pub fn get(&self) -> (u64, Option<u64>) {
        (self.min_bytes_s.get(), self.max_bytes_s.get())
    }

    /// A user's request of so many bytes came.
    pub fn note_user(&self, now: Nanos, bytes: u64) {
        self.last_user.set(Some(now));
        self.user_bytes.set(self.user_bytes.get().wrapping_add(bytes));
    }

    /// Stripes that may be in flight now, of `window`.
    pub fn window(&self, now: Nanos, window: usize) -> usize {
        let active = self.last_user.get().is_some_and(|last| now < last + ACTIVE_FOR);
        let late = self.min_bytes_s.get() > 0 && now > self.late_at.get();
        if active && !late { 1 } else { window }
    }

    /// How long what is counted already takes at the maximum.
    pub fn backlog(&self, now: Nanos) -> Nanos {
        self.max_bytes_s.get().map_or(0, |_| self.next_at.get().saturating_sub(now))
    }

    /// Counts `bytes` more to be worked on; the time at which they may begin.
    pub fn reserve(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut start = now;
        if let Some(max) = self.max_bytes_s.get() {
            let due = self.next_at.get();
            start = if due == 0 || due + SLACK < now { now } else { due };
            self.next_at.set(start + duration(bytes, max));
        }
        let min = self.min_bytes_s.get();
        if min > 0 {
            // An idle time is not made up for: the minimum counts from now.
            self.late_at
                .set(self.late_at.get().max(start.saturating_sub(SECOND)) + duration(bytes, min));
        }
        start
    }

    /// Counts `bytes` that users' requests brought: the job goes slower for them, but never long.
    pub fn charge(&self, now: Nanos, bytes: u64) {
        if self.next_at.get() < now + DEBT_MAX {
            self.reserve(now, bytes);
        }
    }
}

/// What users brought may hold a job back for this long, at most.
const DEBT_MAX: Nanos = SECOND;

/// Users first: see the head of this file.
#[derive(Debug, Default)]
pub(crate) struct UsersFirst;

impl Pace for UsersFirst {
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission {
        Greedy.admit(throttle, now, in_flight, throttle.window(now, window))
    }

    fn begun(&mut self, throttle: &Throttle, now: Nanos, bytes: u64) {
        throttle.reserve(now, bytes);
    }
}

/// Nothing but the bounds: users are given way only by each disk's queue.
#[derive(Debug, Default)]
pub(crate) struct Greedy;

impl Pace for Greedy {
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission {
        match throttle.max_bytes_s.get() {
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
