//! The speed control of Linux MD, as in `md_do_sync`: the baseline of the papers.
//!
//! After every 128 KiB of each member, MD computes its speed over the last marks (one every 3 s,
//! ten of them). Below the minimum it continues regardless of users. Above it, it continues only if
//! it is below the maximum and the array was otherwise idle since the last check. If not:
//! * **2.6** (the papers' kernels): it sleeps 250 ms, and checks again;
//! * **2.6.18** (ALV's kernel): it sleeps 500 ms, and sees users only when they have moved more
//!   than 2 MiB of a disk since the last time (`+ 4096) > 8192` in `is_mddev_idle`);
//! * **today**: above the maximum it sleeps 500 ms; while users are active it keeps at most 32
//!   requests of 4 KiB in flight and, when it has as many, waits until all have ended.

use std::collections::VecDeque;

use serde::Deserialize;
use weft_array::experiment::{Admission, Bounds, Pace, Throttle};
use weft_rt::{MILLISECOND, Nanos, SECOND};

/// Bytes of each member between two checks (`window` of `md_do_sync`: 32 pages).
const LOOK_EVERY_BYTES: u64 = 128 << 10;
/// Time between two marks, and how many are kept (`SYNC_MARK_STEP`, `SYNC_MARKS`).
const MARK_STEP: Nanos = 3 * SECOND;
const MARKS: usize = 10;
/// User bytes since the last check that still count as idle (32 sectors, `is_mddev_idle`).
const IDLE_BYTES: u64 = 32 * 512;
/// The window of Linux 2.6.18: 4096 sectors.
const IDLE_BYTES_LENIENT: u64 = 4096 * 512;
/// Bytes in flight while users are active today: 32 requests of 4 KiB (`sync_io_depth`).
const DEPTH_BYTES: u64 = 32 * 4096;

/// What it does when it may not continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Manner {
    /// 2.6: it sleeps 250 ms.
    #[serde(rename = "md-sleep")]
    Sleep,
    /// 2.6.18: it sleeps 500 ms, and notices users late.
    #[serde(rename = "md-lenient")]
    Lenient,
    /// Today: it waits for the requests in flight.
    #[serde(rename = "md-depth")]
    Depth,
}

/// The speed control.
#[derive(Debug)]
pub(crate) struct SpeedControl {
    manner: Manner,
    marks: VecDeque<(Nanos, u64)>,
    bytes: u64,
    looked_at: u64,
    last_bytes: u64,
    user_bytes: u64,
    asleep_until: Nanos,
    draining: bool,
}

impl SpeedControl {
    pub fn new(manner: Manner, now: Nanos) -> Self {
        Self {
            manner,
            marks: [(now, 0)].into(),
            bytes: 0,
            looked_at: 0,
            last_bytes: 0,
            user_bytes: 0,
            asleep_until: 0,
            draining: false,
        }
    }

    /// Bytes per second since the oldest mark, rounded as MD does.
    fn speed(&mut self, now: Nanos) -> u64 {
        if self.marks.back().is_some_and(|(last, _)| now >= last + MARK_STEP) {
            self.marks.push_back((now, self.bytes));
            if self.marks.len() > MARKS {
                self.marks.pop_front();
            }
        }
        let (since, before) = self.marks.front().copied().unwrap_or((now, 0));
        (self.bytes - before) / ((now - since) / SECOND + 1) + 1024
    }

    fn was_idle(&mut self, throttle: &Throttle) -> bool {
        let since = throttle.user_bytes().wrapping_sub(self.user_bytes);
        let idle_bytes =
            if self.manner == Manner::Lenient { IDLE_BYTES_LENIENT } else { IDLE_BYTES };
        if since > idle_bytes {
            self.user_bytes = throttle.user_bytes();
        }
        since <= idle_bytes
    }
}

