//! The parameters of a hard disk.

/// The three seek times of a data sheet, in milliseconds, for reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeekSpec {
    /// To the neighbouring track.
    pub track_to_track_ms: f64,
    /// Averaged over all pairs of cylinders.
    pub average_ms: f64,
    /// From the first cylinder to the last.
    pub full_stroke_ms: f64,
}

/// What a hard disk is made of. Rates are in millions of bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HddSpec {
    /// Turns per minute.
    pub rpm: u32,
    /// Heads (recorded surfaces).
    pub heads: u32,
    /// Zones of equally many cylinders.
    pub zones: u32,
    /// Sustained rate of the outermost zone.
    pub outer_mb_s: f64,
    /// Sustained rate of the innermost zone.
    pub inner_mb_s: f64,
    /// Seek times.
    pub seek: SeekSpec,
    /// What a write's positioning takes longer than a read's.
    pub write_settle_ms: f64,
    /// From one head to another of the same cylinder.
    pub head_switch_ms: f64,
    /// From the arrival of a command to its execution.
    pub overhead_us: f64,
    /// Rate of the interface.
    pub interface_mb_s: f64,
    /// Memory for data, bytes.
    pub cache_bytes: u64,
    /// Segments that the memory for reads is cut into.
    pub segments: u32,
    /// Bytes read on behind a read, if nothing else is to be done.
    pub read_ahead_bytes: u64,
    /// Whether writes are complete when they are in memory.
    pub write_cache: bool,
    /// Commands known to the disk.
    pub queue_depth: u32,
    /// A command that has waited for this long goes first.
    pub age_limit_ms: f64,
}
