//! Parts of the table of extents that the store gave lately.
//!
//! A flush looks at the record of each block several times, and asks for the last record that
//! begins before it, which only a range of rows can answer. On a node each of these would be a
//! question to the keeper, one after the other. So what the keeper said of a range is kept: its
//! rows, and that there are no others in it. Rows that follow the one that is asked for come with
//! it, as a flush goes through a file in order.
//!
//! This holds as long as single rows do ([`super::recent_rows`]): until the next batch ends, or a
//! token comes or goes.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use rangemap::RangeSet;
use weft_wire::Row;

use super::rows::{KeyRange, RowKey, StoreKey as _};

/// A file, and the first block of a record.
type Key = (u64, u64);

/// Rows that are kept; all are dropped when there would be more.
const ROWS_MAX: usize = 4096;
/// The longest value that is kept, and what all of them may have.
const VALUE_BYTES_MAX: usize = 4096;
const BYTES_MAX: usize = 1 << 20;
/// Rows that are asked for ahead: at first, and as long as they follow each other.
const AHEAD: Range<u32> = 8..256;

/// See the [module](self).
pub(crate) struct KnownExtents {
    /// Of these keys all rows are known.
    known: RangeSet<Key>,
    rows: BTreeMap<Key, Box<[u8]>>,
    bytes: usize,
    /// How many rows came ahead lately, and from where to where.
    ahead: u32,
    fetched: Range<Key>,
}

impl Default for KnownExtents {
    fn default() -> Self {
        let (known, rows) = (RangeSet::new(), BTreeMap::new());
        Self { known, rows, bytes: 0, ahead: AHEAD.start, fetched: (0, 0)..(0, 0) }
    }
}

/// What is known of the beginning of a part of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KnownRows {
    pub(super) rows: Vec<Row>,
    /// The part has no others.
    pub(super) is_end: bool,
}

fn row_of((key, value): (&Key, &impl AsRef<[u8]>)) -> Row {
    (Key::row(key), value.as_ref().into())
}

/// The key before another one.
fn before((ino, first): Key) -> Option<Key> {
    match first.checked_sub(1) {
        Some(first) => Some((ino, first)),
        None => ino.checked_sub(1).map(|ino| (ino, u64::MAX)),
    }
}

/// The key behind another one.
fn behind((ino, first): Key) -> Key {
    match first.checked_add(1) {
        Some(next) => (ino, next),
        None => (ino.saturating_add(1), 0),
    }
}

/// A range of rows as one of keys.
fn keys((from, to): &KeyRange<'_>) -> Range<Key> {
    let from = match from {
        Bound::Included(from) => Key::of(from),
        Bound::Excluded(from) => behind(Key::of(from)),
        Bound::Unbounded => (0, 0),
    };
    let to = match to {
        Bound::Included(to) => behind(Key::of(to)),
        Bound::Excluded(to) => Key::of(to),
        Bound::Unbounded => (u64::MAX, u64::MAX),
    };
    from..to.max(from)
}

impl KnownExtents {
    /// The store says this of a part of the table: it has these rows and no others.
    fn put(&mut self, part: Range<Key>, rows: &[Row]) {
        let bytes: usize = rows.iter().map(|(_, value)| value.len()).sum();
        let is_long = rows.iter().any(|(_, value)| value.len() > VALUE_BYTES_MAX);
        if part.is_empty() || is_long || rows.len() > ROWS_MAX {
            return;
        }
        if self.rows.len() + rows.len() > ROWS_MAX || self.bytes + bytes > BYTES_MAX {
            self.clear();
        }
        self.known.insert(part);
        for (row, value) in rows {
            let before = self.rows.insert(Key::of(row), value.clone());
            self.bytes += value.len();
            self.bytes -= before.map_or(0, |value| value.len());
        }
    }

    /// The store gave these rows of the beginning of a part, or all of them.
    pub(super) fn put_first(&mut self, part: &KeyRange<'_>, rows: &[Row], is_end: bool) {
        let mut part = keys(part);
        match rows.last() {
            _ if is_end => {}
            Some((last, _)) => part.end = behind(Key::of(last)),
            None => return,
        }
        self.fetched = part.clone();
        self.put(part, rows);
    }

    /// The store gave the last row of a part, if it has one.
    pub(super) fn put_last(&mut self, part: &KeyRange<'_>, last: Option<&Row>) {
        let mut part = keys(part);
        if let Some((last, _)) = last {
            part.start = Key::of(last);
        }
        self.put(part, last.map(std::slice::from_ref).unwrap_or_default());
    }

    /// What the store says of a row, if that is known: its value, or that there is none.
    pub(super) fn get(&self, row: &RowKey<'_>) -> Option<Option<&[u8]>> {
        let key = Key::of(row);
        self.known.contains(&key).then(|| self.rows.get(&key).map(|value| &**value))
    }

    /// Up to `max` rows from the beginning of a part, if some are known or it has none.
    pub(super) fn first_of(&self, part: &KeyRange<'_>, max: usize) -> Option<KnownRows> {
        let part = keys(part);
        let known = self.known.get(&part.start)?;
        let mut found = self.rows.range(part.start..part.end.min(known.end));
        let rows: Vec<Row> = found.by_ref().take(max).map(row_of).collect();
        let is_end = known.end >= part.end && found.next().is_none();
        (is_end || !rows.is_empty()).then_some(KnownRows { rows, is_end })
    }

