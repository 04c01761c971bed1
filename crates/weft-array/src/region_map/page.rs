//! A page of the map on disk: a header of 64 bytes, then two bytes for each of 2016 regions.

use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Entry, ON_DISK};
use crate::format::checksum::crc32c_skipping;
use crate::format::lane::LaneSet;
use crate::format::uuid::Id;

const MAGIC: [u8; 8] = *b"WEFTMAP1";
const CRC_AT: usize = 8;
/// Size of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Regions in a page.
pub(super) const PER_PAGE: usize = (PAGE_BYTES - size_of::<Header>()) / 2;
/// Most regions of an array: the map then takes 33 MiB of each member, and of memory.
pub const REGIONS_MAX: u64 = 4 << 20;

/// Largest sequence number that is accepted. Numbers grow by one with each write, or start at half
/// of the range where a page was lost. So only a page that no program wrote has a larger one, and
/// above this there are enough numbers left to count.
const SEQ_MAX: u64 = u64::MAX / 4 * 3;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// CRC32C of the whole page, with these four bytes as zeros.
    crc32c: U32,
    /// Number of regions described.
    regions: U32,
    seq: U64,
    page: U64,
    array_id: [u8; 16],
    reserved: [u8; 16],
}

/// A decoded page.
#[derive(Debug)]
pub(super) struct Decoded {
    pub seq: u64,
    /// Flags and lanes.
    pub entries: Vec<(u8, LaneSet)>,
}

/// Number of pages of a map of `regions` regions.
pub(super) fn count(regions: u64) -> u64 {
    regions.div_ceil(PER_PAGE as u64).max(1)
}

/// The page of a region.
pub(super) fn of(region: usize) -> usize {
    region / PER_PAGE
}

/// Bytes of each member that a map of `regions` regions takes: every page twice.
#[must_use]
pub fn area_bytes(regions: u64) -> u64 {
    count(regions) * 2 * PAGE_BYTES as u64
}

/// Offset of the place for a page with this sequence number, from the start of the map's area.
pub(super) fn place(page: usize, seq: u64) -> u64 {
    (page as u64 * 2 + seq % 2) * PAGE_BYTES as u64
}

/// Encodes a page.
pub(super) fn encode(array_id: Id, page: usize, seq: u64, entries: &[Entry]) -> Frozen {
    let header = Header {
        magic: MAGIC,
        crc32c: U32::ZERO,
        regions: U32::new(u32::try_from(entries.len()).expect("at most PER_PAGE")),
        seq: U64::new(seq),
        page: U64::new(page as u64),
        array_id: array_id.0,
        reserved: [0; 16],
    };
    let mut bytes = Buf::zeroed(PAGE_BYTES);
    let (head, body) = bytes.split_at_mut(size_of::<Header>());
    head.copy_from_slice(header.as_bytes());
    for (pair, entry) in body.chunks_exact_mut(2).zip(entries) {
        pair.copy_from_slice(&[entry.flags & ON_DISK, entry.lanes.0]);
    }
    let crc = crc32c_skipping(&bytes, CRC_AT);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes.freeze()
}

/// The flags of one region in an encoded page; `index` counts from the page's first region.
pub(super) fn flags_in(bytes: &[u8], index: usize) -> u8 {
    bytes[size_of::<Header>() + 2 * index]
}

/// Decodes page `page` of array `array_id`. `None` if it is torn, or not such a page. It may
/// describe fewer or more regions than the array has: the array grows, and a crash may come
/// between this and its new superblock.
pub(super) fn decode(bytes: &[u8], array_id: Id, page: usize) -> Option<Decoded> {
    let bytes = bytes.get(..PAGE_BYTES)?;
    let (header, body) = Header::ref_from_prefix(bytes).ok()?;
    let right = header.magic == MAGIC
        && header.array_id == array_id.0
        && header.page.get() == page as u64
        && header.seq.get() <= SEQ_MAX
        && header.reserved == [0; 16]
        && header.crc32c.get() == crc32c_skipping(bytes, CRC_AT);
    let regions = usize::try_from(header.regions.get()).ok()?;
    if !right || regions > PER_PAGE {
        return None;
    }
    let pairs = body.chunks_exact(2).take(regions);
    let entries = pairs.map(|pair| (pair[0] & ON_DISK, LaneSet(pair[1]))).collect();
    Some(Decoded { seq: header.seq.get(), entries })
}
