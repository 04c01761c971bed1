//! The policy of a rebuild: order, pace, opportunistic rebuild, and their parameters.

use serde::{Deserialize, Serialize};
use weft_rt::{MILLISECOND, Nanos};

use crate::format::enum_names::named;

/// Which stripe is rebuilt next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildOrder {
    /// `redundancy` while more than one member is incomplete, `popularity` otherwise.
    #[default]
    Auto,
    /// From the first stripe to the last.
    Ascending,
    /// The most requested stripes first (PRO: Tian et al., FAST '07 and MSST '07).
    Popularity,
    /// The stripes that have lost most units first.
    Redundancy,
}

/// Who comes first on a disk, between the bounds of the rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildPace {
    /// Users of a disk first, in turns with the rebuild.
    #[default]
    UsersFirst,
    /// Only the bounds: no consideration for users.
    Greedy,
}

/// Opportunistic rebuild from user I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piggyback {
    /// None.
    Off,
    /// Units that a request covers whole.
    #[default]
    Covered,
    /// Every unit that a request touches, if not larger than [`RebuildPolicy::widen_bytes_max`]:
    /// the rest of the unit is read as well.
    Widen,
}

named!(
    RebuildOrder,
    Auto = "auto",
    Ascending = "ascending",
    Popularity = "popularity",
    Redundancy = "redundancy"
);
named!(RebuildPace, UsersFirst = "users-first", Greedy = "greedy");
named!(Piggyback, Off = "off", Covered = "covered", Widen = "widen");

/// The policy of an array's rebuilds. It can be changed during a rebuild; nothing is rebuilt twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RebuildPolicy {
    /// Which stripe is rebuilt next.
    pub order: RebuildOrder,
    /// Who comes first on a disk, between the bounds of the rate.
    pub pace: RebuildPace,
    /// Opportunistic rebuild from user I/O.
    pub piggyback: Piggyback,
    /// Stripes of a hot zone that are rebuilt before the hottest zone is chosen again.
    pub slice_stripes: u64,
    /// Size of a zone in stripes. Zones are aligned to it.
    pub zone_stripes: u64,
    /// Most zones in the table.
    pub zones: usize,
    /// Half-life of access popularity, in milliseconds.
    pub half_life_ms: u64,
    /// Whether to leave a slice as soon as another zone is twice as popular.
    pub preemptive: bool,
    /// Largest unit that [`Piggyback::Widen`] reads whole for a request that wants less.
    pub widen_bytes_max: u64,
}

impl Default for RebuildPolicy {
    fn default() -> Self {
        Self {
            order: RebuildOrder::default(),
            pace: RebuildPace::default(),
            piggyback: Piggyback::default(),
            slice_stripes: 64,
            zone_stripes: 128,
            zones: 128,
            half_life_ms: 10_000,
            preemptive: false,
            widen_bytes_max: 128 << 10,
        }
    }
}

/// Maximum number of hot zones. Choosing the hottest one scans all of them.
pub const ZONES_MAX: usize = 1024;

impl RebuildPolicy {
    /// Half-life of access popularity.
    #[must_use]
    pub fn half_life(&self) -> Nanos {
        self.half_life_ms.saturating_mul(MILLISECOND)
    }

    /// Checks that all parameters are within their limits.
    ///
    /// # Errors
    /// Which parameter is wrong, and its limits.
    pub fn check(&self) -> Result<(), String> {
        fn within<T: PartialOrd + std::fmt::Display>(
            what: &str,
            value: T,
            range: std::ops::RangeInclusive<T>,
        ) -> Result<(), String> {
            if range.contains(&value) {
                return Ok(());
            }
            Err(format!("{what} is {value}: give {} to {}", range.start(), range.end()))
        }
        within("a slice (in stripes)", self.slice_stripes, 1..=1 << 32)?;
        within("a zone (in stripes)", self.zone_stripes, 1..=1 << 32)?;
        within("the number of zones", self.zones, 1..=ZONES_MAX)?;
        within("the half-life in milliseconds", self.half_life_ms, 1..=1 << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_their_limits_are_refused() {
        assert_eq!(RebuildPolicy::default().check(), Ok(()));
        let broken: [fn(&mut RebuildPolicy); 4] = [
            |policy| policy.slice_stripes = 0,
            |policy| policy.zone_stripes = 0,
            |policy| policy.zones = ZONES_MAX + 1,
            |policy| policy.half_life_ms = 0,
        ];
        for spoil in broken {
            let mut policy = RebuildPolicy::default();
            spoil(&mut policy);
            assert!(policy.check().is_err(), "{policy:?}");
        }
    }
}
