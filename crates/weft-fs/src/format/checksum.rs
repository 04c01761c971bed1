//! CRC32C, the checksum of blocks and of weftfs's own structures.
//!
//! *Blocks that end with a CRC32C of their own*, as some programs write them. A message with its
//! CRC32C behind it has the same CRC32C whatever it says, also with zeros behind that. So such a
//! checksum tells damage, and not an older block from a newer one ([`tells_versions`]).

use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest};

use crate::format::block::BLOCK;

/// CRC32C of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

/// Whether this checksum of a block tells the block from an older or newer one: not if both may end
/// with a CRC32C of their own, and zeros.
pub(crate) fn tells_versions(sum: u32) -> bool {
    static OWN: OnceLock<Vec<u32>> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        // The shortest message is none. Its CRC32C is 0.
        let zeros = [0; BLOCK];
        let mut own: Vec<u32> = (4..BLOCK).map(|len| crc32c(&zeros[..len])).collect();
        own.sort_unstable();
        own
    });
    own.binary_search(&sum).is_err()
}

/// Whether the CRC32C at this offset is that of the bytes with zeros there; there are zeros then.
pub(crate) fn has_crc32c_at(bytes: &mut [u8], at: usize) -> bool {
    let Some(stored) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) else {
        return false;
    };
    let stored = u32::from_le_bytes(std::mem::take(stored));
    stored == crc32c(bytes)
}

/// Puts the CRC32C that [`has_crc32c_at`] looks for at this offset, for any bytes.
pub(crate) fn put_crc32c_at(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let sum = crc32c(bytes);
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_of_blocks_with_their_own_tells_no_versions() {
        for zeros in [0, 1, 512, BLOCK - 5] {
            for value in [1, 2] {
                let mut block = vec![value; BLOCK - zeros];
                let end = block.len() - 4;
                let own = crc32c(&block[..end]);
                block[end..].copy_from_slice(&own.to_le_bytes());
                block.resize(BLOCK, 0);
                assert!(!tells_versions(crc32c(&block)), "{zeros} zeros behind it");
                block[0] ^= 1;
                assert!(tells_versions(crc32c(&block)), "{zeros} zeros behind what is no checksum");
            }
        }
        assert!(tells_versions(crc32c(&[0; BLOCK])), "a block of zeros");
    }
}
