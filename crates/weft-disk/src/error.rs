//! Errors of a disk, with their place and cause.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOp {
    /// Opening or probing.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A write of zeros.
    WriteZeroes,
    /// A discard.
    Discard,
}

impl fmt::Display for DiskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::WriteZeroes => "write zeroes",
            Self::Discard => "discard",
        })
    }
}

/// What kind of failure it is: what the array does next depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// These sectors cannot be read; the rest of the disk works. The array repairs them from
    /// redundancy and writes them back.
    Medium,
    /// The disk is gone, or its owner has severed it.
    Gone,
    /// The disk has become shorter than it was when it was opened. What it held may be lost: also
    /// before its new end, if it was longer again in between.
    Shrunk,
    /// It did not answer within its time limit, and is not asked any more. What it was asked may
    /// still be carried out.
    TimedOut,
    /// The disk refuses this machine, whose reservation was taken away: it was fenced. The disk has
    /// not failed.
    Fenced,
    /// There is no room left under the disk (a sparse file on a full file system).
    NoSpace,
    /// The request was malformed (alignment, range): a bug of the caller.
    Invalid,
    /// Anything else.
    Other,
}

/// A failed disk operation. Boxed: errors are rare, and results of requests are passed on often.
#[derive(Debug)]
pub struct DiskError(Box<DiskFailure>);

/// What a [`DiskError`] tells.
#[derive(Debug)]
pub struct DiskFailure {
    /// The disk's name.
    pub disk: String,
    /// What was tried.
    pub op: DiskOp,
    /// Byte offset on the disk.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What kind it is.
    pub kind: DiskErrorKind,
    /// The cause.
    pub source: io::Error,
}

impl DiskError {
    /// An error of `op`, its kind derived from `source`.
    pub fn new(disk: &str, op: DiskOp, offset: u64, len: u64, source: io::Error) -> Self {
        let (kind, disk) = (kind_of(op, &source), disk.to_owned());
        Self(Box::new(DiskFailure { disk, op, offset, len, kind, source }))
    }

    /// Whether the disk still holds what it held, as far as the error tells: it could not be
    /// reached or had no room. After any other error its contents are in doubt.
    pub fn keeps_contents(&self) -> bool {
        use DiskErrorKind::{Fenced, Gone, NoSpace, TimedOut};
        // EPERM, EROFS: it takes no writes, as it was made read-only.
        let is_read_only = matches!(self.source.raw_os_error(), Some(1 | 30));
        is_read_only || matches!(self.kind, Fenced | Gone | NoSpace | TimedOut)
    }

    /// Whether there was no room below the disk: it works otherwise.
    pub fn is_no_space(&self) -> bool {
        self.kind == DiskErrorKind::NoSpace
    }
}

impl Deref for DiskError {
    type Target = DiskFailure;

    fn deref(&self) -> &DiskFailure {
        &self.0
    }
}

impl DerefMut for DiskError {
    fn deref_mut(&mut self) -> &mut DiskFailure {
        &mut self.0
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskFailure { disk, op, offset, len, source, .. } = &**self;
        match op {
            _ if self.kind == DiskErrorKind::Fenced => {
                write!(f, "{disk} refuses this machine, which was fenced: {source}")
            }
            DiskOp::Open => write!(f, "cannot open {disk}: {source}"),
            DiskOp::Flush => write!(f, "flush of {disk} failed: {source}"),
            _ => write!(f, "{op} of {len} bytes at {offset} on {disk} failed: {source}"),
        }
    }
}

impl std::error::Error for DiskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

fn kind_of(op: DiskOp, source: &io::Error) -> DiskErrorKind {
    // Linux errno values: the same on all architectures that weft runs on.
    const EIO: i32 = 5;
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    const EINVAL: i32 = 22;
    const ENOSPC: i32 = 28;
    const EBADE: i32 = 52;
    const ENODATA: i32 = 61;
    const EREMOTEIO: i32 = 121;
    const EDQUOT: i32 = 122;
    const EILSEQ: i32 = 84;
    match source.raw_os_error() {
        Some(EIO | ENODATA | EREMOTEIO | EILSEQ) if op == DiskOp::Read => DiskErrorKind::Medium,
        Some(EBADE) => DiskErrorKind::Fenced,
        Some(ENXIO | ENODEV) => DiskErrorKind::Gone,
        Some(ENOSPC | EDQUOT) => DiskErrorKind::NoSpace,
        Some(EINVAL) => DiskErrorKind::Invalid,
        _ if source.kind() == io::ErrorKind::InvalidInput => DiskErrorKind::Invalid,
        _ if matches!(
            source.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
                | io::ErrorKind::UnexpectedEof
        ) =>
        {
            DiskErrorKind::Gone
        }
        _ => DiskErrorKind::Other,
    }
}
