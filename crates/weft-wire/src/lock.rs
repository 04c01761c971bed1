//! Locks that programs take on files, as bytes.

use std::ops::Range;

use weft_token::{FileLock, LockFamily, LockOwner, LockedFile, NodeId};

use crate::fields::{Fields, Put as _, Result, WireError};
use crate::token::{put_mode, put_node, put_range, read_mode, read_node, read_range};

/// What a node wants of the locks of a file. The owner of a lock is of that node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockWish {
    /// A lock. If it has a number, it is answered when it is granted, or cancelled; it may be asked
    /// for again with that.
    Take {
        /// Of what.
        file: LockedFile,
        /// The lock.
        lock: FileLock,
        /// The node's number for a request that waits.
        waits: Option<u64>,
    },
    /// An owner gives locks up.
    Release {
        /// Of what.
        file: LockedFile,
        /// Who.
        owner: LockOwner,
        /// Which bytes; they are some.
        bytes: Range<u64>,
    },
    /// Which lock is in the way of one?
    Find {
        /// Of what.
        file: LockedFile,
        /// The lock.
        lock: FileLock,
    },
    /// A request does not wait any longer.
    Cancel {
        /// The node's number for it.
        waits: u64,
    },
}

/// What becomes of a [`LockWish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockReply {
    /// It is done; or no lock is in the way.
    Done,
    /// Another lock is in the way.
    Busy,
    /// Its owner would wait for itself.
    Deadlock,
    /// It was cancelled.
    Cancelled,
    /// This lock is in the way.
    Found(FileLock),
}

fn put_file(bytes: &mut Vec<u8>, file: LockedFile) {
    bytes.put_u8(match file.family {
        LockFamily::Posix => 0,
        LockFamily::Flock => 1,
    });
    bytes.put_u64(file.ino);
}

fn read_file(fields: &mut Fields<'_>) -> Result<LockedFile> {
    let family = match fields.u8()? {
        0 => LockFamily::Posix,
        1 => LockFamily::Flock,
        _ => return Err(WireError::Malformed("an unknown kind of locks")),
    };
    Ok(LockedFile { family, ino: fields.u64()? })
}

fn put_owner(bytes: &mut Vec<u8>, owner: LockOwner) {
    put_node(bytes, owner.node);
    bytes.put_u64(owner.number);
}

fn read_owner(fields: &mut Fields<'_>) -> Result<LockOwner> {
    let node: NodeId = read_node(fields)?;
    Ok(LockOwner { node, number: fields.u64()? })
}

fn put_lock(bytes: &mut Vec<u8>, lock: &FileLock) {
    put_owner(bytes, lock.owner);
    bytes.put_u32(lock.pid);
    put_range(bytes, &lock.bytes);
    put_mode(bytes, Some(lock.mode));
}

fn read_lock(fields: &mut Fields<'_>) -> Result<FileLock> {
    Ok(FileLock {
        owner: read_owner(fields)?,
        pid: fields.u32()?,
        bytes: read_range(fields)?,
        mode: read_mode(fields)?,
    })
}

/// A lock that a node has, and of what.
pub(crate) fn put_held(bytes: &mut Vec<u8>, (file, lock): &(LockedFile, FileLock)) {
    put_file(bytes, *file);
    put_lock(bytes, lock);
}

pub(crate) fn read_held(fields: &mut Fields<'_>) -> Result<(LockedFile, FileLock)> {
    Ok((read_file(fields)?, read_lock(fields)?))
}

impl LockWish {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Take { file, lock, waits } => {
                bytes.put_u8(0);
                put_file(bytes, *file);
                put_lock(bytes, lock);
                bytes.put_u8(u8::from(waits.is_some()));
                waits.iter().for_each(|number| bytes.put_u64(*number));
            }
            Self::Release { file, owner, bytes: of } => {
                bytes.put_u8(1);
                put_file(bytes, *file);
                put_owner(bytes, *owner);
                put_range(bytes, of);
            }
            Self::Find { file, lock } => {
                bytes.put_u8(2);
                put_file(bytes, *file);
                put_lock(bytes, lock);
            }
            Self::Cancel { waits } => {
                bytes.put_u8(3);
                bytes.put_u64(*waits);
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Take {
                file: read_file(fields)?,
                lock: read_lock(fields)?,
                waits: if fields.flag()? { Some(fields.u64()?) } else { None },
            },
            1 => Self::Release {
                file: read_file(fields)?,
                owner: read_owner(fields)?,
                bytes: read_range(fields)?,
            },
            2 => Self::Find { file: read_file(fields)?, lock: read_lock(fields)? },
            3 => Self::Cancel { waits: fields.u64()? },
            _ => return Err(WireError::Malformed("an unknown wish for a lock")),
        })
    }
}

impl LockReply {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Done => bytes.put_u8(0),
            Self::Busy => bytes.put_u8(1),
            Self::Deadlock => bytes.put_u8(2),
            Self::Cancelled => bytes.put_u8(3),
            Self::Found(lock) => {
                bytes.put_u8(4);
                put_lock(bytes, lock);
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Done,
            1 => Self::Busy,
            2 => Self::Deadlock,
            3 => Self::Cancelled,
            4 => Self::Found(read_lock(fields)?),
            _ => return Err(WireError::Malformed("an unknown answer about a lock")),
        })
    }
}
