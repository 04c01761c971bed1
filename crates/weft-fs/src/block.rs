//! The size of a block.

/// Bytes of a block: of a file, of a disk, and the stripe unit.
pub const BLOCK_BYTES: u64 = 4096;
/// The same, as a length in memory.
pub(crate) const BLOCK: usize = 4096;
