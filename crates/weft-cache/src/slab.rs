//! Blocks in lists, found by key: what every policy is made of.
//!
//! A block is a node of a slab; links are numbers of nodes, so that a node takes 24 bytes and what
//! a policy adds. Each node is in one list and in one chain of the index:
//!
//! ```text
//!    head ─▶ newest ⇄ … ⇄ oldest ◀─ tail          prev: newer, next: older
//!    bucket[hash(key)] ─▶ node ─▶ node            chain
//! ```
//!
//! All memory is reserved when the slab is made; nodes that are not in use are chained by `next`.
//! A slab changes its size by moving all nodes, list by list, into a new one.

use std::mem;

use weft_random::mix;

use crate::error::CacheError;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// Nodes for each seven buckets: at 3.5 bytes a node, two of three lookups touch one node or none.
const NODES: usize = 8;
const BUCKETS: usize = 7;

#[derive(Clone, Debug)]
struct Node<T> {
    key: u64,
    extra: T,
    prev: u32,
    next: u32,
    chain: u32,
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const EMPTY: Ends = Ends { head: NONE, tail: NONE };

/// Blocks in lists. `T` is what a policy keeps with each.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    nodes: Vec<Node<T>>,
    lists: Vec<Ends>,
    buckets: Vec<u32>,
    /// The first of the nodes that were in use and are not.
    free: u32,
    len: usize,
    capacity: usize,
}

impl<T: Copy> Slab<T> {
    /// A slab for `capacity` blocks in `lists` lists.
    pub(crate) fn new(capacity: usize, lists: usize) -> Result<Self, CacheError> {
        let none = |_| CacheError::NoMemory { blocks: capacity };
        let mut slab = Self {
            nodes: Vec::new(),
            lists: Vec::new(),
            buckets: Vec::new(),
            free: NONE,
            len: 0,
            capacity,
        };
        let buckets = (capacity * BUCKETS / NODES).max(1);
        slab.nodes.try_reserve_exact(capacity).map_err(none)?;
        slab.lists.try_reserve_exact(lists).map_err(none)?;
        slab.buckets.try_reserve_exact(buckets).map_err(none)?;
        slab.lists.resize(lists, EMPTY);
        slab.buckets.resize(buckets, NONE);
        Ok(slab)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<T>>()
            + self.lists.capacity() * size_of::<Ends>()
            + self.buckets.capacity() * size_of::<u32>()
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        // The high half of a 32-bit hash times the number of buckets: below that number.
        ((mix(key) >> 32) as usize).wrapping_mul(self.buckets.len()) >> 32
    }

