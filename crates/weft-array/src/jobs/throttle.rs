//! How fast jobs may go: never faster than the maximum, never held below the minimum.
//!
//! Between the two, users come first: while they are active a job keeps a single stripe in flight
//! (its disk requests already yield to theirs in each disk's queue), and the whole window
//! otherwise. If even that stays below the minimum, the window opens regardless of users.

use std::cell::Cell;

use weft_rt::{MILLISECOND, Nanos, SECOND};

/// Users count as active this long after their last request.
const ACTIVE_FOR: Nanos = 50 * MILLISECOND;

/// The rate of a job. Bytes are counted per member.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    min_bytes_s: Cell<u64>,
    max_bytes_s: Cell<Option<u64>>,
    /// When the next stripe may start under the maximum, and when it is late under the minimum.
    next_at: Cell<Nanos>,
    late_at: Cell<Nanos>,
    last_user: Cell<Option<Nanos>>,
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

    /// A user's request came.
    pub fn note_user(&self, now: Nanos) {
        self.last_user.set(Some(now));
    }

    /// Stripes that may be in flight now, of `window`.
    pub fn window(&self, now: Nanos, window: usize) -> usize {
        let active = self.last_user.get().is_some_and(|last| now < last + ACTIVE_FOR);
        let late = self.min_bytes_s.get() > 0 && now > self.late_at.get();
        if active && !late { 1 } else { window }
    }

    /// Counts `bytes` more to be worked on; the time at which they may begin.
    pub fn reserve(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut start = now;
        if let Some(max) = self.max_bytes_s.get() {
            start = self.next_at.get().max(now);
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
}

fn duration(bytes: u64, bytes_s: u64) -> Nanos {
    let nanos = u128::from(bytes) * u128::from(SECOND) / u128::from(bytes_s.max(1));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX / 2)
}
