//! The messages of nodes and keeper.

use weft_token::{FileLock, Holding, LockedFile, NodeId, ToAuthority, ToNode};

use crate::disk::{DiskReply, DiskRequest, PathVerdict};
use crate::early::{EarlyBlock, EarlyCommit, EarlyLive};
use crate::fields::{Fields, Put as _, Result, WireError};
use crate::frame::{Frames, frame};
use crate::lock::{self, LockReply, LockWish};
use crate::row::{
    Key, KeyRange, Row, RowChange, Table, put_range, put_row, put_value, read_range, read_row,
    read_value,
};
use crate::token;
use crate::work::{Work, WorkDone};

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

/// Blocks of a disk that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of the disk.
    pub disk: u16,
    /// The first block.
    pub start: u64,
    /// How many they are; not none.
    pub blocks: u64,
}

impl Run {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.put_u16(self.disk);
        bytes.put_u64(self.start);
        bytes.put_u64(self.blocks);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let run = Self { disk: fields.u16()?, start: fields.u64()?, blocks: fields.u64()? };
        match run.blocks > 0 && run.start.checked_add(run.blocks).is_some() {
            true => Ok(run),
            false => Err(WireError::Malformed("a run of no blocks, or beyond all disks")),
        }
    }
}

/// What a node has of the things that the keeper gives out, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restated {
    /// Tokens that it holds.
    pub tokens: Vec<Holding>,
    /// Locks that its programs have on files.
    pub locks: Vec<(LockedFile, FileLock)>,
    /// It was given no number for a file from this one on.
    pub numbers_end: u64,
    /// Blocks that were given to it and that no durable record names, and blocks that are free.
    pub space: Vec<Run>,
    /// The number of the next [`GiveBack`] that does not have its blocks from before: what was on
    /// its way is not in `space`.
    pub next_give_back: u64,
    /// Whether there is no other part.
    pub is_last: bool,
}

impl Restated {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u32(u32::try_from(self.tokens.len()).expect("parts are short"));
        self.tokens.iter().for_each(|held| token::put_holding(bytes, held));
        bytes.put_u32(u32::try_from(self.locks.len()).expect("parts are short"));
        self.locks.iter().for_each(|held| lock::put_held(bytes, held));
        bytes.put_u64(self.numbers_end);
        bytes.put_u32(u32::try_from(self.space.len()).expect("parts are short"));
        self.space.iter().for_each(|run| run.put(bytes));
        bytes.put_u64(self.next_give_back);
        bytes.put_u8(u8::from(self.is_last));
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            tokens: fields.list(token::read_holding)?,
            locks: fields.list(lock::read_held)?,
            numbers_end: fields.u64()?,
            space: fields.list(Run::read)?,
            next_give_back: fields.u64()?,
            is_last: fields.flag()?,
        })
    }
}

/// Blocks of a disk, wherever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskBlocks {
    /// Number of the disk.
    pub disk: u16,
    /// How many they are.
    pub blocks: u64,
}

impl DiskBlocks {
    fn put_all(all: &[Self], bytes: &mut Vec<u8>) {
        bytes.put_u32(u32::try_from(all.len()).expect("few disks"));
        for of in all {
            bytes.put_u16(of.disk);
            bytes.put_u64(of.blocks);
        }
    }

    fn read_all(fields: &mut Fields<'_>) -> Result<Vec<Self>> {
        fields.list(|fields| Ok(Self { disk: fields.u16()?, blocks: fields.u64()? }))
    }
}

/// A node asks for blocks that it may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomWish {
    /// The number of the wish. A node counts them, has one at a time, and repeats one that was not
    /// answered: the answer is the same.
    pub number: u64,
    /// How many it wants.
    pub wanted: Vec<DiskBlocks>,
    /// How many free ones it has.
    pub has: Vec<DiskBlocks>,
    /// Whether an operation fails without them. Then other nodes are asked to give back what they
    /// do not need.
    pub is_urgent: bool,
}

