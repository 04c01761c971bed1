//! PR: small requests in a pipeline, as Linux MD rebuilds (Lee and Lui, TPDS '02; `raid5.c`).
//!
//! MD cuts a member into *stripe heads* of 4 KiB. A rebuild takes heads in order, each of which
//! reads, computes and writes by itself, up to 256 at a time, at the same priority as users; the
//! block layer may join neighbours. Here a head is a request of `request_bytes`, and the heads of a
//! stripe are under its lock together, because it is the stripe that becomes rebuilt.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_disk::Class;
use weft_rt::sync::Semaphore;

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::geometry::to_len;
use crate::jobs::rebuild::policy::RebuildPolicy;
use crate::jobs::rebuild::stripe::{By, Requests};

pub(super) struct Pipelined {
    requests: Requests,
    window: usize,
}

impl Pipelined {
    pub fn new(policy: &RebuildPolicy, array: &Inner) -> Self {
        let unit = array.geometry.unit_bytes;
        let bytes = policy.request_bytes.clamp(array.geometry.sector_bytes, unit);
        // One more stripe than fits, so that a head that becomes free is taken at once.
        let window = policy.heads.div_ceil(to_len(unit / bytes)) + 1;
        let heads = Some(Semaphore::new(policy.heads));
        Self { requests: Requests { bytes, class: Class::User, heads }, window }
    }
}

impl Executor for Pipelined {
    fn window(&self, _: &Inner) -> usize {
        self.window
    }

    fn rebuild(
        self: Rc<Self>,
        array: Rc<Inner>,
        stripe: u64,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move {
            let _memory = array.job_memory().await?;
            let _lock = array.locks.exclusive(stripe).await;
            array.rebuild_locked(stripe, &self.requests, By::Executor).await
        })
    }
}
