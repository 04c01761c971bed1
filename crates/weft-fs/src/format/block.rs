//! The size of a block, and which blocks a range of bytes touches.

use std::ops::Range;

/// Bytes of a block: of a file, of a disk, and the stripe unit.
pub const BLOCK_BYTES: u64 = 4096;
/// [`BLOCK_BYTES`] as a length in memory.
pub(crate) const BLOCK: usize = 4096;

/// The blocks that a range of bytes touches.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}
