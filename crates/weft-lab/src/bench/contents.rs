//! The expected contents of an array's blocks.

use std::cell::RefCell;

use weft_rt::rng::mix;
use weft_rt::{Buf, Frozen};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;

/// The version of every block. A block's bytes follow from the seed, its number and its version.
pub(crate) struct Contents {
    seed: u64,
    versions: RefCell<Vec<u32>>,
}

impl Contents {
    /// All blocks of `size_bytes`, in version 0.
    pub(crate) fn new(size_bytes: u64, seed: u64) -> Self {
        let blocks = usize::try_from(size_bytes / BLOCK).expect("an array that fits in memory");
        Self { seed, versions: RefCell::new(vec![0; blocks]) }
    }

    /// Bytes of whole blocks.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.versions.borrow().len() as u64 * BLOCK
    }

    fn word(&self, block: u64, version: u32) -> [u8; 8] {
        (mix(block ^ (u64::from(version) << 40)) ^ self.seed).to_le_bytes()
    }

    /// The current contents of `len` bytes at `offset`, whole blocks.
    pub(crate) fn make(&self, offset: u64, len: usize) -> Frozen {
        let mut buf = Buf::new(len);
        let versions = self.versions.borrow();
        for (index, bytes) in buf.chunks_exact_mut(4096).enumerate() {
            let block = offset / BLOCK + index as u64;
            let word = self.word(block, versions[position(block)]);
            bytes.as_chunks_mut::<8>().0.fill(word);
        }
        buf.freeze()
    }

    /// The next version of a range, as bytes to be written. The writer must own the range until the
    /// write is complete.
    pub(crate) fn renew(&self, offset: u64, len: usize) -> Frozen {
        let blocks = offset / BLOCK..offset / BLOCK + len as u64 / BLOCK;
        for block in blocks {
            self.versions.borrow_mut()[position(block)] += 1;
        }
        self.make(offset, len)
    }

    /// Compares data read at `offset` with the expected contents.
    pub(crate) fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let versions = self.versions.borrow();
        for (index, bytes) in bytes.chunks_exact(4096).enumerate() {
            let block = offset / BLOCK + index as u64;
            let word = self.word(block, versions[position(block)]);
            if bytes.as_chunks::<8>().0.iter().any(|found| *found != word) {
                return Err(format!("wrong data at offset {}", block * BLOCK));
            }
        }
        Ok(())
    }
}

fn position(block: u64) -> usize {
    usize::try_from(block).expect("a block of this array")
}
