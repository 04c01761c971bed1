//! Where the engine keeps its metadata on a member, according to `docs/on-disk-format.md`. The
//! simulator reads and damages it there without asking the engine.

use std::ops::Range;

/// Where superblocks are written.
pub(crate) const SUPERBLOCKS: Range<u64> = 128 << 10..384 << 10;
/// Where the two copies of the superblock start.
pub(crate) const SUPERBLOCK_COPIES: [u64; 2] = [128 << 10, 256 << 10];
/// How many bytes of each copy are read.
pub(crate) const SUPERBLOCK_COPY_BYTES: usize = 16 << 10;
/// The data area starts here at the earliest.
pub(crate) const FIRST_DATA: u64 = 1 << 20;
/// The data area of small members starts here.
pub(crate) const METADATA_BYTES: u64 = 2 << 20;
