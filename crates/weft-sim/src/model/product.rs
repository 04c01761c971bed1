//! A product: its machine, and the figures of its data sheet.

use std::fmt;

use super::command::Mechanism;
use super::hdd::{Hdd, HddSpec};
use super::ssd::{Ssd, SsdSpec};

/// A figure of a data sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Sequential reads at the beginning of the disk, in millions of bytes a second.
    OuterMbS,
    /// The same at its end.
    InnerMbS,
    /// The same over all of it.
    MeanMbS,
    /// Sequential writes at its beginning.
    WriteMbS,
    /// Mean seek of random reads, in milliseconds.
    AverageSeekMs,
    /// Seek from one end of the disk to the other, in milliseconds.
    FullStrokeMs,
    /// Random reads of 4 KiB a second, so many at a time, all over the disk.
    RandomReadIops(u32),
    /// Random writes of 4 KiB a second, so many at a time, all over the disk.
    RandomWriteIops(u32),
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OuterMbS => write!(f, "sequential read, outer, MB/s"),
            Self::InnerMbS => write!(f, "sequential read, inner, MB/s"),
            Self::MeanMbS => write!(f, "sequential read, mean, MB/s"),
            Self::WriteMbS => write!(f, "sequential write, MB/s"),
            Self::AverageSeekMs => write!(f, "average seek, ms"),
            Self::FullStrokeMs => write!(f, "full-stroke seek, ms"),
            Self::RandomReadIops(depth) => write!(f, "random 4 KiB reads/s, depth {depth}"),
            Self::RandomWriteIops(depth) => write!(f, "random 4 KiB writes/s, depth {depth}"),
        }
    }
}

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

impl Model {
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
