//! Orders: which stripe is rebuilt next.
//!
//! An order is asked for one stripe at a time, and keeps only its own position. It sees the
//! remaining work in [`Work`], so no order can rebuild a stripe twice or forget one. It may be
//! replaced by another order at any time, and stripes that users' requests rebuild are no longer
//! left.

mod ascending;
pub(super) mod popularity;
mod redundancy;

use weft_rt::Nanos;

use super::work::Work;
use crate::format::rebuild_policy::{RebuildOrder, RebuildPolicy};
use crate::maintenance::Monitor;

/// An order's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This stripe, which is left to rebuild.
    Stripe(u64),
    /// Ask again: the order has looked at many stripes, and other tasks should run first.
    Later,
    /// Nothing is left.
    Nothing,
}

/// Chooses the next stripe.
pub(crate) trait Order {
    /// The next stripe of `work`.
    fn next(&mut self, work: &Work<'_>, monitor: &mut Monitor, now: Nanos) -> Pick;
}

/// The order in effect while `lost_max` members are incomplete.
pub(crate) fn in_effect(policy: &RebuildPolicy, lost_max: usize) -> RebuildOrder {
    match policy.order {
        RebuildOrder::Auto if lost_max > 1 => RebuildOrder::Redundancy,
        RebuildOrder::Auto => RebuildOrder::Popularity,
        order => order,
    }
}

/// The order of the stripes that have not moved yet while the array is reshaped, at its start. The
/// monitor does not know them.
pub(super) fn of_former(order: RebuildOrder) -> Box<dyn Order> {
    match order {
        RebuildOrder::Redundancy => Box::<redundancy::Redundancy>::default(),
        _ => Box::<ascending::Ascending>::default(),
    }
}

/// An order at its start; `order` is the one in effect.
pub(crate) fn new(order: RebuildOrder, policy: &RebuildPolicy) -> Box<dyn Order> {
    match order {
        RebuildOrder::Ascending => Box::<ascending::Ascending>::default(),
        RebuildOrder::Redundancy => Box::<redundancy::Redundancy>::default(),
        RebuildOrder::Popularity | RebuildOrder::Auto => {
            Box::new(popularity::Popularity::new(policy))
        }
    }
}
