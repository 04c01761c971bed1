//! PR: small pipelined requests, as in Linux MD (Lee and Lui, TPDS '02; `raid5.c`).
//!
//! MD cuts a member into *stripe heads* of 4 KiB. A rebuild takes heads in order. Each head reads,
//! computes and writes independently, up to 256 at a time, at the same priority as users; the block
//! layer may merge adjacent requests. Here a head is a request of `request_bytes`. The heads of a
//! stripe share its lock, because a stripe becomes rebuilt as a whole.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_disk::Class;
use weft_rt::sync::Semaphore;

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::geometry::to_len;
use crate::jobs::rebuild::stripe::Requests;
use crate::maintenance::By;
use crate::rebuild_policy::RebuildPolicy;
use crate::resolve::id;

pub(super) struct Pipelined {
    requests: Requests,
    window: usize,
}

impl Pipelined {
    pub fn new(policy: &RebuildPolicy, array: &Inner) -> Self {
        let unit = array.geometry.unit_bytes;
        let bytes = policy.request_bytes.clamp(array.geometry.sector_bytes, unit);
        // One stripe more than fits, so that a freed head is used at once.
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
            let _lock = array.locks.exclusive(id(stripe)).await;
            array.rebuild_locked(stripe, &self.requests, By::Executor).await
        })
    }
}
