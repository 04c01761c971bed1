//! Disks that a node reaches through the keeper, as bytes.

use crate::fields::{Fields, Put as _, Result, WireError};

/// The most bytes that a request reads or writes.
pub const DISK_BYTES_MAX: u32 = 1 << 20;

/// What a node wants of a disk that it cannot reach itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRequest {
    /// Number of the disk.
    pub disk: u16,
    /// The first byte, from the start of the disk.
    pub offset: u64,
    /// What is to be done.
    pub work: DiskWork,
}

/// What is done to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskWork {
    /// Bytes are read.
    Read {
        /// How many; at most [`DISK_BYTES_MAX`].
        len: u32,
    },
    /// Bytes are written, durably.
    Write {
        /// The bytes; at most [`DISK_BYTES_MAX`].
        data: Vec<u8>,
    },
    /// Zeros are written, durably.
    WriteZeroes {
        /// How many.
        len: u64,
    },
    /// All that was written before becomes durable.
    Flush,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// The disk is lost for all.
    Lost,
    /// The disk works, and these blocks fail.
    Block,
    /// There is no room left below the disk.
    NoSpace,
    /// No node may do this.
    Invalid,
}

/// What becomes of a [`DiskRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskReply {
    /// It is done.
    Done,
    /// What was read.
    Data(Box<[u8]>),
    /// It failed.
    Failed {
        /// How.
        fault: DiskFault,
        /// The error.
        why: String,
    },
}

/// What is wrong with a disk that a node cannot reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathVerdict {
    /// The disk does not work: it is lost for all nodes.
    Lost(String),
    /// The disk works, and takes nothing any more that the node has sent it. The node reaches it
    /// through the keeper.
    ThroughKeeper {
        /// Bytes of the disk.
        size_bytes: u64,
        /// Bytes of its sectors.
        sector_bytes: u32,
    },
    /// The disk works, and does not confirm that it takes nothing any more that the node has sent
    /// it: the node stops.
    Stop(String),
}

fn checked(len: usize) -> Result<()> {
    match u32::try_from(len).is_ok_and(|len| len <= DISK_BYTES_MAX) {
        true => Ok(()),
        false => Err(WireError::Malformed("a request for too many bytes of a disk")),
    }
}

impl DiskRequest {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u16(self.disk);
        bytes.put_u64(self.offset);
        match &self.work {
            DiskWork::Read { len } => {
                bytes.put_u8(0);
                bytes.put_u32(*len);
            }
            DiskWork::Write { data } => {
                bytes.put_u8(1);
                bytes.put_bytes(data);
            }
            DiskWork::WriteZeroes { len } => {
                bytes.put_u8(2);
                bytes.put_u64(*len);
            }
            DiskWork::Flush => bytes.put_u8(3),
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let (disk, offset) = (fields.u16()?, fields.u64()?);
        let work = match fields.u8()? {
            0 => {
                let len = fields.u32()?;
                checked(usize::try_from(len).unwrap_or(usize::MAX))?;
                DiskWork::Read { len }
            }
            1 => {
                let data = fields.bytes()?;
                checked(data.len())?;
                DiskWork::Write { data: data.to_vec() }
            }
            2 => DiskWork::WriteZeroes { len: fields.u64()? },
            3 => DiskWork::Flush,
            _ => return Err(WireError::Malformed("an unknown request to a disk")),
        };
        Ok(Self { disk, offset, work })
    }
}

impl DiskReply {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Done => bytes.put_u8(0),
            Self::Data(data) => {
                bytes.put_u8(1);
                bytes.put_bytes(data);
            }
            Self::Failed { fault, why } => {
                bytes.put_u8(2);
                bytes.put_u8(match fault {
                    DiskFault::Lost => 0,
                    DiskFault::Block => 1,
                    DiskFault::NoSpace => 2,
                    DiskFault::Invalid => 3,
                });
                bytes.put_bytes(why.as_bytes());
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Done,
            1 => {
                let data = fields.bytes()?;
                checked(data.len())?;
                Self::Data(data.into())
            }
            2 => {
                let fault = match fields.u8()? {
                    0 => DiskFault::Lost,
                    1 => DiskFault::Block,
                    2 => DiskFault::NoSpace,
                    3 => DiskFault::Invalid,
                    _ => return Err(WireError::Malformed("an unknown failure of a disk")),
                };
                Self::Failed { fault, why: fields.text()? }
            }
            _ => return Err(WireError::Malformed("an unknown reply of a disk")),
        })
    }
}

impl PathVerdict {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Lost(why) => {
                bytes.put_u8(0);
                bytes.put_bytes(why.as_bytes());
            }
            Self::ThroughKeeper { size_bytes, sector_bytes } => {
                bytes.put_u8(1);
                bytes.put_u64(*size_bytes);
                bytes.put_u32(*sector_bytes);
            }
            Self::Stop(why) => {
                bytes.put_u8(2);
                bytes.put_bytes(why.as_bytes());
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Lost(fields.text()?),
            1 => Self::ThroughKeeper { size_bytes: fields.u64()?, sector_bytes: fields.u32()? },
            2 => Self::Stop(fields.text()?),
            _ => return Err(WireError::Malformed("an unknown verdict on a path")),
        })
    }
}
