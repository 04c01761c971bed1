//! The policies as their papers describe them: lists as vectors, searched from end to end.

use std::collections::BTreeMap;

use weft_cache::{Base, Block, Choice, Penalty};

use crate::world::World;

#[derive(Clone, Debug)]
struct Entry {
    block: Block,
    /// Requests since it came, or since it was looked at.
    count: u64,
    stamp: u64,
    credit: u64,
}

/// A list, oldest first.
type List = Vec<Entry>;

/// A policy. Its lists, by their use: LRU, LFU and GreedyDual by last request, CLOCK the queue
/// before the hand, ARC T1 and T2, S3-FIFO small and main.
pub struct Model {
    choice: Choice,
    capacity: usize,
    lists: [List; 2],
    /// Oldest first.
    ghosts: [Vec<u64>; 2],
    now: u64,
    target: usize,
    paid: u64,
}

/// A multiple of all penalties.
const ALL: u64 = 2520;

impl Model {
    pub fn new(choice: Choice, capacity: usize) -> Self {
        let (lists, ghosts) = Default::default();
        Self { choice, capacity, lists, ghosts, now: 0, target: 0, paid: 0 }
    }

    pub fn len(&self) -> usize {
        self.lists[0].len() + self.lists[1].len()
    }

    /// A request: whether it is a hit, and the key that is evicted.
    pub fn request(&mut self, block: Block, world: &World) -> (bool, Option<u64>) {
        for list in 0..2 {
            let found = self.lists[list].iter().position(|entry| entry.block == block);
            if let Some(at) = found {
                self.hit(list, at, world);
                return (true, None);
            }
        }
        (false, self.miss(block, world))
    }

    fn hit(&mut self, list: usize, at: usize, world: &World) {
        let entry = &mut self.lists[list][at];
        entry.count += 1;
        entry.credit = self.paid + u64::from(world.of(entry.block));
        match self.choice.base {
            Base::Clock => entry.count = 1,
            Base::S3Fifo => entry.count = entry.count.min(3),
            Base::Lru | Base::Lfu | Base::GreedyDual => self.put_at_head(list, at, list),
            Base::Arc => self.put_at_head(list, at, 1),
        }
    }

    fn put_at_head(&mut self, list: usize, at: usize, to: usize) {
        let entry = self.lists[list].remove(at);
        self.lists[to].push(Entry { stamp: self.now, ..entry });
        self.now += 1;
    }

    fn miss(&mut self, block: Block, world: &World) -> Option<u64> {
        let full = self.len() == self.capacity;
        let ghost = (0..2).find(|list| self.ghosts[*list].contains(&block.key));
        let [b1, b2] = [self.ghosts[0].len(), self.ghosts[1].len()];
        self.ghosts.iter_mut().for_each(|ghosts| ghosts.retain(|key| *key != block.key));
        let (to, evicted) = match (self.choice.base, ghost) {
            (Base::Arc, Some(0)) => {
                self.target = self.capacity.min(self.target + (b2 / b1).max(1));
                (1, full.then(|| self.replace(false, world)))
            }
            (Base::Arc, Some(_)) => {
                self.target = self.target.saturating_sub((b1 / b2).max(1));
                (1, full.then(|| self.replace(true, world)))
            }
            (Base::Arc, None) if self.lists[0].len() + b1 >= self.capacity && b1 == 0 => {
                let at = self.end(0, world);
                (0, Some(self.lists[0].remove(at).block.key))
            }
            (Base::Arc, None) => {
                if self.lists[0].len() + b1 >= self.capacity {
                    self.ghosts[0].remove(0);
                } else if self.len() + b1 + b2 >= 2 * self.capacity {
                    self.ghosts[1].remove(0);
                }
                (0, full.then(|| self.replace(false, world)))
            }
            (_, ghost) => (usize::from(ghost.is_some()), full.then(|| self.evict(world))),
        };
        let count = u64::from(self.choice.base == Base::Lfu);
        let credit = self.paid + u64::from(world.of(block));
        self.lists[to].push(Entry { block, count, stamp: self.now, credit });
        self.now += 1;
        evicted
    }

