//! The geometries of an array, and which of them holds which addresses.
//!
//! An array has one geometry, except while it is reshaped: then it has an old and a new one, and a
//! *border* between them. The addresses that have moved, on one side of the border, are in the new
//! geometry; all other addresses are in the old one. `docs/reshape.md` has the theory.
//!
//! A stripe's name includes the geometry in which its number counts. It is *live* if it is where
//! some of its addresses are now:
//!
//! ```text
//! address    0               border                      end
//! new        |  0  |  1  |  2  |                                live up to the border
//! old        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |          live from stripe 4 on, which
//!                              ^                                contains the border
//! ```
//!
//! The border is at the edge of a new stripe. An old stripe that contains it stays whole on the
//! disks, so it can be written and reconstructed like any other. Downwards the drawing is turned
//! over: addresses from the border on have moved, and addresses beyond the end of a smaller
//! geometry are discarded from the start.

use std::cell::{Cell, OnceCell};
use std::ops::Range;

use weft_code::{Margin, SlotSet};
use weft_layout::window::Direction;
use weft_stripe::{Coding, Generation, StripeId};

use crate::format::length::to_len;
use crate::geometry::{Geometry, Piece};
use crate::region_map::{LiveStripes, Part, RegionNo, Regions};
use crate::superblock::{Shape, Superblock, SuperblockError};

/// Which addresses have moved to the new geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Border {
    pub direction: Direction,
    /// Upwards, addresses below it have moved; downwards, it and those above.
    pub at: u64,
}

impl Border {
    /// Whether an address has moved.
    pub fn has_moved(self, address: u64) -> bool {
        match self.direction {
            Direction::Up => address < self.at,
            Direction::Down => address >= self.at,
        }
    }

    /// Whether all of these addresses have moved.
    fn have_moved(self, addresses: &Range<u64>) -> bool {
        self.has_moved(addresses.start) && self.has_moved(addresses.end - 1)
    }
}

/// The geometry of this shape and number in an array.
///
/// # Errors
/// If code, layout and number of slots do not fit together.
pub(crate) fn geometry(
    shape: Shape,
    generation: Generation,
    superblock: &Superblock,
) -> Result<Geometry, SuperblockError> {
    let layout = shape.layout()?;
    let code = weft_layout::code_for(shape.code, shape.algorithm, shape.slots);
    let code = code.map_err(|error| SuperblockError::Impossible { what: error.to_string() })?;
    let stays = |unit| {
        let slot = |stripe| layout.place(stripe, unit).slot;
        (1..layout.period()).all(|stripe| slot(stripe) == slot(0))
    };
    let parity_apart = code.k() > 1 && (code.k()..code.width()).any(stays);
    Ok(Geometry {
        generation,
        mirrored: code.k() == 1 && code.p() > 0,
        coding: Coding::new(code, parity_apart),
        layout,
        unit_bytes: shape.unit_bytes,
        sector_bytes: u64::from(superblock.sector_bytes),
        data_offset: shape.data_offset,
        regions: Cell::new(shape.regions(superblock.region_bytes)?),
    })
}

/// Which of the known geometries are in use.
#[derive(Debug, Clone, Copy)]
struct CurrentGeometries {
    newest: Generation,
    /// The old one and the border, while addresses are in both.
    former: Option<(Generation, Border)>,
}

/// The geometries that this run has known. One that was added stays in place: requests hold
/// references.
pub(crate) struct Geometries {
    first: Geometry,
    later: OnceCell<Box<GeometryNode>>,
    now: Cell<CurrentGeometries>,
    /// How often addresses started to move, or to move back.
    turns: Cell<u64>,
    /// The size of the array while more stripes are there than users may reach: until the
    /// superblock that has them is in effect.
    held: Cell<Option<u64>>,
}

/// A geometry that was added, and those after it.
struct GeometryNode {
    geometry: Geometry,
    next: OnceCell<Box<GeometryNode>>,
}

impl Geometries {
    pub fn new(first: Geometry) -> Self {
        let now = CurrentGeometries { newest: first.generation, former: None };
        Self {
            first,
            later: OnceCell::new(),
            now: Cell::new(now),
            turns: Cell::new(0),
            held: Cell::new(None),
        }
    }

    /// The newest. Here and below the array that was never reshaped goes first, inline.
    #[inline]
    pub fn newest(&self) -> &Geometry {
        if self.later.get().is_none() { &self.first } else { self.newest_of_several() }
    }

