//! PR: small pipelined requests, as in Linux MD (Lee and Lui, TPDS '02; `raid5.c`).
//!
//! MD cuts a member into *stripe heads* of 4 KiB. A rebuild takes heads in order. Each head reads,
//! computes and writes independently, up to 256 at a time, at the same priority as users; the block
//! layer may merge adjacent requests. Here a head is a request of `request_bytes`. The heads of a
//! stripe share its lock, because a stripe becomes rebuilt as a whole.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use weft_array::ArrayError;
use weft_array::experiment::{Executor, Rebuilder, Requests, StripeId};
use weft_disk::Class;
use weft_rt::sync::Semaphore;

/// The size of its requests, and how many are in flight.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pipelined {
    /// Bytes of a request, a power of two.
    pub request_bytes: u64,
    /// Requests in flight (Linux MD: stripe heads).
    pub heads: usize,
}

impl Default for Pipelined {
    fn default() -> Self {
        Self { request_bytes: 4096, heads: 256 }
    }
}

impl Pipelined {
    pub(super) fn check(self) -> Result<(), String> {
        if !self.request_bytes.is_power_of_two() || !(4096..=16 << 20).contains(&self.request_bytes)
        {
            return Err(format!(
                "a request of {} bytes: give a power of two from 4096 to 16777216",
                self.request_bytes
            ));
        }
        if !(1..=4096).contains(&self.heads) {
            return Err(format!("the number of heads is {}: give 1 to 4096", self.heads));
        }
        Ok(())
    }

    pub(super) fn executor(self, rebuilder: Rc<dyn Rebuilder>) -> Rc<dyn Executor> {
        let unit = rebuilder.unit_bytes();
        let bytes = self.request_bytes.clamp(rebuilder.sector_bytes(), unit);
        // One stripe more than fits, so that a freed head is used at once.
        let per_stripe = usize::try_from(unit / bytes).unwrap_or(usize::MAX);
        let window = self.heads.div_ceil(per_stripe) + 1;
        let heads = Some(Semaphore::new(self.heads));
        let requests = Requests { bytes, class: Class::User, heads };
        Rc::new(Pipeline { rebuilder, requests, window })
    }
}

/// The executor for one array.
struct Pipeline {
    rebuilder: Rc<dyn Rebuilder>,
    requests: Requests,
    window: usize,
}

impl Executor for Pipeline {
    fn window(&self) -> usize {
        self.window
    }

    fn rebuild(
        self: Rc<Self>,
        stripe: StripeId,
    ) -> LocalBoxFuture<'static, Result<(), ArrayError>> {
        Box::pin(async move { self.rebuilder.rebuild(stripe, &self.requests).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_out_of_their_limits_are_refused() {
        let usual = Pipelined::default();
        assert_eq!(usual.check(), Ok(()));
        for request_bytes in [512, 5000, 32 << 20] {
            assert!(Pipelined { request_bytes, ..usual }.check().is_err(), "{request_bytes}");
        }
        for heads in [0, 4097] {
            assert!(Pipelined { heads, ..usual }.check().is_err(), "{heads}");
        }
    }
}
