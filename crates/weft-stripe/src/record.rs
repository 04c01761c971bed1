//! Partial-parity records: what a log must hold before a stripe's units are written.
//!
//! A record of a parity unit is the sum Σ coef·d_j over the data units that are not being written.
//! After a crash, parity := record + Σ coef·d_j over the written units as found.

use weft_code::{SlotNo, UnitSet};
use weft_rt::Buf;

/// Bytes in front of a payload: room for the header with which it goes to the log.
pub const HEADROOM: usize = 4096;

/// One band of a stripe write: what must be durable in the log before the band is written.
#[derive(Debug)]
pub struct BandRecord {
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

impl BandRecord {
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
    Bare(Buf),
}

impl Payload {
    /// Room for a sum of `len` bytes, with headroom.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self::WithHeadroom(Buf::new(HEADROOM + len))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::WithHeadroom(buf) => &buf[HEADROOM..],
            Self::Bare(buf) => buf,
        }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::WithHeadroom(buf) => &mut buf[HEADROOM..],
            Self::Bare(buf) => buf,
        }
    }

    /// Cuts after `at` bytes: `self` keeps the first part, the rest is returned.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        Self::Bare(match self {
            Self::WithHeadroom(buf) => buf.split_off(HEADROOM + at),
            Self::Bare(buf) => buf.split_off(at),
        })
    }
}
