//! Rows that the store gave lately.
//!
//! An operation looks at some rows again and again: the folder of a name, a name that is to be
//! free, attributes that a file does not have. What the store says of a row holds until the next
//! batch ends, and while no other node changes it. A row has one slot, which it shares with others;
//! so there is a bound, and no order to keep.

use std::hash::Hasher as _;

use weft_rt::rng::Fold;

use super::known_extents::KnownExtents;
use super::rows::{RowKey, TableId};

/// Rows that are kept.
const SLOTS: usize = 256;
/// The longest value that is kept.
const VALUE_BYTES_MAX: usize = 512;

/// A row, or that there is none.
struct Recent {
    table: TableId,
    key: RowKey<'static>,
    value: Option<Box<[u8]>>,
}

/// Some of the rows that the store gave since the last batch ended.
pub(crate) struct RecentRows {
    slots: Box<[Option<Recent>]>,
    /// Parts of the table of extents; of a keeper that is somewhere else.
    pub(super) extents: KnownExtents,
    age: u64,
}

impl Default for RecentRows {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| None).collect();
        Self { slots, extents: KnownExtents::default(), age: 0 }
    }
}

fn slot(table: TableId, key: &RowKey<'_>) -> usize {
    let mut hash = Fold::default();
    hash.write_u64(table as u64 ^ key.first << 4);
    key.name.chunks(8).for_each(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        hash.write_u64(u64::from_le_bytes(word));
    });
    hash.write_u64(key.second);
    usize::try_from(hash.finish() % SLOTS as u64).expect("few slots")
}

impl RecentRows {
    /// What the store says of a row, if that is known: its value, or that there is none.
    pub(super) fn get(&self, table: TableId, key: &RowKey<'_>) -> Option<Option<&[u8]>> {
        if table == TableId::Extents
            && let Some(known) = self.extents.get(key)
        {
            return Some(known);
        }
        let recent = self.slots[slot(table, key)].as_ref()?;
        (recent.table == table && recent.key == *key).then_some(recent.value.as_deref())
    }

    /// The store says this of a row.
    pub(super) fn put(&mut self, table: TableId, key: RowKey<'_>, value: Option<Box<[u8]>>) {
        if value.as_ref().is_none_or(|value| value.len() <= VALUE_BYTES_MAX) {
            let slot = &mut self.slots[slot(table, &key)];
            *slot = Some(Recent { table, key: key.into_owned(), value });
        }
    }

    /// The store may say anything else from now on: a batch ends, or another node may have changed
    /// rows.
    pub(crate) fn clear(&mut self) {
        self.age += 1;
        self.slots.fill_with(|| None);
        self.extents.clear();
    }

    /// How often all was forgotten: what was asked for before is not to be put.
    pub(super) fn age(&self) -> u64 {
        self.age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_known_until_another_one_has_its_slot_or_a_batch_ends() {
        let mut rows = RecentRows::default();
        let key = RowKey::named(7, b"name");
        assert_eq!(rows.get(TableId::Names, &key), None);
        rows.put(TableId::Names, key.clone(), None);
        rows.put(TableId::Inodes, RowKey::number(7), Some([1, 2].into()));
        assert_eq!(rows.get(TableId::Names, &key), Some(None));
        assert_eq!(rows.get(TableId::Xattrs, &key), None);
        assert_eq!(rows.get(TableId::Inodes, &RowKey::number(7)), Some(Some(&[1, 2][..])));
        rows.put(TableId::Inodes, RowKey::number(8), Some(vec![0; VALUE_BYTES_MAX + 1].into()));
        assert_eq!(rows.get(TableId::Inodes, &RowKey::number(8)), None, "it is long");
        (0..10_000).for_each(|ino| rows.put(TableId::Inodes, RowKey::number(ino), None));
        let known =
            (0..10_000).filter(|ino| rows.get(TableId::Inodes, &RowKey::number(*ino)).is_some());
        assert!((SLOTS / 2..=SLOTS).contains(&known.count()));
        rows.clear();
        assert_eq!(rows.get(TableId::Inodes, &RowKey::number(9_999)), None);
    }
}
