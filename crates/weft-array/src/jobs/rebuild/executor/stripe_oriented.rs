//! SOR: stripe by stripe, several in flight, each unit in one request.
//!
//! A stripe holds its lock while it waits where its disks are busy, and what it has on a disk is
//! before users who come later; the pace keeps a single one in flight beside users for these
//! reasons.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::jobs::rebuild::stripe::By;

pub(super) struct StripeOriented;

impl Executor for StripeOriented {
    fn window(&self, array: &Inner) -> usize {
        array.window()
    }

    fn rebuild(
        self: Rc<Self>,
        array: Rc<Inner>,
        stripe: u64,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move {
            let _memory = array.job_memory().await?;
            let _lock = array.locks.exclusive(stripe).await;
            array.rebuild_whole(stripe, By::Executor).await
        })
    }
}
