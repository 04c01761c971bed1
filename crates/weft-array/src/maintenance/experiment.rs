//! What an experiment may put in place of parts of a rebuild: the executor, the pace, and whether
//! users' reads use rebuilt units.
//!
//! The engine holds what users can choose ([`RebuildPolicy`](crate::RebuildPolicy)). What only
//! serves comparisons, such as Linux MD's speed control, is written against these traits, outside
//! the engine. An [`Experiment`] belongs to a running array and is not stored.
//!
//! A [`Pace`] decides when a stripe may start, an [`Executor`] how it is rebuilt, by asking its
//! [`Rebuilder`]. Neither decides when a stripe counts as rebuilt, so no experiment can lose data.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_disk::Class;
use weft_rt::Nanos;
use weft_rt::sync::Semaphore;
pub use weft_stripe::StripeId;

pub use super::throttle::{Admission, Bounds, Pace, Throttle, WithinBounds};
use crate::error::ArrayError;

/// Parts of rebuilds that differ from the policy's. What a method leaves out is the policy's.
pub trait Experiment {
    /// The executor.
    fn executor(&self, rebuilder: Rc<dyn Rebuilder>) -> Option<Rc<dyn Executor>> {
        let _ = rebuilder;
        None
    }

    /// The pace, from now on.
    fn pace(&self, now: Nanos) -> Option<Box<dyn Pace>> {
        let _ = now;
        None
    }

    /// Whether users' reads use units that are rebuilt before the whole member is.
    fn redirection(&self) -> Redirection {
        Redirection::Priced
    }
}

/// Whether users' reads use rebuilt units of a member that is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    /// They compute them as long as they can.
    Never,
    /// They read them.
    Always,
    /// They read them while that is cheaper than to compute them.
    Priced,
}

/// How stripes are rebuilt, and how many at a time.
pub trait Executor {
    /// Most stripes in flight.
    fn window(&self) -> usize;

    /// Rebuilds one stripe on every slot that is being rebuilt. The future is independent of the
    /// pass that asked for it, so it may outlive a change of the policy.
    fn rebuild(self: Rc<Self>, stripe: StripeId)
    -> LocalBoxFuture<'static, Result<(), ArrayError>>;
}

/// What the engine does for an executor.
pub trait Rebuilder {
    /// Bytes of a unit.
    fn unit_bytes(&self) -> u64;

    /// Largest sector of the members, to which requests are aligned.
    fn sector_bytes(&self) -> u64;

    /// Rebuilds one stripe under its lock, when there is memory for it.
    fn rebuild<'a>(
        &'a self,
        stripe: StripeId,
        requests: &'a Requests,
    ) -> LocalBoxFuture<'a, Result<(), ArrayError>>;
}

/// How the units of a stripe are read and written.
#[derive(Debug)]
pub struct Requests {
    /// Size of a request in bytes: a power of two, not less than a sector.
    pub bytes: u64,
    /// The priority.
    pub class: Class,
    /// Limits the requests in flight.
    pub heads: Option<Semaphore>,
}