    /// The last row of a part, or that it has none, if that is known.
    pub(super) fn last_of(&self, part: &KeyRange<'_>) -> Option<Option<Row>> {
        let part = keys(part);
        let known = self.known.get(&before(part.end)?)?;
        let last = self.rows.range(known.start.max(part.start)..part.end).next_back();
        (last.is_some() || known.start <= part.start).then(|| last.map(row_of))
    }

    /// How many rows behind a part to ask for, together with its last one, and where.
    pub(super) fn ahead_of(&mut self, part: &KeyRange<'_>) -> Option<(KeyRange<'static>, u32)> {
        let from = keys(part).end;
        if from.1 == u64::MAX || from.1 == 0 {
            return None;
        }
        let fetched = &self.fetched;
        let is_next = from.0 == fetched.end.0
            && from >= fetched.end
            && from.1 - fetched.end.1 <= fetched.end.1.saturating_sub(fetched.start.1);
        self.ahead = if is_next { (2 * self.ahead).min(AHEAD.end) } else { AHEAD.start };
        let to = Bound::Included(RowKey::pair(from.0, u64::MAX));
        Some(((Bound::Included(RowKey::pair(from.0, from.1)), to), self.ahead))
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.rows.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::between;
    use super::*;
    use weft_testkit::for_seeds;

    fn part(ino: u64, blocks: Range<u64>) -> KeyRange<'static> {
        between(RowKey::pair(ino, blocks.start), RowKey::pair(ino, blocks.end))
    }

    /// What a store with these rows would answer is what is known, wherever something is.
    #[test]
    fn what_is_known_is_what_the_store_says() {
        for_seeds(0..200, |rng| {
            let mut store = BTreeMap::<Key, Box<[u8]>>::new();
            for _ in 0..rng.below(60) {
                let value = vec![0; usize::try_from(rng.below(9)).expect("few")];
                store.insert((rng.below(4), rng.below(200)), value.into());
            }
            let mut known = KnownExtents::default();
            let (mut hits, mut misses) = (0, 0);
            for _ in 0..300 {
                let ino = rng.below(4);
                let from = rng.below(200);
                let part = part(ino, from..from + 1 + rng.below(40));
                let within = || store.range(keys(&part)).map(row_of);
                let max = 1 + usize::try_from(rng.below(6)).expect("few");
                match rng.below(3) {
                    0 => match known.first_of(&part, max) {
                        Some(KnownRows { rows, is_end }) => {
                            hits += 1;
                            let all: Vec<Row> = within().collect();
                            assert!(all.starts_with(&rows) && rows.len() <= max);
                            // More may be unknown, and there may be none of it.
                            assert!(if is_end {
                                rows.len() == all.len()
                            } else {
                                !rows.is_empty()
                            });
                        }
                        None => {
                            misses += 1;
                            let rows: Vec<Row> = within().take(max).collect();
                            known.put_first(&part, &rows, rows.len() == within().count());
                        }
                    },
                    1 => match known.last_of(&part) {
                        Some(last) => {
                            hits += 1;
                            assert_eq!(last, within().next_back());
                        }
                        None => {
                            misses += 1;
                            known.put_last(&part, within().next_back().as_ref());
                        }
                    },
                    _ => {
                        let row = RowKey::pair(ino, from);
                        if let Some(value) = known.get(&row) {
                            hits += 1;
                            assert_eq!(value, store.get(&(ino, from)).map(|value| &**value));
                        }
                    }
                }
            }
            assert!(hits > 20 && misses > 20, "{hits} {misses}");
        });
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut known = KnownExtents::default();
        let row = |first: u64, len: usize| (RowKey::pair(1, first), vec![0; len].into());
        for first in 0..3 * ROWS_MAX as u64 {
            known.put_last(&part(1, first..first + 1), Some(&row(first, 1000)));
            assert!(known.rows.len() <= ROWS_MAX && known.bytes <= BYTES_MAX);
            assert!(known.get(&RowKey::pair(1, first)).is_some());
        }
        assert_eq!(known.get(&RowKey::pair(1, 0)), None);
        known.put_last(&part(2, 0..9), Some(&row(8, VALUE_BYTES_MAX + 1)));
        assert_eq!(known.get(&RowKey::pair(2, 8)), None, "it is long");
    }

    #[test]
    fn more_rows_are_asked_for_ahead_of_those_that_follow_each_other() {
        let mut known = KnownExtents::default();
        let row = |first: u64| (RowKey::pair(1, first), [].into());
        let mut ahead = |block: u64| {
            let (range, max) = known.ahead_of(&part(1, 0..block)).expect("some");
            let from = range.0.clone();
            let rows: Vec<Row> = (0..u64::from(max)).map(|n| row(block + 10 * n)).collect();
            known.put_first(&range, &rows, false);
            assert_eq!(from, Bound::Included(RowKey::pair(1, block)));
            max
        };
        assert_eq!([ahead(5), ahead(80), ahead(245), ahead(10_000)], [8, 16, 32, 8]);
        assert_eq!(known.ahead_of(&part(1, 0..u64::MAX)), None, "nothing is behind it");
    }
}
