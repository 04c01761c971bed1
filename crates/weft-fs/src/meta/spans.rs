//! Ranges of the metadata array that are read as one: the database, and the table of its pages'
//! checksums, get more of them as the metadata grows.

use std::ops::Range;

/// Ranges of the array, one behind the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<Range<u64>>);

impl Spans {
    /// One range.
    pub(super) fn new(range: Range<u64>) -> Self {
        Self(vec![range])
    }

    /// One more behind these.
    pub(super) fn push(&mut self, range: Range<u64>) {
        self.0.push(range);
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges, each with its first byte as it is counted through all of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, Range<u64>)> {
        self.0.iter().scan(0, |before, range| {
            let first = *before;
            *before += range.end - range.start;
            Some((first, range.clone()))
        })
    }

    /// Where a byte is on the array; behind the last range as if that went on.
    pub(super) fn at(&self, offset: u64) -> u64 {
        let mut at = offset;
        for (first, range) in self.all().filter(|(_, range)| !range.is_empty()) {
            if offset >= first {
                at = range.start + (offset - first);
            }
        }
        at
    }

    /// The parts of a range of bytes that lie in one range of the array each.
    pub(super) fn parts(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::with_capacity(1);
        let mut from = bytes.start;
        for (first, range) in self.all() {
            let end = bytes.end.min(first + range.end - range.start);
            if from < end {
                parts.push(from..end);
                from = end;
            }
        }
        if from < bytes.end {
            parts.push(from..bytes.end);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_through_all_ranges() {
        let mut spans = Spans::new(100..120);
        assert_eq!((spans.bytes(), spans.at(0), spans.at(19)), (20, 100, 119));
        spans.push(50..50);
        spans.push(200..230);
        spans.push(10..15);
        assert_eq!(spans.bytes(), 55);
        assert_eq!([19, 20, 49, 50, 54].map(|at| spans.at(at)), [119, 200, 229, 10, 14]);
        assert_eq!(spans.parts(5..15), [5..15]);
        assert_eq!(spans.parts(15..52), [15..20, 20..50, 50..52]);
        assert_eq!(spans.parts(20..20), []);
    }
}
