//! Reading and writing a member's label and superblock copies.

use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::{Buf, Frozen};

use super::foreign::{find_foreign, find_foreign_head};
use super::label::{Label, erased, is_blank};
use super::{Superblock, SuperblockError};
use crate::format::uuid::Id;
use crate::superblock::area::{
    LABEL_BYTES, MAP_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, second_label_offset,
};
use crate::superblock::salvage::salvage;

const DURABLE: WriteOpts = WriteOpts { class: Class::User, fua: true };
/// Covers a whole small superblock in one read.
const FIRST_READ_BYTES: u64 = 16 << 10;

/// A member's label and superblock copies.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The label; one that is lost, as the superblocks have it.
    pub label: Label,
    /// Why the label has to be written again.
    pub label_fault: Option<String>,
    /// The copies, or why they cannot be used.
    pub copies: [Result<Superblock, SuperblockError>; 2],
}

impl Copies {
    /// The newest valid copy. A valid copy with an unknown version or unknown features may be newer
    /// than a known one, so it is never ignored.
    pub fn newest(self) -> Result<Superblock, SuperblockError> {
        let Label { array_id, member_id, .. } = self.label;
        let is_own = |copy: &Superblock| copy.array_id == array_id && copy.self_id == member_id;
        let mut newest: Option<Superblock> = None;
        let mut faults = Vec::new();
        for copy in self.copies {
            match copy {
                Ok(copy) if !is_own(&copy) => {
                    faults.push("it belongs to another member".to_owned())
                }
                Ok(copy) if newest.as_ref().is_none_or(|other| copy.seq > other.seq) => {
                    newest = Some(copy);
                }
                Ok(_) => {}
                Err(SuperblockError::Damaged { what }) => faults.push(what),
                Err(error @ SuperblockError::NotThere) => faults.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        newest.ok_or_else(|| SuperblockError::Damaged { what: faults.join("; other copy: ") })
    }
}

/// Reads a member's superblock: the newest valid copy. `None` if the disk is not a member.
///
/// # Errors
/// If the disk cannot be read; if it is a member whose label or both superblock copies are damaged;
/// if its version or a feature that it needs is unknown.
pub async fn read_superblock(disk: &dyn Disk) -> Result<Option<Superblock>, SuperblockError> {
    match read_copies(disk).await? {
        Some(copies) => copies.newest().map(Some),
        None => Ok(None),
    }
}

/// Reads the label and both copies. A copy that cannot be read counts as damaged; sectors that it
/// does not use do not matter.
pub(crate) async fn read_copies(disk: &dyn Disk) -> Result<Option<Copies>, SuperblockError> {
    if disk.info().size_bytes < SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES {
        return Ok(None);
    }
    let found = salvage(disk, 0, LABEL_BYTES).await?;
    let unreadable =
        |error: &DiskError| Err(SuperblockError::DamagedLabel { what: error.to_string() });
    let label = match &found.error {
        Some(error) => unreadable(error),
        None => Label::decode(&found.area, 0),
    };
    let fault = match label {
        Ok(Some(label)) => {
            let copies = read_both(disk, label.superblock_offsets).await?;
            return Ok(Some(Copies { label, label_fault: None, copies }));
        }
        Ok(None) if is_blank(&found.area) => None,
        Err(fault @ SuperblockError::DamagedLabel { .. }) => Some(fault),
        other => return other.map(|_| None),
    };
    let copies = read_both(disk, SUPERBLOCK_OFFSETS).await?;
    let newest = copies.iter().flatten().max_by_key(|copy| copy.seq);
    let named = newest.map(|copy| Label::new(copy.array_id, copy.self_id));
    let is_foreign = named.is_some() && find_foreign_head(disk).await?.is_some();
    let Some(label) = named.filter(|_| !is_foreign) else {
        let overwritten = if is_foreign { None } else { overwritten_member(disk).await? };
        return overwritten.or(fault).map_or(Ok(None), Err);
    };
    let label_fault =
        fault.map_or_else(|| "its label is gone".to_owned(), |fault| fault.to_string());
    Ok(Some(Copies { label, label_fault: Some(label_fault), copies }))
}

/// What is wrong with a disk that only its second label calls a member.
async fn overwritten_member(disk: &dyn Disk) -> Result<Option<SuperblockError>, DiskError> {
    let SecondLabel::Whole(label) = read_second_label(disk, disk.info().size_bytes).await? else {
        return Ok(None);
    };
    if find_foreign(disk).await?.is_some() {
        return Ok(None);
    }
    let Label { array_id, member_id, .. } = label;
    let what = format!(
        "it and both superblocks are overwritten; the label at the end of the disk identifies it as member {member_id} of array {array_id}"
    );
    Ok(Some(SuperblockError::DamagedLabel { what }))
}

/// What is in place of the second label.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SecondLabel {
    /// A label that belongs there.
    Whole(Label),
    /// Zeros, or the disk has no such place.
    Blank,
    /// Something else, or it cannot be read.
    Other,
}

/// Reads the second label of a disk of `disk_bytes`.
///
/// # Errors
/// If the disk cannot be read, other than for a medium error.
pub(crate) async fn read_second_label(
    disk: &dyn Disk,
    disk_bytes: u64,
) -> Result<SecondLabel, DiskError> {
    let Some(offset) = second_label_offset(disk_bytes, MAP_OFFSET) else {
        return Ok(SecondLabel::Blank);
    };
    let found = salvage(disk, offset, LABEL_BYTES).await?;
    if found.error.is_none() && is_blank(&found.area) {
        return Ok(SecondLabel::Blank);
    }
    Ok(match Label::decode(&found.area, offset) {
        Ok(Some(label)) => SecondLabel::Whole(label),
        _ => SecondLabel::Other,
    })
}

async fn read_both(
    disk: &dyn Disk,
    offsets: [u64; 2],
) -> Result<[Result<Superblock, SuperblockError>; 2], SuperblockError> {
    Ok([read_copy(disk, offsets[0]).await?, read_copy(disk, offsets[1]).await?])
}

async fn read_copy(
    disk: &dyn Disk,
    offset: u64,
) -> Result<Result<Superblock, SuperblockError>, SuperblockError> {
    for len in [FIRST_READ_BYTES, SUPERBLOCK_BYTES] {
        let found = salvage(disk, offset, len).await?;
        let decoded = match (Superblock::decode(&found.area), found.error) {
            (Err(SuperblockError::Damaged { .. }), Some(error)) => {
                Err(SuperblockError::Damaged { what: error.to_string() })
            }
            (decoded, _) => decoded,
        };
        if decoded.is_ok() || len == SUPERBLOCK_BYTES {
            return Ok(decoded);
        }
    }
    unreachable!("the loop ends with the longest read")
}

/// Writes the superblock of member `self_id`, to the copy selected by its sequence number, so that
/// the previous copy survives a torn write. Durable on return.
///
/// # Errors
/// If it is too large for its space, or the disk fails.
pub async fn write_superblock(
    disk: &dyn Disk,
    superblock: &Superblock,
    self_id: Id,
) -> Result<(), SuperblockError> {
    let bytes = superblock.encode(self_id)?;
    let copy = usize::from(superblock.seq % 2 == 1);
    Ok(disk.write(SUPERBLOCK_OFFSETS[copy], bytes, DURABLE).await?)
}

/// Writes the label: from now on the disk is a member. Durable on return.
///
/// # Errors
/// If the disk fails.
pub async fn write_label(disk: &dyn Disk, array_id: Id, self_id: Id) -> Result<(), DiskError> {
    let label = Label::new(array_id, self_id).encode(0);
    disk.write(0, Frozen::copy_from(&label), DURABLE).await
}

/// Writes both labels of a member of the array with this superblock, the first one last: from then
/// on the disk is a member. Durable on return.
///
/// # Errors
/// If the disk fails.
pub(crate) async fn write_labels(
    disk: &dyn Disk,
    superblock: &Superblock,
    self_id: Id,
) -> Result<(), DiskError> {
    write_second_label(disk, superblock, self_id).await?;
    write_label(disk, superblock.array_id, self_id).await
}

/// Writes the second label, unless data is where it belongs. Durable on return.
///
/// # Errors
/// If the disk fails.
pub(crate) async fn write_second_label(
    disk: &dyn Disk,
    superblock: &Superblock,
    self_id: Id,
) -> Result<(), DiskError> {
    let used = superblock.member_bytes();
    let Some(offset) = second_label_offset(disk.size_now(), used) else { return Ok(()) };
    let label = Label::new(superblock.array_id, self_id).encode(offset);
    disk.write(offset, Frozen::copy_from(&label), DURABLE).await
}

/// Erases labels and superblocks: the disk is not a member any more. It is none from the first
/// write on, also after a crash. Durable on return.
///
/// # Errors
/// If the disk fails.
pub async fn erase_label(disk: &dyn Disk) -> Result<(), DiskError> {
    mark_erased(disk).await?;
    disk.write(0, block_of_zeros(), DURABLE).await
}

/// As [`erase_label`], but a mark stays in place of the label: until the next label is written the
/// disk is no member, regardless of earlier writes to it. Durable on return.
///
/// # Errors
/// If the disk fails.
pub(crate) async fn mark_erased(disk: &dyn Disk) -> Result<(), DiskError> {
    disk.write(0, Frozen::copy_from(&erased()), DURABLE).await?;
    for offset in SUPERBLOCK_OFFSETS {
        if offset + LABEL_BYTES <= disk.info().size_bytes {
            // Without its first block a copy is none.
            disk.write(offset, block_of_zeros(), DURABLE).await?;
        }
    }
    erase_second_label(disk).await
}

/// A label at the end goes, whose ever it is; other data there stays.
async fn erase_second_label(disk: &dyn Disk) -> Result<(), DiskError> {
    let size = disk.size_now();
    if let Some(offset) = second_label_offset(size, MAP_OFFSET)
        && let Ok(SecondLabel::Whole(_)) = read_second_label(disk, size).await
    {
        disk.write(offset, block_of_zeros(), DURABLE).await?;
    }
    Ok(())
}

fn block_of_zeros() -> Frozen {
    Buf::zeroed(usize::try_from(LABEL_BYTES).expect("4 KiB")).freeze()
}
