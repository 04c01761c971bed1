//! Executors: how a stripe that an order chose is carried out, and how many at a time.
//!
//! They differ in what their requests are like and in whose turn it is at a disk. What makes a
//! stripe rebuilt is not theirs: see `stripe`.

mod disk_oriented;
mod pipelined;
mod stripe_oriented;

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use super::policy::{RebuildExecutor, RebuildPolicy};
use crate::array::Inner;
use crate::error::ArrayError;

/// Carries out stripes.
pub(crate) trait Executor {
    /// Stripes in flight at most.
    fn window(&self, array: &Inner) -> usize;

    /// Rebuilds one stripe on every slot that is being rebuilt. In a future of its own, which
    /// outlives a change of the policy.
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
