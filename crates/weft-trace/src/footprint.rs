//! The set of blocks that a trace touches, in bounded memory.
//!
//! It keeps one bit per block, in chunks of 32,768 blocks that exist only where something was
//! touched. Blocks are 4 KiB; when that would take more than [`CHUNKS_MAX`] chunks (256 MiB),
//! blocks are doubled in size, as often as needed, and two bits become one. The count is then too
//! large, by less than two blocks per run.

use std::collections::BTreeMap;

const BLOCK_BYTES: u64 = 4096;
const CHUNK_BLOCKS: u64 = 32_768;
const WORDS: usize = 512;
/// 4 KiB each.
const CHUNKS_MAX: usize = 65_536;

type Chunk = Box<[u64; WORDS]>;

/// The blocks touched of all volumes.
pub(crate) struct Footprint {
    /// The chunks, by volume and number.
    chunks: BTreeMap<(u32, u64), Chunk>,
    block_bytes: u64,
    chunks_max: usize,
    /// Touches of blocks, with repetitions.
    accesses: u64,
}

impl Default for Footprint {
    fn default() -> Self {
        Self::with_limit(CHUNKS_MAX)
    }
}

impl Footprint {
    fn with_limit(chunks_max: usize) -> Self {
        Self { chunks: BTreeMap::new(), block_bytes: BLOCK_BYTES, chunks_max, accesses: 0 }
    }

    /// The length of a block in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Touches of blocks, with repetitions.
    pub(crate) fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Distinct blocks touched, for every volume.
    pub(crate) fn blocks(&self) -> BTreeMap<u32, u64> {
        let mut blocks: BTreeMap<u32, u64> = BTreeMap::new();
        for ((device, _), chunk) in &self.chunks {
            let ones: u32 = chunk.iter().map(|word| word.count_ones()).sum();
            *blocks.entry(*device).or_default() += u64::from(ones);
        }
        blocks
    }

    /// Records that these bytes were touched.
    pub(crate) fn touch(&mut self, device: u32, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last_byte = offset.saturating_add(len - 1);
        let (mut first, mut last) = (offset / self.block_bytes, last_byte / self.block_bytes);
        // A single request may be longer than all chunks.
        while (last - first) / CHUNK_BLOCKS >= self.chunks_max as u64 {
            self.coarsen();
            (first, last) = (offset / self.block_bytes, last_byte / self.block_bytes);
        }
        self.accesses += last - first + 1;
        let mut block = first;
        while block <= last {
            let number = block / CHUNK_BLOCKS;
            let until = last.min(number * CHUNK_BLOCKS + (CHUNK_BLOCKS - 1));
            let chunk = self.chunks.entry((device, number)).or_insert_with(|| Box::new([0; WORDS]));
            for bit in block..=until {
                let bit = bit % CHUNK_BLOCKS;
                if let Some(word) = usize::try_from(bit / 64).ok().and_then(|at| chunk.get_mut(at))
                {
                    *word |= 1 << (bit % 64);
                }
            }
            block = until + 1;
        }
        while self.chunks.len() > self.chunks_max {
            self.coarsen();
        }
    }

    /// Makes blocks twice as long.
    fn coarsen(&mut self) {
        self.block_bytes *= 2;
        for ((device, number), chunk) in std::mem::take(&mut self.chunks) {
            let into =
                self.chunks.entry((device, number / 2)).or_insert_with(|| Box::new([0; WORDS]));
            let half = if number % 2 == 0 { 0 } else { WORDS / 2 };
            for (pair, word) in chunk.chunks_exact(2).zip(&mut into[half..]) {
                *word |= halved(pair[0]) | halved(pair[1]) << 32;
            }
        }
    }
}

/// 32 bits: whether either of each pair is set.
fn halved(word: u64) -> u64 {
    let mut bits = (word | word >> 1) & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn blocks_are_those_of_a_plain_set_however_coarse() {
        let mut state = 1u64;
        let mut draw = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (state >> 20) % bound
        };
        for chunks_max in [1, 2, 5, 1000] {
            let mut footprint = Footprint::with_limit(chunks_max);
            let mut bytes = Vec::new();
            for _ in 0..2000 {
                let (device, offset, len) = (7, draw(1 << 31), 1 + draw(200_000));
                footprint.touch(device, offset, len);
                bytes.push((offset, offset + len - 1));
            }
            let block = footprint.block_bytes();
            let blocks: BTreeSet<u64> =
                bytes.iter().flat_map(|(first, last)| first / block..=last / block).collect();
            assert_eq!(footprint.blocks()[&7], blocks.len() as u64, "{chunks_max}");
            assert!(footprint.chunks.len() <= chunks_max);
            assert_eq!(block == 4096, chunks_max >= 16, "{block}");
        }
    }

    #[test]
    fn one_huge_request_takes_no_more_memory() {
        let mut footprint = Footprint::with_limit(4);
        footprint.touch(0, 4096, u64::MAX - 4096);
        footprint.touch(1, 0, 1);
        assert!(footprint.chunks.len() <= 4);
        assert!(footprint.blocks()[&1] == 1 && footprint.blocks()[&0] > CHUNK_BLOCKS);
    }
}
