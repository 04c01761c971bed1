//! What a cache has done.

/// Counts since the cache was made, or since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks requested that were there.
    pub hits: u64,
    /// Blocks requested that were not.
    pub misses: u64,
    /// What the misses read from the disks that work, in blocks.
    pub disk_blocks: u64,
    /// Blocks evicted for other blocks.
    pub evictions: u64,
}

impl Stats {
    /// Blocks requested.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.hits + self.misses
    }

    /// Share of requested blocks that were there; 0 before the first request.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.requests())
    }

    /// The requests generation ratio: blocks read from surviving disks for each block requested
    /// (VDF, equation 1). Σ pᵢ·MPᵢ, where MPᵢ is 0 for a hit. 0 before the first request.
    #[must_use]
    pub fn rgr(&self) -> f64 {
        ratio(self.disk_blocks, self.requests())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
