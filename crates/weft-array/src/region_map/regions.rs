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
//! address where the next region starts. A region is at least as large as a stripe and the last is
//! that of the last stripe, so each has at least one.

//!
//! While addresses move from one geometry to another, a region has stripes of both; its *live*
//! stripes count: where some of their addresses are now ([`LiveStripes`]).

use std::ops::Range;

use weft_stripe::{Generation, StripeId};

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

/// The live stripes of a geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The geometry.
    pub generation: Generation,
    /// Its regions.
    pub regions: Regions,
    /// The first live stripe.
    pub first: u64,
    /// The end of the live stripes.
    pub end: u64,
}

impl Part {
    /// All stripes of a geometry.
    #[must_use]
    pub fn all(generation: Generation, regions: Regions) -> Self {
        Self { generation, regions, first: 0, end: regions.stripes }
    }

    /// Those in a region.
    #[must_use]
    pub fn stripes_of(&self, region: RegionNo) -> Range<u64> {
        let Range { start, end } = self.regions.stripes_of(region);
        let start = start.max(self.first);
        start..end.min(self.end).max(start)
    }

    fn id(&self, number: u64) -> StripeId {
        StripeId { generation: self.generation, number }
    }
}

/// The stripes that hold the array's addresses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveStripes {
    /// Those of the newest geometry.
    pub newest: Part,
    /// Those of the old one, while addresses are in both.
    pub former: Option<Part>,
}

impl LiveStripes {
    /// The parts: the newest geometry's, then the old one's.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        [Some(self.newest), self.former].into_iter().flatten()
    }

    /// That of a geometry.
    #[must_use]
    pub fn part(&self, generation: Generation) -> Option<Part> {
        self.parts().find(|part| part.generation == generation)
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn contains(&self, stripe: StripeId) -> bool {
        let numbers = |part: Part| part.first..part.end;
        self.part(stripe.generation).is_some_and(|part| numbers(part).contains(&stripe.number))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.parts().map(|part| part.end - part.first).sum()
    }

    /// Number of regions that may have any.
    #[must_use]
    pub fn region_count(&self) -> u64 {
        self.parts().map(|part| part.regions.count()).max().unwrap_or(0)
    }

    /// Those of a region.
    pub fn stripes_of(&self, region: RegionNo) -> impl Iterator<Item = StripeId> + use<> {
        self.parts()
            .flat_map(move |part| part.stripes_of(region).map(move |number| part.id(number)))
    }

    /// How many a region has.
    #[must_use]
    pub fn count_of(&self, region: RegionNo) -> u64 {
        self.parts().map(|part| part.stripes_of(region)).map(|of| of.end - of.start).sum()
    }

    /// The region of a stripe, and its place among the region's stripes; `None` if it is not live.
    #[must_use]
    pub fn place_of(&self, stripe: StripeId) -> Option<(RegionNo, u64)> {
        if !self.contains(stripe) {
            return None;
        }
        let part = self.part(stripe.generation)?;
        let region = part.regions.of(stripe.number);
        let others = self.parts().take_while(|other| other.generation != part.generation);
        let before: u64 =
            others.map(|other| other.stripes_of(region)).map(|of| of.end - of.start).sum();
        Some((region, before + stripe.number - part.stripes_of(region).start))
    }

    /// Most that a region has.
    #[must_use]
    pub fn stripes_max(&self) -> u64 {
        self.parts().map(|part| part.regions.stripes_max()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_stripes_of_a_region_have_places_without_gaps() {
        let regions = |stripe_bytes, stripes| Regions { region_bytes: 64, stripe_bytes, stripes };
        let (newest, former) = (Generation(3), Generation(2));
        let old = regions(6, 50);
        for border in 0..=20 {
            // Up to address 15 `border`.
            let newest = Part { end: border, ..Part::all(newest, regions(15, 20)) };
            let former = Part { first: border * 15 / 6, ..Part::all(former, old) };
            let live = LiveStripes { newest, former: Some(former) };
            let mut count = 0;
            for region in (0..live.region_count()).map(RegionNo) {
                let places: Vec<_> = live.stripes_of(region).map(|s| live.place_of(s)).collect();
                let all: Vec<_> = (0..live.count_of(region)).map(|n| Some((region, n))).collect();
                assert_eq!(places, all, "{border}");
                count += places.len() as u64;
            }
            assert_eq!(count, live.count());
            let dead = StripeId { generation: Generation(3), number: border };
            assert_eq!(live.place_of(dead), None);
        }
    }

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
