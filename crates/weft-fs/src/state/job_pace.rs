//! How many records a job copies side by side: all that fill the queues of the disks while there
//! are no requests of users, and few while there are.
//!
//! The queue of a disk lets users go first ([`weft_disk::QueuedDisk`]). But a request that is with
//! the disk stays before theirs, and so does what the processor does for a copy: a user waits for
//! about as many copies as are under way. A few keep the disks busy, as one is read while another
//! one is written. There is always one, so a job ends however many requests there are.

use std::cell::Cell;

use weft_rt::sync::Notify;
use weft_rt::{MILLISECOND, Nanos, Rt};

/// The most copies side by side: 16 MiB, if the records are of usual length.
pub(crate) const COPIES_MAX: usize = 16;
/// Copies side by side while users have requests.
const COPIES_BESIDE_USERS: usize = 2;
/// Users count as active for this long after their last request.
const ACTIVE_FOR: Nanos = 50 * MILLISECOND;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct JobPace {
    requests: Cell<u64>,
    last_ended: Cell<Option<Nanos>>,
    copies: Cell<usize>,
    /// A copy has ended.
    ended: Notify,
}

/// A request of a user, until this is dropped.
pub(crate) struct UserRequest<'a>(&'a JobPace, &'a Rt);

impl Drop for UserRequest<'_> {
    fn drop(&mut self) {
        let Self(pace, rt) = self;
        pace.requests.set(pace.requests.get() - 1);
        pace.last_ended.set(Some(rt.now()));
    }
}

/// A copy, until this is dropped.
pub(crate) struct CopyTurn<'a>(&'a JobPace);

impl Drop for CopyTurn<'_> {
    fn drop(&mut self) {
        self.0.copies.set(self.0.copies.get() - 1);
        self.0.ended.notify_all();
    }
}

impl JobPace {
    /// A request of a user begins.
    pub(crate) fn begin_request<'a>(&'a self, rt: &'a Rt) -> UserRequest<'a> {
        self.requests.set(self.requests.get() + 1);
        UserRequest(self, rt)
    }

    fn copies_max(&self, now: Nanos) -> usize {
        let is_recent = |ended: Nanos| now.saturating_sub(ended) < ACTIVE_FOR;
        let is_active = self.requests.get() > 0 || self.last_ended.get().is_some_and(is_recent);
        if is_active { COPIES_BESIDE_USERS } else { COPIES_MAX }
    }

    /// Waits until one more record may be copied.
    pub(crate) async fn turn(&self, rt: &Rt) -> CopyTurn<'_> {
        loop {
            let ended = self.ended.wait();
            if self.copies.get() < self.copies_max(rt.now()) {
                break;
            }
            ended.await;
        }
        self.copies.set(self.copies.get() + 1);
        CopyTurn(self)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use weft_rt::{Schedule, virtual_rt};

    use super::*;

    #[test]
    fn few_are_copied_while_users_have_requests_and_for_a_while_after() {
        let rt = virtual_rt(Schedule::Fifo);
        let inner = rt.clone();
        rt.block_on(async move {
            let (rt, pace) = (inner, JobPace::default());
            let count = |pace: &JobPace| {
                let turns: Vec<_> =
                    std::iter::from_fn(|| pace.turn(&rt).now_or_never()).take(99).collect();
                turns.len()
            };
            assert_eq!(count(&pace), COPIES_MAX);
            let request = pace.begin_request(&rt);
            assert_eq!(count(&pace), COPIES_BESIDE_USERS);
            drop(request);
            rt.sleep(ACTIVE_FOR - 1).await;
            assert_eq!(count(&pace), COPIES_BESIDE_USERS);
            rt.sleep(1).await;
            assert_eq!(count(&pace), COPIES_MAX);
            // One that waits goes on when another one has ended.
            let _request = pace.begin_request(&rt);
            let mut turns: Vec<_> = (0..COPIES_BESIDE_USERS)
                .map(|_| pace.turn(&rt).now_or_never().expect("a turn"))
                .collect();
            let mut next = Box::pin(pace.turn(&rt));
            assert!((&mut next).now_or_never().is_none());
            turns.pop();
            assert!((&mut next).now_or_never().is_some());
        });
        rt.kill_all();
    }
}