impl RoomWish {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        DiskBlocks::put_all(&self.wanted, bytes);
        DiskBlocks::put_all(&self.has, bytes);
        bytes.put_u8(u8::from(self.is_urgent));
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            number: fields.u64()?,
            wanted: DiskBlocks::read_all(fields)?,
            has: DiskBlocks::read_all(fields)?,
            is_urgent: fields.flag()?,
        })
    }
}

/// A node gives free blocks back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveBack {
    /// Its number. A node counts them, has one at a time, and repeats one that was not answered.
    pub number: u64,
    /// The blocks.
    pub runs: Vec<Run>,
    /// How many free ones it has left.
    pub has: Vec<DiskBlocks>,
    /// If this is all that it can do about it: what it was asked for ([`FromKeeper::ReturnRoom`]).
    pub round: u64,
}

impl GiveBack {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        bytes.put_u32(u32::try_from(self.runs.len()).expect("messages are short"));
        self.runs.iter().for_each(|run| run.put(bytes));
        DiskBlocks::put_all(&self.has, bytes);
        bytes.put_u64(self.round);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            number: fields.u64()?,
            runs: fields.list(Run::read)?,
            has: DiskBlocks::read_all(fields)?,
            round: fields.u64()?,
        })
    }
}

/// How full the metadata is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Bytes of all rows.
    pub rows: u64,
    /// Bytes of rows that this node may add for everyone before it hears of room again.
    pub left: u64,
    /// Bytes of rows that it may add for root and itself.
    pub left_for_root: u64,
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
    /// It wants blocks. The answer is [`Answer::Room`].
    Room(RoomWish),
    /// It gives blocks back. The answer is [`Answer::Room`] without blocks.
    GiveBack(GiveBack),
    /// Numbers for new files.
    Numbers,
    /// All is durable, and the node goes: it has nothing any more. It is answered by
    /// [`Answer::Taken`].
    Leave,
    /// A node mounts, and wants a place for its log.
    Log,
    /// It wants something of the locks of a file. The answer is [`Answer::Lock`].
    Lock(LockWish),
    /// It cannot reach a disk: is that lost, or just the path? The answer is [`Answer::Path`].
    NoPath {
        /// Number of the disk.
        disk: u16,
        /// Whether it has used the disk since it mounted: what it has sent there may still be on
        /// its way.
        was_used: bool,
    },
    /// It uses a disk through the keeper. The answer is [`Answer::Disk`].
    Disk(DiskRequest),
    /// It can carry out a part of a job, and says what came of the last one. The answer comes when
    /// there is one: [`Answer::Work`].
    Work(Option<WorkDone>),
    /// What a program has synced, which is to be kept in memory until the node says that it is
    /// durable ([`ToKeeper::EarlyDone`]). The answer is [`Answer::Early`].
    Early(EarlyCommit),
    /// The metadata is nearly full, and is to grow if it can. The answer is [`Answer::Alive`], after
    /// how full it is then.
    MoreMetadata,
    /// Its requests to a disk wait, and it may lose its path to it. The answer is
    /// [`Answer::Taken`].
    DiskWaits {
        /// Number of the disk.
        disk: u16,
    },
}

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

/// A message of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToKeeper {
    /// The first one of a connection. What this node sent before, of a batch that it did not end,
    /// is forgotten.
    Hello {
        /// The identity of the file system.
        file_system: [u8; 16],
        /// The node.
        node: NodeId,
    },
    /// A question.
    Ask {
        /// Its number. The answer has the same.
        number: u64,
        /// The question.
        question: Question,
    },
    /// It asks for a token or returns one. [`ToKeeper::Restate`] comes before.
    Token(ToAuthority),
    /// What it has: it takes the place of what the keeper believed. A node says this once on each
    /// connection, in one or more parts, before it changes anything.
    Restate(Restated),
    /// Of the early commits that the keeper has of this node, only these count. A node that makes
    /// such says this on each connection, after what it has.
    EarlyLive(EarlyLive),
    /// Early commits of these blocks, up to these numbers, count no more.
    EarlyDone(Vec<EarlyBlock>),
}

