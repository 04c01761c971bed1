//! CRC32C (Castagnoli), the checksum of all of weft's own metadata.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// CRC32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// CRC32C of `bytes` with the four bytes at `hole`, where the CRC itself is stored, taken as zeros.
///
/// # Panics
/// If the hole extends beyond the end.
pub(crate) fn crc32c_skipping(bytes: &[u8], hole: usize) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in [&bytes[..hole], &[0; 4], &bytes[hole + 4..]] {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_castagnoli() {
        // The check value of CRC-32/ISCSI in the catalogue of parametrised CRC algorithms.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_skipping(b"ab....cd", 2), crc32c(b"ab\0\0\0\0cd"));
    }
}
