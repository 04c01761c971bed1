//! How long a disk takes. A model sees each operation as it starts; concurrent operations
//! overtake each other because their delays differ.

use weft_rt::{MICROSECOND, MILLISECOND, Nanos};

use crate::rng::Rng;

/// What a latency model is told of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Byte offset on the disk.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
    /// Whether it is a read.
    pub is_read: bool,
    /// Operations already in flight on this disk.
    pub depth: usize,
}

/// A model of a disk's speed.
pub trait Latency: std::fmt::Debug {
    /// From the start of `request` to its completion.
    fn delay(&mut self, request: Request, rng: &mut Rng) -> Nanos;
}

/// Uniform delays with a factor of the disk's own, and rare spikes.
#[derive(Debug, Clone)]
pub struct Uniform {
    /// Least delay.
    pub least: Nanos,
    /// Greatest delay.
    pub most: Nanos,
    /// Every delay is multiplied by this (a slow disk: 100).
    pub factor: u64,
    /// One operation in this many takes a hundred times as long; 0 for none.
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
