//! Arrays that are large in one way or another. Most are small, so that many can be tried; but some
//! limits are met only by large units, wide codes, many stripes or many spares.

use weft_code::CodeSpec;
use weft_rt::Rng;

/// In which way an array is large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// It is not.
    Usual,
    /// Units of 1 MiB, so that a stripe operation takes much of the engine's memory.
    LargeUnits,
    /// More regions than a page of the region map has entries.
    ManyStripes,
    /// So many slots that more of them can be rebuilt at once than the region map has lanes.
    Wide,
    /// As many spares as a superblock can list, or almost.
    ManySpares,
}

impl Scale {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0 | 1 => Self::LargeUnits,
            2 => Self::ManyStripes,
            3 | 4 => Self::Wide,
            5 => Self::ManySpares,
            _ => Self::Usual,
        }
    }

    /// The codes to draw from, each with its range of slots; `None`: any.
    pub(super) fn codes(self) -> Option<Vec<(CodeSpec, std::ops::RangeInclusive<u64>)>> {
        match self {
            Self::Wide => Some(vec![
                (CodeSpec::Raid1, 9..=10),
                (CodeSpec::Raid6, 12..=18),
                (CodeSpec::Rs { k: 4, r: 9 }, 13..=14),
            ]),
            Self::LargeUnits => Some(vec![
                (CodeSpec::Raid1, 3..=5),
                (CodeSpec::Raid5, 3..=6),
                (CodeSpec::Raid6, 4..=7),
            ]),
            Self::ManySpares | Self::ManyStripes => {
                Some(vec![(CodeSpec::Raid5, 3..=4), (CodeSpec::Raid1, 2..=3)])
            }
            Self::Usual => None,
        }
    }

    /// Bytes of a unit.
    pub(super) fn unit_bytes(self, usual: u32) -> u32 {
        match self {
            Self::LargeUnits => 1 << 20,
            Self::ManyStripes | Self::ManySpares => 4096,
            Self::Usual | Self::Wide => usual,
        }
    }

    /// Whether the disks report that they rotate: a reshape of large units takes more memory then.
    pub(super) fn rotate(self, rng: &mut Rng) -> bool {
        rng.chance(if self == Self::LargeUnits { 60 } else { 30 })
    }

    /// The number of stripes.
    pub(super) fn stripes(self, usual: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::LargeUnits => rng.within(3, 8),
            Self::ManyStripes => rng.within(400, 2600),
            Self::Usual | Self::Wide | Self::ManySpares => usual,
        }
    }

    /// The number of spares.
    pub(super) fn spares(self, usual: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::Wide => rng.within(2, 8),
            Self::ManySpares => rng.within(62, 64),
            Self::Usual | Self::LargeUnits | Self::ManyStripes => usual,
        }
    }
}
