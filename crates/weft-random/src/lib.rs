//! Pseudo-random numbers from a seed, the same on every machine. Layouts, figures and simulated
//! runs depend on them, so the streams never change.
//!
//! * [`SplitMix64`]: the generator as published, for what must give the same numbers forever.
//! * [`Fold`]: a hash for tables that are the same in every run.
//! * [`Rng`]: for scenarios, with forks. Everything random in a simulated run is drawn from
//!   generators forked from the run's seed, so that the seed reproduces the run.
//!
//! ```
//! use weft_random::Rng;
//!
//! let mut rng = Rng::new(7);
//! let (first, dice) = (rng.next_u64(), rng.below(6));
//! assert!(dice < 6);
//! assert_eq!(Rng::new(7).next_u64(), first); // the same seed, the same stream
//! let (mut disks, mut clients) = (rng.fork(1), rng.fork(2)); // independent of each other
//! assert_ne!(disks.next_u64(), clients.next_u64());
//! ```
#![forbid(unsafe_code)]

use std::hash::Hasher;

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One mixing step: a bijection of 64 bits in which every input bit moves every output bit.
#[inline]
pub const fn mix(z: u64) -> u64 {
    finish(z.wrapping_add(GOLDEN))
}

/// The output function of SplitMix64.
#[inline]
pub const fn finish(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator in this state.
    pub const fn new(state: u64) -> Self {
        Self(state)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        finish(self.0)
    }

    /// A number below `bound` (0 if that is 0), uniform to within bound/2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product.
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

/// A multiplicative hash: quick, and the same in every run.
#[derive(Debug, Default)]
pub struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(GOLDEN);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// A generator for scenarios: small, fast, and good enough for drawing them.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A generator for one purpose. Draws for one purpose do not affect another, so a change in one
    /// part of a scenario leaves the other parts unchanged.
    #[must_use]
    pub fn fork(&self, purpose: u64) -> Self {
        Self(mix(self.0 ^ mix(purpose)))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound` (0 if that is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias is below 2^-32 for the small bounds used here.
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True with a probability of `percent` in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The published first outputs for the state 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn streams_stay_as_they_are() {
        let mut rng = Rng::new(7);
        let mut fork = rng.fork(3);
        let drawn = [rng.next_u64(), rng.below(1000), fork.next_u64(), fork.below(1000)];
        assert_eq!(drawn, [11_984_929_618_412_882_174, 827, 16_470_043_704_850_122_041, 741]);
    }
}
