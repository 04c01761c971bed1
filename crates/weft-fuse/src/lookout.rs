//! Whether to look for the next request, or to sleep until it comes.
//!
//! A program that makes many files sends one small request after the other: the next one comes when
//! the last was answered, and a few microseconds of thinking later. If the thread sleeps in between,
//! each request pays for two switches of the processor: putting the thread to sleep and waking it,
//! often across processors, takes several times as long as carrying the request out. So while
//! requests follow each other closely, the thread keeps looking for the next one for a while
//! ([`LOOK_NS`]) before it sleeps. Other tasks of the thread run between two looks, so nothing waits
//! for this.
//!
//! *Giving way.* Between two looks the thread also yields its processor (`sched_yield`). Often the
//! program was woken on the processor that answered it, and waits for just that one; it then runs at
//! once, as if the thread had slept, and nothing had to be woken on another processor. If other
//! programs take so long that the time is over, the thread sleeps.
//!
//! *What it costs.* Processor time that nothing else on this processor wants, up to [`LOOK_NS`] where
//! the next request fails to come. It is spent only if the wait before was short: of two waits longer
//! than that, the second costs nothing. So a file system that nobody uses, or that is asked now and
//! then, spends none, and one whose requests come in bursts spends one look for each burst. (The
//! kernel polls for guests that halt in this way, `halt_poll_ns`.)
//!
//! *One processor.* Whoever is to send the next request cannot run while the thread looks, so a look
//! finds nothing that a sleep would not. A thread that may use only one processor never looks.

use weft_rt::{MICROSECOND, Nanos, usable_cpus};

/// For how long to look, at most: several times what a program thinks between two requests, and
/// less than what a program notices.
const LOOK_NS: Nanos = 100 * MICROSECOND;

/// Lets programs run that wait for this processor.
pub(crate) fn give_way() {
    rustix::thread::sched_yield();
}

/// Decides after each wait how to begin the next one.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// Looking can help at all.
    can_help: bool,
    /// The last wait was so short that looking would have met its request.
    was_short: bool,
    /// Since when there has been no request.
    since: Option<Nanos>,
}

impl Lookout {
    /// Of this thread.
    pub(crate) fn new() -> Self {
        Self::with_cpus(usable_cpus().map_or(1, |cpus| cpus.len()))
    }

    /// Always sleeps.
    pub(crate) fn closed() -> Self {
        Self::with_cpus(1)
    }

    fn with_cpus(cpus: usize) -> Self {
        Self { can_help: cpus > 1, was_short: false, since: None }
    }

    /// A request came.
    pub(crate) fn came(&mut self, now: impl FnOnce() -> Nanos) {
        // Without a wait the requests follow each other as closely as they can.
        self.was_short = self.since.take().is_none_or(|since| now() - since < LOOK_NS);
    }

    /// There is no request. Whether to look again, or else to sleep until there is one.
    pub(crate) fn looks_again(&mut self, now: impl FnOnce() -> Nanos) -> bool {
        if !self.can_help {
            return false;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        self.was_short && now - since < LOOK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time spent with looking, of waits as long as these.
    fn spent(lookout: &mut Lookout, waits: &[Nanos]) -> Nanos {
        let (mut now, mut spent) = (0, 0);
        for wait in waits {
            let came = now + wait;
            while now < came && lookout.looks_again(|| now) {
                now += MICROSECOND;
                spent += MICROSECOND;
            }
            now = came;
            lookout.came(|| now);
        }
        spent
    }

    #[test]
    fn it_looks_while_requests_follow_closely_and_never_twice_in_vain() {
        let us = |waits: &[Nanos]| waits.iter().map(|us| us * MICROSECOND).collect::<Vec<_>>();
        let spent = |waits: &[Nanos]| spent(&mut Lookout::with_cpus(2), &us(waits)) / MICROSECOND;
        // The first wait is one of an idle file system.
        assert_eq!(spent(&[20, 20, 20]), 40);
        assert_eq!(spent(&[20, 99, 100, 5]), 99 + 100);
        // Then it sleeps, until a wait is short again.
        assert_eq!(spent(&[20, 5000, 5000, 5000, 20, 20]), 100 + 20);
        assert_eq!(spent(&[100; 1000]), 0);
    }

    #[test]
    fn it_never_looks_on_one_processor() {
        assert_eq!(spent(&mut Lookout::with_cpus(1), &[10; 100]), 0);
        assert_eq!(spent(&mut Lookout::closed(), &[10; 100]), 0);
    }
}
