//! What other programs leave on a disk: recognised before a disk is taken, so that nobody's data is
//! overwritten by mistake. Only signatures are looked at, as blkid does.

use serde::Serialize;
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

/// Whose signature was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Foreign {
    /// What it is, for people: "an ext2/3/4 file system".
    pub what: &'static str,
    /// Where its signature begins, in bytes.
    pub offset: u64,
}

/// A magic number at a place.
#[derive(Debug, Clone, Copy)]
struct Signature {
    pub what: &'static str,
    pub place: Place,
    pub magic: &'static [u8],
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// From the start of the disk.
    Start(u64),
    /// Given the disk's size.
    End(fn(u64) -> Option<u64>),
}

const fn at(what: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    Signature { what, place: Place::Start(offset), magic }
}

const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
const MD_BIG_ENDIAN: &[u8] = &0xa92b_4efc_u32.to_be_bytes();
const MD_WHAT: &str = "a member of a Linux md array";
const LVM: &str = "an LVM physical volume";
const SWAP: &str = "a swap area";
const ZFS: &str = "a member of a ZFS pool";
const GPT: &str = "a GPT partition table";

/// md 0.90: 64 KiB before the end, rounded down to 64 KiB.
fn md_0_90(size: u64) -> Option<u64> {
    (size & !0xffff).checked_sub(0x1_0000)
}

/// md 1.0: at least 8 KiB before the end, a multiple of 4 KiB.
fn md_1_0(size: u64) -> Option<u64> {
    size.checked_sub(8192).map(|offset| offset & !4095)
}

fn gpt_backup_512(size: u64) -> Option<u64> {
    size.checked_sub(512)
}

fn gpt_backup_4096(size: u64) -> Option<u64> {
    size.checked_sub(4096)
}

/// The uberblocks of a ZFS label begin 128 KiB into it; which slots are in use varies, so several
/// are looked at in `zfs_uberblocks`.
const UBERBLOCK: &[u8] = &0x00ba_b10c_u64.to_le_bytes();
const UBERBLOCK_BIG_ENDIAN: &[u8] = &0x00ba_b10c_u64.to_be_bytes();

