//! Tables, and keys of their rows, as both halves of the metadata know them.
//!
//! A key of any table is a number, a name and a number; parts that a table does not use are zero or
//! empty. They are compared in this order, as redb compares its tuples. So one ordered map holds
//! the rows of any table, and a row can be sent to a store that is somewhere else: it borrows
//! nothing, and its value is the bytes that the store keeps.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Bound;

use redb::{Key, TableDefinition, Value};

use crate::format::inode::Ino;

/// Bytes as redb's types name them.
pub(super) type Bytes = &'static [u8];

/// The number of tables.
pub(super) const TABLES: usize = 13;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum TableId {
    State,
    Disks,
    Inodes,
    Names,
    Positions,
    Xattrs,
    Symlinks,
    Parts,
    Extents,
    Orphans,
    Anew,
    Maps,
    Bad,
}

impl TableId {
    /// All tables, in their order.
    pub(super) const ALL: [Self; TABLES] = [
        Self::State,
        Self::Disks,
        Self::Inodes,
        Self::Names,
        Self::Positions,
        Self::Xattrs,
        Self::Symlinks,
        Self::Parts,
        Self::Extents,
        Self::Orphans,
        Self::Anew,
        Self::Maps,
        Self::Bad,
    ];

    /// Whether the keys start with the number of a file or folder.
    pub(super) fn is_by_file(self) -> bool {
        !matches!(self, Self::State | Self::Disks | Self::Maps | Self::Bad)
    }

    /// The file or folder that a row belongs to, if it belongs to one.
    pub(super) fn ino(self, key: &RowKey<'_>) -> Option<Ino> {
        match self {
            Self::Maps => Some(key.second),
            _ => self.is_by_file().then_some(key.first),
        }
    }
}

/// The key of a row of any table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowKey<'a> {
    pub(super) first: u64,
    pub(super) name: Cow<'a, [u8]>,
    pub(super) second: u64,
}

impl Ord for RowKey<'_> {
    /// In the order of the fields. Each search in an overlay compares some twenty keys, most of
    /// which differ in a number.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        if self.first != other.first {
            return self.first.cmp(&other.first);
        }
        let (name, others) = (&*self.name, &*other.name);
        let by_name = match (name, others) {
            ([], []) => Ordering::Equal,
            _ => name.cmp(others),
        };
        by_name.then(self.second.cmp(&other.second))
    }
}

impl PartialOrd for RowKey<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// First and last key of a part of a table.
pub(super) type KeyRange<'a> = (Bound<RowKey<'a>>, Bound<RowKey<'a>>);

impl<'a> RowKey<'a> {
    /// A key that is a number, or the first key with this number.
    pub(super) fn number(first: u64) -> Self {
        Self::pair(first, 0)
    }

    /// A key of two numbers.
    pub(super) fn pair(first: u64, second: u64) -> Self {
        Self { first, name: Cow::Borrowed(&[]), second }
    }

    /// A key with a name, or the first with this one.
    pub(super) fn named(first: u64, name: &'a [u8]) -> Self {
        Self { first, name: Cow::Borrowed(name), second: 0 }
    }

    /// This key without borrowed parts.
    pub(super) fn into_owned(self) -> RowKey<'static> {
        let Self { first, name, second } = self;
        RowKey { first, name: Cow::Owned(name.into_owned()), second }
    }
}

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

/// A type of keys of the store.
pub(super) trait StoreKey: Key + 'static {
    /// Such a key as that of a row.
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a>;

    /// The key of a row as such a key.
    fn of<'a>(row: &'a RowKey<'_>) -> Self::SelfType<'a>;
}

impl StoreKey for u64 {
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::number(*key)
    }

    fn of(row: &RowKey<'_>) -> u64 {
        row.first
    }
}

impl StoreKey for &'static str {
    fn row<'a>(key: &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::named(0, key.as_bytes())
    }

    fn of<'a>(row: &'a RowKey<'_>) -> &'a str {
        std::str::from_utf8(&row.name).expect("it was a str")
    }
}

impl StoreKey for (u64, Bytes) {
    fn row<'a>((first, name): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::named(*first, name)
    }

    fn of<'a>(row: &'a RowKey<'_>) -> (u64, &'a [u8]) {
        (row.first, &row.name)
    }
}

impl StoreKey for (u64, u64) {
    fn row<'a>((first, second): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey::pair(*first, *second)
    }

    fn of(row: &RowKey<'_>) -> (u64, u64) {
        (row.first, row.second)
    }
}

impl StoreKey for (u64, Bytes, u64) {
    fn row<'a>((first, name, second): &Self::SelfType<'a>) -> RowKey<'a> {
        RowKey { first: *first, name: Cow::Borrowed(name), second: *second }
    }

    fn of<'a>(row: &'a RowKey<'_>) -> (u64, &'a [u8], u64) {
        (row.first, &row.name, row.second)
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

/// A row that changes: the half of a node tells the half of the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowChange {
    pub(super) table: TableId,
    pub(super) key: RowKey<'static>,
    /// Its value from now on, as the store keeps it. None: the row is removed.
    pub(super) value: Option<Box<[u8]>>,
}
