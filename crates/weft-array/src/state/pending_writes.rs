//! Writes that wait for their stripe's lock. The first to get the lock carries them out together,
//! unless they overlap.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use weft_rt::sync::Sender;
use weft_stripe::{Segment, StripeId};

use crate::error::ArrayError;

/// A write that waits for its stripe's lock.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub segments: Vec<Segment>,
    pub fua: bool,
    pub done: Sender<Result<bool, Arc<ArrayError>>>,
}

/// The waiting writes, by stripe.
#[derive(Debug, Default)]
pub(crate) struct PendingWrites(RefCell<BTreeMap<StripeId, Vec<PendingWrite>>>);

impl PendingWrites {
    pub fn push(&self, stripe: StripeId, write: PendingWrite) {
        self.0.borrow_mut().entry(stripe).or_default().push(write);
    }

    /// Takes the first writes up to, but not including, the first that overlaps an earlier one.
    pub fn take_batch(&self, stripe: StripeId, sector: u64) -> Vec<PendingWrite> {
        let mut table = self.0.borrow_mut();
        let Some(waiting) = table.get_mut(&stripe) else { return Vec::new() };
        let mut batch: Vec<PendingWrite> = Vec::new();
        let mut rest = Vec::new();
        for pending in waiting.drain(..) {
            let fits =
                rest.is_empty() && !batch.iter().any(|taken| overlaps(taken, &pending, sector));
            if fits { batch.push(pending) } else { rest.push(pending) }
        }
        if rest.is_empty() {
            table.remove(&stripe);
        } else {
            *waiting = rest;
        }
        batch
    }
}

/// Whether two writes touch the same sector.
fn overlaps(a: &PendingWrite, b: &PendingWrite, sector: u64) -> bool {
    let widen = |s: &Segment| (s.from - s.from % sector, s.end().next_multiple_of(sector));
    a.segments.iter().any(|x| {
        b.segments.iter().any(|y| {
            let ((x_from, x_to), (y_from, y_to)) = (widen(x), widen(y));
            x.unit == y.unit && x_from < y_to && y_from < x_to
        })
    })
}
