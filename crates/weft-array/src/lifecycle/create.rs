//! Creating an array.
//!
//! First everything is checked and planned without writing ([`plan()`], which is also what a dry
//! run shows). Then every disk must take a write that changes nothing, before any of them loses
//! what it holds. Then these steps follow, on all disks concurrently: erase the label; zero
//! everything up to the data (old superblocks, maps, logs, foreign signatures); write and flush the
//! first pages of the region map; write the superblocks; write the labels. A disk is a member only
//! once it has its label. On any error the labels are erased again, so that no half-made disk looks
//! like a member.
//!
//! If every disk can zero cheaply, the data areas are zeroed too. Then parity matches from the
//! start, and unwritten regions need no work before their first write.

mod plan;

use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::{CodeSpec, SpecError};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_layout::{Algorithm, LayoutError};
use weft_rt::Buf;

use crate::format::consistency::Consistency;
use crate::format::uuid::Id;
use crate::members::preparation::prepare_member;
use crate::superblock::area::{AreaError, LABEL_BYTES};
use crate::superblock::{
    Superblock, SuperblockError, erase_label, mark_erased, read_superblock, write_labels,
    write_superblock,
};

pub use plan::{CreatePlan, PlannedMember, PlannedRole, plan};

const DURABLE: WriteOpts = WriteOpts { class: Class::Maintenance, fua: true };

/// Parameters of a new array.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Its name; at most 255 bytes.
    pub name: String,
    /// Its code.
    pub code: CodeSpec,
    /// Layout of units; if `None`, md's default (left-symmetric).
    pub algorithm: Option<Algorithm>,
    /// Bytes of a unit: a power of two from 4096 to 16 MiB.
    pub unit_bytes: u32,
    /// How parity is kept consistent with data across a crash.
    pub consistency: Consistency,
    /// Bytes of the array in a region; rounded up to a power of two that is at least a stripe.
    pub region_bytes: Option<u64>,
    /// Bytes of the log on each member (policy `ppl`).
    pub log_bytes: Option<u64>,
    /// Bytes that stay free before the data of each member, for later reshapes
    /// ([`crate::jobs::reshape::plan`]); rounded up to whole MiB.
    pub head_room_bytes: Option<u64>,
    /// Number of spares: the last disks.
    pub spares: usize,
    /// Whether to overwrite existing data on the disks.
    pub force: bool,
    /// Identity of the array: 16 random bytes.
    pub id: [u8; 16],
    /// The time, in seconds since 1970.
    pub now_unix_s: u64,
}

/// Why the array could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Too few (or too many) disks, or impossible parameters.
    #[error(transparent)]
    Code(#[from] SpecError),
    /// The layout does not fit the code.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// A disk given twice.
    #[error("{disk} was given twice")]
    SameDisk {
        /// The disk.
        disk: String,
    },
    /// Two names of the same disk.
    #[error(
        "{disk} is the same disk as another one given, under another name; no array was made, but the previous contents of these disks are lost"
    )]
    SameDiskUnderTwoNames {
        /// The disk.
        disk: String,
    },
    /// A disk is too small, or the map would be too large.
    #[error("{disk}: {source}")]
    Area {
        /// The smallest disk.
        disk: String,
        /// What does not fit.
        source: AreaError,
    },
    /// A disk is a member of an array.
    #[error("{disk} is a member of array '{name}' ({id})")]
    AlreadyMember {
        /// The disk.
        disk: String,
        /// The array's name.
        name: String,
        /// The array.
        id: Id,
    },
    /// A disk holds something that would be lost.
    #[error("{disk} holds {what}")]
    InUse {
        /// The disk.
        disk: String,
        /// What is on it.
        what: String,
    },
    /// A disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A superblock could not be written.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A disk failed, and so did undoing what had been done.
    #[error("{cause}; and the label could not be erased again: {undo}")]
    Undo {
        /// The first failure.
        cause: Box<CreateError>,
        /// The failure of the undo.
        undo: DiskError,
    },
}

