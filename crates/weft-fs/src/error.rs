//! Why a request to the file system failed.

use weft_array::ArrayError;
use weft_disk::DiskError;

/// A failed request. The first group is what POSIX programs expect and can handle.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// There is no such file, folder or attribute.
    #[error("no such file or folder")]
    NotFound,
    /// The name is taken.
    #[error("it exists already")]
    Exists,
    /// A folder is needed.
    #[error("not a folder")]
    NotFolder,
    /// A folder will not do.
    #[error("it is a folder")]
    IsFolder,
    /// The folder has entries.
    #[error("the folder is not empty")]
    NotEmpty,
    /// There is no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The name, target or value is too long.
    #[error("too long")]
    TooLong,
    /// The file would be too large.
    #[error("the file would be too large")]
    TooLarge,
    /// There are too many links.
    #[error("too many links")]
    TooManyLinks,
    /// There is no room, or too few disks have room for the redundancy of the file.
    #[error("no room left for this redundancy")]
    NoSpace,
    /// A job runs that must end first.
    #[error("a {0} is running")]
    Busy(&'static str),
    /// A job has ended early, as a disk was lost: waiting for the rebuild.
    #[error("a disk was lost: waiting for the rebuild")]
    GivenWay,
    /// A job was cancelled, and has ended after its step.
    #[error("it was cancelled")]
    Cancelled,
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The file system is mounted read-only.
    #[error("it is mounted read-only")]
    ReadOnly,
    /// A flag of the file forbids it.
    #[error("it is immutable, or can only be appended to")]
    Immutable,
    /// The operation is not supported.
    #[error("not supported")]
    Unsupported,
    /// Blocks of a file can be neither read nor reconstructed.
    #[error("block {block} of inode {inode} cannot be read or reconstructed")]
    Unreadable {
        /// The file.
        inode: u64,
        /// The first such block.
        block: u64,
    },
    /// Blocks of these files were lost after they were written, for want of room or of disks.
    #[error("blocks that were written are lost, of {}", some_of(.0))]
    LostWrites(Vec<String>),
    /// The disks given are not a file system that can be mounted.
    #[error("{0}")]
    Unmountable(String),
    /// What is stored contradicts itself.
    #[error("the metadata is damaged: {0}")]
    Damaged(String),
    /// The file system has failed, and takes no requests any more.
    #[error("the file system has stopped: {0}")]
    Stopped(String),
    /// The metadata array failed.
    #[error("metadata: {0}")]
    Array(#[from] ArrayError),
    /// A disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The metadata database failed.
    #[error("metadata: {0}")]
    Database(Box<redb::Error>),
}

/// The first of these names, and how many more there are.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more files"),
    }
}

/// What a request gives.
pub type Result<T> = std::result::Result<T, FsError>;

/// Wraps the errors of redb, which are many types.
pub(crate) trait InDatabase<T> {
    /// The value, or [`FsError::Database`].
    fn db(self) -> Result<T>;
}

impl<T, E: Into<redb::Error>> InDatabase<T> for std::result::Result<T, E> {
    fn db(self) -> Result<T> {
        self.map_err(|error| FsError::Database(Box::new(error.into())))
    }
}