    #[cold]
    fn newest_of_several(&self) -> &Geometry {
        self.known(self.now.get().newest)
    }

    /// That of a generation, if this run has known it.
    pub fn find(&self, generation: Generation) -> Option<&Geometry> {
        if self.first.generation == generation {
            return Some(&self.first);
        }
        let mut next = &self.later;
        while let Some(later) = next.get() {
            if later.geometry.generation == generation {
                return Some(&later.geometry);
            }
            next = &later.next;
        }
        None
    }

    fn known(&self, generation: Generation) -> &Geometry {
        self.find(generation).expect("stripes are named by known geometries")
    }

    /// That of a stripe.
    ///
    /// # Panics
    /// If this run has not known it.
    #[inline]
    pub fn of(&self, stripe: StripeId) -> &Geometry {
        if self.first.generation == stripe.generation {
            return &self.first;
        }
        self.of_later(stripe)
    }

    #[cold]
    fn of_later(&self, stripe: StripeId) -> &Geometry {
        self.known(stripe.generation)
    }

    /// The old geometry and the border, while addresses are in both.
    pub fn former(&self) -> Option<(&Geometry, Border)> {
        self.later.get()?;
        let (generation, border) = self.now.get().former?;
        Some((self.known(generation), border))
    }

    /// Adds a geometry, to which addresses move from now on.
    ///
    /// # Panics
    /// If they are still moving to the newest, or if its generation is known.
    pub fn add(&self, geometry: Geometry, border: Border) {
        let CurrentGeometries { newest, former } = self.now.get();
        assert!(former.is_none(), "addresses are still moving");
        assert!(self.find(geometry.generation).is_none(), "{:?} is known", geometry.generation);
        let now = CurrentGeometries { newest: geometry.generation, former: Some((newest, border)) };
        let mut next = &self.later;
        while let Some(later) = next.get() {
            next = &later.next;
        }
        next.get_or_init(|| Box::new(GeometryNode { geometry, next: OnceCell::new() }));
        self.now.set(now);
        self.turns.set(self.turns.get() + 1);
    }

    /// Moves the border; `None` if all addresses are in the newest geometry.
    pub fn set_border(&self, border: Option<Border>) {
        let CurrentGeometries { newest, former } = self.now.get();
        let former = former.zip(border).map(|((old, _), border)| (old, border));
        self.now.set(CurrentGeometries { newest, former });
    }

    /// From here on addresses move back to the old geometry, which is the newest now. None changes
    /// its place.
    ///
    /// # Panics
    /// If none are moving.
    pub fn turn(&self, border: Border) {
        let CurrentGeometries { newest, former } = self.now.get();
        let (old, _) = former.expect("addresses are moving");
        self.now.set(CurrentGeometries { newest: old, former: Some((newest, border)) });
        self.turns.set(self.turns.get() + 1);
    }

    /// How often addresses started to move, or to move back. While it is the same, an address that
    /// is where it was has been there all the time.
    #[inline]
    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// The geometry in which an address is now.
    #[inline]
    pub fn home(&self, address: u64) -> &Geometry {
        if self.later.get().is_none() { &self.first } else { self.home_of_several(address) }
    }

    #[cold]
    fn home_of_several(&self, address: u64) -> &Geometry {
        match self.former() {
            Some((old, border)) if !border.has_moved(address) => old,
            _ => self.newest(),
        }
    }

    /// Whether all addresses are in the newest geometry, and this is a stripe of it.
    #[inline]
    pub fn is_settled_in(&self, stripe: StripeId) -> bool {
        if self.later.get().is_none() {
            return true;
        }
        self.newest().generation == stripe.generation && self.former().is_none()
    }

    /// Whether all of these addresses of a stripe are in its geometry now.
    pub fn holds(&self, stripe: StripeId, addresses: &Range<u64>) -> bool {
        if self.is_settled_in(stripe) {
            return true;
        }
        let Some((old, border)) = self.former() else { return false };
        let last = addresses.end - 1;
        if stripe.generation == old.generation {
            return !border.has_moved(addresses.start) && !border.has_moved(last);
        }
        stripe.generation == self.newest().generation && border.have_moved(addresses)
    }