/// Creates an array on `disks`, in the order of its slots, spares last. Returns its superblock (the
/// first member's copy).
///
/// # Errors
/// If the disks or options are unsuitable (nothing is changed then), or a disk fails: then none of
/// them is a member, and their contents may be lost.
pub async fn create(
    disks: &[Rc<dyn Disk>],
    options: &CreateOptions,
) -> Result<Superblock, CreateError> {
    let plan = plan(disks, options).await?;
    let superblock = plan.superblock(options);
    superblock.check()?;
    let ids: Vec<Id> = (0..disks.len() as u64).map(|n| superblock.array_id.member(0, n)).collect();
    on_all(disks, |disk, _| Box::pin(probe(disk))).await?;
    match write_all(disks, &superblock, &ids).await {
        Ok(()) => Ok(superblock),
        Err(cause) => {
            let undone = join_all(disks.iter().map(|disk| erase_label(disk.as_ref()))).await;
            // A disk that has failed will most likely fail again. Only a disk that may still carry
            // a label is worth reporting, and labels are written last.
            Err(match undone.into_iter().find_map(Result::err) {
                Some(undo) => CreateError::Undo { cause: Box::new(cause), undo },
                None => cause,
            })
        }
    }
}

async fn write_all(
    disks: &[Rc<dyn Disk>],
    superblock: &Superblock,
    ids: &[Id],
) -> Result<(), CreateError> {
    on_all(disks, |disk, _| clear(disk, superblock)).await?;
    on_all(disks, |disk, n| Box::pin(write_superblock_of(disk, superblock, ids[n]))).await?;
    on_all(disks, |disk, n| Box::pin(label(disk, superblock, ids[n]))).await?;
    on_all(disks, |disk, n| Box::pin(verify(disk, ids[n]))).await
}

/// Finds out whether a disk takes writes before any of them loses what it holds: writes the present
/// contents back.
async fn probe(disk: &dyn Disk) -> Result<(), CreateError> {
    let block = Buf::new(usize::try_from(LABEL_BYTES).expect("a few KiB"));
    let (result, block) = disk.read(0, block, Class::Maintenance).await;
    // A disk that cannot be read there may still take writes.
    if result.is_ok() {
        disk.write(0, block.freeze(), DURABLE).await?;
    }
    Ok(())
}

type Step<'a> = futures_util::future::LocalBoxFuture<'a, Result<(), CreateError>>;

async fn on_all<'a>(
    disks: &'a [Rc<dyn Disk>],
    step: impl Fn(&'a dyn Disk, usize) -> Step<'a>,
) -> Result<(), CreateError> {
    let steps = disks.iter().enumerate().map(|(n, disk)| step(disk.as_ref(), n));
    join_all(steps).await.into_iter().collect()
}

/// Clears a disk: all steps except superblock and label. Durable on return.
fn clear<'a>(disk: &'a dyn Disk, superblock: &'a Superblock) -> Step<'a> {
    Box::pin(async move {
        mark_erased(disk).await?;
        Ok(prepare_member(disk, superblock).await?)
    })
}

async fn write_superblock_of(
    disk: &dyn Disk,
    superblock: &Superblock,
    id: Id,
) -> Result<(), CreateError> {
    Ok(write_superblock(disk, superblock, id).await?)
}

async fn label(disk: &dyn Disk, superblock: &Superblock, id: Id) -> Result<(), CreateError> {
    Ok(write_labels(disk, superblock, id).await?)
}

/// A disk that was given under two names carries the label that was written last.
async fn verify(disk: &dyn Disk, id: Id) -> Result<(), CreateError> {
    match read_superblock(disk).await {
        Ok(Some(own)) if own.self_id == id => Ok(()),
        Err(SuperblockError::Disk(error)) => Err(error.into()),
        _ => Err(CreateError::SameDiskUnderTwoNames { disk: disk.info().name.clone() }),
    }
}
