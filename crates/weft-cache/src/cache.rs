//! A cache of blocks: a policy, the values of its blocks, and counts.

use std::mem;

use crate::arc::Arc;
use crate::choice::{Base, Choice};
use crate::clock::Clock;
use crate::error::CacheError;
use crate::greedy_dual::GreedyDual;
use crate::lfu::Lfu;
use crate::lru::Lru;
use crate::penalty::{Block, Penalty};
use crate::policy::Policy;
use crate::s3fifo::S3Fifo;
use crate::stats::Stats;

/// The most blocks: numbers of 32 bits; one value means none.
const BLOCKS_MAX: usize = (1 << 32) - 2;
/// The most classes of blocks.
const CLASSES_MAX: usize = 1 << 12;

/// A cache. It never holds more blocks than its capacity, and allocates no memory but when it is
/// made and when its capacity is changed. What its owner needs to keep with a block is its value.
#[derive(Debug)]
pub struct Cache<V> {
    choice: Choice,
    policy: Box<dyn Policy>,
    /// By slot.
    values: Vec<V>,
    capacity: usize,
    classes: u16,
    stats: Stats,
}

impl<V: Default> Cache<V> {
    /// A cache for `capacity` blocks, of `classes` classes, which are numbered from 0.
    ///
    /// # Errors
    /// If the capacity or the number of classes is 0 or too large, or there is no memory.
    pub fn new(choice: Choice, capacity: usize, classes: usize) -> Result<Self, CacheError> {
        let most = CLASSES_MAX;
        if classes == 0 || classes > most {
            return Err(CacheError::Classes { classes, most });
        }
        sound(capacity)?;
        // Plain policies do not tell classes apart.
        let classes = if choice.victim_first { classes } else { 1 };
        let classes = u16::try_from(classes).expect("at most CLASSES_MAX");
        let policy: Box<dyn Policy> = match choice.base {
            Base::Lru => Box::new(Lru::new(capacity, classes)?),
            Base::Lfu => Box::new(Lfu::new(capacity, classes)?),
            Base::Clock => Box::new(Clock::new(capacity, classes)?),
            Base::Arc => Box::new(Arc::new(capacity, classes)?),
            Base::S3Fifo => Box::new(S3Fifo::new(capacity, classes)?),
            Base::GreedyDual => Box::new(GreedyDual::new(capacity, classes)?),
        };
        let values = room(capacity)?;
        Ok(Self { choice, policy, values, capacity, classes, stats: Stats::default() })
    }

    /// Requests a block: its value, if it is cached. Otherwise the owner reads it, and calls
    /// [`Self::insert`].
    #[inline]
    pub fn get(&mut self, block: Block, penalty: &dyn Penalty) -> Option<&mut V> {
        let Some(slot) = self.policy.find(block.key) else {
            self.stats.misses += 1;
            self.stats.disk_blocks += u64::from(penalty.of(block));
            return None;
        };
        self.stats.hits += 1;
        self.policy.hit(slot, penalty);
        self.values.get_mut(slot as usize)
    }

    /// Requests a block by its number, if it is cached and its value is `sound`; otherwise nothing
    /// changes, and nothing is counted.
    #[inline]
    pub fn get_if(
        &mut self,
        key: u64,
        penalty: &dyn Penalty,
        sound: impl FnOnce(&V) -> bool,
    ) -> Option<&mut V> {
        let slot = self.policy.find(key)?;
        let value = self.values.get_mut(slot as usize).filter(|value| sound(value))?;
        self.stats.hits += 1;
        self.policy.hit(slot, penalty);
        Some(value)
    }

