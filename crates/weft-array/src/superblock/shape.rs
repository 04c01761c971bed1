//! Geometries in the superblock.

use serde::{Deserialize, Serialize};
use weft_code::CodeSpec;
use weft_layout::window::Direction;
use weft_layout::{Algorithm, Layout};
use weft_stripe::Generation;

use super::{Superblock, SuperblockError};
use crate::region_map::Regions;
use crate::superblock::area::Area;

fn impossible(error: &dyn std::error::Error) -> SuperblockError {
    SuperblockError::Impossible { what: error.to_string() }
}

/// A geometry: the map from addresses of the array to bytes of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The stripe code.
    pub code: CodeSpec,
    /// The layout of units.
    pub algorithm: Algorithm,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Slots: the first ones of the array.
    pub slots: usize,
    /// Units of data on each slot.
    pub rows: u64,
    /// Where the data starts on each member, in bytes.
    #[serde(rename = "data_offset_bytes")]
    pub data_offset: u64,
}

/// A change of the geometry in progress. The superblock's own fields have the new geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The old geometry.
    pub from: Shape,
    /// Its number.
    #[serde(with = "super::generation")]
    pub from_generation: Generation,
    /// Slots of the new geometry.
    pub slots: usize,
    /// The order in which addresses are moved.
    #[serde(with = "direction")]
    pub direction: Direction,
    /// The checkpoint, an array address: upwards, addresses below it are in the new geometry;
    /// downwards, it and those above.
    pub checkpoint_bytes: u64,
}

impl Shape {
    /// The placement of its units.
    ///
    /// # Errors
    /// If code, layout and number of slots do not fit together.
    pub fn layout(&self) -> Result<Box<dyn Layout>, SuperblockError> {
        weft_layout::for_code(self.code, self.algorithm, self.slots, self.rows)
            .map_err(|error| impossible(&error))
    }

    /// Its regions, of `region_bytes` each.
    ///
    /// # Errors
    /// As [`Shape::layout`].
    pub fn regions(&self, region_bytes: u64) -> Result<Regions, SuperblockError> {
        let shape = self.code.shape(self.slots);
        let k = shape.map_err(|error| impossible(&error))?.k;
        let stripe_bytes = k as u64 * self.unit_bytes;
        Ok(Regions { region_bytes, stripe_bytes, stripes: self.layout()?.stripes(self.rows) })
    }

    /// Bytes that a member needs; `None` if they are too many to count.
    #[must_use]
    pub fn member_bytes(&self) -> Option<u64> {
        self.rows.checked_mul(self.unit_bytes)?.checked_add(self.data_offset)
    }
}

impl Superblock {
    /// The geometry; while it is being changed, the new one.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            code: self.code,
            algorithm: self.algorithm,
            unit_bytes: self.unit_bytes,
            slots: self.reshape.map_or(self.slots.len(), |reshape| reshape.slots),
            rows: self.rows,
            data_offset: self.area.data_offset,
        }
    }

    /// The superblock of a reshape that starts. It may have the slots already that are added.
    ///
    /// # Errors
    /// As [`Shape::layout`].
    pub(crate) fn reshaped(
        &self,
        from: Shape,
        to: Shape,
        direction: Direction,
        checkpoint_bytes: u64,
    ) -> Result<Self, SuperblockError> {
        let mut map_regions = self.map_regions;
        for shape in [from, to] {
            map_regions = map_regions.max(shape.regions(self.region_bytes)?.count());
        }
        let last_generation = Generation(self.last_generation.0.wrapping_add(1));
        let reshape = Reshape {
            from,
            from_generation: self.generation,
            slots: to.slots,
            direction,
            checkpoint_bytes,
        };
        let generation = last_generation;
        let reshaped = Self { last_generation, map_regions, members_zeroed: false, ..self.clone() };
        Ok(reshaped.moving_to(to, generation, reshape))
    }

    /// The superblock of the way back from this checkpoint, while a reshape is in progress.
    pub(crate) fn turned(&self, checkpoint_bytes: u64) -> Option<Self> {
        let Reshape { from, from_generation, direction, .. } = self.reshape?;
        let back = Reshape {
            from: self.shape(),
            from_generation: self.generation,
            slots: from.slots,
            direction: direction.reversed(),
            checkpoint_bytes,
        };
        Some(self.clone().moving_to(from, from_generation, back))
    }

    fn moving_to(self, to: Shape, generation: Generation, reshape: Reshape) -> Self {
        let Shape { code, algorithm, unit_bytes, rows, data_offset, .. } = to;
        Self {
            code,
            algorithm,
            unit_bytes,
            rows,
            area: Area { data_offset, ..self.area.clone() },
            generation,
            reshape: Some(reshape),
            ..self
        }
    }

    /// All geometries: the old one, too, while it is being changed.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + use<> {
        self.reshape.map(|reshape| reshape.from).into_iter().chain([self.shape()])
    }

    /// The regions of the array; while its geometry is being changed, of the larger one.
    ///
    /// # Errors
    /// As [`Shape::layout`].
    pub fn regions(&self) -> Result<Regions, SuperblockError> {
        let mut largest = self.shape().regions(self.region_bytes)?;
        for shape in self.shapes() {
            let regions = shape.regions(self.region_bytes)?;
            if regions.count() > largest.count() {
                largest = regions;
            }
        }
        Ok(largest)
    }

    /// Bytes that each member needs.
    pub(crate) fn member_bytes(&self) -> u64 {
        let bytes = self.shapes().filter_map(|shape| shape.member_bytes()).max();
        bytes.expect("a checked superblock has a size")
    }
}

/// [`Direction`] as `"up"` or `"down"`.
pub(crate) mod direction {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use weft_layout::window::Direction;

    pub fn serialize<S: Serializer>(direction: &Direction, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match direction {
            Direction::Up => "up",
            Direction::Down => "down",
        })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Direction, D::Error> {
        match String::deserialize(from)?.as_str() {
            "up" => Ok(Direction::Up),
            "down" => Ok(Direction::Down),
            other => Err(D::Error::custom(format!("'{other}' is neither 'up' nor 'down'"))),
        }
    }
}
