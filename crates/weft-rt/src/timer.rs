//! Timers: deadlines in order, each with the waker of the task that waits for it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::{Nanos, Rt};

/// Deadlines not yet passed. The second part of the key tells timers of one deadline apart and
/// keeps them in the order in which they were set, so that a run can be repeated exactly.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<(Nanos, u64), Waker>,
    next_id: u64,
}

impl Timers {
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

/// Future of [`Rt::sleep`] and [`Rt::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    rt: Rt,
    deadline: Nanos,
    id: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(rt: Rt, deadline: Nanos) -> Self {
        Self { rt, deadline, id: None }
    }

    /// When it completes.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.deadline {
            return Poll::Ready(());
        }
        let (deadline, id) = (self.deadline, self.id);
        let id = self.rt.with_timers(|timers| {
            let id = id.unwrap_or_else(|| {
                timers.next_id += 1;
                timers.next_id
            });
            timers.waiting.insert((deadline, id), cx.waker().clone());
            id
        });
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let key = (self.deadline, id);
            self.rt.with_timers(|timers| timers.waiting.remove(&key));
        }
    }
}
