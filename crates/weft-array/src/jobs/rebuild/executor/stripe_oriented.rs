//! SOR: stripe by stripe, several in flight, each unit in one request.
//!
//! A stripe holds its lock while its requests wait for busy disks, and these requests are ahead of
//! users' later ones. That is why the pace keeps a single stripe in flight while users are active.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;

use super::{Executor, Rebuilder};
use crate::array::Inner;
use crate::error::ArrayError;

pub(super) struct StripeOriented(pub Rc<Inner>);

impl Executor for StripeOriented {
    fn window(&self) -> usize {
        self.0.window()
    }

    fn rebuild(self: Rc<Self>, stripe: u64) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move { Rebuilder::rebuild(&*self.0, stripe, &self.0.whole_units()).await })
    }
}
