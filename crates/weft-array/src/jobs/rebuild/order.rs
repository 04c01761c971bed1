//! Orders: which stripe is rebuilt next.
//!
//! An order is asked for one stripe at a time and keeps only its own place. What is left it sees
//! in [`Work`], so that no order can do a stripe twice or forget one: it may be changed for
//! another at any time, and what users' requests bring to the replacement is simply not left.

mod ascending;
pub(super) mod popularity;
mod redundancy;

use weft_rt::Nanos;

use super::monitor::Monitor;
use super::policy::{RebuildOrder, RebuildPolicy};
use super::work::Work;

/// An order's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This stripe, which is left.
    Stripe(u64),
    /// It has looked long enough: others may run, and it is to be asked again.
    Later,
    /// Nothing is left.
    Nothing,
}

/// Which stripe is next.
pub(crate) trait Order {
    /// The next stripe of `work`.
    fn next(&mut self, work: &Work<'_>, monitor: &mut Monitor, now: Nanos) -> Pick;
}

/// The order that is in effect while `lost_max` members are not whole.
pub(crate) fn in_effect(policy: &RebuildPolicy, lost_max: usize) -> RebuildOrder {
    match policy.order {
        RebuildOrder::Auto if lost_max > 1 => RebuildOrder::Redundancy,
        RebuildOrder::Auto => RebuildOrder::Popularity,
        order => order,
    }
}

/// An order at its beginning; `order` is in effect.
pub(crate) fn new(order: RebuildOrder, policy: &RebuildPolicy) -> Box<dyn Order> {
    match order {
        RebuildOrder::Ascending => Box::<ascending::Ascending>::default(),
        RebuildOrder::Redundancy => Box::<redundancy::Redundancy>::default(),
        RebuildOrder::Popularity | RebuildOrder::Auto => {
            Box::new(popularity::Popularity::new(policy))
        }
    }
}
