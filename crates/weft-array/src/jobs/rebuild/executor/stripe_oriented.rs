//! SOR: stripe by stripe, several in flight, each unit in one request.
//!
//! A stripe holds its lock while its requests wait for busy disks, and these requests are ahead of
//! users' later ones. That is why the pace keeps a single stripe in flight while users are active.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use super::Executor;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::maintenance::By;
use crate::resolve::id;

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
            let _lock = array.locks.exclusive(id(stripe)).await;
            array.rebuild_whole(stripe, By::Executor).await
        })
    }
}
