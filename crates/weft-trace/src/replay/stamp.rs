//! The contents of verified blocks: each block names itself and the write that wrote it.
//!
//! A stamp is a magic number, the seed of the run, the number of the block and that of the write;
//! the rest of the block is noise derived from these four. A block is right only if all of it is,
//! so a torn, misplaced or stale block, and a block of another run, can be told apart and named.

use weft_rt::rng::SplitMix64;

/// Length of the stamp itself in bytes.
const HEAD_BYTES: usize = 32;
const MAGIC: u64 = 0x7765_6674_2073_7461;

fn noise(seed: u64, block: u64, write: u64) -> impl Iterator<Item = u64> {
    let state = seed ^ block.rotate_left(24) ^ write.rotate_left(48) ^ MAGIC;
    let mut random = SplitMix64::new(state);
    std::iter::repeat_with(move || random.next_u64())
}

/// Fills `data`, which starts at block `first`, as write number `write` of the run `seed`.
pub(crate) fn fill(data: &mut [u8], block_bytes: usize, seed: u64, first: u64, write: u64) {
    for (block, bytes) in (first..).zip(data.chunks_exact_mut(block_bytes)) {
        let (head, rest) = bytes.split_at_mut(HEAD_BYTES);
        for (place, word) in head.chunks_exact_mut(8).zip([MAGIC, seed, block, write]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in rest.chunks_exact_mut(8).zip(noise(seed, block, write)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockContents {
    /// The data of this write of this block, whole.
    Write(u64),
    /// The stamp of this write, with wrong data after it.
    Torn(u64),
    /// The data of another block.
    OtherBlock(u64),
    /// The stamp of another run.
    OtherRun,
    /// Zeros.
    Zeros,
    /// Anything else.
    Strange,
}

/// Examines one block, which should be number `block`.
pub(crate) fn look(bytes: &[u8], seed: u64, block: u64) -> BlockContents {
    let word = |at: usize| {
        bytes.get(at * 8..at * 8 + 8).map_or(0, |word| {
            word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        })
    };
    if word(0) != MAGIC {
        return if bytes.iter().all(|byte| *byte == 0) {
            BlockContents::Zeros
        } else {
            BlockContents::Strange
        };
    }
    let (found_seed, found_block, write) = (word(1), word(2), word(3));
    if found_seed != seed {
        return BlockContents::OtherRun;
    }
    if found_block != block {
        return BlockContents::OtherBlock(found_block);
    }
    let rest = bytes.get(HEAD_BYTES..).unwrap_or_default().chunks_exact(8);
    let whole =
        rest.zip(noise(seed, block, write)).all(|(place, word)| *place == word.to_le_bytes());
    if whole { BlockContents::Write(write) } else { BlockContents::Torn(write) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_what_they_are() {
        let mut data = vec![0; 3 * 512];
        assert_eq!(look(&data[..512], 9, 4), BlockContents::Zeros);
        fill(&mut data, 512, 9, 4, 77);
        assert_eq!(look(&data[512..1024], 9, 5), BlockContents::Write(77));
        assert_eq!(look(&data[512..1024], 9, 4), BlockContents::OtherBlock(5));
        assert_eq!(look(&data[512..1024], 8, 5), BlockContents::OtherRun);
        data[600] ^= 1;
        assert_eq!(look(&data[512..1024], 9, 5), BlockContents::Torn(77));
        data[512] ^= 1;
        assert_eq!(look(&data[512..1024], 9, 5), BlockContents::Strange);
    }
}
