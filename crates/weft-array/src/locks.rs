//! Stripe locks: shared for those who reconstruct, exclusive for those who write.
//!
//! A healthy read takes none: it reads one unit, and the disk's own rules apply. Whoever combines
//! several units (a degraded read, a write, rebuild, resync, scrub) must see them all of one
//! moment. Locks are fair, first come first served, and exist only while somebody holds or awaits
//! them, so memory follows the requests in flight.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_rt::sync::{Permit, Semaphore};

/// Shared holders that a stripe can have at once; an exclusive one takes all.
const SHARES: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct StripeLocks(RefCell<BTreeMap<u64, Semaphore>>);

/// A held lock; given back when dropped.
#[derive(Debug)]
pub(crate) struct StripeGuard<'a> {
    locks: &'a StripeLocks,
    stripe: u64,
    permit: Option<Permit>,
}

impl StripeLocks {
    pub async fn shared(&self, stripe: u64) -> StripeGuard<'_> {
        self.lock(stripe, 1).await
    }

    pub async fn exclusive(&self, stripe: u64) -> StripeGuard<'_> {
        self.lock(stripe, SHARES).await
    }

    /// Whether somebody holds or awaits a lock of this stripe.
    pub fn is_busy(&self, stripe: u64) -> bool {
        self.0.borrow().contains_key(&stripe)
    }

    async fn lock(&self, stripe: u64, shares: usize) -> StripeGuard<'_> {
        // Taking the semaphore from the table and standing in its line happen in one poll, so
        // that no idle semaphore is removed in between.
        let semaphore =
            self.0.borrow_mut().entry(stripe).or_insert_with(|| Semaphore::new(SHARES)).clone();
        let mut waiting = Waiting { locks: self, stripe, armed: true };
        let permit = semaphore.acquire(shares).await;
        waiting.armed = false;
        StripeGuard { locks: self, stripe, permit: Some(permit) }
    }

    fn remove_if_idle(&self, stripe: u64) {
        let mut table = self.0.borrow_mut();
        if table.get(&stripe).is_some_and(|semaphore| semaphore.is_idle(SHARES)) {
            table.remove(&stripe);
        }
    }
}

/// Tidies the table when a waiter gives up before it was served.
struct Waiting<'a> {
    locks: &'a StripeLocks,
    stripe: u64,
    armed: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.locks.remove_if_idle(self.stripe);
        }
    }
}

impl Drop for StripeGuard<'_> {
    fn drop(&mut self) {
        self.permit = None;
        self.locks.remove_if_idle(self.stripe);
    }
}
