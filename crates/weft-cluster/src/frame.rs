//! A frame on a disk: some bytes with a magic number, a version, a sequence number and a CRC.
//!
//! Frames come in pairs; the two are written alternately. A crash tears at most one; one that
//! decays later loses nothing, as the other has the same. The one with the higher sequence number
//! is the newer.

use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::Buf;

/// Magic, version, length, sequence number, CRC, and four bytes of zeros.
const FIXED_BYTES: usize = 32;

/// What a frame's place holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Zeros.
    Blank,
    /// Something else.
    Foreign,
    /// A frame that is torn or has decayed.
    Damaged,
    /// One of another version.
    Version(u32),
    /// A sequence number, and the contents.
    Sound(u64, Vec<u8>),
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a field lies inside the fixed part")
}

fn checksum(fixed: &[u8], contents: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&fixed[..24]);
    digest.update(contents);
    u32::try_from(digest.finalize()).expect("the checksum has 32 bits")
}

/// A frame of `bytes` bytes; `None` if the contents are too long for it.
pub(crate) fn encode(
    magic: &[u8; 8],
    version: u32,
    sequence: u64,
    contents: &[u8],
    bytes: usize,
) -> Option<Buf> {
    let end = FIXED_BYTES + contents.len();
    let len = u32::try_from(contents.len()).ok().filter(|_| end <= bytes)?;
    let mut frame = Buf::zeroed(bytes);
    frame[..8].copy_from_slice(magic);
    frame[8..12].copy_from_slice(&version.to_le_bytes());
    frame[12..16].copy_from_slice(&len.to_le_bytes());
    frame[16..24].copy_from_slice(&sequence.to_le_bytes());
    let checksum = checksum(&frame[..FIXED_BYTES], contents);
    frame[24..28].copy_from_slice(&checksum.to_le_bytes());
    frame[FIXED_BYTES..end].copy_from_slice(contents);
    Some(frame)
}

/// What these bytes are.
pub(crate) fn decode(magic: &[u8; 8], version: u32, bytes: &[u8]) -> Frame {
    if bytes.iter().all(|byte| *byte == 0) {
        return Frame::Blank;
    }
    if bytes[..8] != *magic {
        return Frame::Foreign;
    }
    let len = usize::try_from(u32::from_le_bytes(field(bytes, 12))).unwrap_or(usize::MAX);
    let contents = len.checked_add(FIXED_BYTES).and_then(|end| bytes.get(FIXED_BYTES..end));
    let Some(contents) = contents else { return Frame::Damaged };
    if u32::from_le_bytes(field(bytes, 24)) != checksum(&bytes[..FIXED_BYTES], contents) {
        return Frame::Damaged;
    }
    match u32::from_le_bytes(field(bytes, 8)) {
        found if found == version => {
            Frame::Sound(u64::from_le_bytes(field(bytes, 16)), contents.to_vec())
        }
        found => Frame::Version(found),
    }
}

/// Writes a frame to two places, one after the other, durably.
pub(crate) async fn write_copies(
    disk: &dyn Disk,
    places: [u64; 2],
    frame: Buf,
) -> Result<(), DiskError> {
    let frame = frame.freeze();
    let opts = WriteOpts { class: Class::Urgent, fua: true };
    for at in places {
        disk.write(at, frame.clone(), opts).await?;
    }
    Ok(())
}
