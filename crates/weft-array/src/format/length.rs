//! Lengths on disks, and lengths in memory.

/// Converts a length or index that fits in memory (it is bounded by a unit or a request).
pub(crate) fn to_len(n: u64) -> usize {
    usize::try_from(n).expect("lengths in memory fit the address space")
}
