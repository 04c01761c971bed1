//! The state of a mounted file system: its parts, open files, locks with tokens, the current job,
//! and what it reports.
//!
//! Everything that reads or changes files stands above and shares this state.

pub(crate) mod current_job;
pub(crate) mod disk_requests;
pub(crate) mod early_commits;
pub(crate) mod early_desk;
pub(crate) mod file_guard;
pub(crate) mod file_locks;
pub(crate) mod hot_parts;
pub(crate) mod job;
pub(crate) mod job_pace;
pub(crate) mod kernel_cache;
pub(crate) mod lock_table;
pub(crate) mod lost_disks;
pub(crate) mod metadata_copies;
pub(crate) mod metadata_growth;
pub(crate) mod metadata_room;
pub(crate) mod mounted;
pub(crate) mod open_files;
pub(crate) mod path_desk;
pub(crate) mod promised_room;
pub(crate) mod space_desk;
#[cfg(test)]
mod space_desk_story;
pub(crate) mod status;
pub(crate) mod token_guards;
pub(crate) mod unwritten;
pub(crate) mod waiting_disks;
pub(crate) mod work_desk;
