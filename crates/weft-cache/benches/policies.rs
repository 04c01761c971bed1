//! Requests per second of each policy on one core: plain, with victim disk first while nothing is
//! lost, and with a disk lost. 4 million requests by Zipf's law (0.8) for a million blocks of eight
//! disks; the cache has room for a tenth of them. The first pass of each fills the cache.

use std::time::Instant;

use weft_cache::{Block, Cache, Choice, Penalty};
use weft_random::{Rng, mix};

const KEYS: u64 = 1 << 20;
const REQUESTS: usize = 1 << 20;
const CAPACITY: usize = 100_000;
const PASSES: usize = 20;
const DISKS: u16 = 8;

struct Lost(Option<u16>);

impl Penalty for Lost {
    fn generation(&self) -> u64 {
        1
    }

    fn of(&self, block: Block) -> u32 {
        if self.0 == Some(block.class) { u32::from(DISKS) - 1 } else { 1 }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below KEYS")]
#[expect(clippy::cast_precision_loss, reason = "a draw")]
fn requests() -> Vec<Block> {
    let mut rng = Rng::new(1);
    let mut draw = || {
        let part = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        // The share of requests for the first x of n keys is (x / n)^0.2.
        let rank = (KEYS as f64 * part.powi(5)) as u64;
        let key = mix(rank) % (KEYS << 8);
        Block { key, class: (key / 16 % u64::from(DISKS)) as u16 }
    };
    (0..REQUESTS).map(|_| draw()).collect()
}

/// A cache that is measured, and its fastest pass.
struct Run {
    cache: Cache<()>,
    penalty: Lost,
    best_s: f64,
}

impl Run {
    fn new(choice: Choice, lost: Option<u16>) -> Self {
        let cache = Cache::new(choice, CAPACITY, DISKS.into()).expect("sound");
        Self { cache, penalty: Lost(lost), best_s: f64::INFINITY }
    }

    fn pass(&mut self, requests: &[Block], counted: bool) {
        self.cache.take_stats();
        let begun = Instant::now();
        for block in requests {
            self.cache.request(*block, &self.penalty);
        }
        if counted {
            self.best_s = self.best_s.min(begun.elapsed().as_secs_f64());
        }
    }

    /// Millions of requests a second.
    #[expect(clippy::cast_precision_loss, reason = "millions")]
    fn rate(&self) -> f64 {
        REQUESTS as f64 / self.best_s / 1e6
    }
}

fn main() {
    let requests = requests();
    println!(
        "| policy      | hits, % | bytes a block |    M/s | with VDF | %, one lost | %, healthy |"
    );
    println!(
        "|-------------|--------:|--------------:|-------:|---------:|------------:|-----------:|"
    );
    for plain in Choice::all().filter(|choice| !choice.victim_first) {
        let first = Choice { victim_first: true, ..plain };
        let mut runs = [Run::new(plain, Some(3)), Run::new(first, Some(3)), Run::new(first, None)];
        // In turns, so that what else the machine does affects all.
        for pass in 0..=PASSES {
            runs.iter_mut().for_each(|run| run.pass(&requests, pass > 0));
        }
        let [base, lost, healthy] = &runs;
        let hits = 100.0 * base.cache.stats().hit_ratio();
        let bytes = base.cache.memory_bytes() / CAPACITY;
        let than_base = |run: &Run| 100.0 * (base.best_s / run.best_s);
        println!(
            "| {plain:<11} | {hits:>7.1} | {bytes:>13} | {:>6.1} | {:>8.1} | {:>11.0} | {:>10.0} |",
            base.rate(),
            lost.rate(),
            than_base(lost),
            than_base(healthy)
        );
    }
}