    /// The stripes that are where their addresses are now, or some of them.
    pub fn live(&self) -> LiveStripes {
        let all = |of: &Geometry| Part::all(of.generation, of.regions());
        let newest = all(self.newest());
        let Some((old, border)) = self.former() else {
            return LiveStripes { newest, former: None };
        };
        let (old, at) = (all(old), border.at);
        // A new stripe is live when all of it has moved, an old one until all of it has.
        let stripe = |part: Part| at / part.regions.stripe_bytes;
        let next = |part: Part| at.div_ceil(part.regions.stripe_bytes);
        let (newest, former) = match border.direction {
            Direction::Up => (
                Part { end: stripe(newest).min(newest.end), ..newest },
                Part { first: stripe(old).min(old.end), ..old },
            ),
            Direction::Down => (
                Part { first: next(newest).min(newest.end), ..newest },
                Part { end: next(old).min(old.end), ..old },
            ),
        };
        LiveStripes { newest, former: Some(former) }
    }

    /// Whether this is where the stripe's addresses are now, or some of them.
    pub fn is_live(&self, stripe: StripeId) -> bool {
        self.live().contains(stripe)
    }

    /// The region of an address, and the addresses around it that share it: those of the region's
    /// stripes that are in the same geometry now.
    pub fn region_around(&self, address: u64) -> (RegionNo, Range<u64>) {
        let regions = self.home(address).regions();
        let region = regions.of(address / regions.stripe_bytes);
        let mut bytes = regions.bytes_of(region);
        match self.former() {
            Some((_, border)) if address < border.at => bytes.end = bytes.end.min(border.at),
            Some((_, border)) => bytes.start = bytes.start.max(border.at),
            None => {}
        }
        (region, bytes)
    }

    /// Bytes of the array: while addresses move, what both geometries have.
    pub fn size_bytes(&self) -> u64 {
        let size = self.newest().size_bytes();
        let size = self.former().map_or(size, |(old, _)| size.min(old.size_bytes()));
        self.held.get().map_or(size, |held| size.min(held))
    }

    /// The newest geometry has more stripes, and these regions. The size of the array stays as it
    /// is until [`Geometries::end_growth`].
    ///
    /// # Panics
    /// If addresses are moving.
    pub fn grow(&self, regions: Regions) {
        assert!(self.former().is_none(), "addresses are moving");
        self.held.set(Some(self.size_bytes()));
        self.newest().regions.set(regions);
    }

    /// Users may reach all stripes.
    pub fn end_growth(&self) {
        self.held.set(None);
    }

    /// The old geometry, while it holds addresses that have not moved.
    fn still_used(&self) -> Option<&Geometry> {
        let (old, border) = self.former()?;
        (!border.have_moved(&(0..self.size_bytes()))).then_some(old)
    }

    /// The geometries that hold data: the newest, and the old one if it does.
    pub fn in_use(&self) -> (Generation, Option<Generation>) {
        (self.newest().generation, self.still_used().map(|old| old.generation))
    }

    /// Whether all data remains readable with these slots lost everywhere.
    pub fn survives(&self, slots: SlotSet) -> bool {
        let former = self.still_used().is_none_or(|old| old.survives(slots));
        former && self.newest().survives(slots)
    }

    /// How many more slots may be lost, in any combination; `None` if data is lost with `gone`.
    pub fn margin(&self, gone: SlotSet) -> Option<Margin> {
        let margin = self.newest().margin(gone)?;
        let Some(old) = self.still_used() else { return Some(margin) };
        let other = old.margin(gone)?;
        Some(if other.losses < margin.losses { other } else { margin })
    }

    /// Regions of the array, or of the larger geometry.
    pub fn region_count(&self) -> u64 {
        self.live().region_count()
    }

    /// Cuts a range of the array into pieces within one unit each, in order, where they are now.
    pub fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + '_ {
        let end = offset + len as u64;
        let cut = match self.former() {
            Some((_, border)) => border.at.clamp(offset, end),
            None => end,
        };
        let (first, second) = (to_len(cut - offset), to_len(end - cut));
        let before = self.home(offset).pieces(offset, first);
        before.chain(self.home(cut.min(end.saturating_sub(1))).pieces(cut, second))
    }

    /// The live stripes of a region: each is live when it is its turn.
    pub fn stripes_of(&self, region: RegionNo) -> impl Iterator<Item = StripeId> + '_ {
        let all = self.live().parts().flat_map(move |part| {
            let Part { generation, regions, .. } = part;
            regions.stripes_of(region).map(move |number| StripeId { generation, number })
        });
        all.filter(|stripe| self.is_live(*stripe))
    }
}
