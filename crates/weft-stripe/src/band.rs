//! Segments of a stripe write, and the bands that they form.
//!
//! Codes work on each offset within the units separately. So a stripe write is cut into *bands*:
//! ranges of offsets; within a range the same data units are written. A band is a small stripe of
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
    /// The offset after its last byte.
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
    let mut whole = first.data.clone();
    if rest.iter().all(|next| whole.join(&next.data)) {
        return Segment { unit: first.unit, from: first.from, data: whole };
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
#[derive(Debug, Clone, Copy)]
pub struct Band<'a> {
    /// First offset in the units.
    pub from: u64,
    /// Length of the range in bytes.
    pub len: usize,
    /// The data units written.
    pub units: UnitSet,
    /// The stripe's segments, inside and outside the band.
    segments: &'a [Segment],
}

impl<'a> Band<'a> {
    /// Cuts segments (sorted, not overlapping) into bands.
    pub fn of(segments: &'a [Segment]) -> impl Iterator<Item = Self> {
        let next_cut = |least: u64| {
            let cuts = segments.iter().flat_map(|segment| [segment.from, segment.end()]);
            cuts.filter(|cut| *cut >= least).min()
        };
        let mut start = next_cut(0);
        std::iter::from_fn(move || {
            loop {
                let from = start?;
                start = next_cut(from + 1);
                let len = to_len(start? - from);
                let written = segments.iter().filter(|s| s.from <= from && from < s.end());
                let units: UnitSet = written.map(|segment| segment.unit).collect();
                if !units.is_empty() {
                    return Some(Self { from, len, units, segments });
                }
            }
        })
    }

    /// A part of the band's range, as a band.
    #[must_use]
    pub fn part(&self, from: u64, len: usize) -> Self {
        Self { from, len, ..*self }
    }

    /// The new contents of the units that the band writes, in their order.
    pub fn data(&self) -> impl Iterator<Item = (usize, Frozen)> {
        let end = self.from + self.len as u64;
        let part = move |segment: &Segment| segment.part(self.from, end);
        self.segments.iter().filter_map(part).map(|part| (part.unit, part.data))
    }

    /// The new contents of a unit that the band writes.
    pub(crate) fn new_data(&self, unit: usize) -> &'a [u8] {
        let holds = |s: &&Segment| s.unit == unit && s.from <= self.from && self.from < s.end();
        let segment = self.segments.iter().find(holds).expect("the unit is written");
        &segment.data[to_len(self.from - segment.from)..][..self.len]
    }
}

/// Converts a length that fits in memory (it is bounded by a unit).
pub(crate) fn to_len(n: u64) -> usize {
    usize::try_from(n).expect("lengths in memory fit the address space")
}
