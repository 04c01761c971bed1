//! What is on disk, apart from the metadata's own tables: labels, inodes, extents, redundancy,
//! checksums.
//!
//! Plain data, its bytes and its checks. It knows no disk and no state.

pub(crate) mod block;
pub(crate) mod checksum;
pub(crate) mod extent;
pub(crate) mod inode;
pub(crate) mod label;
pub(crate) mod mount_mark;
pub(crate) mod redundancy;
pub(crate) mod use_number;
