//! The part of md's version-1.2 superblock that locates a member's data (`struct mdp_superblock_1`
//! in Linux's `include/uapi/linux/raid/md_p.h`).

/// Where data lie on a member, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataArea {
    /// Where they start.
    pub offset: u64,
    /// Their length.
    pub bytes: u64,
}

/// Reads it from a member's image.
///
/// # Panics
/// If there is no such superblock.
#[must_use]
pub fn data_area(member: &[u8]) -> DataArea {
    // `data_offset` is at 128. `size`, at 80, is what the array uses of each member; RAID-0 leaves
    // it 0 and uses all that there is, `data_size` at 136.
    let used = if sectors(member, 80) == 0 { sectors(member, 136) } else { sectors(member, 80) };
    DataArea { offset: sectors(member, 128) * 512, bytes: used * 512 }
}

/// The slot of a member.
///
/// # Panics
/// If there is no such superblock, or the member is a spare.
#[must_use]
pub fn slot(member: &[u8]) -> usize {
    // `dev_number` is at 160, and from 256 on there are two bytes for the role of each device.
    let number = usize::try_from(word(member, 160)).expect("a small number");
    let role = word(member, 256 + 2 * number) & 0xffff;
    assert!(role < 0xff00, "it is no member, but {role:#x}");
    usize::try_from(role).expect("a small number")
}

/// Four bytes of the superblock.
fn word(member: &[u8], at: usize) -> u32 {
    let superblock = &member[4096..];
    let word = |at: usize| {
        let bytes = superblock[at..at + 4].first_chunk().expect("four bytes");
        u32::from_le_bytes(*bytes)
    };
    assert_eq!((word(0), word(4)), (0xa92b_4efc, 1), "magic and major version");
    word(at)
}

fn sectors(member: &[u8], at: usize) -> u64 {
    u64::from(word(member, at)) | u64::from(word(member, at + 4)) << 32
}
