//! Seeded randomness that prints how to replay a failure.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use weft_random::{SplitMix64, mix};

/// A small deterministic generator: the same seed gives the same numbers on every machine and in
/// every version of weft's tests.
#[derive(Debug, Clone)]
pub struct Rng(SplitMix64);

impl Rng {
    /// A generator that depends on nothing but `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(mix(seed)))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        self.0.below(bound)
    }

    /// An index into something of length `len`.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// True `times` out of `of` times.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// Fills `data` with random bytes.
    pub fn fill(&mut self, data: &mut [u8]) {
        for chunk in data.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Runs `test` once for each seed, with a generator of that seed.
///
/// `WEFT_SEED=N` runs only seed N, `WEFT_SEEDS=N` runs N seeds from the range's start on, and both
/// together as many from that seed on (a soak).
/// When a seed fails, the line that replays it is printed before the panic goes on.
pub fn for_seeds(seeds: Range<u64>, test: impl Fn(&mut Rng)) {
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>());
    let number = |name| number(name).map(|value| value.unwrap_or_else(|e| panic!("{name}: {e}")));
    let seeds = match (number("WEFT_SEED"), number("WEFT_SEEDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, Some(count)) => seeds.start..seeds.start + count,
        (None, None) => seeds,
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(&mut Rng::new(seed)))) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("");
            eprintln!("seed {seed} failed; replay it with: WEFT_SEED={seed} cargo test {name}");
            resume_unwind(panic);
        }
    }
}

/// Which cases a test of very many takes: every `n`-th, or each with `WEFT_EXHAUSTIVE=1`, as
/// `./soak` sets it.
#[must_use]
pub fn stride(n: usize) -> usize {
    if std::env::var_os("WEFT_EXHAUSTIVE").is_some_and(|value| value == "1") { 1 } else { n }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.index(7)] = true;
        }
        assert_eq!(seen, [true; 7]);
    }

    #[test]
    #[should_panic(expected = "seed five")]
    fn a_failing_seed_fails_the_test() {
        let fifth = Rng::new(5).next_u64();
        for_seeds(0..10, |rng| assert_ne!(rng.next_u64(), fifth, "seed five"));
    }
}
