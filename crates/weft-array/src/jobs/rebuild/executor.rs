//! Executors: how the stripes that an order chose are rebuilt, and how many at a time.
//!
//! Executors differ in the size of their requests and in how these share a disk. When a stripe
//! counts as rebuilt is decided elsewhere: see `stripe`.

mod disk_oriented;
mod stripe_oriented;

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use crate::array::Inner;
use crate::error::ArrayError;
use crate::maintenance::By;
use crate::maintenance::experiment::{Executor, Rebuilder, Requests};
use crate::rebuild_policy::{RebuildExecutor, RebuildPolicy};
use crate::resolve::id;

pub(crate) fn new(policy: &RebuildPolicy, array: Rc<Inner>) -> Rc<dyn Executor> {
    match policy.executor {
        RebuildExecutor::Stripe => Rc::new(stripe_oriented::StripeOriented(array)),
        RebuildExecutor::Disk => Rc::new(disk_oriented::DiskOriented::new(policy.pace, array)),
    }
}

impl Rebuilder for Inner {
    fn unit_bytes(&self) -> u64 {
        self.geometry.unit_bytes
    }

    fn sector_bytes(&self) -> u64 {
        self.geometry.sector_bytes
    }

    fn rebuild<'a>(
        &'a self,
        stripe: u64,
        requests: &'a Requests,
    ) -> LocalBoxFuture<'a, Result<(), ArrayError>> {
        Box::pin(async move {
            let _memory = self.job_memory().await?;
            let _lock = self.locks.exclusive(id(stripe)).await;
            self.rebuild_locked(stripe, requests, By::Executor).await
        })
    }
}
