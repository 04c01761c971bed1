//! The metadata as an operation sees it: the changes that wait, the changes that a commit carries
//! to the store, and the store, as one; and rows that count as taking room.

use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

use redb::Value;

use super::changes::Changes;
use super::node::Node;
use super::reach::{Reach, StoredRows};
use super::room::row_bytes;
use super::rows::{
    ANEW, EXTENTS, INODES, KeyRange, MAPS, NAMES, ORPHANS, PARTS, POSITIONS, RowKey, SYMLINKS,
    StoreKey, Table, XATTRS, all, is_empty, number_of,
};
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;

/// The metadata, for one operation.
pub(crate) struct Tx<'a> {
    pub(super) node: &'a Node,
    pub(super) keeper: &'a Reach,
    pub(super) changes: &'a Changes,
}

impl<'a> Tx<'a> {
    /// `changes` hears of everything that changes.
    pub(super) fn new(node: &'a Node, keeper: &'a Reach, changes: &'a Changes) -> Self {
        Self { node, keeper, changes }
    }

    /// The result of `look` for a row.
    pub(super) fn find<'k, K: StoreKey, V: Value, T>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
        look: impl FnOnce(V::SelfType<'_>) -> T,
    ) -> Result<Option<T>> {
        let row = K::row(key);
        {
            let open = self.node.open();
            if let Some(value) = open.get(table.id, &row) {
                return Ok(value.map(|value| look(V::from_bytes(value))));
            }
        }
        if let Some(frozen) = self.node.frozen()
            && let Some(value) = frozen.get(table.id, &row)
        {
            return Ok(value.map(|value| look(V::from_bytes(value))));
        }
        if self.node.is_unknown_to_store(table.id.ino(&row)) {
            return Ok(None);
        }
        if let Some(value) = self.node.recent().get(table.id, &row) {
            return Ok(value.map(|value| look(V::from_bytes(value))));
        }
        let age = self.node.recent().age();
        let value = self.keeper.row(table, key)?;
        let said = value.as_deref().map(|value| look(V::from_bytes(value)));
        self.node.note_recent(age, table.id, row, value);
        Ok(said)
    }

