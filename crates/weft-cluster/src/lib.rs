//! The foundations of a cluster: which nodes belong to it, which of them is the keeper, and how a
//! node that is no longer one of them is kept from writing.
//!
//! *Theory.* Several nodes share disks. One of them is the *keeper*, which owns what only one may
//! change. When it dies another takes its place. Whether it is dead cannot be known: it may be
//! slow, paused, or cut off, and write again later. So **safety rests on fencing at the disks, and
//! never on clocks**:
//!
//! * Every time a node joins, it gets an [`Epoch`], a number that was never given before. A node
//!   and its epoch are an [`Incarnation`]. Disks know which incarnation a request comes from.
//! * A [`Fence`] makes a disk refuse an incarnation, and answers only when no request of it can
//!   take effect any more. No fence is ever taken back: a node that was fenced joins again, and
//!   gets a new epoch.
//! * A [`Coordinator`] keeps one [`Record`]: the members with their epochs, the keeper, and the
//!   incarnations whose fence is not confirmed yet. It changes only by compare-and-set.
//! * Leases tell only when another node may *start* to take over. A lease that ends too early costs
//!   a needless takeover; one that ends too late costs time. Neither costs data.
//!
//! ```text
//!    record                                     disks
//!      │  B: keeper is B in term 8,               │
//!      │     A's epoch 5 is to be fenced          │
//!      │ ◀── compare-and-set ── B                 │
//!      │                        B ── fence A 5 ─▶ │  refuses A 5, drops its connections,
//!      │                        B ◀─── done ───── │  waits for its requests in flight
//!      │ ◀── compare-and-set ── B                 │
//!      │  B: active                               │
//!      │                        B ── writes ────▶ │
//! ```
//!
//! *What a crash leaves.* Before the first compare-and-set: nothing. After it: a keeper that is
//! not active, whose lease ends; the next one finds in the record who must be fenced, and adds B
//! to them. Fences repeat without harm. After the second: an active keeper that is dead, as
//! before.
//!
//! *Limits.* Nodes trust each other: the protocol stops nodes that are late, not nodes that lie.
//! [`node`] has the protocol, [`record`] what the record may become.
//!
//! ```
//! use weft_cluster::{Record, Session};
//!
//! let mut record = Record::new("home".parse()?);
//! let session = Session { node: "alpha".parse()?, number: 1 };
//! let alpha = record.join(&session);
//! let keeper = record.begin_takeover(&alpha).expect("there is no keeper");
//! assert!(record.end_takeover(&keeper, &Default::default()));
//! # Ok::<(), weft_cluster::NameError>(())
//! ```
#![forbid(unsafe_code)]

pub mod channel;
pub mod clock;
pub mod coordinator;
pub mod fence;
mod frame;
mod identity;
pub mod membership;
pub mod node;
pub mod record;

pub use clock::Clock;
pub use coordinator::{Coordinator, CoordinatorError, Swap, Version, View};
pub use fence::{Fence, FenceError};
pub use identity::{ClusterName, DiskName, Epoch, Incarnation, NameError, NodeName, Session};
pub use membership::{Membership, Outlook};
pub use node::{Node, NodeConfig, NodeError, Standing};
pub use record::{DiskNotes, Keeper, Member, Record};
