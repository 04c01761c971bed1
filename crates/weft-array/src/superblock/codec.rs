//! A superblock copy on disk: a header of 48 bytes, then JSON.
//!
//! All versions of the format agree on the header's first 24 bytes – magic, CRC, version and
//! lengths – so that any program can distinguish a newer superblock from a damaged one.

use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FEATURES, FORMAT_VERSION, Superblock, SuperblockError};
use crate::format::checksum::crc32c_skipping;
use crate::format::uuid::Id;
use crate::superblock::area::SUPERBLOCK_BYTES;

const MAGIC: [u8; 8] = *b"WEFTSB\r\n";
const CRC_AT: usize = 8;
const BLOCK: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// CRC32C of header and payload, with these four bytes as zeros.
    crc32c: U32,
    format_version: U32,
    header_bytes: U32,
    payload_bytes: U32,
    seq: U64,
    array_id: [u8; 16],
}

const HEADER_BYTES: usize = size_of::<Header>();

/// The fields that every version must allow to be read before it refuses: the required features.
#[derive(serde::Deserialize)]
struct Needs {
    features: Vec<String>,
}

impl Superblock {
    /// Encodes the copy for member `self_id`, padded with zeros to 4 KiB.
    ///
    /// # Errors
    /// [`SuperblockError::TooLarge`] if it does not fit the space of a copy,
    /// [`SuperblockError::Impossible`] if no reader would accept it: such a copy must never
    /// overwrite a good one.
    pub fn encode(&self, self_id: Id) -> Result<Frozen, SuperblockError> {
        self.check()?;
        let own = Self { self_id, ..self.clone() };
        let payload = serde_json::to_vec_pretty(&own)
            .map_err(|error| SuperblockError::Damaged { what: error.to_string() })?;
        let len = HEADER_BYTES + payload.len();
        let too_large = || SuperblockError::TooLarge { bytes: len };
        if len as u64 > SUPERBLOCK_BYTES {
            return Err(too_large());
        }
        let header = Header {
            magic: MAGIC,
            crc32c: U32::ZERO,
            format_version: U32::new(self.format_version),
            header_bytes: U32::new(u32::try_from(HEADER_BYTES).map_err(|_| too_large())?),
            payload_bytes: U32::new(u32::try_from(payload.len()).map_err(|_| too_large())?),
            seq: U64::new(self.seq),
            array_id: self.array_id.0,
        };
        let mut bytes = Buf::zeroed(len.next_multiple_of(BLOCK));
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes[HEADER_BYTES..len].copy_from_slice(&payload);
        let crc = crc32c_skipping(&bytes[..len], CRC_AT);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes.freeze())
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// If it was never written, is damaged or of another version, needs unknown features, or
    /// describes an impossible array.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let damaged = |what: &str| SuperblockError::Damaged { what: what.to_owned() };
        let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| damaged("it is truncated"))?;
        if header.magic != MAGIC {
            let blank = bytes.iter().all(|byte| *byte == 0);
            let damaged = damaged("its magic number is wrong");
            return Err(if blank { SuperblockError::NotThere } else { damaged });
        }
        let size = |value: U32| usize::try_from(value.get()).unwrap_or(usize::MAX);
        let (start, len) = (size(header.header_bytes), size(header.payload_bytes));
        let end = start.saturating_add(len);
        if start < HEADER_BYTES || end > bytes.len() {
            return Err(damaged("its lengths are impossible"));
        }
        if header.crc32c.get() != crc32c_skipping(&bytes[..end], CRC_AT) {
            return Err(damaged("its checksum does not match"));
        }
        let version = header.format_version.get();
        if version != FORMAT_VERSION {
            return Err(SuperblockError::UnknownVersion { version });
        }
        let payload = &bytes[start..end];
        check_features(payload)?;
        let superblock: Self = serde_json::from_slice(payload)
            .map_err(|error| SuperblockError::Damaged { what: error.to_string() })?;
        let repeated = superblock.seq == header.seq.get()
            && superblock.array_id.0 == header.array_id
            && superblock.format_version == version;
        if !repeated {
            return Err(damaged("header and payload disagree"));
        }
        superblock.check()?;
        Ok(superblock)
    }
}

fn check_features(payload: &[u8]) -> Result<(), SuperblockError> {
    let needs: Needs = serde_json::from_slice(payload)
        .map_err(|error| SuperblockError::Damaged { what: error.to_string() })?;
    let unknown: Vec<String> =
        needs.features.into_iter().filter(|name| !FEATURES.contains(&name.as_str())).collect();
    if unknown.is_empty() { Ok(()) } else { Err(SuperblockError::UnknownFeatures { unknown }) }
}
