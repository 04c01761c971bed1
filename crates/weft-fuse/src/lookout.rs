//! Whether to look for the next request, or to sleep until it comes.
//!
//! A program that makes many files sends one small request after the other: the next one comes when
//! the last was answered, and a few microseconds of thinking later. If the thread sleeps in
//! between, each request pays for two switches of the processor: putting the thread to sleep and
//! waking it, often across processors, takes several times as long as carrying the request out. So
//! while requests follow each other closely, the thread keeps looking for the next one for a while
//! ([`LOOK_NS`]) before it sleeps. Other tasks of the thread run between two looks, so nothing
//! waits for this.
//!
//! *Giving way.* Between two looks the thread also yields its processor (`sched_yield`). Often the
//! program was woken on the processor that answered it, and waits for just that one; it then runs
//! at once, as if the thread had slept, and nothing had to be woken on another processor.
//!
//! *What it costs.* Processor time that nothing else on this processor wants, up to [`LOOK_NS`]
//! where the next request fails to come; and if other programs want the processor, the thread gets
//! it back only after their time slices, when the request may have waited long. So looking is paid
//! for: a look that meets its request earns what a wake-up costs, one in vain costs the time that
//! went by. In debt the thread sleeps, and each short wait pays a little back, so that it tries
//! again later. A look also needs a short wait before it. So a file system that is not used, or
//! that is asked now and then, spends nothing. (The kernel polls for guests that halt in this way,
//! `halt_poll_ns`.)
//!
//! A program that waits for an answer sleeps. On request, requests that follow each other closely
//! keep its processor awake ([`crate::awake`]).
//!
//! *One processor.* The program that sends the next request cannot run while the thread looks, so a
//! look finds nothing that a sleep would not. A thread that may use only one processor never looks.

use weft_rt::{MICROSECOND, MILLISECOND, Nanos, usable_cpus};

use crate::awake::Awake;

/// For how long to look, at most: several times what a program thinks between two requests, and
/// less than what a program notices.
const LOOK_NS: Nanos = 100 * MICROSECOND;
/// What a look earns that meets its request: a cheap wake-up.
const EARNED_NS: i64 = 20 * MICROSECOND.cast_signed();
/// What a short wait pays back.
const PAID_BACK_NS: i64 = 2 * MICROSECOND.cast_signed();
/// The highest credit, and the deepest debt.
const CREDIT_NS: i64 = MILLISECOND.cast_signed();
const DEBT_NS: i64 = 20 * MILLISECOND.cast_signed();

/// Lets programs run that wait for this processor.
pub(crate) fn give_way() {
    rustix::thread::sched_yield();
}

/// Decides after each wait how to start the next one.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// Looking can help at all.
    can_help: bool,
    /// The last wait was so short that looking would have met its request.
    was_short: bool,
    /// Since when there has been no request.
    since: Option<Nanos>,
    /// The thread is looking.
    looks: bool,
    /// What looking has earned, less what it has cost.
    credit_ns: i64,
    awake: Option<Awake>,
}

impl Lookout {
    /// Of this thread, which keeps processors awake or does not.
    pub(crate) fn new(awake: Option<Awake>) -> Self {
        Self { awake, ..Self::with_cpus(usable_cpus().map_or(1, |cpus| cpus.len())) }
    }

    /// Always sleeps.
    pub(crate) fn closed() -> Self {
        Self::with_cpus(1)
    }

    fn with_cpus(cpus: usize) -> Self {
        let can_help = cpus > 1;
        Self { can_help, was_short: false, since: None, looks: false, credit_ns: 0, awake: None }
    }

    /// A request came.
    pub(crate) fn came(&mut self, now: impl FnOnce() -> Nanos) {
        let Some(since) = self.since.take() else {
            // The requests follow each other as closely as they can.
            self.was_short = true;
            return;
        };
        let waited = now() - since;
        self.was_short = waited < LOOK_NS;
        if let Some(awake) = &self.awake {
            awake.came(self.was_short);
        }
        match std::mem::take(&mut self.looks) {
            true if self.was_short => self.earn(EARNED_NS),
            true => self.pay(waited),
            false if self.was_short && self.credit_ns < 0 => self.earn(PAID_BACK_NS),
            false => {}
        }
    }

    /// There is no request. Whether to look again, or else to sleep until there is one.
    pub(crate) fn looks_again(&mut self, now: impl FnOnce() -> Nanos) -> bool {
        if !self.can_help {
            return false;
        }
        let now = now();
        let waited = now - *self.since.get_or_insert(now);
        if !self.was_short || self.credit_ns < 0 {
            return false;
        }
        if waited < LOOK_NS {
            self.looks = true;
            return true;
        }
        if std::mem::take(&mut self.looks) {
            self.pay(waited);
        }
        false
    }

    fn earn(&mut self, ns: i64) {
        self.credit_ns = (self.credit_ns + ns).min(CREDIT_NS);
    }

    fn pay(&mut self, ns: Nanos) {
        let ns = i64::try_from(ns).unwrap_or(DEBT_NS);
        self.credit_ns = self.credit_ns.saturating_sub(ns).max(-DEBT_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time spent with looking, of waits as long as these, in microseconds; each look takes
    /// `look`.
    fn spent(lookout: &mut Lookout, waits: &[Nanos], look: Nanos) -> Nanos {
        let (mut now, mut spent) = (0, 0);
        for wait in waits {
            let came = now + wait * MICROSECOND;
            while now < came && lookout.looks_again(|| now) {
                now += look * MICROSECOND;
                spent += look;
            }
            now = now.max(came);
            lookout.came(|| now);
        }
        spent
    }

    #[test]
    fn it_looks_while_requests_follow_closely() {
        let spent = |waits: &[Nanos]| spent(&mut Lookout::with_cpus(2), waits, 1);
        // The first wait is one of an idle file system.
        assert_eq!(spent(&[20, 20, 20]), 40);
        assert_eq!(spent(&[20; 1000]), 999 * 20);
        assert_eq!(spent(&[100; 1000]), 0);
        // One look in vain, of the looks that many requests have paid for.
        let program = [vec![20; 10], vec![5000; 100], vec![20; 10]].concat();
        assert_eq!(spent(&program), 9 * 20 + 100 + 9 * 20);
    }

    #[test]
    fn looks_in_vain_are_few() {
        // Two requests at a time: looking would cost five times what it earns.
        let pairs = [20, 5000].repeat(1000);
        assert!(spent(&mut Lookout::with_cpus(2), &pairs, 1) < 25 * 100);
        // Other programs take the processor for 3 ms each time.
        let mut lookout = Lookout::with_cpus(2);
        let slow = spent(&mut lookout, &[20; 3000], 3000);
        assert!((2 * 3000..=4 * 3000).contains(&slow), "{slow}");
        // When they have ended it looks again, as soon as the debt is paid.
        let later = spent(&mut lookout, &[20; 3000], 1);
        assert!(later > 1400 * 20, "{later}");
    }

    #[test]
    fn it_never_looks_on_one_processor() {
        assert_eq!(spent(&mut Lookout::with_cpus(1), &[10; 100], 1), 0);
        assert_eq!(spent(&mut Lookout::closed(), &[10; 100], 1), 0);
    }
}
