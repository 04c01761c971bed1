//! Contents at hand: what a cache above the array knows of a stripe serves to reconstruct its lost
//! units, in place of disks.
//!
//! ```text
//!   raid6 4+2, d1 is lost           d0       d1       d2       d3       P       Q
//!   cached                          yes               yes
//!   read to give d1                                            x        x
//! ```
//!
//! A reconstruction holds the stripe's lock, so no write of the stripe is in progress. A write that
//! waits for the lock has taken its blocks out of the cache before; one that has ended may have put
//! its own there. So cached contents equal the disks' contents until the lock is released.

use weft_code::UnitSet;
use weft_rt::Frozen;
use weft_stripe::Stripe;

use crate::engine::Engine;

impl Engine {
    /// The units at hand that save reads of disks, if `wanted` must be reconstructed: their
    /// contents over `len` bytes from offset `from`. The stripe's lock is held.
    pub(crate) fn at_hand(
        &self,
        stripe: Stripe<'_>,
        from: u64,
        len: usize,
        wanted: UnitSet,
    ) -> Vec<(usize, Frozen)> {
        // Units that have moved elsewhere are frozen here, while the cache has their contents of
        // now.
        if !self.geometries().is_settled_in(stripe.id) {
            return Vec::new();
        }
        let missing = wanted.intersection(&stripe.lost);
        let above = self.contents_above();
        let (Some(unit), Some(above)) = (missing.iter().next(), above) else { return Vec::new() };
        let (number, geometry) = (stripe.id.number, self.geometry_of(stripe.id));
        let address = |unit| geometry.offset(number, unit, from);
        let others = geometry.data_units().difference(&wanted);
        let held: UnitSet = others.iter().filter(|unit| above.holds(address(*unit), len)).collect();
        if held.is_empty() {
            return Vec::new();
        }
        let reads = |held: UnitSet| {
            let lost = stripe.lost.difference(&held);
            stripe.coding.plan(number, lost, wanted, held).ok().map(|plan| plan.reads)
        };
        let Some(with) = reads(held) else { return Vec::new() };
        let used = with.intersection(&held);
        if let Some(without) = reads(UnitSet::new()) {
            let spared = without.len().saturating_sub(with.difference(&held).len());
            above.note_spared(address(unit), (spared * len) as u64);
        }
        let contents = |unit| Some((unit, above.contents(address(unit), len)?));
        used.iter().filter_map(contents).collect()
    }
}
