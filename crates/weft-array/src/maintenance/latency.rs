//! A latency target: jobs run as fast as they can while users' requests take so long on average.
//!
//! The maximum rate of jobs is the output of an integral controller. Each request that took L, with
//! a target T, changes the logarithm of the rate r:
//!
//! ```text
//!   ln r  +=  gain · (T − L) / T          gain = 1 / max(200 requests, those of two seconds)
//! ```
//!
//! *Why the target is kept.* The sum of all changes is what ln r has moved by. As r stays between
//! two bounds, so does that sum, and the mean of L over N requests differs from T by at most T ·
//! (ln r at the end − ln r at the start) / (gain · N): it tends to T however jobs, users and
//! disks depend on each other, and however irregular the times of single requests are. Jobs differ
//! only in how soon that is. Two things are needed for it:
//!
//! * The gain is the same for all requests. Were it smaller in bursts, the requests that wait
//!   longest would count least. So “those of two seconds” are of the busiest second lately, which
//!   is forgotten within half a minute or so.
//! * r is within its bounds. At the lower one users' requests take longer than T without any job.
//!   At the upper one they take less, and jobs have all that is left.
//!
//! *Why it is stable.* If jobs take most of a disk, L changes by some multiple of T when r changes
//! by a factor of e. Two seconds of requests then correct it in half a second, and the answer of
//! the disks is seen within a few L.
//!
//! *Why it beats a valve.* A valve (ALV's: `weft-lab/src/reshape/valve.rs`) knows open and shut for
//! a period each. Users fare badly in open periods and well in shut ones, and where its bound is
//! often missed even when it is shut, the job stops for good. Here the rate changes by little at a
//! time, and never falls below a minimum.
//!
//! *Bounds.* The rate is at least [`LEAST_BYTES_S`]. A job that something else holds back, or that
//! does not run, must not save up a rate for the moment when it can go on: then the rate is at most
//! twice what it achieves. Nothing is saved up at the lower bound, either. Without requests for
//! [`ACTIVE_FOR`] there is no limit: long enough that a job does not fill short pauses of users,
//! and make the next of them wait. So users with less than a request a second are not protected.

use std::cell::Cell;

use weft_rt::{MILLISECOND, Nanos, SECOND};

/// Users count as active for this long after their last request, where there is a target.
pub(super) const ACTIVE_FOR: Nanos = SECOND;

/// Lowest rate, in bytes per second and member, if the minimum is lower.
const LEAST_BYTES_S: f64 = 262_144.0;

/// What a job that the target does not hold back may add to the rate that it achieves.
const MORE_BYTES_S: f64 = 1_048_576.0;

/// Time between two changes of the rate.
pub(super) const STEP: Nanos = 100 * MILLISECOND;

/// Requests that change the rate by a factor of e if each takes twice the target, and the time
/// within which they come if there are more.
const REQUESTS: f64 = 200.0;
const REQUESTS_SECONDS: f64 = 2.0;

/// The busiest second counts less by a factor of e after this many seconds.
const FORGOTTEN_SECONDS: f64 = 30.0;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LatencyTarget {
    target: Cell<Option<Nanos>>,
    rate_bytes_s: Cell<f64>,
    /// Since the last change: when that was, Σ (T − L) / T, requests, and bytes of jobs.
    changed_at: Cell<Nanos>,
    error: Cell<f64>,
    requests: Cell<u32>,
    bytes: Cell<u64>,
    /// Requests and bytes per second, over about a second.
    requests_s: Cell<f64>,
    achieved_bytes_s: Cell<f64>,
    /// Requests in the busiest second.
    busiest_s: Cell<f64>,
}

/// The bounds of the rate, in bytes per second and member, and whether a job waits for it now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub time: Nanos,
    pub min_bytes_s: u64,
    pub max_bytes_s: Option<u64>,
    pub waits: bool,
}

impl LatencyTarget {
    /// A job starts slowly under its first target, and goes on at its rate under a changed one.
    pub fn set(&self, target: Option<Nanos>) {
        let target = target.filter(|target| *target > 0);
        if self.target.replace(target).is_none() {
            self.rate_bytes_s.set(LEAST_BYTES_S);
            self.bytes.set(0);
        }
        self.error.set(0.0);
    }

    #[inline]
    pub fn get(&self) -> Option<Nanos> {
        self.target.get()
    }

    /// The highest rate of jobs now, while users are active.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating")]
    pub fn max_bytes_s(&self) -> u64 {
        self.rate_bytes_s.get() as u64
    }

