//! What would be lost if a disk were taken.
//!
//! A disk is taken without a second question only if it looks unused. It is not enough that nothing
//! on it is *recognised*: data in an unknown format is valuable too. So a disk counts as unused
//! only if it reads as zeros at its start, at its end, and at samples between them. Files tell
//! where they hold data, and the samples are taken there: a file without data needs no reading, and
//! a small written part is not missed.

use std::fmt;

use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use crate::format::length::to_len;
use crate::format::uuid::Id;
use crate::superblock::area::LABEL_BYTES;
use crate::superblock::{Foreign, SuperblockError, find_foreign, is_erased, read_superblock};

/// Bytes read at the start and at the end.
const EDGE_BYTES: u64 = 1 << 20;
/// Number of evenly spaced samples between them.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 16 << 10;

/// What is on a disk. The displayed text follows the word "holds".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// A member of a weft array.
    Member {
        /// The array's name.
        name: String,
        /// The array.
        id: Id,
    },
    /// A member of a weft array whose label or superblocks are damaged or of another version.
    Damaged {
        /// Why it cannot be read.
        why: String,
    },
    /// Data of another program.
    Foreign(Foreign),
    /// Data that is not recognised.
    Unrecognised {
        /// Byte offset of the first such data seen.
        offset: u64,
    },
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member { name, .. } => write!(f, "a member of array '{name}'"),
            Self::Damaged { why } => {
                write!(f, "a member of a weft array that cannot be read ({why})")
            }
            Self::Foreign(foreign) => f.write_str(foreign.what),
            Self::Unrecognised { offset } => {
                write!(f, "data that is not recognised (the first at byte {offset})")
            }
        }
    }
}

/// Identifies the contents of `disk`; `None` if it looks unused.
///
/// # Errors
/// If the disk cannot be read.
pub async fn contents(disk: &dyn Disk) -> Result<Option<Contents>, DiskError> {
    if let Some(recognised) = recognised(disk).await? {
        return Ok(Some(recognised));
    }
    let unrecognised = first_data(disk).await?;
    Ok(unrecognised.map(|offset| Contents::Unrecognised { offset }))
}

/// What is on `disk`, if it is recognised.
pub(crate) async fn recognised(disk: &dyn Disk) -> Result<Option<Contents>, DiskError> {
    match read_superblock(disk).await {
        Ok(Some(own)) => {
            return Ok(Some(Contents::Member { name: own.name, id: own.array_id }));
        }
        Ok(None) => {}
        Err(SuperblockError::Disk(error)) => return Err(error),
        Err(error) => return Ok(Some(Contents::Damaged { why: error.to_string() })),
    }
    Ok(find_foreign(disk).await?.map(Contents::Foreign))
}

/// Offset of the first byte seen that is not zero.
async fn first_data(disk: &dyn Disk) -> Result<Option<u64>, DiskError> {
    let size = disk.info().size_bytes;
    let first_in = |offset: u64, len: u64| async move {
        // Reads are of whole sectors, wherever a hole ends.
        let start = match disk.next_data(offset) {
            Some(start) => start & !4095,
            None => return Ok(None),
        };
        let len = usize::try_from(len.min(size - start)).expect("a mebibyte");
        let (result, buf) = disk.read(start, Buf::new(len), Class::User).await;
        result?;
        // The remains of a member that was being erased are no data.
        let skip = if start == 0 && is_erased(&buf) { to_len(LABEL_BYTES) } else { 0 };
        let at = buf[skip..].iter().position(|byte| *byte != 0);
        Ok::<_, DiskError>(at.map(|at| start + (skip + at) as u64))
    };
    let end = size.saturating_sub(EDGE_BYTES) & !4095;
    let samples = (1..=SAMPLES).map(|n| ((size / (SAMPLES + 1) * n) & !4095, SAMPLE_BYTES));
    for (offset, len) in [(0, EDGE_BYTES)].into_iter().chain(samples).chain([(end, EDGE_BYTES)]) {
        if let Some(found) = first_in(offset, len).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
