//! Reading and writing a member's label and superblock copies.

use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::{Buf, Frozen};

use super::foreign::find_foreign_head;
use super::label::{Label, erased, is_blank};
use super::{Superblock, SuperblockError};
use crate::format::uuid::Id;
use crate::superblock::area::{LABEL_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
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
        None => Label::decode(&found.area),
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
        return fault.map_or(Ok(None), Err);
    };
    let label_fault =
        fault.map_or_else(|| "its label is gone".to_owned(), |fault| fault.to_string());
    Ok(Some(Copies { label, label_fault: Some(label_fault), copies }))
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
    let label = Label::new(array_id, self_id).encode();
    disk.write(0, Frozen::copy_from(&label), DURABLE).await
}

/// Erases label and superblocks: the disk is not a member any more. It is none from the first write
/// on, also after a crash. Durable on return.
///
/// # Errors
/// If the disk fails.
pub async fn erase_label(disk: &dyn Disk) -> Result<(), DiskError> {
    mark_erased(disk).await?;
    disk.write(0, block_of_zeros(), DURABLE).await
}

/// As [`erase_label`], but a mark stays in place of the label: until the next label is written the
/// disk is no member, whatever is written to it before. Durable on return.
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
    Ok(())
}

fn block_of_zeros() -> Frozen {
    Buf::zeroed(usize::try_from(LABEL_BYTES).expect("4 KiB")).freeze()
}
