//! User requests: reads, writes and zeroes of a stripe, with the log and full members.

pub(crate) mod cached_units;
pub(crate) mod full_member;
pub(crate) mod log_writes;
pub(crate) mod read;
pub(crate) mod write;
pub(crate) mod zero;
