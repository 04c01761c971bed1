//! The head of a shared disk: its first MiB, where the disk keeps its bounds.
//!
//! *Where.* On the disk itself: a fence must be known wherever the disk is served next, also by
//! another machine, and by a server whose own disk was replaced. At its start, where a disk that
//! grows keeps it. What nodes see of the disk lies after it, so that a shared disk is not taken
//! for a member by a program that opens it past its server, and past its fences.
//!
//! ```text
//!   0        32 KiB     64 KiB              1 MiB
//!   ├─ copy 0 ─┼─ copy 1 ─┼─ unused, zeros ──┼─ what nodes see ──
//!
//!   a copy:  magic · version · length · sequence number · CRC · bounds as JSON
//! ```
//!
//! *What a crash leaves.* The copies are written one after the other, each durably, and a fence is
//! confirmed after both. A crash tears at most one of them: the other has the bounds before the
//! fence, which was then not confirmed, or those with it. One copy that decays later loses
//! nothing, as the other has the same. The next start writes both again.

use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::Buf;

use super::gate::Bounds;
use crate::frame::{self, Frame};

/// What a shared disk keeps for itself, in bytes, from its start.
pub const HEAD_BYTES: u64 = 1 << 20;

const COPY_BYTES: usize = 32 << 10;
const COPIES: [u64; 2] = [0, COPY_BYTES as u64];
const MAGIC: [u8; 8] = *b"weftshrd";
const VERSION: u32 = 1;
/// Why a disk's head cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It has no head.
    #[error("{0} is not prepared to be shared")]
    NotPrepared(String),
    /// Both copies are damaged.
    #[error(
        "the fences that {0} keeps cannot be read: both copies are damaged. Make sure that no node \
         that was ever evicted can still reach it, then prepare it again"
    )]
    Damaged(String),
    /// It was written by a later version.
    #[error("{0} was prepared by a later version of weft (format {1})")]
    UnknownVersion(String, u32),
    /// It holds something.
    #[error("{0} holds data; preparing it erases its first MiB")]
    NotBlank(String),
    /// It is too small.
    #[error("{0} is too small to be shared: it has {1} bytes")]
    TooSmall(String, u64),
}

/// What a copy holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    /// Zeros.
    Nothing,
    /// Not a copy, or a damaged one.
    Other {
        is_copy: bool,
    },
    /// One of another version.
    Version(u32),
    Bounds(u64, Bounds),
}

/// The head of an open disk.
#[derive(Debug)]
pub(super) struct Head {
    /// Of the last copy that was written.
    pub sequence: u64,
}

fn encode(sequence: u64, bounds: &Bounds) -> Buf {
    let contents = serde_json::to_vec(bounds).expect("bounds can be written as JSON");
    let copy = frame::encode(&MAGIC, VERSION, sequence, &contents, COPY_BYTES);
    copy.expect("bounds are limited")
}

fn decode(copy: &[u8]) -> Found {
    match frame::decode(&MAGIC, VERSION, copy) {
        Frame::Blank => Found::Nothing,
        Frame::Foreign => Found::Other { is_copy: false },
        Frame::Damaged => Found::Other { is_copy: true },
        Frame::Version(version) => Found::Version(version),
        Frame::Sound(sequence, contents) => match serde_json::from_slice(&contents) {
            Ok(bounds) => Found::Bounds(sequence, bounds),
            Err(_) => Found::Other { is_copy: true },
        },
    }
}

async fn read_copies(disk: &dyn Disk) -> Result<Vec<Found>, HeadError> {
    let (name, size) = (&disk.info().name, disk.info().size_bytes);
    if size <= HEAD_BYTES {
        return Err(HeadError::TooSmall(name.clone(), size));
    }
    let mut found = Vec::new();
    for at in COPIES {
        let (result, copy) = disk.read(at, Buf::new(COPY_BYTES), Class::Urgent).await;
        match result {
            Ok(()) => found.push(decode(&copy)),
            // The other copy may be readable.
            Err(error) if error.kind == weft_disk::DiskErrorKind::Medium => {
                found.push(Found::Other { is_copy: true });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

impl Head {
    /// Reads the bounds that a disk keeps, and writes both copies again.
    pub async fn open(disk: &dyn Disk) -> Result<(Self, Bounds), HeadError> {
        let name = || disk.info().name.clone();
        let found = read_copies(disk).await?;
        let newest = found.iter().filter_map(|copy| match copy {
            Found::Bounds(sequence, bounds) => Some((*sequence, bounds.clone())),
            _ => None,
        });
        if let Some(version) = found.iter().find_map(|copy| match copy {
            Found::Version(version) => Some(*version),
            _ => None,
        }) {
            return Err(HeadError::UnknownVersion(name(), version));
        }
        let Some((sequence, bounds)) = newest.max_by_key(|(sequence, _)| *sequence) else {
            let is_copy = found.contains(&Found::Other { is_copy: true });
            let error = if is_copy { HeadError::Damaged } else { HeadError::NotPrepared };
            return Err(error(name()));
        };
        let mut head = Self { sequence };
        head.store(disk, &bounds).await?;
        Ok((head, bounds))
    }

    /// Makes `bounds` durable, in both copies, one after the other.
    pub async fn store(&mut self, disk: &dyn Disk, bounds: &Bounds) -> Result<(), DiskError> {
        self.sequence += 1;
        let copy = encode(self.sequence, bounds).freeze();
        let opts = WriteOpts { class: Class::Urgent, fua: true };
        for at in COPIES {
            disk.write(at, copy.clone(), opts).await?;
        }
        Ok(())
    }
}

/// Whether a disk may be prepared although it holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// Only a disk whose first MiB is zeros.
    Blank,
    /// Any disk: its first MiB is erased, with the fences that it may keep.
    Erase,
}

/// Whether the head's place holds nothing but zeros.
///
/// # Errors
/// The disk failed, or is too small.
pub async fn is_blank(disk: &dyn Disk) -> Result<bool, HeadError> {
    let size = disk.info().size_bytes;
    if size <= HEAD_BYTES {
        return Err(HeadError::TooSmall(disk.info().name.clone(), size));
    }
    let len = usize::try_from(HEAD_BYTES).expect("a MiB");
    let (result, head) = disk.read(0, Buf::new(len), Class::User).await;
    result?;
    Ok(head.iter().all(|byte| *byte == 0))
}

/// Prepares a disk to be shared: it keeps no fence, and belongs to no cluster.
///
/// # Errors
/// The disk failed, is too small, or holds something and must not be erased.
pub async fn prepare(disk: &dyn Disk, how: Preparation) -> Result<(), HeadError> {
    if !is_blank(disk).await? && how == Preparation::Blank {
        return Err(HeadError::NotBlank(disk.info().name.clone()));
    }
    disk.write_zeroes(0, HEAD_BYTES, WriteOpts::USER_FUA).await?;
    Ok(Head { sequence: 0 }.store(disk, &Bounds::default()).await?)
}
