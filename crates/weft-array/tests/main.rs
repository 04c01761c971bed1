//! The tests of the array, a file for each thought, in one program: each of them would compile the
//! engine once more.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes and counts of a test are small"
)]

mod assembly;
mod broken_reads;
mod cached_units;
mod change_consistency;
mod change_order;
mod codes;
mod common;
mod create_any_input;
mod create_arguments;
mod creation;
mod degraded_load;
mod discarded_log;
mod drill;
mod durable_status;
mod empty_requests;
mod examples;
mod exclusion_durable;
mod exercise;
mod failing_disks;
mod former_members;
mod fua_with_failure;
mod growth;
mod growth_cuts;
mod hostile;
mod hung_disks;
mod jobs;
mod lane_reuse;
mod latency_target;
mod log_flushes;
mod lost_contents;
mod lost_labels;
mod member_image;
mod members;
mod memory;
mod new_members;
mod no_room;
mod partial_rebuild;
mod parts;
mod power_cuts;
mod rebuild_cuts;
mod rebuild_finish;
mod rebuild_policies;
mod recovery_cuts;
mod region_map_crashes;
mod renamed_disks;
mod repair_without_room;
mod repaired_log;
mod replace;
mod replace_resync;
mod requests;
mod reshape;
mod reshape_cuts;
mod reshape_discards;
mod reshape_failures;
mod reshape_memory;
mod reshape_skips;
mod reshape_status;
mod reshape_turned;
mod reshape_turned_log;
mod second_label;
mod stop_cuts;
mod stop_with_writes;
mod superblock_any_input;
mod superblock_format;
mod superblock_limits;
mod undone_swap;
mod unwritten;
mod used_spare;
mod volume;
mod zeroed_spare;
