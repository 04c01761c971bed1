//! What users chose, as superblocks keep it: the rebuild policy, the bounds of the rate of all
//! jobs, and the cache.
//!
//! They stand in one object, whose unknown keys or words make a program ignore it: no array stays
//! down for a preference. So programs from before the bounds were stored start such an array, too,
//! with the defaults.

use serde::{Deserialize, Deserializer, Serialize};

use crate::format::rebuild_policy::RebuildPolicy;

/// Bounds of the jobs' rate, in bytes per second and member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Lowest rate.
    pub min_bytes_s: u64,
    /// Highest rate; `None` means unbounded.
    pub max_bytes_s: Option<u64>,
    /// Mean time that users' requests should take while jobs run, in microseconds; `None`: no
    /// target.
    #[serde(default)]
    pub latency_us: Option<u64>,
}

impl Bounds {
    /// Whether jobs can run within these bounds.
    fn are_possible(&self) -> bool {
        self.max_bytes_s.is_none_or(|max| max > 0 && max >= self.min_bytes_s)
    }
}

/// The cache of an array. The engine only stores it: the memory belongs to the host that serves the
/// array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheChoice {
    /// Bytes of memory; 0: none.
    pub max_bytes: u64,
    /// The name of the policy.
    pub policy: String,
}

/// The choices of users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Preferences {
    /// The policy of rebuilds.
    #[serde(flatten)]
    pub policy: RebuildPolicy,
    /// The bounds of the rate of all jobs.
    #[serde(skip_serializing_if = "is_default")]
    pub throttle: Bounds,
    /// The cache, if it was chosen for this array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheChoice>,
}

fn is_default(bounds: &Bounds) -> bool {
    *bounds == Bounds::default()
}

impl From<RebuildPolicy> for Preferences {
    fn from(policy: RebuildPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

impl Preferences {
    /// What a superblock stores: nothing if all is as in a new array.
    pub(crate) fn stored(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Reads stored preferences; ignores those in words of another version.
    pub(crate) fn if_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let mut stored = serde_json::Value::deserialize(from)?;
        let mut take = |key| stored.as_object_mut().and_then(|keys| keys.remove(key));
        let (throttle, cache) = (take("throttle"), take("cache"));
        let cache = cache.and_then(|cache| CacheChoice::deserialize(cache).ok());
        let throttle = throttle.and_then(|throttle| Bounds::deserialize(throttle).ok());
        let throttle = throttle.filter(Bounds::are_possible).unwrap_or_default();
        let policy = RebuildPolicy::deserialize(stored).unwrap_or_default();
        Ok(Self { policy, throttle, cache }.stored())
    }
}