/// A message of the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromKeeper {
    /// The answer to [`ToKeeper::Hello`].
    Welcome {
        /// The first batch of this node that has not ended.
        next_batch: u64,
        /// Bytes that the database may have.
        capacity: u64,
        /// The most rows of a part.
        rows_max: u32,
    },
    /// The other answer; the connection ends.
    Refused(String),
    /// An answer.
    Answer {
        /// The number of the question.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// It grants a token or revokes one.
    Token(ToNode),
    /// Another node lacks room: the node is to give back all free blocks that it does not need, in
    /// one [`GiveBack`] or more, of which the last has this number.
    ReturnRoom {
        /// The number.
        round: u64,
    },
    /// How full the metadata is: after a welcome, before it says that a batch is durable, and
    /// before each sign of life. The batches of this node that were durable by then are in it.
    Room(Room),
    /// These disks are lost, by their numbers: all of them after a welcome, and then each before
    /// any answer with rows of the batch in which it is lost.
    LostDisks(Vec<u16>),
    /// Bytes that the database may have from now on, as the metadata has grown: before how full it
    /// is then.
    Capacity(u64),
}

/// The kinds of frames.
mod kind {
    pub(super) const HELLO: u16 = 1;
    pub(super) const ASK: u16 = 2;
    pub(super) const TO_AUTHORITY: u16 = 3;
    pub(super) const RESTATE: u16 = 4;
    pub(super) const EARLY_LIVE: u16 = 0x14;
    pub(super) const EARLY_DONE: u16 = 0x15;
    pub(super) const WELCOME: u16 = 0x101;
    pub(super) const REFUSED: u16 = 0x102;
    pub(super) const ANSWER: u16 = 0x103;
    pub(super) const TO_NODE: u16 = 0x104;
    pub(super) const RETURN_ROOM: u16 = 0x105;
    pub(super) const ROOM: u16 = 0x106;
    pub(super) const LOST_DISKS: u16 = 0x107;
    pub(super) const CAPACITY: u16 = 0x108;
}

impl Question {
    fn put(&self, bytes: &mut Vec<u8>) {
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
            Self::Early(commit) => {
                bytes.put_u8(30);
                commit.put(bytes);
            }
            Self::MoreMetadata => bytes.put_u8(15),
            Self::DiskWaits { disk } => {
                bytes.put_u8(16);
                bytes.put_u16(*disk);
            }
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
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
            30 => Self::Early(EarlyCommit::read(fields)?),
            15 => Self::MoreMetadata,
            16 => Self::DiskWaits { disk: fields.u16()? },
            _ => return Err(WireError::Malformed("an unknown question")),
        })
    }
}

impl Answer {
    fn put(&self, bytes: &mut Vec<u8>) {
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

    fn read(fields: &mut Fields<'_>) -> Result<Self> {
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

/// The message of the next frame, if all of it has come.
fn next<T>(
    frames: &mut Frames,
    read: impl FnOnce(u16, &mut Fields<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let Some((kind, contents)) = frames.next()? else { return Ok(None) };
    let mut fields = Fields::new(contents);
    let message = read(kind, &mut fields)?;
    fields.end()?;
    Ok(Some(message))
}

impl ToKeeper {
    /// This message as a frame.
    ///
    /// # Panics
    /// If it has more bytes than [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello { file_system, node } => frame(kind::HELLO, |bytes| {
                bytes.extend_from_slice(file_system);
                token::put_node(bytes, *node);
            }),
            Self::Ask { number, question } => frame(kind::ASK, |bytes| {
                bytes.put_u64(*number);
                question.put(bytes);
            }),
            Self::Token(message) => {
                frame(kind::TO_AUTHORITY, |bytes| token::put_to_authority(bytes, message))
            }
            Self::Restate(restated) => frame(kind::RESTATE, |bytes| restated.put(bytes)),
            Self::EarlyLive(live) => frame(kind::EARLY_LIVE, |bytes| live.put(bytes)),
            Self::EarlyDone(blocks) => {
                frame(kind::EARLY_DONE, |bytes| EarlyBlock::put_all(blocks, bytes))
            }
        }
    }

