//! Segments of a stripe write, and the bands that they form.
//!
//! Codes work on each offset within the units separately. So a stripe write is cut into *bands*:
//! ranges of offsets in each of which the same data units are written. A band is a small stripe of
//! its own.

use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};

/// New bytes for a range of offsets in one data unit.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The data unit.
    pub unit: usize,
    /// First offset in the unit.
    pub from: u64,
    /// The bytes.
    pub data: Frozen,
}

impl Segment {
    /// The offset behind its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from + self.data.len() as u64
    }

    /// The part of it between two offsets in the unit.
    #[must_use]
    pub fn part(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.from), to.min(self.end()));
        (from < to).then(|| {
            let data = self.data.slice(to_len(from - self.from), to_len(to - from));
            Self { unit: self.unit, from, data }
        })
    }

    /// Sorts segments and joins adjacent ones, so that bands are as long as possible.
    #[must_use]
    pub fn joined(mut segments: Vec<Self>) -> Vec<Self> {
        if segments.len() < 2 {
            return segments;
        }
        segments.sort_by_key(|segment| (segment.unit, segment.from));
        let follows = |a: &Self, b: &Self| a.unit == b.unit && a.end() == b.from;
        segments.chunk_by(follows).map(join_run).collect()
    }
}

fn join_run(run: &[Segment]) -> Segment {
    let [first, rest @ ..] = run else { unreachable!("a run is not empty") };
    if rest.is_empty() {
        return first.clone();
    }
    let mut buf = Buf::new(run.iter().map(|segment| segment.data.len()).sum());
    let mut done = 0;
    for segment in run {
        buf[done..done + segment.data.len()].copy_from_slice(&segment.data);
        done += segment.data.len();
    }
    Segment { unit: first.unit, from: first.from, data: buf.freeze() }
}

/// A range of offsets in which the same data units are written.
#[derive(Debug)]
pub struct Band {
    /// First offset in the units.
    pub from: u64,
    /// Length of the range in bytes.
    pub len: usize,
    /// The data units written.
    pub units: UnitSet,
    /// Their new contents, in the order of the units.
    pub data: Vec<(usize, Frozen)>,
}

impl Band {
    /// Cuts segments (sorted, not overlapping) into bands.
    #[must_use]
    pub fn of(segments: &[Segment]) -> Vec<Self> {
        if let [only] = segments {
            let Segment { unit, from, data } = only.clone();
            let (units, len) = (UnitSet::one(unit), data.len());
            return vec![Self { from, len, units, data: vec![(unit, data)] }];
        }
        let mut cuts: Vec<u64> = segments.iter().flat_map(|s| [s.from, s.end()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut bands = Vec::new();
        for range in cuts.windows(2) {
            let parts = segments.iter().filter_map(|segment| segment.part(range[0], range[1]));
            let data: Vec<_> = parts.map(|part| (part.unit, part.data)).collect();
            if !data.is_empty() {
                let (from, len) = (range[0], to_len(range[1] - range[0]));
                let units = data.iter().map(|(unit, _)| *unit).collect();
                bands.push(Self { from, len, units, data });
            }
        }
        bands
    }

    /// A part of the band's range, as a band.
    #[must_use]
    pub fn part(&self, from: u64, len: usize) -> Self {
        let skip = to_len(from - self.from);
        let data = self.data.iter().map(|(unit, data)| (*unit, data.slice(skip, len))).collect();
        Self { from, len, units: self.units, data }
    }

    /// The new contents of a unit that the band writes.
    pub(crate) fn new_data(&self, unit: usize) -> &[u8] {
        let (_, data) = self.data.iter().find(|(u, _)| *u == unit).expect("the unit is written");
        data
    }
}

/// Converts a length that fits in memory (it is bounded by a unit).
pub(crate) fn to_len(n: u64) -> usize {
    usize::try_from(n).expect("lengths in memory fit the address space")
}