    /// Admits a block, and returns the one that was evicted for it. A block that is cached already
    /// only gets the new value.
    ///
    /// # Panics
    /// If the block's class is not below the number of classes.
    pub fn insert(&mut self, block: Block, value: V, penalty: &dyn Penalty) -> Option<(u64, V)> {
        if let Some(cached) = self.peek_mut(block.key) {
            *cached = value;
            return None;
        }
        let class = if self.choice.victim_first { block.class } else { 0 };
        assert!(class < self.classes, "a block of class {class} of {}", self.classes);
        let (slot, evicted) = self.policy.admit(Block { class, ..block }, penalty);
        self.stats.evictions += u64::from(evicted.is_some());
        let slot = slot as usize;
        if slot == self.values.len() {
            self.values.push(value);
            return None;
        }
        // The slot of the evicted block is the first to be used again.
        let before = mem::replace(&mut self.values[slot], value);
        evicted.map(|evicted| (evicted.key, before))
    }

    /// Requests a block and admits it if it is not cached: whether it was.
    pub fn request(&mut self, block: Block, penalty: &dyn Penalty) -> bool {
        let hit = self.get(block, penalty).is_some();
        if !hit {
            self.insert(block, V::default(), penalty);
        }
        hit
    }

    /// The value of a cached block, which is not a request.
    #[must_use]
    pub fn peek(&self, key: u64) -> Option<&V> {
        self.policy.find(key).and_then(|slot| self.values.get(slot as usize))
    }

    /// The contents of a block, to change them.
    pub fn peek_mut(&mut self, key: u64) -> Option<&mut V> {
        self.policy.find(key).and_then(|slot| self.values.get_mut(slot as usize))
    }

    /// Takes a block out, as its contents are no longer valid.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let slot = self.policy.find(key)?;
        self.policy.forget(slot);
        Some(mem::take(&mut self.values[slot as usize]))
    }

    /// Evicts a block: its memory is needed for something else.
    pub fn evict(&mut self, penalty: &dyn Penalty) -> Option<(u64, V)> {
        let gone = self.policy.evict(penalty)?;
        self.stats.evictions += 1;
        Some((gone.key, mem::take(&mut self.values[gone.slot as usize])))
    }

    /// Changes the capacity. What no longer fits is evicted, and given to `evicted`. Memory for the
    /// new capacity is taken before that for the old one is given back.
    ///
    /// # Errors
    /// If the capacity is 0 or too large, or there is no memory for it; blocks may have been
    /// evicted.
    pub fn resize(
        &mut self,
        capacity: usize,
        penalty: &dyn Penalty,
        mut evicted: impl FnMut(u64, V),
    ) -> Result<(), CacheError> {
        sound(capacity)?;
        while self.policy.len() > capacity {
            let gone = self.policy.evict(penalty).expect("a block that can go");
            self.stats.evictions += 1;
            evicted(gone.key, mem::take(&mut self.values[gone.slot as usize]));
        }
        let mut values = room(capacity)?;
        let old = &mut self.values;
        self.policy
            .resize(capacity, &mut |slot| values.push(mem::take(&mut old[slot as usize])))?;
        self.values = values;
        self.capacity = capacity;
        Ok(())
    }

    /// The policy.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Blocks that it has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Cached blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.policy.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What it has done since this was last asked: to leave warming up out.
    pub fn take_stats(&mut self) -> Stats {
        mem::take(&mut self.stats)
    }

    /// Bytes of memory, without what values refer to.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.policy.memory_bytes() + self.values.capacity() * size_of::<V>()
    }

    /// Checks every invariant, in time that grows with the cache; for tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        assert!(self.len() <= self.capacity, "{} of {} blocks", self.len(), self.capacity);
        self.policy.check();
    }
}

fn sound(capacity: usize) -> Result<(), CacheError> {
    match capacity {
        0 => Err(CacheError::NoRoom),
        blocks if blocks > BLOCKS_MAX => Err(CacheError::TooLarge { blocks, most: BLOCKS_MAX }),
        _ => Ok(()),
    }
}

fn room<V>(blocks: usize) -> Result<Vec<V>, CacheError> {
    let mut values = Vec::new();
    values.try_reserve_exact(blocks).map_err(|_| CacheError::NoMemory { blocks })?;
    Ok(values)
}
