//! Latency of a disk. A model sees each operation as it starts; concurrent operations overtake each
//! other because their delays differ.

use weft_rt::{MICROSECOND, MILLISECOND, Nanos, Rng};

/// An operation, as a latency model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Byte offset on the disk.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
    /// Whether it is a read.
    pub is_read: bool,
    /// Operations in flight on this disk.
    pub depth: usize,
}

/// A model of a disk's latency.
pub trait Latency: std::fmt::Debug {
    /// The time from the start of `request` to its completion.
    fn delay(&mut self, request: Request, rng: &mut Rng) -> Nanos;
}

/// Uniformly distributed delays, times a factor, with rare spikes.
#[derive(Debug, Clone)]
pub struct Uniform {
    /// Shortest delay.
    pub least: Nanos,
    /// Longest delay.
    pub most: Nanos,
    /// Every delay is multiplied by this (a slow disk: 100).
    pub factor: u64,
    /// One operation in this many takes a hundred times as long; 0: none.
    pub spike_every: u64,
}

impl Default for Uniform {
    fn default() -> Self {
        Self { least: 5 * MICROSECOND, most: MILLISECOND, factor: 1, spike_every: 500 }
    }
}

impl Latency for Uniform {
    fn delay(&mut self, request: Request, rng: &mut Rng) -> Nanos {
        let delay = rng.within(self.least, self.most) + request.len / 4;
        let spike = self.spike_every > 0 && rng.below(self.spike_every) == 0;
        delay * self.factor * if spike { 100 } else { 1 }
    }
}
