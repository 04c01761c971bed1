//! From the first stripe to the last.

use weft_rt::Nanos;

use super::{Order, Pick};
use crate::jobs::rebuild::work::Work;
use crate::maintenance::Monitor;

#[derive(Debug, Default)]
pub(super) struct Ascending {
    from: u64,
}

impl Ascending {
    pub fn step(&mut self, work: &Work<'_>) -> Pick {
        match work.next_wrapping(self.from) {
            Some(stripe) => {
                self.from = stripe + 1;
                Pick::Stripe(stripe)
            }
            None => Pick::Nothing,
        }
    }
}

impl Order for Ascending {
    fn next(&mut self, work: &Work<'_>, _: &mut Monitor, _: Nanos) -> Pick {
        self.step(work)
    }
}