    /// The next message of a stream, if all of it has come.
    ///
    /// # Errors
    /// If what has come is no such message. The stream is of no more use.
    pub fn next(frames: &mut Frames) -> Result<Option<Self>> {
        next(frames, |kind, fields| {
            Ok(match kind {
                kind::HELLO => {
                    Self::Hello { file_system: fields.sixteen()?, node: token::read_node(fields)? }
                }
                kind::ASK => Self::Ask { number: fields.u64()?, question: Question::read(fields)? },
                kind::TO_AUTHORITY => Self::Token(token::read_to_authority(fields)?),
                kind::RESTATE => Self::Restate(Restated::read(fields)?),
                kind::EARLY_LIVE => Self::EarlyLive(EarlyLive::read(fields)?),
                kind::EARLY_DONE => Self::EarlyDone(EarlyBlock::read_all(fields)?),
                _ => return Err(WireError::Malformed("a kind that no node sends")),
            })
        })
    }
}

impl FromKeeper {
    /// This message as a frame.
    ///
    /// # Panics
    /// If it has more bytes than [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Welcome { next_batch, capacity, rows_max } => frame(kind::WELCOME, |bytes| {
                bytes.put_u64(*next_batch);
                bytes.put_u64(*capacity);
                bytes.put_u32(*rows_max);
            }),
            Self::Refused(why) => frame(kind::REFUSED, |bytes| bytes.put_bytes(why.as_bytes())),
            Self::Answer { number, answer } => frame(kind::ANSWER, |bytes| {
                bytes.put_u64(*number);
                answer.put(bytes);
            }),
            Self::Token(message) => {
                frame(kind::TO_NODE, |bytes| token::put_to_node(bytes, message))
            }
            Self::ReturnRoom { round } => frame(kind::RETURN_ROOM, |bytes| bytes.put_u64(*round)),
            Self::Room(room) => frame(kind::ROOM, |bytes| {
                bytes.put_u64(room.rows);
                bytes.put_u64(room.left);
                bytes.put_u64(room.left_for_root);
            }),
            Self::LostDisks(disks) => frame(kind::LOST_DISKS, |bytes| {
                bytes.put_u32(u32::try_from(disks.len()).expect("few disks"));
                disks.iter().for_each(|disk| bytes.put_u16(*disk));
            }),
            Self::Capacity(bytes) => frame(kind::CAPACITY, |out| out.put_u64(*bytes)),
        }
    }

    /// The next message of a stream, if all of it has come.
    ///
    /// # Errors
    /// If what has come is no such message. The stream is of no more use.
    pub fn next(frames: &mut Frames) -> Result<Option<Self>> {
        next(frames, |kind, fields| {
            Ok(match kind {
                kind::WELCOME => Self::Welcome {
                    next_batch: fields.u64()?,
                    capacity: fields.u64()?,
                    rows_max: fields.u32()?,
                },
                kind::REFUSED => Self::Refused(fields.text()?),
                kind::ANSWER => {
                    Self::Answer { number: fields.u64()?, answer: Answer::read(fields)? }
                }
                kind::TO_NODE => Self::Token(token::read_to_node(fields)?),
                kind::RETURN_ROOM => Self::ReturnRoom { round: fields.u64()? },
                kind::ROOM => Self::Room(Room {
                    rows: fields.u64()?,
                    left: fields.u64()?,
                    left_for_root: fields.u64()?,
                }),
                kind::LOST_DISKS => Self::LostDisks(fields.list(Fields::u16)?),
                kind::CAPACITY => Self::Capacity(fields.u64()?),
                _ => return Err(WireError::Malformed("a kind that no keeper sends")),
            })
        })
    }
}
