//! The tests of the file system, a file for each thought, in one program: each of them would
//! compile the file system and its database once more.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts of a test are small")]

mod attributes;
mod balance;
mod cancellation;
mod checks;
mod common;
mod crashes;
mod damage;
mod examples;
mod failures;
mod files;
mod full_disks;
mod full_metadata;
mod given_disks;
mod kernel_cache;
mod larger_disks;
mod lists;
mod losses;
mod lying_disks;
mod membership;
mod metadata;
mod metadata_copies;
mod metadata_growth;
mod mount_mark;
mod node_disks;
mod node_paths;
mod node_space;
mod nodes;
mod old_block_cache;
mod out_of_place;
mod preallocated;
mod random_crashes;
mod random_losses;
mod random_nodes;
mod read_only;
mod redundancy_changes;
mod reference;
mod returned;
mod scheduler;
mod scrub;
mod set_back;
mod spread_jobs;
mod stale_copies;
mod streams;
mod tokens;
