//! One stripe: gather its units despite losses, update its parity, check it, and recover it from
//! the records of a log.
//!
//! *Resolve once, then work on the result.* An [`Owner`] – an array, later a file system – knows
//! slots, superblocks, maps and jobs. It resolves a stripe's number to a [`Stripe`]: the code that
//! holds, the units that may not be read, whether parity may be wrong. This crate works on that,
//! with disks, and asks its owner for nothing but the places of units. If the membership changes
//! while a disk is at work, the owner resolves again.
//!
//! * [`gather`]: reads units; reconstructs units that are lost or turn out to be unreadable;
//! * [`update`]: new parity for new data, by read-modify-write or reconstruct-write, with the
//!   partial-parity records that a log must hold first;
//! * [`store`]: writes units to all places that must get them;
//! * [`check`]: compares parity with data, and finds the unit that is wrong;
//! * [`Replay`]: what parity must be after a crash, by the log;
//! * [`PopularityTable`]: which lost parts are read most, and so rebuilt first.
//!
//! All operations work on a range of offsets in the units, since codes work on each offset
//! separately. The owner holds the stripe's lock.
//!
//! ```
//! use weft_rt::Frozen;
//! use weft_stripe::{Band, Segment};
//!
//! // Unit 0 is written from 0 to 8192, unit 2 from 4096 to 8192: two bands.
//! let write = |unit, from, len| Segment { unit, from, data: Frozen::zeros(len) };
//! let segments = [write(0, 0, 8192), write(2, 4096, 4096)];
//! let bands: Vec<_> = Band::of(&segments).map(|band| (band.from, band.units.len())).collect();
//! assert_eq!(bands, [(0, 1), (4096, 2)]);
//! ```
#![forbid(unsafe_code)]

mod band;
mod check;
mod coding;
mod flight;
mod gather;
mod owner;
mod popularity;
mod record;
mod replay;
mod store;
mod update;

pub use band::{Band, Segment};
pub use check::{Checked, check, wrong_unit};
pub use coding::Coding;
pub use flight::{Busy, InFlight};
pub use gather::{Access, Gathered, compute, gather, gather_exactly, gather_readable, is_dear};
pub use owner::{DeviceEvent, Generation, Location, Owner, Stripe, StripeId};
pub use popularity::PopularityTable;
pub use record::{BandRecord, HEADROOM, ParityRecord, Payload};
pub use replay::{LoggedParity, Replay};
pub use store::{FailedWrite, Stored, UnitWrite, store};
pub use update::{Crash, Updated, update};

use weft_rt::Buf;

/// Units, each with the buffer for its part of a range of offsets.
pub type Units = Vec<(usize, Buf)>;

/// The code cannot give a unit: too many other units are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unit {unit} is lost, and {lost} lost units are more than the code survives here")]
pub struct Unreadable {
    /// The first such unit.
    pub unit: usize,
    /// First offset in the units.
    pub from: u64,
    /// Length of the range in bytes.
    pub len: usize,
    /// Number of units lost.
    pub lost: usize,
}

/// The unit's buffer.
fn value_in(units: &[(usize, Buf)], unit: usize) -> Option<&[u8]> {
    units.iter().find(|(held, _)| *held == unit).map(|(_, buf)| &**buf)
}
