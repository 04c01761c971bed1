//! Address arithmetic: from array offsets to (stripe, unit, offset in the unit), and from these to
//! (slot, disk offset). Codes work on each offset in the units separately.

pub(crate) mod border;

use std::cell::Cell;
use std::ops::Range;

use weft_code::{Code, Margin, SlotNo, SlotSet, Survival, UnitSet};
use weft_layout::Layout;
use weft_stripe::{Coding, Generation, StripeId};

use crate::format::length::to_len;
use crate::region_map::Regions;

/// The shape of an array.
pub(crate) struct Geometry {
    /// Its number, in the names of its stripes.
    pub generation: Generation,
    pub coding: Coding,
    /// Whether all data units are copies of one.
    pub mirrored: bool,
    pub layout: Box<dyn Layout>,
    /// Bytes of one unit, a power of two.
    pub unit_bytes: u64,
    /// Largest logical sector of the members; requests to them are aligned to it.
    pub sector_bytes: u64,
    /// Where the data area of a member starts.
    pub data_offset: u64,
    /// Which stripes there are, and which share an entry of the region map. There may become more
    /// (`growth.rs`).
    regions: Cell<Regions>,
}

/// A place in the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub stripe: StripeId,
    pub unit: usize,
    pub unit_offset: u64,
}

/// A range of the array within one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub at: Address,
    pub len: usize,
}

impl Geometry {
    pub fn code(&self) -> &Code {
        self.coding.code()
    }

    /// Which stripes share an entry of the region map.
    #[inline]
    pub fn regions(&self) -> Regions {
        self.regions.get()
    }

    /// Whole stripes of the array.
    #[inline]
    pub fn stripes(&self) -> u64 {
        self.regions().stripes
    }

    /// The name of a stripe.
    pub fn id(&self, number: u64) -> StripeId {
        StripeId { generation: self.generation, number }
    }

    /// The addresses of a stripe.
    pub fn addresses(&self, stripe: u64) -> Range<u64> {
        let bytes = self.stripe_bytes();
        stripe * bytes..(stripe + 1) * bytes
    }

    pub fn stripe_bytes(&self) -> u64 {
        self.code().k() as u64 * self.unit_bytes
    }

    pub fn size_bytes(&self) -> u64 {
        self.stripes() * self.stripe_bytes()
    }

    pub fn unit_len(&self) -> usize {
        to_len(self.unit_bytes)
    }

    pub fn address(&self, offset: u64) -> Address {
        let number = offset >> self.unit_bytes.trailing_zeros();
        let k = self.code().k() as u64;
        Address {
            stripe: self.id(number / k),
            unit: to_len(number % k),
            unit_offset: offset & (self.unit_bytes - 1),
        }
    }

    /// The array offset of an offset in a data unit.
    pub fn offset(&self, stripe: u64, unit: usize, unit_offset: u64) -> u64 {
        (stripe * self.code().k() as u64 + unit as u64) * self.unit_bytes + unit_offset
    }

    /// Slot, and byte offset on the slot's disk.
    pub fn locate(&self, stripe: u64, unit: usize, unit_offset: u64) -> (SlotNo, u64) {
        let place = self.layout.place(stripe, unit);
        (place.slot, self.data_offset + place.row * self.unit_bytes + unit_offset)
    }

    pub fn slot(&self, stripe: u64, unit: usize) -> SlotNo {
        self.layout.place(stripe, unit).slot
    }

    /// The unit of a stripe that lies on a slot; none in a stripe without one there.
    pub fn unit_on(&self, stripe: u64, slot: SlotNo) -> Option<usize> {
        self.layout.unit_on(stripe, slot)
    }

    /// The units of a stripe that lie on these slots.
    pub fn units_on(&self, stripe: u64, slots: SlotSet) -> UnitSet {
        slots.iter().filter_map(|slot| self.unit_on(stripe, slot)).collect()
    }

    /// All units of a stripe.
    pub fn units(&self) -> UnitSet {
        self.coding.units()
    }

    /// The data units of a stripe.
    pub fn data_units(&self) -> UnitSet {
        self.coding.data_units()
    }

    /// Whether all data remains readable with these slots lost everywhere.
    pub fn survives(&self, slots: SlotSet) -> bool {
        self.survival().survives(slots)
    }

    /// How many more slots may be lost, in any combination; `None` if data is lost with `gone`.
    pub fn margin(&self, gone: SlotSet) -> Option<Margin> {
        self.survival().margin(gone)
    }

    fn survival(&self) -> Survival<'_, impl Fn(u64, usize) -> SlotNo + '_> {
        let period = lcm(self.code().period(), self.layout.period()).min(self.stripes().max(1));
        Survival::new(self.code(), self.layout.slots(), period, |stripe, unit| {
            self.slot(stripe, unit)
        })
    }

    /// Cuts a range of the array into pieces within one unit each, in order.
    pub fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let at = self.address(offset + done as u64);
            let piece_len = (len - done).min(to_len(self.unit_bytes - at.unit_offset));
            done += piece_len;
            Some(Piece { at, len: piece_len })
        })
    }
}

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    let (mut gcd, mut rest) = (a, b);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    a / gcd.max(1) * b
}
