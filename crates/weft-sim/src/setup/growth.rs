//! Growth: in some runs all disks become larger, and the array uses that.

use weft_rt::Rng;

use super::Setup;

/// The growth of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrowthSetup {
    /// The most bytes that each disk has in the end, in addition to its first ones.
    pub most_bytes: u64,
    /// Percentage of the disks that become larger each time; the array grows when all have.
    pub percent: u64,
}

impl GrowthSetup {
    /// Draws the growth of the array of `setup`.
    pub(crate) fn draw(rng: &mut Rng, setup: &Setup) -> Self {
        let units = *rng.pick(&[2, 10, 30, 100]);
        let units = if setup.unit_bytes >= 1 << 20 { units.min(10) } else { units };
        let most_bytes = rng.within(1, units) * u64::from(setup.unit_bytes) + rng.below(3) * 4096;
        Self { most_bytes, percent: *rng.pick(&[60, 90, 100]) }
    }
}

impl Setup {
    /// Gives the array growth.
    pub(crate) fn with_growth(mut self, growth: GrowthSetup) -> Self {
        self.growth = Some(growth);
        self
    }

    /// The most bytes that a disk ever has.
    pub(crate) fn disk_bytes_max(&self) -> u64 {
        let largest = self.disks.iter().map(|disk| disk.size_bytes).max().unwrap_or(0);
        largest + self.growth.map_or(0, |growth| growth.most_bytes)
    }
}
