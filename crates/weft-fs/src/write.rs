//! From dirty blocks to the disks: when they are flushed, which lines they become, where these go,
//! and how a line that cannot stay is moved.

pub(crate) mod dirty_memory;
pub(crate) mod early_commit;
pub(crate) mod early_end;
pub(crate) mod flush;
pub(crate) mod line_writes;
pub(crate) mod new_line_stream;
pub(crate) mod new_lines;
pub(crate) mod out_of_place;
pub(crate) mod plan;
pub(crate) mod redundancy_change;
pub(crate) mod relayout;
pub(crate) mod remap;
pub(crate) mod reserve;
pub(crate) mod reserved_lines;
pub(crate) mod revocation;
pub(crate) mod room_exchange;
pub(crate) mod writeback;