    /// Counts bytes of a job.
    pub fn count(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    /// Notes that a request has ended, which started at `begun`.
    #[cold]
    #[expect(clippy::cast_precision_loss, reason = "times and rates, not counts")]
    pub fn served(&self, begun: Nanos, now: &Now) {
        let Some(target) = self.target.get() else { return };
        let took = now.time.saturating_sub(begun) as f64;
        self.error.set(self.error.get() + 1.0 - took / target as f64);
        self.requests.set(self.requests.get() + 1);
        let since = now.time.saturating_sub(self.changed_at.get());
        if since < STEP {
            return;
        }
        self.changed_at.set(now.time);
        self.measure(since as f64 / SECOND as f64);
        let requests = REQUESTS.max(REQUESTS_SECONDS * self.busiest_s.get());
        let mut rate = self.rate_bytes_s.get() * (self.error.take() / requests).exp();
        if !now.waits {
            rate = rate.min(2.0 * self.achieved_bytes_s.get() + MORE_BYTES_S);
        }
        if let Some(max) = now.max_bytes_s {
            rate = rate.min(max as f64);
        }
        self.rate_bytes_s.set(rate.max(LEAST_BYTES_S).max(now.min_bytes_s as f64));
    }

    /// Takes the counts of these seconds. The older counts less by a factor of e for each second.
    #[expect(clippy::cast_precision_loss, reason = "rates, not counts")]
    fn measure(&self, seconds: f64) {
        let fresh = 1.0 - (-seconds).exp();
        let smooth = |of: &Cell<f64>, sum: f64| {
            of.set(of.get() + fresh * (sum / seconds - of.get()));
        };
        smooth(&self.requests_s, f64::from(self.requests.take()));
        smooth(&self.achieved_bytes_s, self.bytes.take() as f64);
        let before = self.busiest_s.get() * (-seconds / FORGOTTEN_SECONDS).exp();
        self.busiest_s.set(before.max(self.requests_s.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Nanos = 20 * MILLISECOND;

    /// A job at a rate that the target sets, or at the most that it can, in bytes per second.
    struct Job {
        latency: LatencyTarget,
        able_bytes_s: u64,
        now: Nanos,
    }

    impl Job {
        fn new(able_bytes_s: u64) -> Self {
            let latency = LatencyTarget::default();
            latency.set(Some(TARGET));
            Self { latency, able_bytes_s, now: 0 }
        }

        fn rate(&self) -> u64 {
            self.latency.max_bytes_s().min(self.able_bytes_s)
        }

        /// A request of users starts `after` the last, and takes so long. Returns how long.
        fn request(&mut self, after: Nanos, took: Nanos) -> Nanos {
            self.now += after;
            self.latency.count(
                u64::try_from(u128::from(self.rate()) * u128::from(after) / u128::from(SECOND))
                    .unwrap(),
            );
            let waits = self.latency.max_bytes_s() < self.able_bytes_s;
            let now = Now { time: self.now, min_bytes_s: 0, max_bytes_s: None, waits };
            self.latency.served(self.now - took.min(self.now), &now);
            took
        }

        /// So many requests, 125 a second, that all take so long.
        fn requests(&mut self, count: usize, took: Nanos) {
            for _ in 0..count {
                self.request(8 * MILLISECOND, took);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    fn mean_ms(times: &[Nanos]) -> f64 {
        times.iter().sum::<Nanos>() as f64 / times.len() as f64 / MILLISECOND as f64
    }

    /// Requests whose times grow with the job's rate: the mean of the last half, in ms.
    fn mean(alone: Nanos, per_mib_s: Nanos) -> f64 {
        let mut job = Job::new(u64::MAX);
        let times = (0..40_000).map(|n| {
            // One in ten takes five times as long.
            let factor = if n % 10 == 0 { 5 } else { 1 };
            let took = factor * (alone + (job.rate() * per_mib_s) / (1 << 20));
            job.request(8 * MILLISECOND, took)
        });
        mean_ms(&times.collect::<Vec<_>>()[20_000..])
    }

    #[test]
    fn the_mean_is_the_target_whatever_a_job_costs_users() {
        for (alone, per_mib_s) in [(5, 1), (12, 1), (1, 4), (8, 2)] {
            let mean = mean(alone * MILLISECOND, per_mib_s * MILLISECOND / 4);
            assert!((19.6..20.4).contains(&mean), "{mean} ms of {alone}, {per_mib_s}");
        }
    }

    #[test]
    fn requests_of_bursts_count_like_all_others() {
        let mut job = Job::new(u64::MAX);
        let mut times = Vec::new();
        for _ in 0..200 {
            // A tenth of a second with 200 requests, which take thrice as long, and two with 100.
            for (requests, after, factor) in [(200, MILLISECOND / 2, 3), (100, 20 * MILLISECOND, 1)]
            {
                for _ in 0..requests {
                    let took = factor * (3 * MILLISECOND + job.rate() / 4);
                    times.push(job.request(after, took));
                }
            }
        }
        let mean = mean_ms(&times[times.len() / 2..]);
        assert!((19.0..21.0).contains(&mean), "{mean} ms");
    }

    #[test]
    fn a_job_that_disturbs_no_user_is_not_held_back() {
        const ABLE: u64 = 80 << 20;
        let mut job = Job::new(ABLE);
        job.requests(20_000, MILLISECOND);
        assert_eq!(job.rate(), ABLE);
        // Nor is a rate saved up that it cannot have.
        assert!(job.latency.max_bytes_s() <= 3 * ABLE, "{}", job.latency.max_bytes_s());
        // When it is paused it gives the rate up, and starts again slowly.
        job.able_bytes_s = 0;
        job.requests(2000, MILLISECOND);
        assert!(job.latency.max_bytes_s() < 2 << 20, "{}", job.latency.max_bytes_s());
    }

    #[test]
    fn where_users_miss_the_target_by_themselves_a_little_is_left_to_jobs() {
        let mut job = Job::new(u64::MAX);
        job.requests(20_000, 30 * MILLISECOND);
        assert_eq!(job.rate(), 262_144);
        // What they waited in excess is not made up for: it rises as soon as they take less.
        job.requests(400, 10 * MILLISECOND);
        assert!(job.rate() > 500_000, "{}", job.rate());
    }

    #[test]
    fn a_changed_target_is_kept_from_then_on() {
        let mut job = Job::new(u64::MAX);
        let requests = |job: &mut Job| {
            let took = |job: &Job| 4 * MILLISECOND + job.rate() / 4;
            (0..8000).map(|_| job.request(8 * MILLISECOND, took(job))).collect::<Vec<_>>()
        };
        requests(&mut job);
        job.latency.set(Some(TARGET / 2));
        let mean = mean_ms(&requests(&mut job)[2000..]);
        assert!((9.8..10.2).contains(&mean), "{mean} ms");
    }
}
