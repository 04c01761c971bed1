//! What lies in a hard disk's memory: read segments, the stream that fills one of them, and writes
//! that have not reached the platters.
//!
//! **Reads.** The memory is cut into segments of one size; each holds one range of sectors, and the
//! one unused for longest is given up. After a read the heads stay, and what passes under them goes
//! on into its segment: a *stream*. It runs until `read_ahead` sectors beyond the last read, or
//! until the heads are wanted elsewhere. How far it has come is worked out only when somebody asks.
//!
//! **Writes** that were acknowledged from memory are *dirty* ranges, in order of sectors,
//! neighbours joined: thousands of small writes become as few accesses as there are gaps between
//! them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::geometry::Geometry;

#[derive(Debug, Clone, Copy)]
struct Segment {
    start: u64,
    end: u64,
    used: u64,
}

/// What passes under the heads while nobody wants them elsewhere.
#[derive(Debug, Clone, Copy)]
struct Stream {
    segment: usize,
    /// It was at the beginning of this sector …
    from: u64,
    /// … at this time.
    since: f64,
    /// Where it stops.
    limit: u64,
}

/// The read segments.
#[derive(Debug)]
pub(super) struct ReadCache {
    segments: Vec<Segment>,
    segments_max: usize,
    segment_sectors: u64,
    read_ahead: u64,
    stream: Option<Stream>,
    clock: u64,
}

impl ReadCache {
    pub(super) fn new(segments_max: usize, segment_sectors: u64, read_ahead: u64) -> Self {
        Self {
            segments: Vec::with_capacity(segments_max),
            segments_max,
            segment_sectors: segment_sectors.max(1),
            read_ahead: read_ahead.min(segment_sectors),
            stream: None,
            clock: 0,
        }
    }

    fn touch(&mut self, index: usize) {
        self.clock += 1;
        self.segments[index].used = self.clock;
    }

    /// Where what the segments hold of `range`, from its beginning on, ends.
    fn held(&self, range: &Range<u64>) -> Option<(usize, u64)> {
        let holds = |segment: &Segment| segment.start <= range.start && range.start < segment.end;
        let index = self.segments.iter().position(holds)?;
        Some((index, self.segments[index].end))
    }

    /// Where `range` is at `now`.
    pub(super) fn hit(&self, geometry: &Geometry, range: &Range<u64>, now: f64) -> Hit {
        match self.held(range) {
            Some((_, end)) if end >= range.end => Hit::Now,
            _ => match self.brings(geometry, range, now) {
                Some(at) if at <= now => Hit::Now,
                Some(at) => Hit::At(at),
                None => Hit::No,
            },
        }
    }

    /// When the stream will have brought `range`, or has.
    pub(super) fn brings(&self, geometry: &Geometry, range: &Range<u64>, now: f64) -> Option<f64> {
        let stream = self.stream?;
        if range.start < self.segments[stream.segment].start || range.start > stream.limit {
            return None;
        }
        let passes = |sector: u64| {
            let count = sector.saturating_sub(stream.from);
            stream.since + geometry.pass_ns(stream.from, count)
        };
        // Having stopped at its limit, it does not start again by itself.
        let comes = range.end <= stream.limit || passes(stream.limit) > now;
        comes.then(|| passes(range.end))
    }

    /// `range` was read from memory.
    pub(super) fn used(&mut self, range: &Range<u64>) {
        let streaming = || self.stream.map(|stream| stream.segment);
        if let Some(index) = self.held(range).map(|(index, _)| index).or_else(streaming) {
            self.touch(index);
        }
    }

    /// The stream has brought `range` to its reader, and goes on.
    pub(super) fn streamed(&mut self, range: &Range<u64>, at: f64, sectors: u64) {
        let read_ahead = self.read_ahead;
        if let Some(stream) = &mut self.stream
            && range.end >= stream.from
        {
            stream.from = range.end;
            stream.since = at;
            stream.limit = (range.end + read_ahead).max(stream.limit).min(sectors);
            let index = stream.segment;
            let keep = self.segment_sectors;
            let segment = &mut self.segments[index];
            segment.end = segment.end.max(range.end);
            segment.start = segment.start.max(segment.end.saturating_sub(keep));
        }
    }

