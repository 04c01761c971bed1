//! The memory of a hard disk: read segments, the stream that fills one of them, and cached writes.
//!
//! **Reads.** The memory is divided into segments of equal size; each holds one range of sectors.
//! The least recently used one is replaced. After a read the heads stay on the track, and the
//! sectors that pass them are added to its segment: a *stream*. It ends `read_ahead` sectors after
//! the last read, or when the heads are needed elsewhere. Its progress is computed only when
//! needed.
//!
//! **Writes** that were acknowledged from memory are *dirty* ranges, ordered by sector, with
//! adjacent ones merged: thousands of small writes need only as many accesses as there are gaps
//! between them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::geometry::Geometry;

#[derive(Debug, Clone, Copy)]
struct Segment {
    start: u64,
    end: u64,
    used: u64,
}

/// The sectors that pass the heads while these are not needed elsewhere.
#[derive(Debug, Clone, Copy)]
struct Stream {
    segment: usize,
    /// The stream reached this sector …
    from: u64,
    /// … at this time.
    since: f64,
    /// The sector at which it ends.
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

    /// The segment that holds the start of `range`, and the end of that segment.
    fn held(&self, range: &Range<u64>) -> Option<(usize, u64)> {
        let holds = |segment: &Segment| segment.start <= range.start && range.start < segment.end;
        let index = self.segments.iter().position(holds)?;
        Some((index, self.segments[index].end))
    }

    /// Where the data of `range` is at `now`.
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

    /// When the stream has read all of `range`; `None`: it will not.
    pub(super) fn brings(&self, geometry: &Geometry, range: &Range<u64>, now: f64) -> Option<f64> {
        let stream = self.stream?;
        if range.start < self.segments[stream.segment].start || range.start > stream.limit {
            return None;
        }
        let passes = |sector: u64| {
            let count = sector.saturating_sub(stream.from);
            stream.since + geometry.pass_ns(stream.from, count)
        };
        // A stream that has reached its limit does not start again.
        let comes = range.end <= stream.limit || passes(stream.limit) > now;
        comes.then(|| passes(range.end))
    }

    /// A read of `range` was answered from memory.
    pub(super) fn used(&mut self, range: &Range<u64>) {
        let streaming = || self.stream.map(|stream| stream.segment);
        if let Some(index) = self.held(range).map(|(index, _)| index).or_else(streaming) {
            self.touch(index);
        }
    }

    /// The stream has reached the end of `range` and continues.
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

    /// The heads leave: the segment keeps what the stream has read so far.
    pub(super) fn stop(&mut self, geometry: &Geometry, now: f64) {
        let Some(stream) = self.stream.take() else { return };
        let brought = geometry.passed(stream.from, (now - stream.since).max(0.0));
        let keep = self.segment_sectors;
        let segment = &mut self.segments[stream.segment];
        segment.end = segment.end.max((stream.from + brought).min(stream.limit));
        segment.start = segment.start.max(segment.end.saturating_sub(keep));
    }

    /// The part of `range` that must be read from the platters.
    pub(super) fn missing(&self, range: &Range<u64>) -> Range<u64> {
        match self.held(range) {
            Some((_, end)) if end < range.end => end..range.end,
            _ => range.clone(),
        }
    }

    /// `range` was read from the platters, up to time `at`; the stream starts.
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

    /// Replaces a segment by an empty one.
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

    /// Drops what a write makes stale.
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
    /// About to pass the heads; read completely at this time.
    At(f64),
    /// On the platters.
    No,
}

/// Cached writes.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    ranges: BTreeMap<u64, u64>,
    pub(super) sectors: u64,
}

impl Dirty {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether all of `range` is dirty.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// Adds `range`, merged with adjacent ranges.
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

    /// Removes `range`: it is written directly.
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

    /// All ranges, starting at the first at or after `sector`, once around.
    pub(super) fn from(&self, sector: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let behind = self.ranges.range(sector..).chain(self.ranges.range(..sector));
        behind.map(|(from, to)| *from..*to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::Rng;

    /// Compares with a set of sectors.
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
