//! Magic numbers of other programs, and their offsets: the signatures that libblkid looks for, as
//! far as a magic number identifies them. Formats that need a checksum to be identified are not
//! listed; their disks are refused as unrecognised data.

/// A magic number at an offset.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signature {
    pub what: &'static str,
    pub place: SignatureOffset,
    pub magic: &'static [u8],
}

#[derive(Debug, Clone, Copy)]
pub(super) enum SignatureOffset {
    /// From the start of the disk.
    Start(u64),
    /// Computed from the disk's size.
    End(fn(u64) -> Option<u64>),
}

const fn at(what: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    Signature { what, place: SignatureOffset::Start(offset), magic }
}

const fn end(what: &'static str, place: fn(u64) -> Option<u64>, magic: &'static [u8]) -> Signature {
    Signature { what, place: SignatureOffset::End(place), magic }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
const MD_BIG_ENDIAN: &[u8] = &0xa92b_4efc_u32.to_be_bytes();
const WEFTFS: &str = "a disk of a weft file system";
const MD_WHAT: &str = "a member of a Linux md array";
const LVM: &str = "an LVM physical volume";
const LUKS: &str = "a LUKS encrypted volume";
const BITLOCKER: &str = "a BitLocker encrypted volume";
const SWAP: &str = "a swap area";
const HIBERNATED: &str = "a hibernated system";
const DRBD: &str = "a DRBD volume";
const BIOS_RAID: &str = "a member of a firmware RAID";
const FAT: &str = "a FAT file system";
const UDF: &str = "a UDF file system";
const ISO: &str = "an ISO 9660 image";
const HFS: &str = "an HFS or HFS+ file system";
const REISER: &str = "a ReiserFS file system";
const OCFS2: &str = "an OCFS2 file system";
const BEFS: &str = "a BeFS file system";
const MINIX: &str = "a Minix file system";
const CRAMFS: &str = "a cramfs image";
const UFS: &str = "a UFS file system";
const VXFS: &str = "a VxFS file system";
const STRATIS: &str = "a Stratis block device";
const BCACHE_WHAT: &str = "a bcache or bcachefs device";
const GPT: &str = "a GPT partition table";

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const STRATIS_MAGIC: &[u8] = b"!Stra0tis\x86\xff\x02^\x41rh";
const UFS1: &[u8] = &0x0001_1954_u32.to_le_bytes();
const UFS2: &[u8] = &0x1954_0119_u32.to_le_bytes();

/// md 0.90: 64 KiB before the end, rounded down to 64 KiB.
fn md_0_90(size: u64) -> Option<u64> {
    (size & !0xffff).checked_sub(0x1_0000)
}

/// md 1.0: at least 8 KiB before the end, a multiple of 4 KiB.
fn md_1_0(size: u64) -> Option<u64> {
    size.checked_sub(8192).map(|offset| offset & !4095)
}

/// The last sector of 512 bytes, and some before it.
fn last_512(size: u64) -> Option<u64> {
    sectors_before_end(size, 1)
}

fn last_but_one_512(size: u64) -> Option<u64> {
    sectors_before_end(size, 2)
}

fn ddf_second(size: u64) -> Option<u64> {
    sectors_before_end(size, 257)
}

/// The last block of 4 KiB.
fn last_block(size: u64) -> Option<u64> {
    (size & !4095).checked_sub(4096)
}

fn sectors_before_end(size: u64, count: u64) -> Option<u64> {
    (size / 512).checked_sub(count).map(|sector| sector * 512)
}

fn last_4096(size: u64) -> Option<u64> {
    size.checked_sub(4096)
}

/// DRBD's internal metadata: the last 4 KiB, the magic number after the identifiers.
fn drbd(size: u64) -> Option<u64> {
    size.checked_sub(4096).map(|offset| (offset & !4095) + 60)
}

/// In search order: what may lie on top of something else comes first.
pub(super) const SIGNATURES: &[Signature] = &[
    // Stacks: RAID, volumes, encryption, caches.
    at(WEFTFS, 0, b"weftfs.1"),
    end(WEFTFS, last_block, b"weftfs.1"),
    at(MD_WHAT, 4096, MD),
    at(MD_WHAT, 0, MD),
    end(MD_WHAT, md_1_0, MD),
    end(MD_WHAT, md_0_90, MD),
    end(MD_WHAT, md_0_90, MD_BIG_ENDIAN),
    end(BIOS_RAID, last_512, b"\xde\x11\xde\x11"),
    end(BIOS_RAID, ddf_second, b"\xde\x11\xde\x11"),
    end(BIOS_RAID, last_but_one_512, b"Intel Raid ISM Cfg Sig. "),
    end(BIOS_RAID, last_but_one_512, b"NVIDIA  "),
    end(BIOS_RAID, last_512, b"$XIDE$"),
    at(BIOS_RAID, 4640, b"\xf0\x16\x78\x5a"),
    at(BIOS_RAID, 4640, b"\xfd\x16\x78\x5a"),
    end(DRBD, drbd, b"\x83\x74\x02\x6b"),
    end(DRBD, drbd, b"\x83\x74\x02\x6c"),
    end(DRBD, drbd, b"\x83\x74\x02\x6d"),
    at(DRBD, 0, b"$DRBDmgr=q"),
    at(DRBD, 0, b"DRBDdlh*"),
    at(LUKS, 0, b"LUKS\xba\xbe"),
    // The second header of LUKS2, should the first be gone.
    at(LUKS, 16 * KIB, b"SKUL\xba\xbe"),
    at(LUKS, 32 * KIB, b"SKUL\xba\xbe"),
    at(LUKS, 64 * KIB, b"SKUL\xba\xbe"),
    at(LUKS, 128 * KIB, b"SKUL\xba\xbe"),
    at(BITLOCKER, 0, b"\xeb\x52\x90-FVE-FS-"),
    at(BITLOCKER, 0, b"\xeb\x58\x90-FVE-FS-"),
    at(BITLOCKER, 0, b"\xeb\x58\x90MSWIN4.1"),
    at(LVM, 24, b"LVM2 001"),
    at(LVM, 512 + 24, b"LVM2 001"),
    at(LVM, 1024 + 24, b"LVM2 001"),
    at(LVM, 1536 + 24, b"LVM2 001"),
    at("an LVM snapshot store", 0, b"SnAp"),
    at("a dm-verity hash device", 0, b"verity\0\0"),
    at("a dm-integrity device", 0, b"integrt\0"),
    at("a VDO volume", 0, b"dmvdo001"),
    at(STRATIS, 512 + 4, STRATIS_MAGIC),
    at(STRATIS, 9 * 512 + 4, STRATIS_MAGIC),
    at(BCACHE_WHAT, 4096 + 24, BCACHE),
    at(BCACHE_WHAT, 4096 + 24, BCACHEFS),
    at(BCACHE_WHAT, 2 * MIB + 24, BCACHEFS),
    at("a Ceph BlueStore device", 0, b"bluestore block device"),
    at("an Oracle ASM disk", 32, b"ORCLDISK"),
    at("a VMFS volume", MIB, b"\x0d\xd0\x01\xc0"),
    at("a VMFS file system", 2 * MIB, b"\x5e\xf1\xab\x2f"),
    at("an mpool device", 0, b"mpoolDev"),
    at("a UBI volume", 0, b"UBI#"),
    // File systems.
    at("an XFS file system", 0, b"XFSB"),
    at("an XFS file system", 0, b"EXFS"),
    at("an XFS log", 0, b"\xfe\xed\xba\xbe"),
    at("a btrfs file system", 64 * KIB + 64, b"_BHRfS_M"),
    at("an ext2/3/4 file system", 1024 + 56, b"\x53\xef"),
    at("an F2FS file system", 1024, &0xf2f5_2010_u32.to_le_bytes()),
    at("an EROFS image", 1024, b"\xe2\xe1\xf5\xe0"),
    at("a zonefs file system", 0, b"SFOZ"),
    at("a NILFS2 file system", 1024 + 6, b"\x34\x34"),
    at("a JFS file system", 32 * KIB, b"JFS1"),
    at(REISER, 64 * KIB + 52, b"ReIsEr"),
    at(REISER, 8 * KIB + 52, b"ReIsErFs"),
    at(REISER, 8 * KIB + 20, b"ReIsErFs"),
    at(REISER, 64 * KIB, b"ReIsEr4"),
    at("a GFS2 file system", 64 * KIB, b"\x01\x16\x19\x70"),
    at("a ScoutFS file system", 64 * KIB + 4, b"\x8b\x42\x3c\x10"),
    at(OCFS2, KIB, b"OCFSV2"),
    at(OCFS2, 2 * KIB, b"OCFSV2"),
    at(OCFS2, 4 * KIB, b"OCFSV2"),
    at(OCFS2, 8 * KIB, b"OCFSV2"),
    at("an OCFS file system", 8 * KIB, b"OracleCFS"),
    at("a NetWare file system", 4 * KIB, b"SPB5"),
    at("an APFS container", 32, b"NXSB"),
    at(BEFS, 32, b"BFS1"),
    at(BEFS, 32, b"1SFB"),
    at(BEFS, 512 + 32, b"BFS1"),
    at(BEFS, 512 + 32, b"1SFB"),
    at("a BFS file system", 0, b"\xce\xfa\xad\x1b"),
    at("an NTFS file system", 3, b"NTFS    "),
    at("an exFAT file system", 3, b"EXFAT   "),
    at("a ReFS file system", 0, b"\0\0\0ReFS\0"),
    at("an HPFS file system", 8 * KIB, b"\x49\xe8\x95\xf9"),
    at(FAT, 82, b"FAT32   "),
    at(FAT, 82, b"MSWIN"),
    at(FAT, 54, b"FAT1"),
    at(FAT, 54, b"FAT     "),
    at(FAT, 54, b"MSDOS"),
    at(UFS, 8 * KIB + 1372, UFS1),
    at(UFS, 1372, UFS1),
    at(UFS, 64 * KIB + 1372, UFS2),
    at(UFS, 8 * KIB + 1372, UFS2),
    at(VXFS, KIB, b"\xf5\xfc\x01\xa5"),
    at(VXFS, 8 * KIB, b"\xa5\x01\xfc\xf5"),
    at("a squashfs image", 0, b"hsqs"),
    at("a squashfs image", 0, b"sqsh"),
    at(CRAMFS, 0, b"\x45\x3d\xcd\x28"),
    at(CRAMFS, 0, b"\x28\xcd\x3d\x45"),
    at("a romfs image", 0, b"-rom1fs-"),
    at("a UBIFS image", 0, b"\x31\x18\x10\x06"),
    // UDF shares many disks with ISO 9660.
    at(UDF, 34 * KIB + 1, b"NSR0"),
    at(UDF, 36 * KIB + 1, b"NSR0"),
    at(UDF, 32 * KIB + 1, b"BEA01"),
    at(ISO, 32 * KIB + 1, b"CD001"),
    at(ISO, 32 * KIB + 9, b"CDROM"),
    at(HFS, 1024, b"BD"),
    at(HFS, 1024, b"H+"),
    at(HFS, 1024, b"HX"),
    at(MINIX, 1024 + 16, b"\x7f\x13"),
    at(MINIX, 1024 + 16, b"\x8f\x13"),
    at(MINIX, 1024 + 16, b"\x68\x24"),
    at(MINIX, 1024 + 16, b"\x78\x24"),
    at(MINIX, 1024 + 24, b"\x5a\x4d"),
    // Images, swap, hibernation. The mark is at the end of a page, for every page size.
    at("a qcow2 disk image", 0, b"QFI\xfb"),
    at("a VMDK disk image", 0, b"KDMV"),
    at("a VHDX disk image", 0, b"vhdxfile"),
    at(SWAP, 4 * KIB - 10, b"SWAPSPACE2"),
    at(SWAP, 4 * KIB - 10, b"SWAP-SPACE"),
    at(SWAP, 8 * KIB - 10, b"SWAPSPACE2"),
    at(SWAP, 16 * KIB - 10, b"SWAPSPACE2"),
    at(SWAP, 32 * KIB - 10, b"SWAPSPACE2"),
    at(SWAP, 64 * KIB - 10, b"SWAPSPACE2"),
    at(HIBERNATED, 4 * KIB - 10, b"S1SUSPEND"),
    at(HIBERNATED, 4 * KIB - 10, b"S2SUSPEND"),
    at(HIBERNATED, 4 * KIB - 10, b"ULSUSPEND"),
    at(HIBERNATED, 4 * KIB - 10, b"LINHIB0001"),
    at(HIBERNATED, 0, b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"),
    at(GPT, 512, b"EFI PART"),
    at(GPT, 4096, b"EFI PART"),
    end(GPT, last_512, b"EFI PART"),
    end(GPT, last_4096, b"EFI PART"),
];
