//! What the keeper answers.

use crate::disk::{DiskReply, PathVerdict};
use crate::fields::{Fields, Put as _, Result, WireError};
use crate::lock::LockReply;
use crate::row::{Row, put_row, put_value, read_row, read_value};
use crate::space::{DiskBlocks, Run};
use crate::work::Work;

/// What the keeper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The value of a row, or that there is none.
    Row(Option<Box<[u8]>>),
    /// Rows, and whether these were the last of the range.
    Rows {
        /// The rows.
        rows: Vec<Row>,
        /// Whether there are no more.
        is_end: bool,
    },
    /// How many rows a table has.
    Count {
        /// With all batches of this node before `next_batch`.
        rows: u64,
        /// The first batch of this node that has not ended.
        next_batch: u64,
    },
    /// A part was taken.
    Taken,
    /// A batch is durable.
    Durable,
    /// A sign of life.
    Alive,
    /// Numbers that no other node gets: from this one to the one before the second.
    Numbers(u64, u64),
    /// The metadata has the place of the log, durably; or why not yet.
    Log(Option<String>),
    /// The keeper cannot do this, nor anything else.
    Failed(String),
    /// Blocks that are the node's from now on.
    Room {
        /// The blocks. They may be fewer than it wants.
        runs: Vec<Run>,
        /// How many are free elsewhere: not given to any node, or at other nodes.
        elsewhere: Vec<DiskBlocks>,
    },
    /// What becomes of a wish for a lock.
    Lock(LockReply),
    /// What is wrong with a disk.
    Path(PathVerdict),
    /// What becomes of a request to a disk.
    Disk(DiskReply),
    /// A part of a job for this node.
    Work(Work),
    /// Whether an early commit is in the keeper's memory.
    Early(bool),
}

impl Answer {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Row(value) => {
                bytes.put_u8(0);
                put_value(bytes, value.as_deref());
            }
            Self::Rows { rows, is_end } => {
                bytes.put_u8(1);
                bytes.put_u32(u32::try_from(rows.len()).expect("answers are short"));
                rows.iter().for_each(|row| put_row(bytes, row));
                bytes.put_u8(u8::from(*is_end));
            }
            Self::Count { rows, next_batch } => {
                bytes.put_u8(2);
                bytes.put_u64(*rows);
                bytes.put_u64(*next_batch);
            }
            Self::Taken => bytes.put_u8(3),
            Self::Durable => bytes.put_u8(4),
            Self::Failed(why) => {
                bytes.put_u8(5);
                bytes.put_bytes(why.as_bytes());
            }
            Self::Alive => bytes.put_u8(6),
            Self::Room { runs, elsewhere } => {
                bytes.put_u8(7);
                bytes.put_u32(u32::try_from(runs.len()).expect("answers are short"));
                runs.iter().for_each(|run| run.put(bytes));
                DiskBlocks::put_all(elsewhere, bytes);
            }
            Self::Numbers(from, to) => {
                bytes.put_u8(8);
                bytes.put_u64(*from);
                bytes.put_u64(*to);
            }
            Self::Log(refusal) => {
                bytes.put_u8(9);
                bytes.put_u8(u8::from(refusal.is_some()));
                refusal.iter().for_each(|why| bytes.put_bytes(why.as_bytes()));
            }
            Self::Lock(reply) => {
                bytes.put_u8(10);
                reply.put(bytes);
            }
            Self::Path(verdict) => {
                bytes.put_u8(11);
                verdict.put(bytes);
            }
            Self::Disk(reply) => {
                bytes.put_u8(12);
                reply.put(bytes);
            }
            Self::Work(work) => {
                bytes.put_u8(13);
                work.put(bytes);
            }
            Self::Early(is_there) => {
                bytes.put_u8(29);
                bytes.put_u8(u8::from(*is_there));
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Row(read_value(fields)?),
            1 => Self::Rows { rows: fields.list(read_row)?, is_end: fields.flag()? },
            2 => Self::Count { rows: fields.u64()?, next_batch: fields.u64()? },
            3 => Self::Taken,
            4 => Self::Durable,
            5 => Self::Failed(fields.text()?),
            6 => Self::Alive,
            7 => Self::Room {
                runs: fields.list(Run::read)?,
                elsewhere: DiskBlocks::read_all(fields)?,
            },
            8 => Self::Numbers(fields.u64()?, fields.u64()?),
            9 => Self::Log(if fields.flag()? { Some(fields.text()?) } else { None }),
            10 => Self::Lock(LockReply::read(fields)?),
            11 => Self::Path(PathVerdict::read(fields)?),
            12 => Self::Disk(DiskReply::read(fields)?),
            13 => Self::Work(Work::read(fields)?),
            29 => Self::Early(fields.flag()?),
            _ => return Err(WireError::Malformed("an unknown answer")),
        })
    }
}
