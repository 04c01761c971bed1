//! Recognising other programs' data before a disk is taken, so that it is not overwritten by
//! mistake. Only signatures are checked, as in blkid.

use serde::Serialize;
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use super::signatures::{SIGNATURES, SignatureOffset};
use crate::superblock::salvage::salvage;

/// A signature of another program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Foreign {
    /// Description for people: "an ext2/3/4 file system".
    pub what: &'static str,
    /// Byte offset of the signature.
    pub offset_bytes: u64,
}

const ZFS: &str = "a member of a ZFS pool";

/// The uberblocks of a ZFS label start 128 KiB into it. Which of their places are in use varies, so
/// `zfs_uberblocks` checks several.
const UBERBLOCK: &[u8] = &0x00ba_b10c_u64.to_le_bytes();
const UBERBLOCK_BIG_ENDIAN: &[u8] = &0x00ba_b10c_u64.to_be_bytes();

/// Bytes that are checked at the start and at the end.
const HEAD_BYTES: u64 = 256 << 10;
const TAIL_BYTES: u64 = 132 << 10;
/// Offsets beyond the head that are checked, 4 KiB each.
const FAR: [u64; 2] = [1 << 20, 2 << 20];
const FAR_BYTES: u64 = 4096;

/// The first signature found on the disk, if any. A weft member is not foreign.
///
/// # Errors
/// If the disk cannot be read.
pub async fn find_foreign(disk: &dyn Disk) -> Result<Option<Foreign>, DiskError> {
    let size = disk.info().size_bytes;
    let tail = (size & !4095).saturating_sub(TAIL_BYTES);
    let mut parts = vec![(0, HEAD_BYTES.min(size)), (tail, size - tail)];
    parts.extend(FAR.map(|at| (at, FAR_BYTES)).iter().filter(|(at, len)| at + len <= size));
    let mut read = Vec::new();
    for (offset, len) in parts {
        read.push((offset, read_part(disk, offset, len).await?));
    }
    Ok(find_in(size, &read))
}

/// As [`find_foreign`], in the first part of the disk only: contents further on may belong to the
/// data of a member.
pub(super) async fn find_foreign_head(disk: &dyn Disk) -> Result<Option<Foreign>, DiskError> {
    let size = disk.info().size_bytes;
    // The label itself may be unreadable.
    let head = salvage(disk, 0, HEAD_BYTES.min(size)).await?.area;
    Ok(find_in(size, &[(0, head)]))
}

/// Searches the parts that were read, each with its offset; the first is the head.
fn find_in(size: u64, parts: &[(u64, Buf)]) -> Option<Foreign> {
    let stands = |offset: u64, magic: &[u8]| {
        parts.iter().any(|(base, bytes)| {
            let start = offset.checked_sub(*base).and_then(|at| usize::try_from(at).ok());
            start.and_then(|at| bytes.get(at..at.checked_add(magic.len())?)) == Some(magic)
        })
    };
    let found = SIGNATURES.iter().find_map(|signature| {
        let offset = match signature.place {
            SignatureOffset::Start(offset) => offset,
            SignatureOffset::End(place) => place(size)?,
        };
        stands(offset, signature.magic)
            .then_some(Foreign { what: signature.what, offset_bytes: offset })
    });
    let head = &parts.first()?.1;
    found.or_else(|| zfs_uberblocks(head)).or_else(|| mbr(head))
}

/// Looks for an uberblock at the multiples of 1 KiB in the second half of the label's 256 KiB.
fn zfs_uberblocks(head: &[u8]) -> Option<Foreign> {
    let index = (128..256).map(|kib| kib * 1024).find(|at| {
        let bytes = head.get(*at..at + 8);
        bytes == Some(UBERBLOCK) || bytes == Some(UBERBLOCK_BIG_ENDIAN)
    })?;
    Some(Foreign { what: ZFS, offset_bytes: index as u64 })
}

/// Looks for a boot sector with at least one plausible partition (FAT disks have the mark too).
fn mbr(head: &[u8]) -> Option<Foreign> {
    if head.get(510..512)? != b"\x55\xaa" {
        return None;
    }
    let entries: Vec<&[u8]> = head[446..510].chunks(16).collect();
    let sane = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.iter().any(|entry| entry[4] != 0 && entry[12..16] != [0; 4]);
    (sane && used).then_some(Foreign { what: "an MBR partition table", offset_bytes: 446 })
}

async fn read_part(disk: &dyn Disk, offset: u64, len: u64) -> Result<Buf, DiskError> {
    let len = usize::try_from(len).expect("at most 256 KiB");
    let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
    result.map(|()| buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4 << 20;

    fn look(disk: &[u8]) -> Option<Foreign> {
        let part = |at: usize, len: u64| {
            let len = usize::try_from(len).expect("small");
            (at as u64, Buf::copy_from(&disk[at..at + len]))
        };
        let tail = SIZE - usize::try_from(TAIL_BYTES).expect("small");
        let far = FAR.map(|at| part(usize::try_from(at).expect("small"), FAR_BYTES));
        let mut parts = vec![part(0, HEAD_BYTES), part(tail, TAIL_BYTES)];
        parts.extend(far);
        find_in(SIZE as u64, &parts)
    }

    #[test]
    fn each_signature_is_found_where_it_stands() {
        assert_eq!(look(&[0; SIZE]), None);
        for signature in SIGNATURES {
            let offset = match signature.place {
                SignatureOffset::Start(offset) => offset,
                SignatureOffset::End(place) => place(SIZE as u64).expect("large enough"),
            };
            let mut disk = vec![0; SIZE];
            let at = usize::try_from(offset).expect("small");
            disk[at..at + signature.magic.len()].copy_from_slice(signature.magic);
            let found = look(&disk).expect("found");
            assert_eq!((found.what, found.offset_bytes), (signature.what, offset));
        }
    }

    #[test]
    fn uberblocks_and_partitions_are_found() {
        let mut disk = vec![0; SIZE];
        disk[200 * 1024..200 * 1024 + 8].copy_from_slice(UBERBLOCK);
        assert_eq!(look(&disk).expect("found").what, ZFS);
        let mut disk = vec![0; SIZE];
        disk[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(look(&disk), None, "a boot mark without a partition says nothing");
        (disk[450], disk[458]) = (0x83, 1);
        assert_eq!(look(&disk).expect("found").what, "an MBR partition table");
    }
}
