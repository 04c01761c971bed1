//! A node's own clock. It measures how long to wait, and nothing that safety depends on: tests
//! give each node a clock that runs at another rate, and stops.

use weft_disk::IoFuture;
use weft_rt::{Nanos, Rt};

/// A clock.
pub trait Clock {
    /// The time now, since a zero of its own.
    fn now(&self) -> Nanos;

    /// Waits.
    fn sleep(&self, duration: Nanos) -> IoFuture<'_, ()>;
}

impl Clock for Rt {
    fn now(&self) -> Nanos {
        Rt::now(self)
    }

    fn sleep(&self, duration: Nanos) -> IoFuture<'_, ()> {
        Box::pin(Rt::sleep(self, duration))
    }
}