/// In the order in which they are looked for: what lies on top of something else comes first.
const SIGNATURES: &[Signature] = &[
    at(MD_WHAT, 4096, MD),
    at(MD_WHAT, 0, MD),
    Signature { what: MD_WHAT, place: Place::End(md_1_0), magic: MD },
    Signature { what: MD_WHAT, place: Place::End(md_0_90), magic: MD },
    Signature { what: MD_WHAT, place: Place::End(md_0_90), magic: MD_BIG_ENDIAN },
    at("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    at(LVM, 24, b"LVM2 001"),
    at(LVM, 512 + 24, b"LVM2 001"),
    at(LVM, 1024 + 24, b"LVM2 001"),
    at(LVM, 1536 + 24, b"LVM2 001"),
    at("an XFS file system", 0, b"XFSB"),
    at("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    at("an ext2/3/4 file system", 1024 + 56, b"\x53\xef"),
    at("an F2FS file system", 1024, &0xf2f5_2010_u32.to_le_bytes()),
    at("a bcache or bcachefs device", 4096 + 24, &BCACHE),
    at("an NTFS file system", 3, b"NTFS    "),
    at("an exFAT file system", 3, b"EXFAT   "),
    at("a FAT file system", 82, b"FAT32   "),
    at("a FAT file system", 54, b"FAT1"),
    at("an ISO 9660 image", 0x8001, b"CD001"),
    at("a qcow2 disk image", 0, b"QFI\xfb"),
    at(SWAP, 4096 - 10, b"SWAPSPACE2"),
    at(SWAP, 65536 - 10, b"SWAPSPACE2"),
    at(GPT, 512, b"EFI PART"),
    at(GPT, 4096, b"EFI PART"),
    Signature { what: GPT, place: Place::End(gpt_backup_512), magic: b"EFI PART" },
    Signature { what: GPT, place: Place::End(gpt_backup_4096), magic: b"EFI PART" },
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

/// Bytes that are looked at from the start and at the end.
const HEAD_BYTES: u64 = 256 << 10;
const TAIL_BYTES: u64 = 128 << 10;

/// What stands on the disk, if anything that is recognised. A weft member is not foreign.
///
/// # Errors
/// If the disk cannot be read.
pub async fn find_foreign(disk: &dyn Disk) -> Result<Option<Foreign>, DiskError> {
    let size = disk.info().size_bytes;
    let head = read(disk, 0, HEAD_BYTES.min(size)).await?;
    let tail_at = (size & !4095).saturating_sub(TAIL_BYTES);
    let tail = read(disk, tail_at, size - tail_at).await?;
    Ok(find_in(size, &head, tail_at, &tail))
}

/// The same, of bytes that were read: `head` from 0, `tail` from `tail_at` to the end.
fn find_in(size: u64, head: &[u8], tail_at: u64, tail: &[u8]) -> Option<Foreign> {
    let found = SIGNATURES.iter().find_map(|signature| {
        let (offset, bytes, base) = match signature.place {
            Place::Start(offset) => (offset, head, 0),
            Place::End(place) => (place(size)?, tail, tail_at),
        };
        let start = usize::try_from(offset.checked_sub(base)?).ok()?;
        let end = start.checked_add(signature.magic.len())?;
        (bytes.get(start..end)? == signature.magic)
            .then_some(Foreign { what: signature.what, offset })
    });
    found.or_else(|| zfs_uberblocks(head)).or_else(|| mbr(head))
}

/// An uberblock lies at a multiple of 1 KiB in the second half of the label's 256 KiB.
fn zfs_uberblocks(head: &[u8]) -> Option<Foreign> {
    let index = (128..256).map(|kib| kib * 1024).find(|at| {
        let bytes = head.get(*at..at + 8);
        bytes == Some(UBERBLOCK) || bytes == Some(UBERBLOCK_BIG_ENDIAN)
    })?;
    Some(Foreign { what: ZFS, offset: index as u64 })
}

/// A boot sector with at least one plausible partition (the mark alone is on FAT disks too).
fn mbr(head: &[u8]) -> Option<Foreign> {
    if head.get(510..512)? != b"\x55\xaa" {
        return None;
    }
    let entries: Vec<&[u8]> = head[446..510].chunks(16).collect();
    let sane = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.iter().any(|entry| entry[4] != 0 && entry[12..16] != [0; 4]);
    (sane && used).then_some(Foreign { what: "an MBR partition table", offset: 446 })
}

async fn read(disk: &dyn Disk, offset: u64, len: u64) -> Result<Buf, DiskError> {
    let len = usize::try_from(len).expect("at most 256 KiB");
    let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
    result.map(|()| buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn look(disk: &[u8]) -> Option<Foreign> {
        let tail_at = SIZE - TAIL_BYTES;
        let at = |n: u64| usize::try_from(n).expect("small");
        find_in(SIZE, &disk[..at(HEAD_BYTES)], tail_at, &disk[at(tail_at)..])
    }

    fn blank() -> Vec<u8> {
        vec![0; usize::try_from(SIZE).expect("small")]
    }

    #[test]
    fn each_signature_is_found_where_it_stands() {
        assert_eq!(look(&blank()), None);
        for signature in SIGNATURES {
            let offset = match signature.place {
                Place::Start(offset) => offset,
                Place::End(place) => place(SIZE).expect("large enough"),
            };
            let mut disk = blank();
            let at = usize::try_from(offset).expect("small");
            disk[at..at + signature.magic.len()].copy_from_slice(signature.magic);
            let found = look(&disk).expect("found");
            assert_eq!((found.what, found.offset), (signature.what, offset));
        }
    }

    #[test]
    fn uberblocks_and_partitions_are_found() {
        let mut disk = blank();
        disk[200 * 1024..200 * 1024 + 8].copy_from_slice(UBERBLOCK);
        assert_eq!(look(&disk).expect("found").what, ZFS);
        let mut disk = blank();
        disk[510..512].copy_from_slice(b"\x55\xaa");
        assert_eq!(look(&disk), None, "a boot mark without a partition says nothing");
        (disk[450], disk[458]) = (0x83, 1);
        assert_eq!(look(&disk).expect("found").what, "an MBR partition table");
    }
}
