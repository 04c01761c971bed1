//! What is accessed most, in a table of limited size.
//!
//! The popularity of a key is the sum of its accesses; each counts half after one half-life. When a
//! new key comes and the table is full, it replaces the coldest one and *inherits its popularity*
//! (Space-Saving: Metwally et al., ICDT '05; under forward decay: Cormode et al., ICDE '09). So
//! every key with more than 1/keys of the recent accesses is in the table, however many pass by.
//!
//! *Ageing costs nothing.* Old accesses are not scaled down; new ones count more. An access at time
//! t counts 2^(t/half-life). Order and ratios are the same, and no entry changes until the numbers
//! grow large; then all are scaled down together.
//!
//! An access costs one look-up. A new key takes the coldest one from a heap whose entries may be
//! out of date: popularity only grows, so an outdated entry at the top is corrected and sinks, and
//! each access causes at most one correction. The cost of an access depends neither on the number
//! of keys that come nor on the length of the run. Memory: some 80 bytes per key.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use weft_rt::Nanos;

/// Weights are scaled down after 64 half-lives.
const RESCALE_BELOW: f64 = 1.0 / (1u128 << 64) as f64;

/// Keys with fewer accesses are cold.
const COLD: f64 = 1.0 / 64.0;

/// A key is hot if it was accessed again within about two half-lives: a single access does not make
/// another one likely, and the way there costs every disk a seek.
const HOT: f64 = 1.25;

/// The most popular keys, and a value of each.
#[derive(Debug)]
pub struct PopularityTable<K, V> {
    keys_max: usize,
    half_life: Nanos,
    /// Weights are relative to this time.
    landmark: Nanos,
    /// Each with the weighted sum of its accesses.
    keys: BTreeMap<K, (f64, V)>,
    /// Coldest first. Each key has at least one entry that is not above its popularity. Entries of
    /// removed keys stay until they come up, or until there are too many. A popularity is in them
    /// as bits, which sort in the same order for positive numbers.
    coldest: BinaryHeap<Reverse<(u64, K)>>,
}

impl<K: Copy + Ord, V> PopularityTable<K, V> {
    /// A table of at most so many keys, whose accesses count half after `half_life`.
    #[must_use]
    pub fn new(keys_max: usize, half_life: Nanos) -> Self {
        Self { keys_max, half_life, landmark: 0, keys: BTreeMap::new(), coldest: BinaryHeap::new() }
    }

    /// Keeps at most so many keys from now on, the hottest ones.
    pub fn keep(&mut self, keys_max: usize) {
        self.keys_max = keys_max;
        while self.keys.len() > keys_max {
            self.remove_coldest();
        }
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.coldest.clear();
    }

    /// Counts an access; `value` is for a key that is new.
    pub fn note(&mut self, key: K, now: Nanos, value: V) {
        let weight = self.weight(now);
        if let Some((popularity, _)) = self.keys.get_mut(&key) {
            *popularity += weight;
            return;
        }
        let mut popularity = weight;
        if self.keys.len() >= self.keys_max {
            popularity += self.remove_coldest().unwrap_or(0.0);
        }
        self.keys.insert(key, (popularity, value));
        self.coldest.push(Reverse((popularity.to_bits(), key)));
        if self.coldest.len() > 2 * self.keys_max.max(self.keys.len()) {
            self.sort_out();
        }
    }

    /// The weight of an access now.
    fn weight(&mut self, now: Nanos) -> f64 {
        let scale = self.scale(now);
        if scale >= RESCALE_BELOW {
            return scale.recip();
        }
        self.landmark = now;
        self.keys.retain(|_, (popularity, _)| {
            *popularity *= scale;
            *popularity >= COLD
        });
        self.sort_out();
        1.0
    }

    /// Rebuilds the heap, with one entry for each key.
    fn sort_out(&mut self) {
        let entry = |(key, (popularity, _)): (&K, &(f64, V))| Reverse((popularity.to_bits(), *key));
        self.coldest = self.keys.iter().map(entry).collect();
    }

    /// Removes the coldest key. Returns its popularity.
    fn remove_coldest(&mut self) -> Option<f64> {
        loop {
            let Reverse((bits, key)) = self.coldest.pop()?;
            match self.keys.get(&key).map(|(popularity, _)| popularity.to_bits()) {
                None => {}
                Some(now) if now > bits => self.coldest.push(Reverse((now, key))),
                Some(_) => return self.keys.remove(&key).map(|(popularity, _)| popularity),
            }
        }
    }

    /// The most popular key, its popularity as [`Self::popularity`] has it, and its value; `None`
    /// if none is hot.
    #[must_use]
    pub fn hottest(&self, now: Nanos) -> Option<(K, f64, &V)> {
        let all = self.keys.iter().map(|(key, (popularity, value))| (*key, *popularity, value));
        let hottest = all.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (hottest.1 * self.scale(now) >= HOT).then_some(hottest)
    }

    /// The factor that turns weights into accesses as they count at `now`.
    #[expect(clippy::cast_precision_loss, reason = "half-lives, not nanoseconds, matter")]
    fn scale(&self, now: Nanos) -> f64 {
        (-(now.saturating_sub(self.landmark) as f64) / self.half_life as f64).exp2()
    }

    /// The popularity of a key, comparable with that of other keys; 0 if it is not there.
    #[must_use]
    pub fn popularity(&self, key: K) -> f64 {
        self.keys.get(&key).map_or(0.0, |(popularity, _)| *popularity)
    }

    /// The value of a key.
    #[must_use]
    pub fn value_mut(&mut self, key: K) -> Option<&mut V> {
        self.keys.get_mut(&key).map(|(_, value)| value)
    }

    /// Removes a key.
    pub fn remove(&mut self, key: K) {
        self.keys.remove(&key);
    }

    /// All keys, hottest first, with their popularity in accesses as they count at `now`.
    #[must_use]
    pub fn all(&self, now: Nanos) -> Vec<(K, f64)> {
        let scale = self.scale(now);
        let counts = self.keys.iter().map(|(key, (popularity, _))| (*key, popularity * scale));
        let mut all: Vec<(K, f64)> = counts.filter(|(_, count)| *count >= COLD).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }
}
