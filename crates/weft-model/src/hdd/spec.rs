//! The parameters of a hard disk.

use serde::{Deserialize, Serialize};

/// The seek times of a data sheet, in milliseconds, for reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeekSpec {
    /// To an adjacent track.
    pub track_to_track_ms: f64,
    /// Averaged over all pairs of cylinders.
    pub average_ms: f64,
    /// From the first cylinder to the last.
    pub full_stroke_ms: f64,
}

/// The parameters of a hard disk. Rates are in millions of bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HddSpec {
    /// Revolutions per minute.
    pub rpm: u32,
    /// Heads (recorded surfaces).
    pub heads: u32,
    /// Zones, with equally many cylinders.
    pub zones: u32,
    /// Sustained rate of the outermost zone.
    pub outer_mb_s: f64,
    /// Sustained rate of the innermost zone.
    pub inner_mb_s: f64,
    /// Seek times.
    pub seek: SeekSpec,
    /// Extra settling time of a write.
    pub write_settle_ms: f64,
    /// Time to switch between heads of the same cylinder.
    pub head_switch_ms: f64,
    /// Overhead of a command.
    pub overhead_us: f64,
    /// Rate of the interface.
    pub interface_mb_s: f64,
    /// Memory for data, in bytes.
    pub cache_bytes: u64,
    /// Segments of the read memory.
    pub segments: u32,
    /// Bytes to read ahead after a read, if the disk is otherwise idle.
    pub read_ahead_bytes: u64,
    /// Whether a write completes once it is in memory.
    pub write_cache: bool,
    /// Commands that the disk accepts at a time.
    pub queue_depth: u32,
    /// A command that has waited this long goes first.
    pub age_limit_ms: f64,
}
