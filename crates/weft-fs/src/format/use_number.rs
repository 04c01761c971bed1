//! The number of the last mount or unmount, on each disk.
//!
//! ```text
//! byte 12 KiB   magic, CRC32C, identity of the file system and of the disk, number   one sector of 4 KiB
//!      16 KiB   the same again
//! ```
//!
//! Each mount and each clean unmount has the next number. It is written to all disks, and when it
//! is there to the metadata. So a disk never has a smaller number than the metadata has for it,
//! unless it was set back: an image was put in its place that was taken before. What was written
//! since is not on it, and nothing else would tell. A disk to which the number could not be written
//! has none in the metadata, and is not judged.
//!
//! The other way round, a disk with the number of a mount that the metadata does not know shows
//! that the metadata is an old copy: a mount makes its epoch durable there before it writes its
//! number to any disk.

use std::mem::offset_of;

use weft_array::Id;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::Buf;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Result;
use crate::format::block::BLOCK;
use crate::format::checksum::{has_crc32c_at, put_crc32c_at};
use crate::format::label::Label;

const MAGIC: [u8; 8] = *b"weftused";
/// Where they are, after the first site of diagnostic blocks.
const PLACES: [u64; 2] = [12 << 10, 16 << 10];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    crc32c: U32,
    reserved: U32,
    fs_id: [u8; 16],
    disk_id: [u8; 16],
    number: U64,
}

/// The name in the state of the number that a disk must have.
pub(crate) fn state_name(disk: u16) -> String {
    format!("use of disk {disk}")
}

/// The number of the mount with this epoch, or of its unmount.
pub(crate) fn number_of(epoch: u64, is_unmount: bool) -> u64 {
    2 * epoch + u64::from(is_unmount)
}

/// The epoch of the mount that wrote a number.
pub(crate) fn epoch_of(number: u64) -> u64 {
    number / 2
}

/// The number on a disk: 0 if it has none. None if it cannot be read.
pub(crate) async fn read(disk: &dyn Disk, label: &Label) -> Option<u64> {
    let mut found = None;
    for at in PLACES {
        let (result, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
        if result.is_ok() {
            found = found.max(Some(decode(&block, label).unwrap_or(0)));
        }
    }
    found
}

fn decode(block: &[u8], label: &Label) -> Option<u64> {
    let (mut raw, _) = Raw::read_from_prefix(block).ok()?;
    let is_it = has_crc32c_at(raw.as_mut_bytes(), offset_of!(Raw, crc32c))
        && raw.magic == MAGIC
        && Id(raw.fs_id) == label.fs_id
        && Id(raw.disk_id) == label.disk_id;
    is_it.then_some(raw.number.get())
}

fn encode(label: &Label, number: u64) -> Buf {
    let mut raw = Raw {
        magic: MAGIC,
        crc32c: U32::ZERO,
        reserved: U32::ZERO,
        fs_id: label.fs_id.0,
        disk_id: label.disk_id.0,
        number: U64::new(number),
    };
    put_crc32c_at(raw.as_mut_bytes(), offset_of!(Raw, crc32c));
    let mut block = Buf::zeroed(BLOCK);
    block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
    block
}

/// Writes the number to a disk, durably.
///
/// # Errors
/// If the disk does not take it at any of its places.
pub(crate) async fn write(disk: &dyn Disk, label: &Label, number: u64) -> Result<()> {
    let mut written = Err(None);
    for at in PLACES {
        match disk.write(at, encode(label, number).freeze(), WriteOpts::USER_FUA).await {
            Ok(()) => written = Ok(()),
            Err(error) => written = written.map_err(|_| Some(error)),
        }
    }
    match written {
        Ok(()) => Ok(()),
        Err(error) => Err(error.expect("there are places").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_is_of_this_disk_only() {
        let label = |number| {
            Label::plan(Id([7; 16]), "home", number, 64 << 20, 8 << 20).expect("large enough")
        };
        let block = encode(&label(3), 77);
        assert_eq!(decode(&block, &label(3)), Some(77));
        assert_eq!(decode(&block, &label(2)), None);
        for at in [0, 8, 12, 16, 32, 48] {
            let mut bad = Buf::copy_from(&block);
            bad[at] ^= 1;
            assert_eq!(decode(&bad, &label(3)), None, "byte {at}");
        }
    }
}
