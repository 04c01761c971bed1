//! Keys of blocks that were evicted not long ago, in one or two lists, oldest out first.

use crate::error::CacheError;
use crate::slab::Slab;

#[derive(Debug)]
pub(crate) struct Ghosts {
    keys: Slab<()>,
    lens: [usize; 2],
}

impl Ghosts {
    pub(crate) fn new(capacity: usize) -> Result<Self, CacheError> {
        Ok(Self { keys: Slab::new(capacity, 2)?, lens: [0; 2] })
    }

    pub(crate) fn len(&self, list: u32) -> usize {
        self.lens[list as usize]
    }

    /// Adds a key that is in no list. If there is no room, the oldest of `list` makes it, else of
    /// the other.
    pub(crate) fn add(&mut self, key: u64, list: u32) {
        if self.keys.is_full() && !self.drop_oldest(list) && !self.drop_oldest(1 - list) {
            return;
        }
        self.keys.insert(key, list, ());
        self.lens[list as usize] += 1;
    }

    /// The list that has a key.
    pub(crate) fn list(&self, key: u64) -> Option<u32> {
        self.keys.find(key).map(|id| self.keys.list(id))
    }

    /// Takes a key out, if it is there.
    pub(crate) fn take(&mut self, key: u64) -> bool {
        let Some(id) = self.keys.find(key) else { return false };
        self.lens[self.keys.list(id) as usize] -= 1;
        self.keys.remove(id);
        true
    }

    /// Forgets the oldest of a list, if there is one.
    pub(crate) fn drop_oldest(&mut self, list: u32) -> bool {
        let Some(id) = self.keys.tail(list) else { return false };
        self.keys.remove(id);
        self.lens[list as usize] -= 1;
        true
    }

    /// Changes the room; the oldest go, from the longer list first.
    pub(crate) fn resize(&mut self, capacity: usize) -> Result<(), CacheError> {
        while self.keys.len() > capacity {
            self.drop_oldest(u32::from(self.lens[1] > self.lens[0]));
        }
        self.keys.resize(capacity, |_| ())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes()
    }

    /// Checks links and counts; no key may be `cached`.
    ///
    /// # Panics
    /// If one is wrong.
    pub(crate) fn check(&self, cached: impl Fn(u64) -> bool) {
        self.keys.check();
        for (list, len) in (0..).zip(self.lens) {
            assert_eq!(self.keys.oldest_first(list).count(), len, "ghosts in list {list}");
            for id in self.keys.oldest_first(list) {
                assert!(!cached(self.keys.key(id)), "a ghost that is cached");
            }
        }
    }
}