    /// Evicts a block from a cache that is not empty.
    pub fn evict(&mut self, world: &World) -> u64 {
        match self.choice.base {
            Base::Lru | Base::Lfu => {
                let at = self.end(0, world);
                self.lists[0].remove(at).block.key
            }
            Base::GreedyDual => {
                let at = self.end(0, world);
                let entry = self.lists[0].remove(at);
                self.paid = self.paid.max(entry.credit);
                entry.block.key
            }
            Base::Clock => loop {
                let at = self.end(0, world);
                if self.lists[0][at].count == 0 {
                    return self.lists[0].remove(at).block.key;
                }
                self.lists[0][at].count = 0;
                self.put_at_head(0, at, 0);
            },
            Base::Arc => self.replace(false, world),
            Base::S3Fifo => loop {
                let small = (self.capacity / 10).max(1);
                let weight = self.weight_of_small(world);
                let list = usize::from(weight < small && !self.lists[1].is_empty());
                let at = self.end(list, world);
                let penalty = self.penalty(&self.lists[list][at], world);
                let entry = &mut self.lists[list][at];
                if list == 0 && entry.count * penalty >= 2 {
                    entry.count = 0;
                    self.put_at_head(0, at, 1);
                } else if list == 1 && entry.count > 0 {
                    entry.count -= 1;
                    self.put_at_head(1, at, 1);
                } else {
                    let key = self.lists[list].remove(at).block.key;
                    if list == 0 {
                        self.ghosts[0].push(key);
                        let most = self.capacity - small;
                        let over = self.ghosts[0].len().saturating_sub(most);
                        self.ghosts[0].drain(..over);
                    }
                    return key;
                }
            },
        }
    }

    /// The penalty of a block, at least 1, if the policy weighs it.
    fn penalty(&self, entry: &Entry, world: &World) -> u64 {
        if self.choice.victim_first { u64::from(world.of(entry.block)).max(1) } else { 1 }
    }

    /// The blocks of S3-FIFO's small queue, each class divided by the penalty of its oldest block.
    fn weight_of_small(&self, world: &World) -> usize {
        let mut classes: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for entry in &self.lists[0] {
            let oldest = self.penalty(entry, world);
            classes.entry(entry.block.class).or_insert((0, oldest)).0 += 1;
        }
        let weight: u64 = classes.values().map(|(count, penalty)| count / penalty).sum();
        usize::try_from(weight).expect("few blocks")
    }

    fn replace(&mut self, for_b2: bool, world: &World) -> u64 {
        let t1 = self.lists[0].len();
        let over = t1 > self.target || for_b2 && t1 == self.target;
        let list = usize::from(t1 == 0 || !over && !self.lists[1].is_empty());
        let at = self.end(list, world);
        let key = self.lists[list].remove(at).block.key;
        if self.ghosts[0].len() + self.ghosts[1].len() == self.capacity {
            let from = if self.ghosts[list].is_empty() { 1 - list } else { list };
            self.ghosts[from].remove(0);
        }
        self.ghosts[list].push(key);
        key
    }

    /// The place of the block that is at the end. Healthy or plain, that of the global stack;
    /// otherwise that of the local stack whose bottom has the greatest weight.
    fn end(&self, list: usize, world: &World) -> usize {
        let list = &self.lists[list];
        let by_policy = |entry: &Entry| match self.choice.base {
            Base::Lfu => (entry.count, entry.stamp),
            Base::GreedyDual if !self.choice.victim_first => unreachable!("it has one form"),
            _ => (0, entry.stamp),
        };
        let all = || list.iter().enumerate();
        if !self.choice.victim_first || world.lost.is_empty() && self.paid == 0 {
            let found = all().min_by_key(|(_, entry)| by_policy(entry));
            return found.expect("not empty").0;
        }
        let mut bottoms: BTreeMap<u16, (usize, &Entry)> = BTreeMap::new();
        for (at, entry) in all() {
            let bottom = bottoms.entry(entry.block.class).or_insert((at, entry));
            if by_policy(entry) < by_policy(bottom.1) {
                *bottom = (at, entry);
            }
        }
        let weight = |entry: &Entry| {
            let penalty = u64::from(world.of(entry.block));
            match self.choice.base {
                Base::Lfu => u64::MAX - entry.count * penalty,
                Base::GreedyDual => u64::MAX - entry.credit,
                _ if penalty == 0 => u64::MAX,
                _ => (self.now - entry.stamp) * (ALL / penalty),
            }
        };
        let older = |entry: &Entry| u64::MAX - entry.stamp;
        let found = bottoms.values().max_by_key(|(_, entry)| (weight(entry), older(entry)));
        found.expect("not empty").0
    }

    pub fn remove(&mut self, key: u64) -> bool {
        let before = self.len();
        self.lists.iter_mut().for_each(|list| list.retain(|entry| entry.block.key != key));
        self.len() < before
    }

    /// Changes the capacity: the keys that are evicted.
    pub fn resize(&mut self, capacity: usize, world: &World) -> Vec<u64> {
        let mut evicted = Vec::new();
        while self.len() > capacity {
            evicted.push(self.evict(world));
        }
        self.capacity = capacity;
        self.target = self.target.min(capacity);
        let most = match self.choice.base {
            Base::S3Fifo => capacity - (capacity / 10).max(1),
            _ => capacity,
        };
        while self.ghosts[0].len() + self.ghosts[1].len() > most {
            let longer = usize::from(self.ghosts[1].len() > self.ghosts[0].len());
            self.ghosts[longer].remove(0);
        }
        evicted
    }
}
