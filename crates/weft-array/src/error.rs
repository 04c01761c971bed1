//! What an array can refuse or fail to do.

use std::sync::Arc;

use weft_disk::DiskError;

use crate::members::assemble::AssembleError;
use crate::region_map::MapError;
use crate::superblock::SuperblockError;

/// A failed request or command. Everything that was acknowledged earlier is unaffected.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The range lies beyond the end of the array.
    #[error("the range {offset}+{len} reaches beyond the array's end at {size} bytes")]
    OutOfRange {
        /// Byte offset asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// The array's size in bytes.
        size: u64,
    },
    /// More members are lost than the code survives here.
    #[error(
        "{offset}+{len} cannot be read: {lost} of the stripe's units are lost, more than the code survives"
    )]
    Unreadable {
        /// First byte of the unreadable range on the array.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Units lost in the stripe.
        lost: usize,
    },
    /// The array stopped taking writes: too many members failed, a change of membership could not
    /// take effect, or it was stopped while writes waited for space.
    #[error("the array has stopped taking writes: {cause}; see its status")]
    Broken {
        /// What made it stop.
        cause: String,
    },
    /// The array was assembled read-only.
    #[error("the array is read-only")]
    ReadOnly,
    /// The array has been stopped.
    #[error("the array is stopped")]
    Stopped,
    /// The storage below a member is full, and recovery or a job has to write there.
    #[error("no space is left below {disk}: free some, then try again")]
    NoSpace {
        /// The member's name.
        disk: String,
    },
    /// The array was stopped while writes waited for space.
    #[error(
        "writes were waiting for space on {disk}: they may or may not be on disk, and the next start recovers their stripes"
    )]
    Unclean {
        /// The member's name.
        disk: String,
    },
    /// A disk failed in a way that redundancy does not cover.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The disks are not an array that can be started.
    #[error(transparent)]
    Assemble(Box<AssembleError>),
    /// A member's metadata could not be read or written.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The region map could not be made durable.
    #[error("the region map could not be written: {0}")]
    Map(#[from] MapError),
    /// The failure of several writes that were carried out together.
    #[error("{0}")]
    Shared(Arc<ArrayError>),
    /// The command is not possible in the array's present state.
    #[error("{0}")]
    Refused(String),
}

impl ArrayError {
    /// The error itself, if several writes share it.
    pub fn root(&self) -> &Self {
        match self {
            Self::Shared(error) => error.root(),
            error => error,
        }
    }
}

impl From<Arc<ArrayError>> for ArrayError {
    fn from(error: Arc<ArrayError>) -> Self {
        Arc::try_unwrap(error).unwrap_or_else(Self::Shared)
    }
}

impl From<AssembleError> for ArrayError {
    fn from(error: AssembleError) -> Self {
        Self::Assemble(Box::new(error))
    }
}

// Every layer of a request passes its result on.
const _: () = assert!(size_of::<ArrayError>() <= 32);
