//! Lanes: numbers of the columns of marks in the region map. A slot that is being rebuilt, a
//! replacement that is being copied, and a former member that may come back have one each: the
//! regions with that mark are stale there.

use serde::{Deserialize, Serialize};

/// Members that can lack regions at the same time: each needs a lane.
pub const LANES: u8 = 8;

/// A lane of the region map. A superblock's lane may be out of range ([`Lane::exists`]); it is
/// checked when the superblock is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub u8);

impl Lane {
    /// Whether the region map has this lane.
    #[must_use]
    pub const fn exists(self) -> bool {
        self.0 < LANES
    }

    /// All lanes, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES).map(Self)
    }
}

/// A set of lanes. In a page of the region map it is one byte: bit i is lane i.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneSet(pub u8);

impl LaneSet {
    /// No lane.
    pub const EMPTY: Self = Self(0);
    /// Every lane.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether it has no lane.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has `lane`.
    #[must_use]
    pub const fn contains(self, lane: Lane) -> bool {
        self.0 >> lane.0 & 1 == 1
    }

    /// This set and `lane`.
    #[must_use]
    pub const fn with(self, lane: Lane) -> Self {
        Self(self.0 | 1 << lane.0)
    }

    /// This set without `lane`.
    #[must_use]
    pub const fn without(self, lane: Lane) -> Self {
        Self(self.0 & !(1 << lane.0))
    }

    /// The lanes in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The lanes in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Its lanes, in order.
    pub fn iter(self) -> impl Iterator<Item = Lane> {
        Lane::all().filter(move |lane| self.contains(*lane))
    }

    /// The first lane that it does not have.
    #[must_use]
    pub fn first_free(self) -> Option<Lane> {
        Lane::all().find(|lane| !self.contains(*lane))
    }
}

impl FromIterator<Lane> for LaneSet {
    fn from_iter<T: IntoIterator<Item = Lane>>(lanes: T) -> Self {
        lanes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_byte_with_a_bit_for_each_lane() {
        let set: LaneSet = [Lane(0), Lane(3), Lane(7)].into_iter().collect();
        assert_eq!(set, LaneSet(0b1000_1001));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Lane(0), Lane(3), Lane(7)]);
        assert_eq!(set.without(Lane(3)), LaneSet(0b1000_0001));
        assert_eq!(set.first_free(), Some(Lane(1)));
        assert_eq!((LaneSet::ALL.first_free(), LaneSet::ALL.iter().count()), (None, 8));
        assert!(!Lane(8).exists());
    }
}
