//! What the cache asks of a policy.

use std::fmt;

use crate::error::CacheError;
use crate::penalty::{Block, Penalty};

/// A block that has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) key: u64,
    pub(crate) slot: u32,
}

/// Decides which blocks stay. A block has a slot, a number below the capacity, while it is cached.
pub(crate) trait Policy: fmt::Debug {
    /// Number of cached blocks.
    fn len(&self) -> usize;

    /// The slot of a cached block.
    fn find(&self, key: u64) -> Option<u32>;

    /// A cached block was requested.
    fn hit(&mut self, slot: u32, penalty: &dyn Penalty);

    /// Takes a block in that is not cached. Evicts one if all slots are taken, else none. The class
    /// is below the number of classes.
    fn admit(&mut self, block: Block, penalty: &dyn Penalty) -> (u32, Option<Evicted>);

    /// Evicts a block.
    fn evict(&mut self, penalty: &dyn Penalty) -> Option<Evicted>;

    /// Forgets a cached block, whose contents are no longer valid.
    fn forget(&mut self, slot: u32);

    /// Changes the number of slots to `capacity`, which is enough for all cached blocks. They move
    /// to the slots from 0 on; `moved` is called with the old slot of each, in the order of the new
    /// ones. After an error none has moved.
    fn resize(&mut self, capacity: usize, moved: &mut dyn FnMut(u32)) -> Result<(), CacheError>;

    /// Bytes of memory.
    fn memory_bytes(&self) -> usize;

    /// Checks every invariant, and panics if one does not hold.
    fn check(&self);
}
