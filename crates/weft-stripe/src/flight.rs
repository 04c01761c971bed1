//! Disk operations in progress together, polled in place: a stripe has a handful of them, and each
//! is a boxed future already.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use weft_disk::IoFuture;

/// Counts a request on a device; ends when dropped.
#[derive(Debug)]
pub struct Busy<'a>(&'a Cell<u32>);

impl<'a> Busy<'a> {
    /// Counts one more.
    #[must_use]
    pub fn on(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct Op<'a, T> {
    operation: IoFuture<'a, T>,
    _busy: Busy<'a>,
}

/// Operations that are waited for together; none where one has ended.
#[must_use]
pub struct InFlight<'a, T>(Vec<Option<Op<'a, T>>>);

impl<T> std::fmt::Debug for InFlight<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("operations", &self.0.len()).finish()
    }
}

impl<'a, T> InFlight<'a, T> {
    /// None yet, with room for `count`.
    pub fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Adds an operation, counted until it ends. It starts when all are waited for.
    pub fn push(&mut self, operation: IoFuture<'a, T>, busy: Busy<'a>) {
        self.0.push(Some(Op { operation, _busy: busy }));
    }

    /// Waits until all have ended. `done` gets each result as soon as it is there, with the place
    /// of its operation in the order in which they were added.
    pub async fn all(mut self, mut done: impl FnMut(usize, T)) {
        poll_fn(|cx| {
            let mut running = false;
            for (index, place) in self.0.iter_mut().enumerate() {
                let Some(op) = place else { continue };
                match op.operation.as_mut().poll(cx) {
                    Poll::Ready(result) => {
                        *place = None;
                        done(index, result);
                    }
                    Poll::Pending => running = true,
                }
            }
            if running { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}
