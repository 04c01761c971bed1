//! A block cache that knows what a miss would cost.
//!
//! In a degraded array a miss of a lost block reads many disks, that of any other block only one. A
//! cache that keeps the most requested blocks therefore saves less than it could. It should keep
//! the blocks with the greatest p·MP: probability of a request times miss penalty ([`Penalty`]).
//! *Victim disk first* (VDF; Wan et al., "Victim disk first: an asymmetric cache to boost the
//! performance of disk arrays under faulty conditions", USENIX ATC 2011) adds that to a policy that
//! estimates p: it evicts the block with the least p·MP. Here it works on LRU and LFU as in the
//! paper, and on CLOCK, ARC and S3-FIFO; GreedyDual, which has the costs built in, is there to
//! compare with.
//!
//! ```text
//!                Cache          values, statistics, sizes
//!                  │
//!      lru lfu clock arc s3fifo greedy_dual      a policy: which lists, and which end goes
//!          │ queues, ghosts     │
//!        victim               slab               the least p·MP; blocks, index, lists
//!          │
//!        Penalty                                 the owner's: what would a miss read now?
//! ```
//!
//! A policy is one file. All keep their blocks in lists of one slab with one index. Lists are per
//! *class* of blocks that are lost together: a disk's. The plain form of a policy is the same code
//! with a single class.
//!
//! The cache does no input and output and knows no array. Its owner chooses the type of its values:
//! a page, or `()` in a simulation.
//!
//! ```
//! use weft_cache::{Block, Cache, Penalty};
//!
//! /// RAID-5 of five disks, of which disk 2 is lost.
//! struct Degraded;
//!
//! impl Penalty for Degraded {
//!     fn generation(&self) -> u64 {
//!         1
//!     }
//!
//!     fn of(&self, block: Block) -> u32 {
//!         if block.class == 2 { 4 } else { 1 }
//!     }
//! }
//!
//! let mut cache = Cache::new("vdf-lru".parse()?, 2, 5)?;
//! cache.insert(Block { key: 10, class: 2 }, "lost", &Degraded);
//! cache.insert(Block { key: 11, class: 0 }, "newer", &Degraded);
//! cache.insert(Block { key: 12, class: 1 }, "newest", &Degraded);
//! assert_eq!(cache.peek(10), Some(&"lost")); // plain LRU would have evicted it
//! assert_eq!(cache.peek(11), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod arc;
mod cache;
mod choice;
mod clock;
mod coherence;
mod error;
mod ghosts;
mod greedy_dual;
mod lfu;
mod lru;
mod penalty;
mod policy;
mod queues;
mod s3fifo;
mod slab;
mod stats;
mod victim;
mod volume;

pub use cache::Cache;
pub use choice::{Base, Choice};
pub use error::CacheError;
pub use penalty::{Block, Penalty};
pub use stats::Stats;
pub use volume::{CachedVolume, Costs, DomainCounts, PAGE_BYTES, Usage};