impl Pace for SpeedControl {
    fn admit(
        &mut self,
        throttle: &Throttle,
        now: Nanos,
        in_flight: usize,
        window: usize,
    ) -> Admission {
        self.draining &= in_flight > 0;
        if self.draining || in_flight >= window {
            return Admission::AfterOne;
        }
        if now < self.asleep_until {
            return Admission::At(self.asleep_until);
        }
        if self.bytes - self.looked_at < LOOK_EVERY_BYTES {
            return Admission::Now;
        }
        let Bounds { min_bytes_s: min, max_bytes_s: max, .. } = throttle.get();
        let speed = self.speed(now);
        let too_fast = max.is_some_and(|max| speed > max);
        let flying = in_flight as u64 * self.last_bytes;
        let held = speed > min
            && (too_fast
                || (self.manner != Manner::Depth || flying >= DEPTH_BYTES)
                    && !self.was_idle(throttle));
        match (held, self.manner) {
            (false, _) => {
                self.looked_at = self.bytes;
                Admission::Now
            }
            (true, Manner::Depth) if !too_fast => {
                self.draining = true;
                Admission::AfterOne
            }
            (true, manner) => {
                let sleep = if manner == Manner::Sleep { 250 } else { 500 };
                self.asleep_until = now + sleep * MILLISECOND;
                Admission::At(self.asleep_until)
            }
        }
    }

    fn begun(&mut self, _: &Throttle, _: Nanos, bytes: u64) {
        self.bytes += bytes;
        self.last_bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;

    /// The rate in bytes per second over a minute, if a stripe takes `each`, two run at a time, and
    /// users request 64 KiB every `users`.
    fn rate(
        manner: Manner,
        (min, max): (u64, Option<u64>),
        each: Nanos,
        users: Option<Nanos>,
    ) -> u64 {
        let throttle = Throttle::default();
        throttle.set(min, max);
        let mut funnel = SpeedControl::new(manner, 0);
        let mut ends: VecDeque<Nanos> = VecDeque::new();
        let (mut now, mut done, mut next_user) = (0, 0, 0);
        while now < 60 * SECOND {
            while users.is_some() && next_user <= now {
                throttle.note_user(next_user, 64 << 10);
                next_user += users.unwrap_or(SECOND);
            }
            ends.retain(|end| *end > now);
            match funnel.admit(&throttle, now, ends.len(), 8) {
                Admission::Now => {
                    funnel.begun(&throttle, now, UNIT);
                    done += UNIT;
                    ends.push_back(ends.back().copied().unwrap_or(now).max(now) + each);
                }
                Admission::At(time) => now = time.max(now + 1),
                Admission::AfterOne => now = ends[0],
            }
        }
        done / 60
    }

    #[test]
    fn it_keeps_between_its_bounds() {
        let bounds = (1_000_000, Some(5_000_000));
        // A disk of 65 MB/s.
        let each = MILLISECOND;
        for manner in [Manner::Sleep, Manner::Lenient, Manner::Depth] {
            let idle = rate(manner, bounds, each, None);
            assert!((4_500_000..5_500_000).contains(&idle), "{manner:?}: {idle}");
            assert!(rate(manner, (0, None), each, None) > 60_000_000, "{manner:?}");
        }
        // While users are active the old control falls to its minimum, regardless of the disks'
        // speed.
        let with_users = rate(Manner::Sleep, bounds, each, Some(3 * MILLISECOND));
        assert!((900_000..1_300_000).contains(&with_users), "{with_users}");
        // That of 2.6.18 notices few users late: 64 KiB every 50 ms are 2 MiB in 1.6 s.
        let few = |manner| rate(manner, bounds, each, Some(50 * MILLISECOND));
        let (lenient, with_few) = (few(Manner::Lenient), few(Manner::Sleep));
        assert!(lenient > 3_000_000 && lenient > with_few, "{lenient}, {with_few}");
        // Today's continues, but never with more than its depth.
        let with_users = rate(Manner::Depth, bounds, each, Some(3 * MILLISECOND));
        assert!((4_000_000..5_500_000).contains(&with_users), "{with_users}");
    }
}
