//! User requests: reads, writes and zeroes of a stripe, with the log and full members.

pub(crate) mod both_disks;
pub(crate) mod cached_units;
pub(crate) mod full_member;
pub(crate) mod log_writes;
pub(crate) mod map_store;
pub(crate) mod owner;
pub(crate) mod piggyback;
pub(crate) mod read;
pub(crate) mod rebuilt_stripe;
pub(crate) mod write;
pub(crate) mod zero;

use weft_rt::Buf;

use crate::geometry::Address;

/// The pieces of one stripe, each with its part of the caller's buffer.
pub(crate) type StripePieces = Vec<(Address, Buf)>;

/// How far a write got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteProgress {
    /// No member failed.
    pub whole: bool,
    /// All of it is durable.
    pub durable: bool,
}
