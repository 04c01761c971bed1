//! Parts of jobs that nodes carry out, as bytes.

use crate::fields::{FIRST_VERSION, Fields, Put as _, Result, WireError};
use crate::space::DiskBlocks;

/// A part of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Its number. The keeper counts the parts that it gives out.
    pub number: u64,
    /// What is to be done.
    pub task: Task,
}

/// What a node is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Columns of files go from some disks to others.
    Move {
        /// The disks that they leave.
        disks: Vec<u16>,
        /// The files, in the order in which they are wanted.
        files: Vec<u64>,
    },
    /// Every block of some records is read, and wrong ones are repaired.
    Check {
        /// The first record: its file, and its first block.
        from: (u64, u64),
        /// The record after the last one.
        to: (u64, u64),
    },
    /// Columns of files go to disks with more room.
    Even {
        /// The free blocks of each disk by which the node is to go: its share of them.
        free: Vec<DiskBlocks>,
        /// The files, in the order in which they are wanted.
        files: Vec<u64>,
    },
    /// Files that have got another redundancy are laid out as it says.
    Lay {
        /// The files.
        files: Vec<u64>,
    },
}

impl Task {
    /// Since this version there is [`Task::Even`].
    pub const EVEN_SINCE: u16 = 2;
    /// Since this version there is [`Task::Lay`].
    pub const LAY_SINCE: u16 = 2;

    /// The version from which on nodes know it.
    #[must_use]
    pub fn version(&self) -> u16 {
        match self {
            Self::Move { .. } | Self::Check { .. } => FIRST_VERSION,
            Self::Even { .. } => Self::EVEN_SINCE,
            Self::Lay { .. } => Self::LAY_SINCE,
        }
    }
}

/// What came of a part of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkDone {
    /// The part.
    pub number: u64,
    /// What was done. None: it could not be done.
    pub outcome: Option<Outcome>,
}

/// What a node did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Of a [`Task::Move`], a [`Task::Even`] or a [`Task::Lay`]. All of it is durable.
    Moved(Moved),
    /// Of a [`Task::Check`].
    Checked(Checked),
}

/// Columns of files have moved, or their lines were laid out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Blocks that were to move, as far as that was known before.
    pub found: u64,
    /// Blocks read or computed, and written.
    pub blocks: u64,
    /// Blocks that stay where they are, on a disk that has come back.
    pub kept: u64,
    /// Files with blocks that could not be read.
    pub damaged: Vec<u64>,
    /// Files that are unchanged in part, as this node lacked room, or ended early.
    pub waiting: Vec<u64>,
    /// Records that moved although some of their blocks are wrong: the file, and the first block.
    pub wrong: Vec<(u64, u64)>,
}

/// Blocks of records were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Blocks of all columns of the records.
    pub found: u64,
    /// Blocks read.
    pub blocks: u64,
    /// Of these, wrong or unreadable.
    pub bad: u64,
    /// Of these, rewritten.
    pub repaired: u64,
    /// Files with blocks that could not be repaired, in the order of their numbers.
    pub damaged: Vec<u64>,
}

fn put_list<T: Copy>(bytes: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, T)) {
    bytes.put_u32(u32::try_from(items.len()).expect("messages are short"));
    items.iter().for_each(|item| put(bytes, *item));
}

fn put_numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    put_list(bytes, numbers, |bytes, number| bytes.put_u64(number));
}

fn put_place(bytes: &mut Vec<u8>, (ino, block): (u64, u64)) {
    bytes.put_u64(ino);
    bytes.put_u64(block);
}

fn read_place(fields: &mut Fields<'_>) -> Result<(u64, u64)> {
    Ok((fields.u64()?, fields.u64()?))
}

impl Work {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        match &self.task {
            Task::Move { disks, files } => {
                bytes.put_u8(0);
                put_list(bytes, disks, |bytes, disk| bytes.put_u16(disk));
                put_numbers(bytes, files);
            }
            Task::Check { from, to } => {
                bytes.put_u8(1);
                put_place(bytes, *from);
                put_place(bytes, *to);
            }
            Task::Even { free, files } => {
                bytes.put_u8(2);
                DiskBlocks::put_all(free, bytes);
                put_numbers(bytes, files);
            }
            Task::Lay { files } => {
                bytes.put_u8(3);
                put_numbers(bytes, files);
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let number = fields.u64()?;
        let task = match fields.u8()? {
            0 => Task::Move { disks: fields.list(Fields::u16)?, files: fields.list(Fields::u64)? },
            1 => Task::Check { from: read_place(fields)?, to: read_place(fields)? },
            2 => {
                Task::Even { free: DiskBlocks::read_all(fields)?, files: fields.list(Fields::u64)? }
            }
            3 => Task::Lay { files: fields.list(Fields::u64)? },
            _ => return Err(WireError::Malformed("an unknown part of a job")),
        };
        Ok(Self { number, task })
    }
}

impl WorkDone {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        match &self.outcome {
            None => bytes.put_u8(0),
            Some(Outcome::Moved(Moved { found, blocks, kept, damaged, waiting, wrong })) => {
                bytes.put_u8(1);
                [*found, *blocks, *kept].into_iter().for_each(|count| bytes.put_u64(count));
                put_numbers(bytes, damaged);
                put_numbers(bytes, waiting);
                put_list(bytes, wrong, put_place);
            }
            Some(Outcome::Checked(Checked { found, blocks, bad, repaired, damaged })) => {
                bytes.put_u8(2);
                let counts = [*found, *blocks, *bad, *repaired];
                counts.into_iter().for_each(|count| bytes.put_u64(count));
                put_numbers(bytes, damaged);
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let number = fields.u64()?;
        let outcome = match fields.u8()? {
            0 => None,
            1 => Some(Outcome::Moved(Moved {
                found: fields.u64()?,
                blocks: fields.u64()?,
                kept: fields.u64()?,
                damaged: fields.list(Fields::u64)?,
                waiting: fields.list(Fields::u64)?,
                wrong: fields.list(read_place)?,
            })),
            2 => Some(Outcome::Checked(Checked {
                found: fields.u64()?,
                blocks: fields.u64()?,
                bad: fields.u64()?,
                repaired: fields.u64()?,
                damaged: fields.list(Fields::u64)?,
            })),
            _ => return Err(WireError::Malformed("an unknown outcome")),
        };
        Ok(Self { number, outcome })
    }
}
