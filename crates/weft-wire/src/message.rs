//! The messages of nodes and keeper, each in a frame.

use weft_token::{FileLock, Holding, LockedFile, NodeId, ToAuthority, ToNode};

use crate::answer::Answer;
use crate::early::{EarlyBlock, EarlyLive};
use crate::fields::{FIRST_VERSION, Fields, Put as _, Result, WireError};
use crate::frame::{Frames, Head, frame};
use crate::lock;
use crate::question::Question;
use crate::space::Run;
use crate::token;

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
    /// The number of the next [`GiveBack`](crate::GiveBack) that does not have its blocks from
    /// before: what was on its way is not in `space`.
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

/// A message of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToKeeper {
    /// The first one of a connection. What this node sent before, of a batch that it did not end,
    /// is forgotten.
    Hello {
        /// The version that the node speaks, which is that of the frame. A keeper that knows only
        /// lower ones ends the connection.
        version: u16,
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
    /// one [`GiveBack`](crate::GiveBack) or more, of which the last has this number.
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

/// The message of the next frame, if all of it has come.
fn next<T>(
    frames: &mut Frames,
    read: impl FnOnce(Head, &mut Fields<'_>) -> Result<T>,
    version_of: impl FnOnce(&T) -> u16,
) -> Result<Option<T>> {
    let Some((head, contents)) = frames.next()? else { return Ok(None) };
    let mut fields = Fields::new(contents);
    let message = read(head, &mut fields)?;
    fields.end()?;
    match version_of(&message) == head.version {
        true => Ok(Some(message)),
        false => Err(WireError::Malformed("the version of another message")),
    }
}

impl ToKeeper {
    /// The version of its frame: the first one that has it.
    fn version(&self) -> u16 {
        match self {
            Self::Hello { version, .. } => *version,
            _ => FIRST_VERSION,
        }
    }

    /// This message as a frame.
    ///
    /// # Panics
    /// If it has more bytes than [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame =
            |kind, put: &dyn Fn(&mut Vec<u8>)| frame(Head { version: self.version(), kind }, put);
        match self {
            Self::Hello { file_system, node, .. } => frame(kind::HELLO, &|bytes| {
                bytes.extend_from_slice(file_system);
                token::put_node(bytes, *node);
            }),
            Self::Ask { number, question } => frame(kind::ASK, &|bytes| {
                bytes.put_u64(*number);
                question.put(bytes);
            }),
            Self::Token(message) => {
                frame(kind::TO_AUTHORITY, &|bytes| token::put_to_authority(bytes, message))
            }
            Self::Restate(restated) => frame(kind::RESTATE, &|bytes| restated.put(bytes)),
            Self::EarlyLive(live) => frame(kind::EARLY_LIVE, &|bytes| live.put(bytes)),
            Self::EarlyDone(blocks) => {
                frame(kind::EARLY_DONE, &|bytes| EarlyBlock::put_all(blocks, bytes))
            }
        }
    }

    /// The next message of a stream, if all of it has come.
    ///
    /// # Errors
    /// If what has come is no such message. The stream is of no more use.
    pub fn next(frames: &mut Frames) -> Result<Option<Self>> {
        let read = |Head { version, kind }: Head, fields: &mut Fields<'_>| {
            Ok(match kind {
                kind::HELLO => {
                    let (file_system, node) = (fields.sixteen()?, token::read_node(fields)?);
                    Self::Hello { version, file_system, node }
                }
                kind::ASK => Self::Ask { number: fields.u64()?, question: Question::read(fields)? },
                kind::TO_AUTHORITY => Self::Token(token::read_to_authority(fields)?),
                kind::RESTATE => Self::Restate(Restated::read(fields)?),
                kind::EARLY_LIVE => Self::EarlyLive(EarlyLive::read(fields)?),
                kind::EARLY_DONE => Self::EarlyDone(EarlyBlock::read_all(fields)?),
                _ => return Err(WireError::Malformed("a kind that no node sends")),
            })
        };
        next(frames, read, Self::version)
    }
}

impl FromKeeper {
    /// The version of its frame: the first one that has it.
    fn version(&self) -> u16 {
        match self {
            Self::Answer { answer: Answer::Work(work), .. } => work.task.version(),
            _ => FIRST_VERSION,
        }
    }

    /// This message as a frame.
    ///
    /// # Panics
    /// If it has more bytes than [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame =
            |kind, put: &dyn Fn(&mut Vec<u8>)| frame(Head { version: self.version(), kind }, put);
        match self {
            Self::Welcome { next_batch, capacity, rows_max } => frame(kind::WELCOME, &|bytes| {
                bytes.put_u64(*next_batch);
                bytes.put_u64(*capacity);
                bytes.put_u32(*rows_max);
            }),
            Self::Refused(why) => frame(kind::REFUSED, &|bytes| bytes.put_bytes(why.as_bytes())),
            Self::Answer { number, answer } => frame(kind::ANSWER, &|bytes| {
                bytes.put_u64(*number);
                answer.put(bytes);
            }),
            Self::Token(message) => {
                frame(kind::TO_NODE, &|bytes| token::put_to_node(bytes, message))
            }
            Self::ReturnRoom { round } => frame(kind::RETURN_ROOM, &|bytes| bytes.put_u64(*round)),
            Self::Room(room) => frame(kind::ROOM, &|bytes| {
                bytes.put_u64(room.rows);
                bytes.put_u64(room.left);
                bytes.put_u64(room.left_for_root);
            }),
            Self::LostDisks(disks) => frame(kind::LOST_DISKS, &|bytes| {
                bytes.put_u32(u32::try_from(disks.len()).expect("few disks"));
                disks.iter().for_each(|disk| bytes.put_u16(*disk));
            }),
            Self::Capacity(bytes) => frame(kind::CAPACITY, &|out| out.put_u64(*bytes)),
        }
    }

    /// The next message of a stream, if all of it has come.
    ///
    /// # Errors
    /// If what has come is no such message. The stream is of no more use.
    pub fn next(frames: &mut Frames) -> Result<Option<Self>> {
        let read = |Head { kind, .. }: Head, fields: &mut Fields<'_>| {
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
        };
        next(frames, read, Self::version)
    }
}
