//! Random rebuild policies: every order with every pace, and parameters so small that slices
//! end and zones are dropped all the time.

use weft_array::{Piggyback, RebuildOrder, RebuildPace, RebuildPolicy};
use weft_rt::Rng;

/// Draws a valid policy.
pub(crate) fn draw(rng: &mut Rng) -> RebuildPolicy {
    RebuildPolicy {
        order: *rng.pick(RebuildOrder::ALL),
        pace: *rng.pick(RebuildPace::ALL),
        piggyback: *rng.pick(Piggyback::ALL),
        slice_stripes: rng.within(1, 8),
        zone_stripes: rng.within(1, 8),
        zones: 1 + rng.index(4),
        half_life_ms: *rng.pick(&[1, 100, 10_000]),
        preemptive: rng.chance(50),
        widen_bytes_max: *rng.pick(&[4096, 16384, 1 << 20]),
    }
}
