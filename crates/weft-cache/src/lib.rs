//! A block cache that knows what a miss would cost.
//!
//! In a degraded array a miss of a lost block reads many disks, that of any other block only one. A
//! cache that keeps what is requested most often therefore saves less than it could. It should keep
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
//! The cache does no input and output and knows no array. Its values are whatever its owner likes:
//! a page, or `()` in a simulation.
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
