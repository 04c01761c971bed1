//! The policies by name.

use std::fmt;
use std::str::FromStr;

use crate::error::CacheError;

/// How the probability of a request is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Least recently used.
    Lru,
    /// Least frequently used.
    Lfu,
    /// First in, first out, with a second chance.
    Clock,
    /// Adaptive replacement cache.
    Arc,
    /// Three first-in-first-out queues.
    S3Fifo,
    /// GreedyDual: recency and cost in one number.
    GreedyDual,
}

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// How the probability of a request is estimated.
    pub base: Base,
    /// Whether that is weighed with the penalty of a miss.
    pub victim_first: bool,
}

const NAMES: [(&str, Choice); 11] = [
    ("lru", Choice { base: Base::Lru, victim_first: false }),
    ("lfu", Choice { base: Base::Lfu, victim_first: false }),
    ("clock", Choice { base: Base::Clock, victim_first: false }),
    ("arc", Choice { base: Base::Arc, victim_first: false }),
    ("s3fifo", Choice { base: Base::S3Fifo, victim_first: false }),
    ("vdf-lru", Choice { base: Base::Lru, victim_first: true }),
    ("vdf-lfu", Choice { base: Base::Lfu, victim_first: true }),
    ("vdf-clock", Choice { base: Base::Clock, victim_first: true }),
    ("vdf-arc", Choice { base: Base::Arc, victim_first: true }),
    ("vdf-s3fifo", Choice { base: Base::S3Fifo, victim_first: true }),
    ("greedy-dual", Choice { base: Base::GreedyDual, victim_first: true }),
];

impl Choice {
    /// The default: S3-FIFO with victim disk first.
    pub const DEFAULT: Self = Self { base: Base::S3Fifo, victim_first: true };

    /// All policies.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, choice)| *choice)
    }
}

impl FromStr for Choice {
    type Err = CacheError;

    fn from_str(name: &str) -> Result<Self, CacheError> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            CacheError::UnknownPolicy { name: name.to_owned(), known: known.join(", ") }
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // GreedyDual has no other form.
        let same = |choice: &Self| choice.base == self.base;
        let found = NAMES.iter().find(|(_, choice)| choice == self);
        let found = found.or_else(|| NAMES.iter().find(|(_, choice)| same(choice)));
        f.pad(found.map_or("", |(name, _)| name))
    }
}
