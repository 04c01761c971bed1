//! Which stripes belong to which region.
//!
//! Regions are ranges of array addresses: region r has the bytes from r × `region_bytes` on, and
//! `region_bytes` is a power of two that depends on no code. So a mark keeps its meaning when the
//! geometry changes, and neighbouring regions can be joined in pairs when the array grows. A stripe
//! belongs to the region of its first byte:
//!
//! ```text
//! bytes     0               R               2R              3R
//! regions   |       0       |       1       |       2       |
//! stripes   |   0   |   1   |   2   |   3   |   4   |   5   |    of R/2: two in each region
//! stripes   |     0     |     1     |     2     |     3     |    of 3R/4: 0 and 1, 2, 3
//! ```
//!
//! A region thus has a varying number of stripes, and the last bytes of one may lie beyond the
//! address where the next region begins. A region is at least as large as a stripe and the last is
//! that of the last stripe, so each has at least one.

use std::ops::Range;

/// The number of a region, from 0. A stripe's number is another type of thing: a region has many
/// stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionNo(pub u64);

impl RegionNo {
    /// The next region.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The regions of an array. `region_bytes` is a power of two and at least `stripe_bytes`; an array
/// has at least one stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    /// Array bytes of a region.
    pub region_bytes: u64,
    /// Data bytes of a stripe.
    pub stripe_bytes: u64,
    /// Whole stripes of the array.
    pub stripes: u64,
}

impl Regions {
    /// The region of a stripe.
    #[must_use]
    pub fn of(&self, stripe: u64) -> RegionNo {
        RegionNo((stripe * self.stripe_bytes) >> self.region_bytes.trailing_zeros())
    }

    /// The stripes of a region.
    #[must_use]
    pub fn stripes_of(&self, region: RegionNo) -> Range<u64> {
        let first = |RegionNo(region)| {
            (region * self.region_bytes).div_ceil(self.stripe_bytes).min(self.stripes)
        };
        first(region)..first(region.next())
    }

    /// The array bytes of a region's stripes.
    #[must_use]
    pub fn bytes_of(&self, region: RegionNo) -> Range<u64> {
        let stripes = self.stripes_of(region);
        stripes.start * self.stripe_bytes..stripes.end * self.stripe_bytes
    }

    /// Bytes of the array.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.stripes * self.stripe_bytes
    }

    /// Number of regions.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.of(self.stripes - 1).0 + 1
    }

    /// All regions.
    pub fn all(&self) -> impl Iterator<Item = RegionNo> + use<> {
        (0..self.count()).map(RegionNo)
    }

    /// The regions to which these stripes belong: at least one stripe, up to the last of the array.
    pub fn holding(&self, stripes: Range<u64>) -> impl Iterator<Item = RegionNo> + use<> {
        (self.of(stripes.start).0..=self.of(stripes.end - 1).0).map(RegionNo)
    }

    /// Most stripes that a region has.
    #[must_use]
    pub fn stripes_max(&self) -> u64 {
        self.region_bytes.div_ceil(self.stripe_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_is_in_one_region_and_every_region_has_one() {
        for k in 1..=20 {
            for (region_bytes, stripes) in [(32, 1), (32, 100), (64, 99), (1024, 1000)] {
                let regions = Regions { region_bytes, stripe_bytes: k, stripes };
                let mut next = 0;
                for region in regions.all() {
                    let of = regions.stripes_of(region);
                    assert!(of.start == next && of.end > next, "{regions:?}: {region:?}");
                    assert!(of.end - of.start <= regions.stripes_max());
                    for stripe in of.clone() {
                        assert_eq!(regions.of(stripe), region, "{regions:?}: {stripe}");
                        assert_eq!(RegionNo(stripe * k / region_bytes), region);
                    }
                    next = of.end;
                }
                assert_eq!(next, stripes);
            }
        }
    }
}
