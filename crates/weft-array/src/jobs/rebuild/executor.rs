//! Executors: how the stripes that an order chose are rebuilt, and how many at a time.
//!
//! Executors differ in the size of their requests and in how these share a disk. When a stripe
//! counts as rebuilt is decided elsewhere: see `stripe`.

mod disk_oriented;
mod pipelined;
mod stripe_oriented;

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use crate::array::Inner;
use crate::error::ArrayError;
use crate::rebuild_policy::{RebuildExecutor, RebuildPolicy};

/// Rebuilds stripes.
pub(crate) trait Executor {
    /// Most stripes in flight.
    fn window(&self, array: &Inner) -> usize;

    /// Rebuilds one stripe on every slot that is being rebuilt. The future is independent of the
    /// executor, so it may outlive a change of the policy.
    fn rebuild(
        self: Rc<Self>,
        array: Rc<Inner>,
        stripe: u64,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>>;
}

pub(crate) fn new(policy: &RebuildPolicy, array: &Inner) -> Rc<dyn Executor> {
    match policy.executor {
        RebuildExecutor::Stripe => Rc::new(stripe_oriented::StripeOriented),
        RebuildExecutor::Pipelined => Rc::new(pipelined::Pipelined::new(policy, array)),
        RebuildExecutor::Disk => Rc::new(disk_oriented::DiskOriented::new(policy, array)),
    }
}