    /// The node of `key`.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        let mut id = self.buckets[self.bucket(key)];
        while id != NONE {
            let node = &self.nodes[id as usize];
            if node.key == key {
                return Some(id);
            }
            id = node.chain;
        }
        None
    }

    pub(crate) fn key(&self, id: u32) -> u64 {
        self.nodes[id as usize].key
    }

    pub(crate) fn list(&self, id: u32) -> u32 {
        self.nodes[id as usize].list
    }

    #[inline]
    pub(crate) fn extra(&self, id: u32) -> T {
        self.nodes[id as usize].extra
    }

    #[inline]
    pub(crate) fn set_extra(&mut self, id: u32, extra: T) {
        self.nodes[id as usize].extra = extra;
    }

    /// The oldest of `list`.
    #[inline]
    pub(crate) fn tail(&self, list: u32) -> Option<u32> {
        let tail = self.lists[list as usize].tail;
        (tail != NONE).then_some(tail)
    }

    /// The newest of `list`, which is not empty.
    pub(crate) fn head(&self, list: u32) -> u32 {
        self.lists[list as usize].head
    }

    /// Whether a block is the oldest of its list.
    #[inline]
    pub(crate) fn is_tail(&self, id: u32) -> bool {
        self.nodes[id as usize].next == NONE
    }

    /// The block before this one in its list.
    pub(crate) fn newer(&self, id: u32) -> Option<u32> {
        let newer = self.nodes[id as usize].prev;
        (newer != NONE).then_some(newer)
    }

    /// The block after this one in its list; [`NONE`] after the oldest.
    pub(crate) fn older(&self, id: u32) -> u32 {
        self.nodes[id as usize].next
    }

    /// Whether `list` has one block.
    pub(crate) fn is_single(&self, list: u32) -> bool {
        let Ends { head, tail } = self.lists[list as usize];
        head == tail && head != NONE
    }

    /// Adds a block, which is not there yet, at the head of `list`.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn insert(&mut self, key: u64, list: u32, extra: T) -> u32 {
        let bucket = self.bucket(key);
        let chain = self.buckets[bucket];
        let node = Node { key, extra, prev: NONE, next: NONE, chain, list };
        let id = if self.free == NONE {
            assert!(self.nodes.len() < self.capacity, "a full slab");
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer nodes than numbers")
        } else {
            let id = self.free;
            self.free = mem::replace(&mut self.nodes[id as usize], node).next;
            id
        };
        self.buckets[bucket] = id;
        self.link(id, list);
        self.len += 1;
        id
    }

    /// Takes a block out.
    pub(crate) fn remove(&mut self, id: u32) {
        self.unlink(id);
        let Node { key, chain, .. } = self.nodes[id as usize];
        let bucket = self.bucket(key);
        if self.buckets[bucket] == id {
            self.buckets[bucket] = chain;
        } else {
            let mut before = self.buckets[bucket];
            while self.nodes[before as usize].chain != id {
                before = self.nodes[before as usize].chain;
            }
            self.nodes[before as usize].chain = chain;
        }
        self.nodes[id as usize].next = self.free;
        self.free = id;
        self.len -= 1;
    }

    /// Moves a block to the head of `list`.
    #[inline]
    pub(crate) fn move_to(&mut self, id: u32, list: u32) {
        self.unlink(id);
        self.link(id, list);
    }

    fn unlink(&mut self, id: u32) {
        let Node { prev, next, list, .. } = self.nodes[id as usize];
        match prev {
            NONE => self.lists[list as usize].head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.lists[list as usize].tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
    }

    fn link(&mut self, id: u32, list: u32) {
        let ends = &mut self.lists[list as usize];
        let next = mem::replace(&mut ends.head, id);
        if next == NONE {
            ends.tail = id;
        } else {
            self.nodes[next as usize].prev = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next, node.list) = (NONE, next, list);
    }

    /// The blocks of `list`, oldest first.
    pub(crate) fn oldest_first(&self, list: u32) -> impl Iterator<Item = u32> {
        let mut id = self.lists[list as usize].tail;
        std::iter::from_fn(move || {
            let found = (id != NONE).then_some(id)?;
            id = self.nodes[found as usize].prev;
            Some(found)
        })
    }

    /// Changes the room to `capacity`, which is enough for all blocks. They get new numbers from 0
    /// on; `moved` is called with the old number of each, in the order of the new ones.
    pub(crate) fn resize(
        &mut self,
        capacity: usize,
        mut moved: impl FnMut(u32),
    ) -> Result<(), CacheError> {
        let lists = u32::try_from(self.lists.len()).expect("fewer lists than numbers");
        let mut new = Self::new(capacity, self.lists.len())?;
        for list in 0..lists {
            for id in self.oldest_first(list) {
                let node = &self.nodes[id as usize];
                new.insert(node.key, list, node.extra);
                moved(id);
            }
        }
        *self = new;
        Ok(())
    }

    /// Checks all links.
    ///
    /// # Panics
    /// If they contradict one another.
    pub(crate) fn check(&self) {
        let mut listed = 0;
        for list in 0..u32::try_from(self.lists.len()).expect("fewer lists than numbers") {
            let mut newer = NONE;
            let mut id = self.lists[list as usize].head;
            while id != NONE {
                let node = &self.nodes[id as usize];
                assert_eq!((node.prev, node.list), (newer, list), "links of node {id}");
                assert_eq!(self.find(node.key), Some(id), "index of node {id}");
                (newer, id) = (id, node.next);
                listed += 1;
                assert!(listed <= self.len, "a circle in list {list}");
            }
            assert_eq!(self.lists[list as usize].tail, newer, "tail of list {list}");
        }
        assert_eq!(listed, self.len, "blocks in lists");
        let mut free = 0;
        let mut id = self.free;
        while id != NONE {
            free += 1;
            assert!(free <= self.nodes.len(), "a circle of free nodes");
            id = self.nodes[id as usize].next;
        }
        assert_eq!(free + self.len, self.nodes.len(), "nodes in use or free");
    }
}
