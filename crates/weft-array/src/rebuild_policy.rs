//! The policy of a rebuild: order × executor × pace, and their parameters.

use serde::{Deserialize, Serialize};
use weft_rt::{MILLISECOND, Nanos};

use crate::names::named;

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

/// How a stripe is rebuilt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildExecutor {
    /// Stripe by stripe, several in flight, whole units at a time (SOR).
    #[default]
    Stripe,
    /// Small pipelined requests at the same priority as users (PR, as Linux MD does).
    Pipelined,
    /// One reading process per surviving disk, one writing process (DOR: Holland and Gibson).
    Disk,
}

/// How fast a rebuild runs between the bounds of its rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildPace {
    /// One stripe in flight while users are active, the window otherwise.
    #[default]
    UsersFirst,
    /// The speed control of Linux MD 2.6: sleeps while users are active once it has its minimum.
    MdSleep,
    /// The speed control of Linux MD today: a sync depth of 32 while users are active.
    MdDepth,
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
named!(RebuildExecutor, Stripe = "stripe", Pipelined = "pipelined", Disk = "disk");
named!(
    RebuildPace,
    UsersFirst = "users-first",
    MdSleep = "md-sleep",
    MdDepth = "md-depth",
    Greedy = "greedy"
);
named!(Piggyback, Off = "off", Covered = "covered", Widen = "widen");

/// The policy of an array's rebuilds. It can be changed during a rebuild; nothing is rebuilt twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RebuildPolicy {
    /// Which stripe is rebuilt next.
    pub order: RebuildOrder,
    /// How a stripe is rebuilt.
    pub executor: RebuildExecutor,
    /// How fast it runs between the bounds of its rate.
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
    /// Size of a request of the pipelined executor, in bytes.
    pub request_bytes: u64,
    /// Requests of the pipelined executor in flight (Linux MD: stripe heads).
    pub heads: usize,
    /// Requests in flight per disk, of the disk-oriented executor.
    pub disk_depth: usize,
    /// Memory for the buffers of the disk-oriented executor.
    pub pool_bytes: u64,
    /// Largest unit that [`Piggyback::Widen`] reads whole for a request that wants less.
    pub widen_bytes_max: u64,
    /// Whether users' reads use units that are rebuilt already. Linux MD before 2.6.34 did not,
    /// until the whole member was rebuilt. Off, it is the baseline of experiments.
    #[serde(skip_serializing_if = "is_true")]
    pub redirect: bool,
}

/// Omitted from what members store: only the lab turns it off.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_true(value: &bool) -> bool {
    *value
}

impl Default for RebuildPolicy {
    fn default() -> Self {
        Self {
            order: RebuildOrder::default(),
            executor: RebuildExecutor::default(),
            pace: RebuildPace::default(),
            piggyback: Piggyback::default(),
            slice_stripes: 64,
            zone_stripes: 128,
            zones: 128,
            half_life_ms: 10_000,
            preemptive: false,
            request_bytes: 4096,
            heads: 256,
            disk_depth: 1,
            pool_bytes: 16 << 20,
            widen_bytes_max: 128 << 10,
            redirect: true,
        }
    }
}

/// Maximum number of hot zones. Choosing the hottest one scans all of them.
pub const ZONES_MAX: usize = 1024;
const HEADS_MAX: usize = 4096;
const DISK_DEPTH_MAX: usize = 64;
const POOL_BYTES_MAX: u64 = 64 << 20;

impl RebuildPolicy {
    /// Linux MD's RAID-4, 5 and 6: pipelined, ascending, 4 KiB requests at the priority of users,
    /// no piggybacking, with the speed control of 2.6 or of today.
    #[must_use]
    pub fn linux_md(pace: RebuildPace) -> Self {
        Self {
            order: RebuildOrder::Ascending,
            executor: RebuildExecutor::Pipelined,
            pace,
            piggyback: Piggyback::Off,
            ..Self::default()
        }
    }

    /// Linux MD's RAID-1 and RAID-10, which have no stripe heads: requests of 64 KiB
    /// (`RESYNC_BLOCK_SIZE`), 32 at a time (`RESYNC_DEPTH`).
    #[must_use]
    pub fn linux_md_mirror(pace: RebuildPace) -> Self {
        Self { request_bytes: 64 << 10, heads: 32, ..Self::linux_md(pace) }
    }

    /// Disk-oriented rebuild as in RAIDframe: ascending, using all bandwidth that users leave.
    #[must_use]
    pub fn disk_oriented() -> Self {
        Self {
            order: RebuildOrder::Ascending,
            executor: RebuildExecutor::Disk,
            pace: RebuildPace::Greedy,
            piggyback: Piggyback::Off,
            ..Self::default()
        }
    }

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
        within("the half-life in milliseconds", self.half_life_ms, 1..=1 << 32)?;
        within("a request (in bytes)", self.request_bytes, 4096..=16 << 20)?;
        if !self.request_bytes.is_power_of_two() {
            return Err(format!("a request of {} bytes is not a power of two", self.request_bytes));
        }
        within("the number of heads", self.heads, 1..=HEADS_MAX)?;
        within("the depth of each disk", self.disk_depth, 1..=DISK_DEPTH_MAX)?;
        within("the pool (in bytes)", self.pool_bytes, 1..=POOL_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_within_the_limits_and_other_values_are_refused() {
        let presets = [
            RebuildPolicy::default(),
            RebuildPolicy::linux_md(RebuildPace::MdSleep),
            RebuildPolicy::linux_md_mirror(RebuildPace::MdDepth),
            RebuildPolicy::disk_oriented(),
        ];
        for preset in presets {
            assert_eq!(preset.check(), Ok(()));
            let json = serde_json::to_string(&preset).expect("serializes");
            assert_eq!(serde_json::from_str::<RebuildPolicy>(&json).expect("parses"), preset);
        }
        let broken: [fn(&mut RebuildPolicy); 9] = [
            |policy| policy.slice_stripes = 0,
            |policy| policy.zone_stripes = 0,
            |policy| policy.zones = ZONES_MAX + 1,
            |policy| policy.half_life_ms = 0,
            |policy| policy.request_bytes = 5000,
            |policy| policy.request_bytes = 512,
            |policy| policy.heads = 0,
            |policy| policy.disk_depth = 0,
            |policy| policy.pool_bytes = u64::MAX,
        ];
        for spoil in broken {
            let mut policy = RebuildPolicy::default();
            spoil(&mut policy);
            assert!(policy.check().is_err(), "{policy:?}");
        }
    }
}
