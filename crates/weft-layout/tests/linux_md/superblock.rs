//! The little of md's version-1.2 superblock that says where a member's data lie
//! (`struct mdp_superblock_1` in Linux's `include/uapi/linux/raid/md_p.h`).

/// Where data lie on a member, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataArea {
    pub offset: u64,
    pub bytes: u64,
}

/// Reads it from a member's image.
pub fn data_area(member: &[u8]) -> DataArea {
    let superblock = &member[4096..4096 + 256];
    let word = |at: usize| {
        let bytes = superblock[at..at + 4].first_chunk().expect("four bytes");
        u32::from_le_bytes(*bytes)
    };
    let sectors = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    assert_eq!((word(0), word(4)), (0xa92b_4efc, 1), "magic and major version");
    // `data_offset` is at 128. `size`, at 80, is what the array uses of each member; RAID-0 leaves
    // it 0 and uses all that there is, `data_size` at 136.
    let used = if sectors(80) == 0 { sectors(136) } else { sectors(80) };
    DataArea { offset: sectors(128) * 512, bytes: used * 512 }
}
