//! Placement: from a stripe's unit to its slot and row, and back.
//!
//! A layout knows nothing of parity arithmetic. It maps (stripe, unit) to (slot, row), where a row
//! is one unit-sized piece of a slot, and gives the inverse. Units are numbered as in `weft-code`:
//! data first, then parity, so the array's data unit number n is unit n mod k of stripe n / k.
//!
//! RAID-0, 1, 10, 4, 5 and 6 use the data layout of Linux md, byte for byte.
//!
//! * `turning`: stripes as wide as the array (RAID-0/1/4/5/6, `rs`, LRC, DRC);
//! * `algorithm`: md's parity rotations;
//! * `copies`: RAID-10 near, far and offset;
//! * `declustered`: more slots than the stripe is wide;
//! * `placement`: a layout with sizes, from bytes of the array to bytes of the disks;
//! * [`window`]: how far a reshape from one to another may write.
//!
//! ```
//! use weft_code::SlotNo;
//! use weft_layout::{Algorithm, UnitLocation, for_code};
//!
//! // raid5 on 3 slots, left-symmetric:   d0 d1 P | d1 P d0 | P d0 d1
//! let layout = for_code("raid5".parse()?, Algorithm::default(), 3, 1000)?;
//! assert_eq!(layout.place(1, 0), UnitLocation { slot: SlotNo(2), row: 1 });
//! assert_eq!(layout.locate(SlotNo(2), 1), Some((1, 0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![doc = include_str!("drawings.md")]
#![forbid(unsafe_code)]

mod algorithm;
mod copies;
mod declustered;
mod placement;
mod turning;
pub mod window;

use std::fmt::Debug;

use thiserror::Error;
use weft_code::{Code, CodeSpec, SlotNo, SpecError};

pub use algorithm::Algorithm;
pub use placement::{DiskRange, Placement};

/// Where a unit lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitLocation {
    /// The member's position in the array.
    pub slot: SlotNo,
    /// Offset on the slot, in units.
    pub row: u64,
}

/// A placement of stripes on slots. Units of one stripe are always on different slots.
pub trait Layout: Debug + Send + Sync {
    /// Slots of the array.
    fn slots(&self) -> usize;

    /// Units of a stripe.
    fn width(&self) -> usize;

    /// Where unit `unit` (below the width) of `stripe` lies. Any stripe may be asked for, also one
    /// past the end; for RAID-10 far the answer then makes no sense.
    fn place(&self, stripe: u64, unit: usize) -> UnitLocation;

    /// The stripe and unit at a place; none if the place is outside the array, or in one of the
    /// rows at the end that no whole stripe fills.
    fn locate(&self, slot: SlotNo, row: u64) -> Option<(u64, usize)>;

    /// The unit of `stripe` that lies on `slot`; none if the stripe has none there.
    fn unit_on(&self, stripe: u64, slot: SlotNo) -> Option<usize> {
        (0..self.width()).find(|unit| self.place(stripe, *unit).slot == slot)
    }

    /// Whole stripes that fit on slots of `rows_per_slot` rows.
    fn stripes(&self, rows_per_slot: u64) -> u64;

    /// Stripes after which the slots of the units repeat.
    fn period(&self) -> u64;

    /// Whether stripes stay where they are if the slots get more rows: new stripes then follow the
    /// old ones on each slot.
    fn can_be_extended(&self) -> bool {
        true
    }
}

/// Why a layout cannot be built as specified.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The code cannot be built on these slots.
    #[error(transparent)]
    Code(#[from] SpecError),
    /// No rotation of that name.
    #[error("unknown layout '{given}'; known: {known}")]
    UnknownAlgorithm {
        /// The given name.
        given: String,
        /// All names.
        known: String,
    },
    /// The rotation is defined for another level.
    #[error("layout '{algorithm}' is for raid6, not for {spec}")]
    Raid6Only {
        /// The rotation asked for.
        algorithm: Algorithm,
        /// The code asked for.
        spec: CodeSpec,
    },
}

/// The layout of code `spec` on `slots` slots of `rows_per_slot` rows. `algorithm` matters to
/// RAID-5, RAID-6 and `rs` as wide as the array; the other codes have one placement each.
///
/// # Errors
/// If the code cannot be built on that many slots, or the algorithm is for RAID-6 and the code is
/// not.
pub fn for_code(
    spec: CodeSpec,
    algorithm: Algorithm,
    slots: usize,
    rows_per_slot: u64,
) -> Result<Box<dyn Layout>, LayoutError> {
    let shape = spec.shape(slots)?;
    let rows = rows_per_slot;
    Ok(match spec {
        CodeSpec::Raid10 { arrangement, copies } => {
            Box::new(copies::Mirrored::new(arrangement, copies, slots, rows))
        }
        _ if shape.width() < slots => {
            Box::new(declustered::Declustered::new(slots, shape.width(), rows))
        }
        CodeSpec::Raid0 | CodeSpec::Raid1 | CodeSpec::Raid4 => {
            Box::new(turning::Turning::still(slots, rows))
        }
        CodeSpec::Raid5 | CodeSpec::Raid6 | CodeSpec::Rs { .. } => {
            check_rotation(spec, algorithm)?;
            Box::new(turning::Turning::new(&algorithm.turns(slots, shape.p), 1, rows))
        }
        CodeSpec::Lrc { k, l, r } => Box::new(turning::Turning::in_groups(k, l, r, 1, rows)),
        CodeSpec::Drc { k, l, r } | CodeSpec::DrcOa { k, l, r } => {
            Box::new(turning::Turning::in_groups(k, l, r, spec.period(), rows))
        }
        CodeSpec::DrcG { k, l, r } => {
            Box::new(turning::Turning::over_all(k, l, r, spec.period(), rows))
        }
    })
}

/// The code `spec` on `slots` slots with the coefficients that go with `algorithm`: always build
/// the code of an array with this, because md's asymmetric RAID-6 takes Q's coefficients in another
/// order than that of the data.
///
/// # Errors
/// As [`for_code`].
pub fn code_for(spec: CodeSpec, algorithm: Algorithm, slots: usize) -> Result<Code, LayoutError> {
    let shape = spec.shape(slots)?;
    let rotates = matches!(spec, CodeSpec::Raid5 | CodeSpec::Raid6 | CodeSpec::Rs { .. });
    if !rotates || shape.width() < slots {
        return Ok(Code::new(spec, slots)?);
    }
    check_rotation(spec, algorithm)?;
    if shape.p < 2 {
        return Ok(Code::new(spec, slots)?);
    }
    Ok(Code::with_columns(spec, slots, &algorithm.columns(slots, shape.p))?)
}

fn check_rotation(spec: CodeSpec, algorithm: Algorithm) -> Result<(), LayoutError> {
    if algorithm.raid6_only() && spec != CodeSpec::Raid6 {
        return Err(LayoutError::Raid6Only { algorithm, spec });
    }
    Ok(())
}
