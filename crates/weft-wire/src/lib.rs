//! Messages between the nodes of a cluster and its keeper, as bytes.
//!
//! A node of weftfs executes operations; the keeper has the store of the metadata, and is the
//! authority for tokens (`docs/weftfs.md`, "Two halves"). Between them is a stream of bytes, which
//! may end at any time. It carries *frames* ([`frame`]), each with one message ([`ToKeeper`],
//! [`FromKeeper`]). Messages are plain data: they borrow nothing and know nothing of the store.
//!
//! ```text
//!   node   ── Hello ───────────▶ keeper   who it is; what it sent before on another connection and
//!                                         did not end is forgotten
//!          ◀───────── Welcome ──          which batch comes next, how large parts may be
//!          ── Restate ─────────▶          what it holds of tokens, numbers and space
//!          ── Ask 1: Row ──────▶
//!          ── Ask 2: Part ─────▶          answers may come in another order
//!          ◀──── Answer 2, 1 ──
//!          ◀──────── Token ────▶          of weft-token; they have no answer
//!          ◀────── ReturnRoom ──          answered by asking 3: GiveBack
//! ```
//!
//! *Bounds.* A frame has at most [`MESSAGE_BYTES_MAX`] bytes, and a reader takes memory only for
//! bytes that have come. Lists are made while their items are read. So what a peer claims allocates
//! nothing.
//!
//! *Versions.* The head of a frame never changes, and has the version of the message: the first one
//! that has it. So peers of all versions understand what is as old as they are. A node says in its
//! first frame which version it speaks, and is sent nothing of a later one. A keeper that does not
//! know that version ends the connection, and the node says the version before.
//!
//! ```
//! use weft_wire::{Frames, Key, Question, Table, ToKeeper};
//!
//! let question = Question::Row { table: Table::Inodes, key: Key::number(7) };
//! let asked = ToKeeper::Ask { number: 1, question };
//! let bytes = asked.to_bytes();
//! let mut frames = Frames::default();
//! frames.push(&bytes[..20]);
//! assert_eq!(ToKeeper::next(&mut frames)?, None); // the rest is on its way
//! frames.push(&bytes[20..]);
//! assert_eq!(ToKeeper::next(&mut frames)?, Some(asked));
//! # Ok::<(), weft_wire::WireError>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod disk;
mod early;
mod fields;
pub mod frame;
mod lock;
mod message;
mod question;
mod row;
mod space;
mod token;
mod work;

pub use answer::Answer;
pub use disk::{DISK_BYTES_MAX, DiskFault, DiskReply, DiskRequest, DiskWork, PathVerdict};
pub use early::{
    EARLY_ATTRIBUTES, EARLY_BLOCK_BYTES, EARLY_BLOCKS_MAX, EarlyAttributes, EarlyBlock,
    EarlyCommit, EarlyLive,
};
pub use fields::{FIRST_VERSION, MESSAGE_BYTES_MAX, VERSION, WireError};
pub use frame::Frames;
pub use lock::{LockReply, LockWish};
pub use message::{FromKeeper, Restated, Room, ToKeeper};
pub use question::{End, Part, Question};
pub use row::{Key, KeyRange, Row, RowChange, TABLES, Table};
pub use space::{DiskBlocks, GiveBack, RoomWish, Run};
pub use work::{Checked, Moved, Outcome, Task, Work, WorkDone};
