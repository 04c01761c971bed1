//! An experiment whose executor cuts units into requests, as Linux MD does.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_array::ArrayError;
use weft_array::experiment::{Executor, Experiment, Rebuilder, Requests};
use weft_disk::Class;
use weft_rt::sync::Semaphore;
use weft_stripe::StripeId;

/// Requests of 4 KiB, at most `heads` in flight.
pub struct InParts {
    pub heads: usize,
}

struct Parts {
    rebuilder: Rc<dyn Rebuilder>,
    requests: Requests,
}

impl Experiment for InParts {
    fn executor(&self, rebuilder: Rc<dyn Rebuilder>) -> Option<Rc<dyn Executor>> {
        let heads = Some(Semaphore::new(self.heads));
        let requests = Requests { bytes: 4096, class: Class::User, heads };
        Some(Rc::new(Parts { rebuilder, requests }))
    }
}

impl Executor for Parts {
    fn window(&self) -> usize {
        5
    }

    fn rebuild(
        self: Rc<Self>,
        stripe: StripeId,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move { self.rebuilder.rebuild(stripe, &self.requests).await })
    }
}
