//! The stripes that have lost most units first: those closest to data loss.
//!
//! If every stripe has a unit on every member, all stripes have lost equally many units – unless a
//! rebuild was half done when the next member failed. If stripes are narrower than the array
//! (RAID-10, declustered layouts), few stripes have lost two units, and only these are at risk.
//!
//! There is one sweep for each number of lost units, the highest first. A sweep looks at a limited
//! number of stripes at a time. No ageing is needed: each sweep ends.

use weft_rt::Nanos;

use super::ascending::Ascending;
use super::{Order, Pick};
use crate::jobs::rebuild::work::Work;
use crate::maintenance::Monitor;

/// Most stripes examined before other tasks may run.
const LOOK_MAX: usize = 2048;

#[derive(Debug, Default)]
pub(super) struct Redundancy {
    /// Lost units of the stripes of this sweep; `None` before the first sweep.
    level: Option<usize>,
    from: u64,
    rest: Ascending,
}

impl Order for Redundancy {
    fn next(&mut self, work: &Work<'_>, _: &mut Monitor, _: Nanos) -> Pick {
        for _ in 0..LOOK_MAX {
            let level = *self.level.get_or_insert(work.lost_max);
            if level <= 1 {
                // Every stripe that is left has lost one unit.
                return self.rest.step(work);
            }
            match work.next_in(self.from..work.stripes()) {
                Some(stripe) => {
                    self.from = stripe + 1;
                    if work.lost(stripe) >= level {
                        return Pick::Stripe(stripe);
                    }
                }
                None => (self.level, self.from) = (Some(level - 1), 0),
            }
        }
        Pick::Later
    }
}
