//! The products that are modelled: one file each.
//!
//! A file names its source and says of each value whether the data sheet states it or it is
//! *inferred* – chosen so that the stated figures come out, or as is usual for disks of the kind.
//! [`super::measure::validate`] holds what a model does against what its sheet says.

mod atlas_v;
mod exos_x20;
mod samsung_850pro;
mod samsung_990pro;
mod st3146807fc;
mod st3300831as;
mod wd10eals;

use super::Mechanism;
use super::hdd::{Hdd, HddSpec};
use super::measure::Measure;
use super::ssd::{Ssd, SsdSpec};

/// What kind of machine it is, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A hard disk.
    Hdd(HddSpec),
    /// A solid-state disk.
    Ssd(SsdSpec),
}

/// A figure of a data sheet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sheet {
    /// Of what.
    pub measure: Measure,
    /// The figure, in the measure's unit.
    pub value: f64,
    /// How far the model may be from it, as a share of it.
    pub tolerance: f64,
    /// Whether the product's sheet states it; otherwise it follows from what the sheet states, or
    /// was measured by others.
    pub stated: bool,
}

impl Sheet {
    /// The product's sheet states it.
    pub(super) const fn stated(measure: Measure, value: f64, tolerance: f64) -> Self {
        Self { measure, value, tolerance, stated: true }
    }

    /// It follows from stated values, or is taken from elsewhere.
    pub(super) const fn derived(measure: Measure, value: f64, tolerance: f64) -> Self {
        Self { measure, value, tolerance, stated: false }
    }
}

/// A product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// What it is called on a command line.
    pub name: &'static str,
    /// Maker, product, kind.
    pub title: &'static str,
    /// Where the values come from.
    pub source: &'static str,
    /// Which values are not from there, and why they are what they are.
    pub inferred: &'static str,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// The machine.
    pub kind: Kind,
    /// What the sheet says, for the model to be held against.
    pub sheet: &'static [Sheet],
}

/// All of them.
pub static MODELS: [Model; 7] = [
    st3300831as::MODEL,
    st3146807fc::MODEL,
    wd10eals::MODEL,
    atlas_v::MODEL,
    samsung_850pro::MODEL,
    exos_x20::MODEL,
    samsung_990pro::MODEL,
];

/// A name that no model has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no disk model is called {name:?}; there are {}", Model::names().join(", "))]
pub struct UnknownModel {
    /// The name.
    pub name: String,
}

impl Model {
    /// The model called `name` (in any case).
    ///
    /// # Errors
    /// [`UnknownModel`], which lists those there are.
    pub fn find(name: &str) -> Result<&'static Self, UnknownModel> {
        let found = MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownModel { name: name.to_owned() })
    }

    /// The names of all models.
    pub fn names() -> Vec<&'static str> {
        MODELS.iter().map(|model| model.name).collect()
    }

    /// A machine of this product, fresh and at rest. `seed` turns a hard disk's platters.
    pub fn mechanism(&self, seed: u64) -> Box<dyn Mechanism> {
        match &self.kind {
            Kind::Hdd(spec) => {
                Box::new(Hdd::new(spec, self.capacity_bytes, self.sector_bytes, seed))
            }
            Kind::Ssd(spec) => Box::new(Ssd::new(spec)),
        }
    }

    /// The same with its write cache on or off. An SSD's buffer cannot be switched off.
    #[must_use]
    pub fn with_write_cache(&self, on: bool) -> Self {
        let kind = match self.kind {
            Kind::Hdd(spec) => Kind::Hdd(HddSpec { write_cache: on, ..spec }),
            ssd @ Kind::Ssd(_) => ssd,
        };
        Self { kind, ..*self }
    }

    /// Whether zeroing is cheap.
    pub fn zeroes_fast(&self) -> bool {
        matches!(self.kind, Kind::Ssd(_))
    }
}
