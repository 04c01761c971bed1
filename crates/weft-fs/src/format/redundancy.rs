//! What redundancy a file is to have, and which code its next lines get.

use std::fmt;
use std::str::FromStr;

use weft_code::CodeSpec;

use crate::error::FsError;

/// The most data blocks in a line of a code whose width follows from the disks.
pub(crate) const WIDTH_MAX: usize = 8;
/// Longest name of a redundancy, in bytes.
pub(crate) const NAME_BYTES: usize = 31;

/// The part of the room on the fullest disk of a line that an estimate fills with lines at a time.
const ESTIMATED_PART: u64 = 16;

/// What redundancy a file is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Redundancy {
    /// Dynamic: a line with one active block is a mirror, a longer one has a parity block.
    #[default]
    Auto,
    /// One copy.
    Single,
    /// This code. RAID-1 is two copies; RAID-0, 4, 5 and 6 are as wide as the disks allow.
    Code(CodeSpec),
}

/// The code of a record, on a number of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coded {
    /// Its name.
    pub spec: CodeSpec,
    /// Columns.
    pub columns: usize,
}

impl Coded {
    /// Data blocks of a line.
    pub(crate) fn k(self) -> usize {
        self.spec.shape(self.columns).map_or(1, |shape| shape.k)
    }

    /// Parity blocks of a line.
    pub(crate) fn p(self) -> usize {
        self.columns - self.k()
    }
}

impl Redundancy {
    /// The code of new lines while `disks` disks have room; `None` if they are too few.
    #[must_use]
    pub fn coded(self, disks: usize) -> Option<Coded> {
        let (spec, columns) = match self {
            Self::Single => (CodeSpec::Raid0, 1),
            Self::Auto => (CodeSpec::Raid5, disks.min(WIDTH_MAX + 1)),
            Self::Code(spec @ CodeSpec::Raid0) => (spec, disks.min(WIDTH_MAX)),
            Self::Code(spec @ CodeSpec::Raid1) => (spec, 2),
            Self::Code(spec @ (CodeSpec::Raid4 | CodeSpec::Raid5)) => {
                (spec, disks.min(WIDTH_MAX + 1))
            }
            Self::Code(spec @ CodeSpec::Raid6) => (spec, disks.min(WIDTH_MAX + 2)),
            Self::Code(spec) => (spec, spec.shape(usize::from(u8::MAX)).ok()?.width()),
        };
        (columns <= disks && spec.shape(columns).is_ok()).then_some(Coded { spec, columns })
    }
}

impl Redundancy {
    /// Disks with room that a line needs at least.
    pub(crate) fn columns_min(self) -> usize {
        // Each write asks.
        match self {
            Self::Single => 1,
            Self::Auto => 2,
            Self::Code(_) => self.narrowest(),
        }
    }

    fn narrowest(self) -> usize {
        let narrowest = (1..=usize::from(u8::MAX)).find_map(|disks| self.coded(disks));
        narrowest.map_or(1, |coded| coded.columns)
    }
}

/// The number of lines of a redundancy for which disks with these free blocks have room: some of a
/// code at a time. They are taken from the disks with the most room, as they will be, a part of it
/// at a time.
pub(crate) fn lines_within(
    mut free: Vec<u64>,
    redundancy: Redundancy,
    mut take: impl FnMut(u64, Coded),
) {
    loop {
        free.retain(|free| *free > 0);
        free.sort_unstable_by_key(|free| std::cmp::Reverse(*free));
        let Some(coded) = redundancy.coded(free.len()) else { return };
        let lines = free[coded.columns - 1].div_ceil(ESTIMATED_PART);
        free[..coded.columns].iter_mut().for_each(|free| *free -= lines);
        take(lines, coded);
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Single => f.pad("none"),
            Self::Code(spec) => fmt::Display::fmt(spec, f),
        }
    }
}

impl FromStr for Redundancy {
    type Err = FsError;

