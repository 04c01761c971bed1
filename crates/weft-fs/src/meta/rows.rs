//! Tables, and keys of their rows: as messages have them ([`weft_wire`]), and as redb does.

use std::ops::Bound;

use redb::{Key, TableDefinition, Value};
pub(super) use weft_wire::{Key as RowKey, KeyRange, RowChange, TABLES, Table as TableId};

/// Bytes as redb's types name them.
pub(super) type Bytes = &'static [u8];

/// From one key to before another one.
pub(super) fn between<'a>(from: RowKey<'a>, to: RowKey<'a>) -> KeyRange<'a> {
    (Bound::Included(from), Bound::Excluded(to))
}

/// From a key on.
pub(super) fn from<'a>(first: RowKey<'a>) -> KeyRange<'a> {
    (Bound::Included(first), Bound::Unbounded)
}

/// All keys.
pub(super) fn all() -> KeyRange<'static> {
    (Bound::Unbounded, Bound::Unbounded)
}

/// Whether no key can be in a range.
pub(super) fn is_empty((from, to): &KeyRange<'_>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Excluded(to)) => from >= to,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}

/// The first number of all keys that can be in a range, if they have the same one.
pub(super) fn number_of((from, to): &KeyRange<'_>) -> Option<u64> {
    let (Bound::Included(from) | Bound::Excluded(from)) = from else { return None };
    let is_within = match to {
        Bound::Included(to) => to.first == from.first,
        Bound::Excluded(to) => {
            let is_next = Some(to.first) == from.first.checked_add(1);
            to.first == from.first || is_next && to.second == 0 && to.name.is_empty()
        }
        Bound::Unbounded => false,
    };
    is_within.then_some(from.first)
}

/// A type of keys of the store.
pub(super) trait StoreKey: Key + 'static {
    /// Such a key as that of a row.
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a>;

    /// The key of a row as such a key. It is one ([`StoreKey::is_key`]).
    fn of<'a>(row: &'a RowKey<'_>) -> Self::SelfType<'a>;

    /// Whether a row can have this key: it has nothing that such a key has not.
    fn is_key(row: &RowKey<'_>) -> bool;
}

impl StoreKey for u64 {
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::number(*key)
    }

    fn of(row: &RowKey<'_>) -> u64 {
        row.first
    }

    fn is_key(row: &RowKey<'_>) -> bool {
        row.name.is_empty() && row.second == 0
    }
}

impl StoreKey for &'static str {
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::named(0, key.as_bytes())
    }

    fn of<'a>(row: &'a RowKey<'_>) -> &'a str {
        std::str::from_utf8(&row.name).expect("it was a str")
    }

    fn is_key(row: &RowKey<'_>) -> bool {
        row.first == 0 && row.second == 0 && std::str::from_utf8(&row.name).is_ok()
    }
}

impl StoreKey for (u64, Bytes) {
    fn row<'a>((first, name): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::named(*first, name)
    }

    fn of<'a>(row: &'a RowKey<'_>) -> (u64, &'a [u8]) {
        (row.first, &row.name)
    }

    fn is_key(row: &RowKey<'_>) -> bool {
        row.second == 0
    }
}

impl StoreKey for (u64, u64) {
    fn row<'a>((first, second): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::pair(*first, *second)
    }

    fn of(row: &RowKey<'_>) -> (u64, u64) {
        (row.first, row.second)
    }

    fn is_key(row: &RowKey<'_>) -> bool {
        row.name.is_empty()
    }
}

impl StoreKey for (u64, Bytes, u64) {
    fn row<'a>((first, name, second): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey { first: *first, name: (*name).into(), second: *second }
    }

    fn of<'a>(row: &'a RowKey<'_>) -> (u64, &'a [u8], u64) {
        (row.first, &row.name, row.second)
    }

    fn is_key(_: &RowKey<'_>) -> bool {
        true
    }
}

/// A table with the types that redb has for its rows.
pub(super) struct Table<K: Key + 'static, V: Value + 'static> {
    pub(super) id: TableId,
    pub(super) definition: TableDefinition<'static, K, V>,
}

impl<K: Key + 'static, V: Value + 'static> Table<K, V> {
    const fn new(id: TableId, name: &'static str) -> Self {
        Self { id, definition: TableDefinition::new(name) }
    }
}

pub(super) static STATE: Table<&str, u64> = Table::new(TableId::State, "state");
pub(super) static DISKS: Table<u64, Bytes> = Table::new(TableId::Disks, "disks");
pub(super) static INODES: Table<u64, Bytes> = Table::new(TableId::Inodes, "inodes");
pub(super) static NAMES: Table<(u64, Bytes), (u64, u32, u64)> = Table::new(TableId::Names, "names");
pub(super) static POSITIONS: Table<(u64, u64), Bytes> = Table::new(TableId::Positions, "positions");
pub(super) static XATTRS: Table<(u64, Bytes), Bytes> = Table::new(TableId::Xattrs, "xattrs");
pub(super) static SYMLINKS: Table<u64, Bytes> = Table::new(TableId::Symlinks, "symlinks");
pub(super) static PARTS: Table<(u64, Bytes, u64), Bytes> = Table::new(TableId::Parts, "parts");
pub(super) static EXTENTS: Table<(u64, u64), Bytes> = Table::new(TableId::Extents, "extents");
pub(super) static ORPHANS: Table<u64, ()> = Table::new(TableId::Orphans, "orphans");
pub(super) static ANEW: Table<u64, ()> = Table::new(TableId::Anew, "anew");
pub(super) static MAPS: Table<(u64, u64), u64> = Table::new(TableId::Maps, "maps");
pub(super) static BAD: Table<(u64, u64), ()> = Table::new(TableId::Bad, "bad");
pub(super) static RINGS: Table<(u64, u64), Bytes> = Table::new(TableId::Rings, "rings");

/// Calls something for a table of which only the number is known.
macro_rules! by_table {
    ($id:expr, |$table:ident| $call:expr) => {
        by_table!(
            $id,
            |$table| $call,
            [
                State STATE, Disks DISKS, Inodes INODES, Names NAMES, Positions POSITIONS,
                Xattrs XATTRS, Symlinks SYMLINKS, Parts PARTS, Extents EXTENTS, Orphans ORPHANS,
                Anew ANEW, Maps MAPS, Bad BAD, Rings RINGS
            ]
        )
    };
    ($id:expr, |$table:ident| $call:expr, [$($of:ident $known:ident),*]) => {
        match $id {
            $($crate::meta::rows::TableId::$of => {
                let $table = &$crate::meta::rows::$known;
                $call
            })*
        }
    };
}
pub(super) use by_table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_number_if_no_other_key_can_be_in_it() {
        let pair = RowKey::pair;
        assert_eq!(number_of(&between(pair(7, 3), pair(7, 9))), Some(7));
        assert_eq!(number_of(&between(RowKey::number(7), RowKey::number(8))), Some(7));
        assert_eq!(number_of(&between(pair(7, 3), pair(8, 1))), None);
        assert_eq!(number_of(&between(RowKey::number(7), RowKey::named(8, b"a"))), None);
        assert_eq!(number_of(&from(pair(7, 3))), None, "there may be other files behind it");
        assert_eq!(number_of(&all()), None);
        let behind = (Bound::Excluded(pair(7, 3)), Bound::Included(pair(7, u64::MAX)));
        assert_eq!(number_of(&behind), Some(7));
        let last = (Bound::Included(pair(u64::MAX, 0)), Bound::Included(pair(u64::MAX, 1)));
        assert_eq!(number_of(&last), Some(u64::MAX));
    }
}
