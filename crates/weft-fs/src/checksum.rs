//! CRC32C, the checksum of blocks and of weftfs's own structures.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of some bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}