    /// The rows that the store has in a part of a table.
    fn stored<K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        range: &KeyRange<'_>,
    ) -> Result<StoredRows<'a, K, V>> {
        // Behind the new files of this node there may be those of others.
        if table.id.is_by_file() && self.node.is_unknown_to_store(number_of(range)) {
            return Ok(StoredRows::None);
        }
        self.keeper.rows(table, range, self.node.recent_cell())
    }

    /// Whether there is a row.
    pub(super) fn has<'k, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
    ) -> Result<bool> {
        Ok(self.find(table, key, |_| ())?.is_some())
    }

    /// Calls `each` for the rows of a part of a table, in order, until it returns that it has
    /// enough.
    pub(super) fn scan<K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        range: &KeyRange<'_>,
        mut each: impl FnMut(K::SelfType<'_>, V::SelfType<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        if is_empty(range) {
            return Ok(());
        }
        let (open, frozen) = (self.node.open(), self.node.frozen());
        let mut newest = open.range(table.id, range).peekable();
        let older = frozen.iter().flat_map(|frozen| frozen.range(table.id, range));
        let mut older = older.peekable();
        let mut stored = self.stored(table, range)?;
        let mut below = stored.next()?;
        loop {
            // What lies above hides what lies below.
            let first = match (newest.peek(), older.peek()) {
                (Some((new, _)), Some((old, _))) => match new.cmp(old) {
                    Ordering::Less => newest.next(),
                    Ordering::Equal => {
                        older.next();
                        newest.next()
                    }
                    Ordering::Greater => older.next(),
                },
                (Some(_), None) => newest.next(),
                (None, _) => older.next(),
            };
            while let Some(row) = below.take() {
                let order =
                    first.map_or(Ordering::Less, |(first, _)| K::row(&row.key()).cmp(first));
                if order == Ordering::Less && each(row.key(), row.value())?.is_break() {
                    return Ok(());
                }
                if order == Ordering::Greater {
                    below = Some(row);
                    break;
                }
                below = stored.next()?;
            }
            match first {
                Some((key, Some(value))) => {
                    if each(K::of(key), V::from_bytes(value))?.is_break() {
                        return Ok(());
                    }
                }
                Some((_, None)) => {}
                None => return Ok(()),
            }
        }
    }

    /// The result of `look` for the last row of a part of a table.
    pub(super) fn last<K: StoreKey, V: Value, T>(
        &self,
        table: &Table<K, V>,
        mut range: KeyRange<'_>,
        look: impl FnOnce(K::SelfType<'_>, V::SelfType<'_>) -> T,
    ) -> Result<Option<T>> {
        let (open, frozen) = (self.node.open(), self.node.frozen());
        loop {
            if is_empty(&range) {
                return Ok(None);
            }
            let gone = {
                let newest = open.range(table.id, &range).next_back();
                let older =
                    frozen.as_ref().and_then(|frozen| frozen.range(table.id, &range).next_back());
                let above = match (newest, older) {
                    (Some(new), Some(old)) if old.0 > new.0 => Some(old),
                    (None, old) => old,
                    (new, _) => new,
                };
                let stored = self.stored(table, &range)?;
                match (above, stored.last()?) {
                    (above, Some(row))
                        if above.is_none_or(|(above, _)| *above < K::row(&row.key())) =>
                    {
                        return Ok(Some(look(row.key(), row.value())));
                    }
                    (None, _) => return Ok(None),
                    (Some((key, Some(value))), _) => {
                        return Ok(Some(look(K::of(key), V::from_bytes(value))));
                    }
                    (Some((key, None)), _) => key.clone().into_owned(),
                }
            };
            range.1 = Bound::Excluded(gone);
        }
    }

    /// How many rows a table has.
    pub(super) fn count<K: StoreKey, V: Value>(&self, table: &Table<K, V>) -> Result<u64> {
        let (frozen, batch) = (self.node.frozen(), self.node.batch());
        let (rows, has_frozen) = self.keeper.len(table, batch)?;
        let frozen = frozen.filter(|_| !has_frozen);
        let frozen = frozen.map_or(0, |frozen| frozen.growth(table.id));
        Ok(rows.saturating_add_signed(self.node.open().growth(table.id) + frozen))
    }

    /// A row gets this value, or is removed; `is_below`: whether there was one before.
    fn set(
        &self,
        table: &Table<impl StoreKey, impl Value>,
        row: RowKey<'_>,
        value: Option<Box<[u8]>>,
        is_below: bool,
    ) {
        let is_fresh = self.node.is_unknown_to_store(table.id.ino(&row));
        self.node.change(|open| open.set(table.id, row, value, is_below, is_fresh));
    }

    /// Stores a row of a table whose rows do not count as taking room.
    pub(super) fn store<'k, 'v, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
        value: &V::SelfType<'v>,
    ) -> Result<()> {
        self.changes.note(None);
        let is_below = self.has(table, key)?;
        self.set(table, K::row(key), Some(V::as_bytes(value).as_ref().into()), is_below);
        Ok(())
    }

    /// Removes such a row.
    pub(super) fn drop_row<'k, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
    ) -> Result<()> {
        self.changes.note(None);
        let is_below = self.has(table, key)?;
        self.set(table, K::row(key), None, is_below);
        Ok(())
    }

    /// Stores a row of a table whose rows count as taking room, and which belongs to a file or
    /// folder.
    pub(super) fn put<'k, 'v, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        ino: Ino,
        key: &K::SelfType<'k>,
        value: &V::SelfType<'v>,
    ) -> Result<()> {
        self.changes.note(Some(ino));
        let old = self.find(table, key, |old| row_bytes::<K, V>(key, &old))?;
        self.changes.note_row(old, Some(row_bytes::<K, V>(key, value)));
        self.set(table, K::row(key), Some(V::as_bytes(value).as_ref().into()), old.is_some());
        Ok(())
    }

    /// Stores or removes such a row, of which the caller knows what it was.
    pub(super) fn replace<'k, 'v, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        ino: Ino,
        key: &K::SelfType<'k>,
        (old, new): (Option<V::SelfType<'v>>, Option<V::SelfType<'v>>),
    ) {
        if old.is_none() && new.is_none() {
            return;
        }
        self.changes.note(Some(ino));
        let bytes = |value: &Option<V::SelfType<'v>>| {
            value.as_ref().map(|value| row_bytes::<K, V>(key, value))
        };
        self.changes.note_row(bytes(&old), bytes(&new));
        let value = new.map(|new| V::as_bytes(&new).as_ref().into());
        self.set(table, K::row(key), value, old.is_some());
    }

    /// Removes such a row; says whether there was one.
    pub(super) fn take<'k, K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        ino: Ino,
        key: &K::SelfType<'k>,
    ) -> Result<bool> {
        self.changes.note(Some(ino));
        let old = self.find(table, key, |old| row_bytes::<K, V>(key, &old))?;
        if old.is_some() {
            self.changes.note_row(old, None);
            self.set(table, K::row(key), None, true);
        }
        Ok(old.is_some())
    }

    /// The bytes of all rows that [`Tx::put`] stores, by a look at each of them.
    pub(crate) fn count_row_bytes(&self) -> Result<u64> {
        fn sum<K: StoreKey, V: Value>(tx: &Tx<'_>, table: &Table<K, V>) -> Result<u64> {
            let mut bytes = 0;
            tx.scan(table, &all(), |key, value| {
                bytes += row_bytes::<K, V>(&key, &value);
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(bytes)
        }
        Ok(sum(self, &INODES)?
            + sum(self, &NAMES)?
            + sum(self, &POSITIONS)?
            + sum(self, &XATTRS)?
            + sum(self, &SYMLINKS)?
            + sum(self, &PARTS)?
            + sum(self, &ORPHANS)?
            + sum(self, &ANEW)?
            + sum(self, &EXTENTS)?
            + sum(self, &MAPS)?)
    }

    /// Runs a part of an operation that changes nothing but what the RAID log has, or what recovery
    /// does not depend on: fsync needs no commit for it.
    pub(crate) fn logged<T>(&self, part: impl FnOnce() -> T) -> T {
        self.changes.logged(part)
    }

    /// The lines of a record, which existed before, have got another column.
    pub(crate) fn note_reshaped(&self, ino: Ino, first: u64, record: &Extent) {
        let lines = (0..record.lines).map(|line| first + line * record.k());
        lines.for_each(|block| self.changes.note_reshaped(ino, block));
    }
}
