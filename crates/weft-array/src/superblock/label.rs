//! The label: the first 4 KiB of a member, which identify it as one.
//!
//! *The second label.* Where the data leaves room, the last whole 4 KiB block of a member holds the
//! label again. It counts only if the first 512 KiB have neither a label nor a superblock, nor a
//! signature of another program: then it tells which member the disk was. It contains its own
//! offset, so it does not count on a disk that became larger or was cut short, or on the disk
//! around the partition that is the member. It is written before the first label and erased after
//! it.
//!
//! It is written once, as the last step of making a member, and never changes. It names the array
//! and the member, and points to the superblock copies. A disk with a valid label but without a
//! valid superblock is a damaged member, never an empty disk.
//!
//! A label that is lost - zeros, damaged, unreadable - is made up for by the superblock copies,
//! which name array and member too, and is written again. So what erases a member on purpose first
//! puts a mark in its place: a disk with that mark is no member, regardless of its other contents.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FORMAT_VERSION, SuperblockError};
use crate::format::checksum::crc32c_skipping;
use crate::format::uuid::Id;
use crate::superblock::area::{LABEL_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

const MAGIC: [u8; 8] = *b"WEFTMBR1";
/// Instead of a label while a member is being erased.
const ERASED: [u8; 8] = *b"WEFTGONE";
const CRC_AT: usize = 8;
pub(crate) const LEN: usize = 4096;
const _: () = assert!(LEN as u64 == LABEL_BYTES && size_of::<Raw>() == LEN);
/// For people who inspect the disk with other tools.
const NOTE: &[u8] = b"\nmember of a weft array; see `weft examine`\n";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    crc32c: U32,
    format_version: U32,
    array_id: [u8; 16],
    member_id: [u8; 16],
    superblock_offsets: [U64; 2],
    superblock_bytes: U64,
    note: [u8; 64],
    /// Where this label stands: 0, or the last block of the disk.
    own_offset: U64,
    reserved: [u8; LEN - 144],
}

/// The contents of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub array_id: Id,
    pub member_id: Id,
    /// Offsets of the superblock copies.
    pub superblock_offsets: [u64; 2],
    /// Space for each copy, in bytes.
    pub superblock_bytes: u64,
}

impl Label {
    /// The label of a member of this version.
    pub fn new(array_id: Id, member_id: Id) -> Self {
        Self {
            array_id,
            member_id,
            superblock_offsets: SUPERBLOCK_OFFSETS,
            superblock_bytes: SUPERBLOCK_BYTES,
        }
    }

    /// Encodes the label that stands at `offset`.
    pub fn encode(&self, offset: u64) -> Vec<u8> {
        let mut note = [0; 64];
        note[..NOTE.len()].copy_from_slice(NOTE);
        let mut raw = Raw {
            magic: MAGIC,
            crc32c: U32::ZERO,
            format_version: U32::new(FORMAT_VERSION),
            array_id: self.array_id.0,
            member_id: self.member_id.0,
            superblock_offsets: self.superblock_offsets.map(U64::new),
            superblock_bytes: U64::new(self.superblock_bytes),
            note,
            own_offset: U64::new(offset),
            reserved: [0; LEN - 144],
        };
        raw.crc32c = U32::new(crc32c_skipping(raw.as_bytes(), CRC_AT));
        raw.as_bytes().to_vec()
    }

    /// Decodes the label at `offset`; `None` if the bytes are not a label.
    ///
    /// # Errors
    /// If they are a label, but damaged or of an unknown version.
    pub fn decode(bytes: &[u8], offset: u64) -> Result<Option<Self>, SuperblockError> {
        let Ok((raw, _)) = Raw::ref_from_prefix(bytes) else { return Ok(None) };
        let damaged = |what: &str| Err(SuperblockError::DamagedLabel { what: what.into() });
        if raw.magic != MAGIC {
            return if is_ours_but_for_magic(bytes) {
                damaged("its magic number is overwritten")
            } else {
                Ok(None)
            };
        }
        if raw.crc32c.get() != crc32c_skipping(&bytes[..LEN], CRC_AT) {
            return damaged("its checksum does not match");
        }
        let version = raw.format_version.get();
        if version != FORMAT_VERSION {
            return Err(SuperblockError::UnknownVersion { version });
        }
        if raw.reserved.iter().any(|byte| *byte != 0) {
            return damaged("its reserved bytes are not zeros");
        }
        if raw.own_offset.get() != offset {
            return damaged("it belongs to another place on the disk");
        }
        let label = Self {
            array_id: Id(raw.array_id),
            member_id: Id(raw.member_id),
            superblock_offsets: raw.superblock_offsets.map(U64::get),
            superblock_bytes: raw.superblock_bytes.get(),
        };
        if label != Self::new(label.array_id, label.member_id) {
            return damaged("it points to places where this version keeps no superblock");
        }
        Ok(Some(label))
    }
}

/// What stands in place of the label while a member is being erased.
pub(crate) fn erased() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[..ERASED.len()].copy_from_slice(&ERASED);
    bytes
}

/// Whether there is nothing in place of the label: it may have been zeroed by accident.
pub(crate) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().take(LEN).all(|byte| *byte == 0)
}

/// Whether everything except the magic number is a label: then the magic number was damaged.
fn is_ours_but_for_magic(bytes: &[u8]) -> bool {
    let mut copy = bytes[..LEN].to_vec();
    copy[..8].copy_from_slice(&MAGIC);
    let stored = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    stored == crc32c_skipping(&copy, CRC_AT)
}
