//! CRC32C, the checksum of blocks and of weftfs's own structures.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
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
