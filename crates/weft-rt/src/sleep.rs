//! Waiting for a deadline.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Nanos, Rt};

impl Rt {
    /// Completes after `duration`.
    pub fn sleep(&self, duration: Nanos) -> Sleep {
        self.sleep_until(self.now().saturating_add(duration))
    }

    /// Completes at `deadline`; at once if that has passed.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        Sleep::new(self.clone(), deadline)
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
        let (deadline, id) = (self.rt.due(self.deadline), self.id);
        let id = self.rt.with_timers(|timers| timers.set(deadline, id, cx.waker().clone()));
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let deadline = self.rt.due(self.deadline);
            self.rt.with_timers(|timers| timers.cancel(deadline, id));
        }
    }
}
