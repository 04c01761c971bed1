//! Partial-parity records: what a log must hold before a stripe's units are written.
//!
//! A record of a parity unit is the sum Σ coef·d_j over the data units that are not being written.
//! After a crash, parity := record + Σ coef·d_j over the written units as found.

use weft_code::{SlotNo, UnitSet};
use weft_rt::{Buf, Frozen};

/// Bytes in front of a payload: room for the header with which it goes to the log.
pub const HEADROOM: usize = 4096;

/// One band of a stripe write: what must be durable in the log before the band is written.
#[derive(Debug)]
pub struct Record {
    /// First offset in the units.
    pub from: u64,
    /// Length of the range in bytes.
    pub len: usize,
    /// The data units that the payloads leave out.
    pub written: UnitSet,
    /// Those that this write itself writes.
    pub own: UnitSet,
    /// One for each parity unit; none if the band writes every data unit and needs no record.
    pub parities: Vec<ParityRecord>,
}

impl Record {
    /// Whether it leaves out units of other writes, which are not flushed yet.
    #[must_use]
    pub fn leaves_out_others(&self) -> bool {
        self.written != self.own
    }
}

/// The record of one parity unit.
#[derive(Debug)]
pub struct ParityRecord {
    /// The slot that holds the parity unit.
    pub slot: SlotNo,
    /// The parity unit.
    pub unit: usize,
    /// The sum over all data units not left out; `None` if there are none.
    pub payload: Option<Payload>,
}

/// The sum of a record.
#[derive(Debug)]
pub enum Payload {
    /// Behind [`HEADROOM`] bytes, which are unspecified.
    WithHeadroom(Buf),
    /// Alone.
    Bare(Frozen),
}

impl Payload {
    /// A copy of `sum`, with headroom.
    #[must_use]
    pub fn copy_from(sum: &[u8]) -> Self {
        let mut buf = Buf::new(HEADROOM + sum.len());
        buf[HEADROOM..].copy_from_slice(sum);
        Self::WithHeadroom(buf)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::WithHeadroom(buf) => &buf[HEADROOM..],
            Self::Bare(bytes) => bytes,
        }
    }

    /// Alone, so that it can be cut.
    #[must_use]
    pub fn into_bare(self) -> Frozen {
        match self {
            Self::WithHeadroom(buf) => {
                let len = buf.len() - HEADROOM;
                buf.freeze().slice(HEADROOM, len)
            }
            Self::Bare(bytes) => bytes,
        }
    }
}
