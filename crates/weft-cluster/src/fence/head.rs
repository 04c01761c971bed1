//! The head of a shared disk: its first MiB, where the disk keeps its bounds.
//!
//! *Where.* On the disk itself: a fence must be known wherever the disk is served next, also by
//! another machine, and by a server whose own disk was replaced. At its start, where a disk that
//! grows keeps it. What nodes see of the disk lies after it, so that a shared disk is not taken
//! for a member by a program that opens it past its server, and past its fences.
//!
//! ```text
//!   0          64 KiB   128 KiB               576 KiB         1 MiB
//!   ├─ pair 0 ──┼─ claim ─┼─ pairs 1 to 7 ──────┼─ unused, zeros ──┼─ what nodes see ──
//!
//!   a pair:  two copies of 32 KiB
//!   a copy:  magic · version · length · sequence number · CRC · bounds as JSON
//! ```
//!
//! *Pairs.* Each server that starts gets a generation from its claim (see `claim.rs`), and writes
//! one pair, of which the next server writes the next. So a write of a server that was deposed, if
//! it is late, lands where nobody's fences are but its own. What counts is what the pairs say
//! together: no bound is ever taken back. (Only a write that is as late as eight servers' starts
//! would hit a pair in use.)
//!
//! *What a crash leaves.* The copies are written one after the other, each durably, and a fence is
//! confirmed after both. A crash tears at most one of them: the other has the bounds before the
//! fence, which was then not confirmed, or those with it. One copy that decays later loses
//! nothing, as the other has the same. A disk of which a pair is damaged altogether is not served.

use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::Buf;

use super::gate::Bounds;
use crate::frame::{self, Frame};

/// What a shared disk keeps for itself, in bytes, from its start.
pub const HEAD_BYTES: u64 = 1 << 20;

const COPY_BYTES: usize = 32 << 10;
const MAGIC: [u8; 8] = *b"weftshrd";
const VERSION: u32 = 2;
/// The version of disks that have one pair.
const VERSION_ONE_PAIR: u32 = 1;
const PAIRS: u64 = 8;

/// Where the copies of a generation's pair lie.
fn copies_of(generation: u64) -> [u64; 2] {
    let copy = COPY_BYTES as u64;
    let start = match generation % PAIRS {
        0 => 0,
        pair => (128 << 10) + (pair - 1) * 2 * copy,
    };
    [start, start + copy]
}

/// Why a disk's head cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It has no head.
    #[error("{0} is not prepared to be shared")]
    NotPrepared(String),
    /// Both copies of a pair are damaged.
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
    /// Another server serves it, and lives.
    #[error("another server serves {0}: a disk has one server at a time")]
    Served(String),
    /// Several servers together know more fences than there is room for.
    #[error("{0} has no room for the fences that several servers have set")]
    Full(String),
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

/// The head of an open disk, as one server writes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    generation: u64,
    /// Of the last copy that was written: the generation, and a count below it.
    sequence: u64,
}

/// What all pairs say together.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The last generation that has written.
    pub generation: u64,
    pub bounds: Bounds,
}

fn decode(copy: &[u8]) -> Found {
    let frame = match frame::decode(&MAGIC, VERSION, copy) {
        Frame::Version(VERSION_ONE_PAIR) => frame::decode(&MAGIC, VERSION_ONE_PAIR, copy),
        frame => frame,
    };
    match frame {
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

async fn read_copy(disk: &dyn Disk, at: u64) -> Result<Found, HeadError> {
    let (result, copy) = disk.read(at, Buf::new(COPY_BYTES), Class::Urgent).await;
    match result {
        Ok(()) => Ok(decode(&copy)),
        // The other copy may be readable.
        Err(error) if error.kind == weft_disk::DiskErrorKind::Medium => {
            Ok(Found::Other { is_copy: true })
        }
        Err(error) => Err(error.into()),
    }
}

impl Head {
    /// Reads the bounds that a disk keeps.
    pub async fn read(disk: &dyn Disk) -> Result<Kept, HeadError> {
        let (name, size) = (&disk.info().name, disk.info().size_bytes);
        if size <= HEAD_BYTES {
            return Err(HeadError::TooSmall(name.clone(), size));
        }
        let (mut kept, mut is_prepared, mut is_damaged) = (Kept::default(), false, false);
        for pair in 0..PAIRS {
            let [first, second] = copies_of(pair);
            let pair = [read_copy(disk, first).await?, read_copy(disk, second).await?];
            let mut is_sound = false;
            for copy in &pair {
                match copy {
                    Found::Version(version) => {
                        return Err(HeadError::UnknownVersion(name.clone(), *version));
                    }
                    Found::Bounds(sequence, bounds) => {
                        kept.bounds.join(bounds);
                        kept.generation = kept.generation.max(sequence >> 32);
                        is_sound = true;
                    }
                    Found::Nothing | Found::Other { .. } => {}
                }
            }
            is_prepared |= is_sound;
            // The first write of a pair may have been torn: then its second copy was not written.
            let is_new = pair[1] == Found::Nothing;
            is_damaged |= !is_sound && !is_new && pair.contains(&Found::Other { is_copy: true });
        }
        match (is_damaged, is_prepared) {
            (true, _) => Err(HeadError::Damaged(name.clone())),
            (false, false) => Err(HeadError::NotPrepared(name.clone())),
            (false, true) => Ok(kept),
        }
    }

    /// The head as the server of a generation writes it.
    pub fn new(generation: u64) -> Self {
        Self { generation, sequence: generation << 32 }
    }

    /// Makes `bounds` durable, in both copies, one after the other.
    pub async fn store(&mut self, disk: &dyn Disk, bounds: &Bounds) -> Result<(), HeadError> {
        self.sequence += 1;
        let contents = serde_json::to_vec(bounds).expect("bounds can be written as JSON");
        let copy = frame::encode(&MAGIC, VERSION, self.sequence, &contents, COPY_BYTES);
        let copy = copy.ok_or_else(|| HeadError::Full(disk.info().name.clone()))?.freeze();
        let opts = WriteOpts { class: Class::Urgent, fua: true };
        for at in copies_of(self.generation) {
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
    Head::new(0).store(disk, &Bounds::default()).await
}