    fn from_str(text: &str) -> Result<Self, FsError> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Single),
            _ => match text.parse::<CodeSpec>() {
                Ok(CodeSpec::Raid10 { .. }) => Err(FsError::Invalid(
                    "raid10 is for arrays: every raid1 file is on two disks of its own".into(),
                )),
                Ok(spec) if spec.to_string().len() <= NAME_BYTES => Ok(Self::Code(spec)),
                Ok(_) => Err(FsError::TooLong),
                Err(error) => Err(FsError::Invalid(format!("{error}, and auto and none"))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_widths_follow_from_the_disks() {
        for (name, disks, k, p) in [
            ("auto", 4, 3, 1),
            ("auto", 2, 1, 1),
            ("auto", 20, 8, 1),
            ("none", 1, 1, 0),
            ("raid0", 3, 3, 0),
            ("raid1", 5, 1, 1),
            ("raid5", 3, 2, 1),
            ("raid6", 5, 3, 2),
            ("rs:3+2", 6, 3, 2),
            ("lrc:4,2,1", 7, 4, 3),
        ] {
            let redundancy: Redundancy = name.parse().expect("known");
            assert_eq!(redundancy.to_string(), name);
            let coded = redundancy.coded(disks).expect("enough disks");
            assert_eq!((coded.k(), coded.p()), (k, p), "{name} on {disks}");
        }
        for redundancy in [Redundancy::Single, Redundancy::Auto] {
            assert_eq!(redundancy.columns_min(), redundancy.narrowest());
        }
        for (name, disks) in [("auto", 1), ("raid6", 3), ("rs:3+2", 4)] {
            assert_eq!(name.parse::<Redundancy>().expect("known").coded(disks), None);
        }
        for bad in ["raid10", "raid7", "", "rs:0+1"] {
            bad.parse::<Redundancy>().expect_err(bad);
        }
    }

    fn blocks_within(free: Vec<u64>, redundancy: Redundancy) -> u64 {
        let mut blocks = 0;
        lines_within(free, redundancy, |lines, coded| blocks += lines * coded.k() as u64);
        blocks
    }

    /// The number of lines that fit, counted line by line.
    fn line_by_line(mut free: Vec<u64>, redundancy: Redundancy) -> u64 {
        let mut blocks = 0;
        loop {
            free.retain(|free| *free > 0);
            free.sort_unstable_by_key(|free| std::cmp::Reverse(*free));
            let Some(coded) = redundancy.coded(free.len()) else { return blocks };
            free[..coded.columns].iter_mut().for_each(|free| *free -= 1);
            blocks += coded.k() as u64;
        }
    }

    #[test]
    fn what_a_redundancy_may_have_is_what_its_lines_find() {
        let mut rng = weft_random::Rng::new(1);
        for round in 0..300 {
            let disks = 1 + rng.below(12);
            let most = 10_u64.pow(u32::try_from(1 + rng.below(5)).expect("small"));
            let free: Vec<u64> = (0..disks).map(|_| rng.below(most)).collect();
            for name in ["auto", "none", "raid1", "raid6", "raid0", "rs:3+2"] {
                let redundancy: Redundancy = name.parse().expect("known");
                let (exact, found) = (
                    line_by_line(free.clone(), redundancy),
                    blocks_within(free.clone(), redundancy),
                );
                assert!(
                    exact.abs_diff(found) <= exact / 20 + 20,
                    "{found} instead of {exact} for {name} on {free:?} in round {round}"
                );
            }
        }
        // A large disk beside a small one is no mirror of more.
        let mirror: Redundancy = "raid1".parse().expect("known");
        let tib = 1 << 28;
        assert_eq!(blocks_within(vec![tib, 1000], mirror), 1000);
        assert_eq!(blocks_within(vec![tib, tib, 1000], mirror), tib + 500);
        assert_eq!(blocks_within(vec![tib, 500], Redundancy::Auto), 500);
    }
}