    /// The heads go elsewhere: what the stream has brought by now stays.
    pub(super) fn stop(&mut self, geometry: &Geometry, now: f64) {
        let Some(stream) = self.stream.take() else { return };
        let brought = geometry.passed(stream.from, (now - stream.since).max(0.0));
        let keep = self.segment_sectors;
        let segment = &mut self.segments[stream.segment];
        segment.end = segment.end.max((stream.from + brought).min(stream.limit));
        segment.start = segment.start.max(segment.end.saturating_sub(keep));
    }

    /// The part of `range` that must come from the platters.
    pub(super) fn missing(&self, range: &Range<u64>) -> Range<u64> {
        match self.held(range) {
            Some((_, end)) if end < range.end => end..range.end,
            _ => range.clone(),
        }
    }

    /// The platters have given `range`, until `at`; the stream begins.
    pub(super) fn filled(&mut self, range: &Range<u64>, at: f64, sectors: u64) {
        let follows = self.segments.iter().position(|s| s.end == range.start && s.start < s.end);
        let index = follows.unwrap_or_else(|| self.replace(range.start));
        let keep = self.segment_sectors;
        let segment = &mut self.segments[index];
        segment.end = range.end;
        segment.start = segment.start.max(segment.end.saturating_sub(keep));
        self.touch(index);
        let limit = (range.end + self.read_ahead).min(sectors);
        self.stream = Some(Stream { segment: index, from: range.end, since: at, limit });
    }

    /// An empty segment.
    fn replace(&mut self, start: u64) -> usize {
        let fresh = Segment { start, end: start, used: 0 };
        if self.segments.len() < self.segments_max {
            self.segments.push(fresh);
            return self.segments.len() - 1;
        }
        let oldest = self.segments.iter().enumerate().min_by_key(|(_, segment)| segment.used);
        let index = oldest.map_or(0, |(index, _)| index);
        self.segments[index] = fresh;
        index
    }

    /// What a write makes stale is forgotten.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        if let Some(stream) = self.stream
            && range.start < stream.limit
            && self.segments[stream.segment].start < range.end
        {
            self.stream = None;
        }
        for segment in &mut self.segments {
            if segment.start < range.end && range.start < segment.end {
                segment.end = segment.start;
            }
        }
    }
}

/// Where the data of a read is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Hit {
    /// In memory.
    Now,
    /// About to pass under the heads; it will have been read at this time.
    At(f64),
    /// On the platters.
    No,
}

/// Writes that were acknowledged from memory.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    ranges: BTreeMap<u64, u64>,
    pub(super) sectors: u64,
}

impl Dirty {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether all of `range` is here.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// Adds `range`, joined with what it touches.
    pub(super) fn add(&mut self, range: &Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.ranges.remove(&from);
            self.sectors -= to - from;
            start = start.min(from);
            end = end.max(to);
        }
        self.ranges.insert(start, end);
        self.sectors += end - start;
    }

    /// Forgets `range`: it is written another way.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        while let Some((&from, &to)) = self.ranges.range(..range.end).next_back() {
            if to <= range.start {
                break;
            }
            self.ranges.remove(&from);
            self.sectors -= to - from;
            for (from, to) in [(from, range.start), (range.end, to)] {
                if from < to {
                    self.ranges.insert(from, to);
                    self.sectors += to - from;
                }
            }
        }
    }

    /// The beginnings of ranges at and behind `sector`, then those before it, all around once.
    pub(super) fn from(&self, sector: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let behind = self.ranges.range(sector..).chain(self.ranges.range(..sector));
        behind.map(|(from, to)| *from..*to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Held against a set of sectors.
    #[test]
    fn dirty_ranges_are_the_set_of_their_sectors() {
        let mut rng = Rng::new(5);
        let (mut dirty, mut set) = (Dirty::default(), std::collections::BTreeSet::new());
        for _ in 0..20_000 {
            let start = rng.below(200);
            let range = start..start + 1 + rng.below(12);
            if rng.chance(60) {
                dirty.add(&range);
                set.extend(range.clone());
            } else {
                dirty.remove(&range);
                set.retain(|sector| !range.contains(sector));
            }
            assert_eq!(dirty.sectors, set.len() as u64);
            assert_eq!(dirty.holds(&range), range.clone().all(|sector| set.contains(&sector)));
            let all: u64 = dirty.from(100).map(|range| range.end - range.start).sum();
            assert_eq!(all, dirty.sectors);
            let ranges: Vec<_> = dirty.from(0).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "not joined");
        }
    }
}
