//! Tokens: what a node of a cluster may cache.
//!
//! *Theory* (File RAID, §3.3; the ranges are those of GPFS). A node that caches contents of a file
//! must hear of it before another node changes them. A *token* is the right of a node to cache a
//! range: shared to read it, exclusive to change it. Of two nodes' tokens whose ranges overlap,
//! both are shared: the only invariant. Who holds a token needs no message to use it again.
//!
//! ```text
//!        node A                 authority                 node B
//!          │  ask 0..8, wants all   │                        │
//!          │ ─────────────────────▶ │                        │
//!          │ ◀───── grant all ───── │                        │
//!    (uses it, no messages)         │ ◀── ask 4..8, to end ─ │
//!          │ ◀──── revoke 4..8 ──── │                        │
//!   waits for its operations there, │                        │
//!   writes what is dirty            │                        │
//!          │ ───── release 4.. ───▶ │                        │
//!          │                        │ ────── grant 4.. ────▶ │
//! ```
//!
//! * An operation states what it *needs*, and a superset that it *wants*. It is granted as much of
//!   what it wants as no other node holds or awaits: the whole file, if no other node contends. A
//!   file with redundancy needs whole stripe lines, so that only one node at a time updates a
//!   line's parity ([`widened`]).
//! * A revoked node returns the requested range. Of the rest of what the other wants it keeps what
//!   it has used, as it will probably use that again. So two nodes that write at two ends of a file
//!   soon have a half each.
//! * Requests that conflict are served in their order, so that none starves. An operation that gets
//!   its token uses it once before the node returns it, so that every grant is progress.
//! * An operation that needs several tokens asks for them in the order of their [`Space`], for one
//!   of each: then nodes cannot wait for each other in a circle. (Two ranges of a space could: a
//!   request for all of it waits for the first, and the second waits after that request.)
//! * A node that dies keeps its tokens until its log has been recovered: until then no node reads
//!   the lines that it was writing. If the authority dies, nodes show the next one what they hold.
//!
//! Messages between a node and the authority arrive in their order; nothing else is assumed. Both
//! sides are plain state without I/O: [`Holder`] on each node, [`Authority`] on one. They return
//! the messages to send, and their driver sends them. `tests/nodes.rs` drives several nodes with
//! caches, on one store, through all of this.
//!
//! ```
//! use weft_token::{Acquired, Ask, Authority, Event, Holder, Kind, Mode, NodeId, Space};
//!
//! let node = NodeId { number: 1, epoch: 1 };
//! let (mut authority, mut holder) = (Authority::default(), Holder::default());
//! authority.join(node);
//!
//! let space = Space { kind: Kind::Data, ino: 7 };
//! let ask = Ask { space, needed: 0..8, wanted: 0..u64::MAX, mode: Mode::Exclusive };
//! let Acquired::Later(first, message) = holder.acquire(ask.clone()) else {
//!     panic!("it holds nothing yet")
//! };
//! let mut out = Vec::new();
//! authority.take(node, message, &mut out);
//! let (_, grant) = out.pop().expect("nobody else holds it");
//! assert_eq!(holder.take(grant), [Event::Ready(first)]);
//! holder.done(space, first);
//! // It holds the whole file now, and needs no message to use it again.
//! assert!(matches!(holder.acquire(ask), Acquired::Now(_)));
//! ```
#![forbid(unsafe_code)]

mod authority;
mod file_locks;
mod holder;
mod message;

pub use authority::{Authority, Conflict};
pub use file_locks::{
    FileLock, FileLocks, LockAnswer, LockFamily, LockOwner, LockRequest, LockedFile,
};
pub use holder::{Acquired, Event, Holder, UseId};
pub use message::{
    Ask, BySpace, Holding, Kind, Mode, NodeId, Release, Revoke, Space, ToAuthority, ToNode,
};

use std::ops::Range;

/// `range` in units of `unit`: the whole lines that it touches.
pub fn widened(range: Range<u64>, unit: u64) -> Range<u64> {
    let end = range.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    range.start / unit * unit..end
}
