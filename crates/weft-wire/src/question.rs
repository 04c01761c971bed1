//! What a node asks of the keeper.

use crate::disk::DiskRequest;
use crate::early::EarlyCommit;
use crate::fields::{Fields, Put as _, Result, WireError};
use crate::lock::LockWish;
use crate::row::{Key, KeyRange, RowChange, Table, put_range, read_range};
use crate::space::{GiveBack, RoomWish};
use crate::work::WorkDone;

/// Some rows of a batch. They are their new contents and not differences, so a part may be sent
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The batch. A node counts its batches.
    pub batch: u64,
    /// In the order of tables and keys.
    pub rows: Vec<RowChange>,
}

/// The end of a batch: reads see all of it from now on, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The batch.
    pub batch: u64,
    /// Whether it is the last one before an unmount.
    pub is_last: bool,
}

/// What a node asks of the keeper. Each question has one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// A row, after the last batch.
    Row {
        /// Its table.
        table: Table,
        /// Its key.
        key: Key<'static>,
    },
    /// Rows of a part of a table, after the last batch, in order.
    Rows {
        /// The table.
        table: Table,
        /// From which key to which.
        range: KeyRange<'static>,
        /// Whether the last ones come first.
        is_backward: bool,
        /// The most rows. The answer may have fewer.
        max: u32,
    },
    /// How many rows a table has.
    Count {
        /// The table.
        table: Table,
    },
    /// Some rows of a batch: no read sees them yet.
    Part(Part),
    /// A batch ends. The answer comes when it is durable.
    End(End),
    /// Nothing but a sign of life.
    Alive,
    /// It wants blocks. The answer is [`Answer::Room`](crate::Answer::Room).
    Room(RoomWish),
    /// It gives blocks back. The answer is [`Answer::Room`](crate::Answer::Room) without blocks.
    GiveBack(GiveBack),
    /// Numbers for new files.
    Numbers,
    /// All is durable, and the node goes: it has nothing any more. It is answered by
    /// [`Answer::Taken`](crate::Answer::Taken).
    Leave,
    /// A node mounts, and wants a place for its log.
    Log,
    /// It wants something of the locks of a file. The answer is
    /// [`Answer::Lock`](crate::Answer::Lock).
    Lock(LockWish),
    /// It cannot reach a disk: is that lost, or just the path? The answer is
    /// [`Answer::Path`](crate::Answer::Path).
    NoPath {
        /// Number of the disk.
        disk: u16,
        /// Whether it has used the disk since it mounted: what it has sent there may still be on
        /// its way.
        was_used: bool,
    },
    /// It uses a disk through the keeper. The answer is [`Answer::Disk`](crate::Answer::Disk).
    Disk(DiskRequest),
    /// It can carry out a part of a job, and says what came of the last one. The answer comes when
    /// there is one: [`Answer::Work`](crate::Answer::Work).
    Work(Option<WorkDone>),
    /// What a program has synced, which is to be kept in memory until the node says that it is
    /// durable ([`ToKeeper::EarlyDone`](crate::ToKeeper::EarlyDone)). The answer is
    /// [`Answer::Early`](crate::Answer::Early).
    Early(EarlyCommit),
    /// The metadata is nearly full, and is to grow if it can. The answer is
    /// [`Answer::Alive`](crate::Answer::Alive), after how full it is then.
    MoreMetadata,
    /// Its requests to a disk wait, and it may lose its path to it. The answer is
    /// [`Answer::Taken`](crate::Answer::Taken).
    DiskWaits {
        /// Number of the disk.
        disk: u16,
    },
}

impl Question {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Row { table, key } => {
                bytes.put_u8(0);
                table.put(bytes);
                key.put(bytes);
            }
            Self::Rows { table, range, is_backward, max } => {
                bytes.put_u8(1);
                table.put(bytes);
                put_range(bytes, range);
                bytes.put_u8(u8::from(*is_backward));
                bytes.put_u32(*max);
            }
            Self::Count { table } => {
                bytes.put_u8(2);
                table.put(bytes);
            }
            Self::Part(Part { batch, rows }) => {
                bytes.put_u8(3);
                bytes.put_u64(*batch);
                bytes.put_u32(u32::try_from(rows.len()).expect("parts are short"));
                rows.iter().for_each(|row| row.put(bytes));
            }
            Self::End(End { batch, is_last }) => {
                bytes.put_u8(4);
                bytes.put_u64(*batch);
                bytes.put_u8(u8::from(*is_last));
            }
            Self::Alive => bytes.put_u8(5),
            Self::Room(wish) => {
                bytes.put_u8(6);
                wish.put(bytes);
            }
            Self::GiveBack(given) => {
                bytes.put_u8(7);
                given.put(bytes);
            }
            Self::Numbers => bytes.put_u8(8),
            Self::Leave => bytes.put_u8(9),
            Self::Log => bytes.put_u8(10),
            Self::Lock(wish) => {
                bytes.put_u8(11);
                wish.put(bytes);
            }
            Self::NoPath { disk, was_used } => {
                bytes.put_u8(12);
                bytes.put_u16(*disk);
                bytes.put_u8(u8::from(*was_used));
            }
            Self::Disk(request) => {
                bytes.put_u8(13);
                request.put(bytes);
            }
            Self::Work(done) => {
                bytes.put_u8(14);
                bytes.put_u8(u8::from(done.is_some()));
                done.iter().for_each(|done| done.put(bytes));
            }
            Self::MoreMetadata => bytes.put_u8(15),
            Self::DiskWaits { disk } => {
                bytes.put_u8(16);
                bytes.put_u16(*disk);
            }
            Self::Early(commit) => {
                bytes.put_u8(30);
                commit.put(bytes);
            }
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(match fields.u8()? {
            0 => Self::Row { table: Table::read(fields)?, key: Key::read(fields)? },
            1 => Self::Rows {
                table: Table::read(fields)?,
                range: read_range(fields)?,
                is_backward: fields.flag()?,
                max: fields.u32()?,
            },
            2 => Self::Count { table: Table::read(fields)? },
            3 => Self::Part(Part { batch: fields.u64()?, rows: fields.list(RowChange::read)? }),
            4 => Self::End(End { batch: fields.u64()?, is_last: fields.flag()? }),
            5 => Self::Alive,
            6 => Self::Room(RoomWish::read(fields)?),
            7 => Self::GiveBack(GiveBack::read(fields)?),
            8 => Self::Numbers,
            9 => Self::Leave,
            10 => Self::Log,
            11 => Self::Lock(LockWish::read(fields)?),
            12 => Self::NoPath { disk: fields.u16()?, was_used: fields.flag()? },
            13 => Self::Disk(DiskRequest::read(fields)?),
            14 => Self::Work(if fields.flag()? { Some(WorkDone::read(fields)?) } else { None }),
            15 => Self::MoreMetadata,
            16 => Self::DiskWaits { disk: fields.u16()? },
            30 => Self::Early(EarlyCommit::read(fields)?),
            _ => return Err(WireError::Malformed("an unknown question")),
        })
    }
}
