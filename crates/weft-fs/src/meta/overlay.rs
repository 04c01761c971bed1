//! Changes that wait in memory: the new contents of rows, in front of the store.
//!
//! An overlay has, for each table, the rows that changed, in the order of their keys; a row that is
//! removed is there as well, without a value. A row in an overlay hides the layers below: the
//! changes that a commit carries to the store now, and the store.
//!
//! ```text
//!                                 removed, and below there is none
//!   no entry ◀────────────────────────────────────────────────┐
//!      │ put, remove                                          │
//!      └──────────▶ due ── part sent ──▶ sent ── changes again ──▶ due …
//!                    └───────── freeze ───┴──▶ in the frozen overlay ── commit ──▶ in the store
//! ```
//!
//! A row that is made and removed before its change was sent leaves nothing. The rows that are
//! *sent* are in the store's open transaction already, and nowhere else yet: a part of the changes
//! goes there early if their pages must be counted ([`super::room`]).
//!
//! *Bounds.* An overlay counts its memory, and the pages that its due rows may change at most: a
//! row of a file that the store does not know comes after all other rows, and takes its share of
//! new pages; any other row may lie on a page of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::{Bound, RangeBounds as _};

use crate::format::block::BLOCK_BYTES;

use super::rows::{KeyRange, RowChange, RowKey, TABLES, TableId};

/// Memory of an entry besides its name and value: key, value and the share of a node of the map,
/// and what the allocator keeps.
const ENTRY_BYTES: u64 = 128;
/// Bytes of a row besides its name and value, at most.
const KEY_BYTES: u64 = 40;
/// Bytes of pages for a byte of rows ([`super::room`]).
const PAGES_FOR_ROWS: u64 = 3;
/// Pages changed by a row that lies among other rows: its own, and its share of those above.
const PAGES_OF_ROW: u64 = 2;

/// What is to become of a row.
#[derive(Debug)]
struct Entry {
    value: Option<Box<[u8]>>,
    /// Whether the row is below.
    is_below: bool,
    /// Whether the row is in the store's open transaction, with its present or an earlier value.
    was_sent: bool,
    /// The most bytes of pages that it changes. 0: this value was sent.
    pages: u64,
}

impl Entry {
    fn bytes(&self, key: &RowKey<'_>) -> u64 {
        let value = self.value.as_ref().map_or(0, |value| value.len());
        ENTRY_BYTES + (key.name.len() + value) as u64
    }

    fn is_due(&self) -> bool {
        self.pages > 0
    }
}

/// Rows that changed.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    tables: [BTreeMap<RowKey<'static>, Entry>; TABLES],
    /// Rows that each table has more than below.
    grown: [i64; TABLES],
    bytes: u64,
    due_pages: u64,
}

/// The rows of a table that an overlay has.
type OverlayRows<'a> = &'a BTreeMap<RowKey<'a>, Entry>;

impl Overlay {
    /// The entries, compared with keys that live as long as this borrow.
    fn of<'a>(&'a self, table: TableId) -> OverlayRows<'a> {
        &self.tables[table as usize]
    }

    /// What is to become of a row: its value, or that it is removed. None: the layers below stay.
    pub(super) fn get<'a>(&'a self, table: TableId, key: &RowKey<'a>) -> Option<Option<&'a [u8]>> {
        self.of(table).get(key).map(|entry| entry.value.as_deref())
    }

    /// The rows of a part of a table, in the order of their keys.
    pub(super) fn range<'a>(
        &'a self,
        table: TableId,
        range: &'a KeyRange<'_>,
    ) -> impl DoubleEndedIterator<Item = (&'a RowKey<'a>, Option<&'a [u8]>)> {
        let bounds: (Bound<&'a RowKey<'a>>, Bound<&'a RowKey<'a>>) =
            (range.start_bound(), range.end_bound());
        let rows = self.of(table).range::<RowKey<'a>, _>(bounds);
        rows.map(|(key, entry)| (key, entry.value.as_deref()))
    }

    /// A row gets a value, or is removed. `is_below`: whether the store or a commit has it, if this
    /// overlay does not know it. `is_fresh`: it is a row of a file that the store does not know.
    pub(super) fn set(
        &mut self,
        table: TableId,
        key: RowKey<'_>,
        value: Option<Box<[u8]>>,
        is_below: bool,
        is_fresh: bool,
    ) {
        let row_bytes =
            KEY_BYTES + (key.name.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
        let among_others = if is_fresh { 0 } else { PAGES_OF_ROW * BLOCK_BYTES };
        let pages = among_others + PAGES_FOR_ROWS * row_bytes;
        let (bytes, grown) = (&mut self.bytes, &mut self.grown[table as usize]);
        match self.tables[table as usize].entry(key.into_owned()) {
            Slot::Vacant(slot) => {
                if value.is_none() && !is_below {
                    return;
                }
                let entry = Entry { value, is_below, was_sent: false, pages };
                *bytes += entry.bytes(slot.key());
                *grown += entry.growth();
                self.due_pages += pages;
                slot.insert(entry);
            }
            Slot::Occupied(mut slot) => {
                *bytes -= slot.get().bytes(slot.key());
                *grown -= slot.get().growth();
                self.due_pages -= slot.get().pages;
                let Entry { is_below, was_sent, .. } = *slot.get();
                if value.is_none() && !is_below && !was_sent {
                    slot.remove();
                    return;
                }
                *slot.get_mut() = Entry { value, is_below, was_sent, pages };
                *bytes += slot.get().bytes(slot.key());
                *grown += slot.get().growth();
                self.due_pages += pages;
            }
        }
    }

    /// Bytes of memory, about.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes of pages that the rows change which are due.
    pub(super) fn due_pages(&self) -> u64 {
        self.due_pages
    }

    /// By how many rows a table has grown.
    pub(super) fn growth(&self, table: TableId) -> i64 {
        self.grown[table as usize]
    }

    /// Up to `max` due rows after a row of the same overlay, in the order of tables and keys.
    pub(super) fn due_after(
        &self,
        after: Option<&(TableId, RowKey<'static>)>,
        max: usize,
    ) -> Vec<RowChange> {
        let mut due = Vec::new();
        for table in TableId::ALL {
            let first = match after {
                Some((of, _)) if table < *of => continue,
                Some((of, key)) if table == *of => Bound::Excluded(key),
                _ => Bound::Unbounded,
            };
            let rows =
                self.tables[table as usize].range::<RowKey<'static>, _>((first, Bound::Unbounded));
            let rows = rows.filter(|(_, entry)| entry.is_due()).take(max - due.len());
            due.extend(rows.map(|(key, entry)| RowChange {
                table,
                key: key.clone(),
                value: entry.value.clone(),
            }));
            if due.len() == max {
                break;
            }
        }
        due
    }

    /// All rows that were due are in the store's open transaction.
    pub(super) fn sent(&mut self) {
        for entry in self.tables.iter_mut().flat_map(BTreeMap::values_mut) {
            entry.was_sent |= entry.is_due();
            entry.pages = 0;
        }
        self.due_pages = 0;
    }
}

impl Entry {
    fn growth(&self) -> i64 {
        i64::from(self.value.is_some()) - i64::from(self.is_below)
    }
}
