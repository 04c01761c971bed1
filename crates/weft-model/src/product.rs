//! A product: its model's parameters, and the figures of its data sheet.

use std::fmt;

use crate::command::Mechanism;
use crate::hdd::{Hdd, HddSpec};
use crate::ssd::{Ssd, SsdSpec};

/// A figure of a data sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Sequential reads at the start of the disk, in millions of bytes per second.
    OuterMbS,
    /// Media rate at the end of the disk.
    InnerMbS,
    /// Media rate, averaged over the disk.
    MeanMbS,
    /// Sequential writes at the start of the disk.
    WriteMbS,
    /// Mean seek time of random reads, in milliseconds.
    AverageSeekMs,
    /// Full-stroke seek time, in milliseconds.
    FullStrokeMs,
    /// Random reads of 4 KiB per second over the whole disk, at this queue depth.
    RandomReadIops(u32),
    /// Random writes of 4 KiB per second over the whole disk, at this queue depth.
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

/// The type of a disk, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A hard disk.
    Hdd(HddSpec),
    /// A solid-state disk.
    Ssd(SsdSpec),
}

/// A figure that a model must reproduce.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sheet {
    /// Which figure.
    pub measure: Measure,
    /// Its value, in the unit of the measure.
    pub value: f64,
    /// The relative deviation that is allowed.
    pub tolerance: f64,
    /// Whether the product's data sheet states it; otherwise it is derived from the sheet or from
    /// published measurements.
    pub stated: bool,
}

impl Sheet {
    /// A figure that the product's data sheet states.
    pub(super) const fn stated(measure: Measure, value: f64, tolerance: f64) -> Self {
        Self { measure, value, tolerance, stated: true }
    }

    /// A figure that is derived from stated ones, or taken from elsewhere.
    pub(super) const fn derived(measure: Measure, value: f64, tolerance: f64) -> Self {
        Self { measure, value, tolerance, stated: false }
    }
}

/// Settings of a hard disk's scheduler; `None`: the product's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Commands that the disk accepts at a time.
    pub queue_depth: Option<u32>,
    /// A command that has waited this long goes first, in milliseconds.
    pub age_limit_ms: Option<u32>,
}

/// A product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Its name on the command line.
    pub name: &'static str,
    /// Maker, product, kind.
    pub title: &'static str,
    /// The source of the values.
    pub source: &'static str,
    /// Which values are inferred, and how.
    pub inferred: &'static str,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// The type of disk, and its parameters.
    pub kind: Kind,
    /// The figures that the model must reproduce.
    pub sheet: &'static [Sheet],
}

impl Model {
    /// A new model of this product, idle. `seed` sets the initial angle of a hard disk's platters.
    pub fn mechanism(&self, seed: u64) -> Box<dyn Mechanism> {
        match &self.kind {
            Kind::Hdd(spec) => {
                Box::new(Hdd::new(spec, self.capacity_bytes, self.sector_bytes, seed))
            }
            Kind::Ssd(spec) => Box::new(Ssd::new(spec)),
        }
    }

    /// This product with its write cache on or off. An SSD's buffer cannot be switched off.
    #[must_use]
    pub fn with_write_cache(&self, on: bool) -> Self {
        let kind = match self.kind {
            Kind::Hdd(spec) => Kind::Hdd(HddSpec { write_cache: on, ..spec }),
            ssd @ Kind::Ssd(_) => ssd,
        };
        Self { kind, ..*self }
    }

    /// This product with another scheduler. An SSD has none of these settings.
    #[must_use]
    pub fn with_scheduler(&self, scheduler: Scheduler) -> Self {
        let kind = match self.kind {
            Kind::Hdd(spec) => Kind::Hdd(HddSpec {
                queue_depth: scheduler.queue_depth.unwrap_or(spec.queue_depth),
                age_limit_ms: scheduler.age_limit_ms.map_or(spec.age_limit_ms, f64::from),
                ..spec
            }),
            ssd @ Kind::Ssd(_) => ssd,
        };
        Self { kind, ..*self }
    }

    /// Whether a power cut may take a completed write that was not flushed.
    pub fn has_volatile_cache(&self) -> bool {
        match &self.kind {
            Kind::Hdd(spec) => spec.write_cache,
            Kind::Ssd(spec) => !spec.protected,
        }
    }

    /// Whether it has rotating platters.
    pub fn is_rotational(&self) -> bool {
        matches!(self.kind, Kind::Hdd(_))
    }

    /// Whether zeroing is cheap.
    pub fn zeroes_fast(&self) -> bool {
        matches!(self.kind, Kind::Ssd(_))
    }
}
