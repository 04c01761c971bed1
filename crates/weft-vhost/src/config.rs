//! What the guest is told of its disk: features, and the configuration space (virtio 1.2, 5.2.4).

use crate::disk::Limits;

/// Bytes of a sector, as virtio counts.
pub(crate) const SECTOR: u64 = 512;
/// Queues of a disk: a guest uses one for each of its processors, at most.
pub(crate) const QUEUES: usize = 8;
/// Entries of a queue.
pub(crate) const QUEUE_ENTRIES: usize = 256;
/// Longest piece of a request, and most of them.
const SEGMENT_BYTES_MAX: u32 = 64 << 10;
const SEGMENTS_MAX: u32 = 62;
/// Longest data of a request that keeps to this.
pub(crate) const DATA_BYTES_MAX: u64 = SEGMENT_BYTES_MAX as u64 * SEGMENTS_MAX as u64;
/// Longest range of a discard, or of zeros.
pub(crate) const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Features: numbers of bits.
mod feature {
    pub(super) const SIZE_MAX: u64 = 1;
    pub(super) const SEG_MAX: u64 = 2;
    pub(super) const RO: u64 = 5;
    pub(super) const BLK_SIZE: u64 = 6;
    pub(super) const FLUSH: u64 = 9;
    pub(super) const TOPOLOGY: u64 = 10;
    pub(super) const MQ: u64 = 12;
    pub(super) const DISCARD: u64 = 13;
    pub(super) const WRITE_ZEROES: u64 = 14;
    pub(super) const RING_INDIRECT: u64 = 28;
    pub(super) const RING_EVENT: u64 = 29;
    pub(super) const PROTOCOL: u64 = 30;
    pub(super) const VERSION_1: u64 = 32;
}

/// Whether a guest that took these features flushes.
pub(crate) fn has_flush(features: u64) -> bool {
    features & (1 << feature::FLUSH) != 0
}

/// The features of a disk.
pub(crate) fn features(read_only: bool) -> u64 {
    use feature::*;
    let usual = [
        SIZE_MAX,
        SEG_MAX,
        BLK_SIZE,
        FLUSH,
        TOPOLOGY,
        MQ,
        DISCARD,
        WRITE_ZEROES,
        RING_INDIRECT,
        RING_EVENT,
        PROTOCOL,
        VERSION_1,
    ];
    let usual = usual.into_iter().fold(0, |all, bit| all | 1 << bit);
    if read_only { usual & !(1 << DISCARD | 1 << WRITE_ZEROES) | 1 << RO } else { usual }
}

/// The configuration space.
pub(crate) fn space(size_bytes: u64, limits: &Limits) -> Vec<u8> {
    let block = limits.block_bytes;
    let blocks = |bytes: u64| bytes / u64::from(block);
    let most = u32::try_from(RANGE_BYTES_MAX / SECTOR).unwrap_or(u32::MAX);
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).unwrap_or(1).max(1);
    let mut space = Vec::with_capacity(60);
    let mut add = |bytes: &[u8]| space.extend_from_slice(bytes);
    add(&(size_bytes / SECTOR).to_le_bytes());
    add(&SEGMENT_BYTES_MAX.to_le_bytes());
    add(&SEGMENTS_MAX.to_le_bytes());
    // Cylinders, heads and sectors.
    add(&[0; 4]);
    add(&block.to_le_bytes());
    // Physical blocks of 4 KiB, as a power of two of logical ones; the first is aligned.
    add(&[u8::try_from((4096 / block.clamp(512, 4096)).ilog2()).unwrap_or(0), 0]);
    add(&u16::try_from(blocks(limits.unit_bytes)).unwrap_or(0).to_le_bytes());
    add(&u32::try_from(blocks(limits.stripe_bytes)).unwrap_or(0).to_le_bytes());
    // A cache that writes back.
    add(&[1, 0]);
    add(&u16::try_from(QUEUES).unwrap_or(1).to_le_bytes());
    // Discards: how long, how many at once, and how they should be aligned.
    add(&most.to_le_bytes());
    add(&1_u32.to_le_bytes());
    add(&sectors(limits.stripe_bytes).to_le_bytes());
    // Zeros: how long, how many at once, and whether they may free space.
    add(&most.to_le_bytes());
    add(&1_u32.to_le_bytes());
    add(&[1, 0, 0, 0]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_is_as_virtio_lays_it_out() {
        let limits = Limits { block_bytes: 512, unit_bytes: 64 << 10, stripe_bytes: 256 << 10 };
        let space = space(24 << 20, &limits);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().expect("four"));
        assert_eq!(space.len(), 60);
        assert_eq!((word(0), word(4)), (48 << 10, 0), "capacity");
        assert_eq!((word(8), word(12), word(20)), (64 << 10, 62, 512), "pieces and blocks");
        assert_eq!(space[24], 3, "physical blocks");
        assert_eq!((u16::from_le_bytes([space[26], space[27]]), word(28)), (128, 512), "requests");
        assert_eq!((space[32], space[34]), (1, 8), "cache and queues");
        assert_eq!((word(36), word(40), word(44)), (2 << 20, 1, 512), "discards");
        assert_eq!((word(48), word(52), space[56]), (2 << 20, 1, 1), "zeros");
    }

    #[test]
    fn a_disk_that_takes_no_writes_says_so() {
        let bit = |n: u64| 1 << n;
        assert_eq!(features(true) & bit(5), bit(5));
        assert_eq!(features(true) & (bit(13) | bit(14)), 0);
        assert_eq!(features(false) & bit(5), 0);
        assert_ne!(features(false) & bit(32) & features(true), 0);
    }
}
