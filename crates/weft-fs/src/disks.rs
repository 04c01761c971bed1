//! The disks: which exist, how each is, which blocks are free or bad, and how lines of a file lie
//! on them.
//!
//! It knows one request and one line at a time. Which file a line belongs to, and which lock guards
//! it, is decided above.

pub(crate) mod allocator;
pub(crate) mod bad_blocks;
pub(crate) mod diagnosis;
pub(crate) mod extent_stripe;
pub(crate) mod free_map;
pub(crate) mod granted_space;
mod group_bits;
mod group_bounds;
pub(crate) mod known_units;
pub(crate) mod log_medium;
pub(crate) mod member;
pub(crate) mod memory_disk;
pub(crate) mod old_block_cache;
pub(crate) mod pool;
pub(crate) mod relayed;
pub(crate) mod reopen;
pub(crate) mod successor;
