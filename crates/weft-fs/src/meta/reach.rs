//! The keeper as the half of a node sees it, wherever it is.
//!
//! In the process of the node it is called. If it is somewhere else ([`super::remote`]), operations
//! wait for its answers on their fibers. Either way a row is the same, and the types of a table are
//! those of redb.

use std::cell::RefCell;

use redb::{AccessGuard, Range, Value};

use super::keeper::Keeper;
use super::recent_rows::RecentRows;
use super::remote::RemoteKeeper;
use super::remote_rows::RemoteRows;
use super::rows::{KeyRange, StoreKey, Table};
use crate::error::{InDatabase as _, Result};

/// How a node reaches its keeper.
pub(super) enum Reach {
    /// In this process.
    Here(Box<Keeper>),
    /// By messages.
    Remote(RemoteKeeper),
}

/// A row of the store.
pub(super) enum StoredRow<K: StoreKey, V: Value + 'static> {
    Here(AccessGuard<'static, K>, AccessGuard<'static, V>),
    Remote(weft_wire::Row),
}

impl<K: StoreKey, V: Value + 'static> StoredRow<K, V> {
    pub(super) fn key(&self) -> K::SelfType<'_> {
        match self {
            Self::Here(key, _) => key.value(),
            Self::Remote((key, _)) => K::of(key),
        }
    }

    pub(super) fn value(&self) -> V::SelfType<'_> {
        match self {
            Self::Here(_, value) => value.value(),
            Self::Remote((_, value)) => V::from_bytes(value),
        }
    }
}

/// Rows of a part of a table.
pub(super) enum StoredRows<'a, K: StoreKey, V: Value + 'static> {
    None,
    Here(Range<'static, K, V>),
    Remote(RemoteRows<'a>),
}

impl<K: StoreKey, V: Value + 'static> StoredRows<'_, K, V> {
    /// The next row.
    pub(super) fn next(&mut self) -> Result<Option<StoredRow<K, V>>> {
        match self {
            Self::None => Ok(None),
            Self::Here(rows) => {
                let row = rows.next().transpose().db()?;
                Ok(row.map(|(key, value)| StoredRow::Here(key, value)))
            }
            Self::Remote(rows) => Ok(rows.next::<K, V>()?.map(StoredRow::Remote)),
        }
    }

    /// The last row. Nothing else may be asked for then.
    pub(super) fn last(self) -> Result<Option<StoredRow<K, V>>> {
        match self {
            Self::None => Ok(None),
            Self::Here(mut rows) => {
                let row = rows.next_back().transpose().db()?;
                Ok(row.map(|(key, value)| StoredRow::Here(key, value)))
            }
            Self::Remote(rows) => Ok(rows.last::<K, V>()?.map(StoredRow::Remote)),
        }
    }
}

impl Reach {
    /// The keeper in this process.
    pub(super) fn here(&self) -> Option<&Keeper> {
        match self {
            Self::Here(keeper) => Some(keeper),
            Self::Remote(_) => None,
        }
    }

    /// The value of a row, as the store keeps it.
    pub(super) fn row<'k, K: StoreKey, V: Value + 'static>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
    ) -> Result<Option<Box<[u8]>>> {
        match self {
            Self::Here(keeper) => keeper.value(table, key),
            Self::Remote(keeper) => keeper.row::<K, V>(table.id, &K::row(key)),
        }
    }

    /// The rows of a part of a table. What `recent` has of them need not be asked for.
    pub(super) fn rows<'a, K: StoreKey, V: Value + 'static>(
        &'a self,
        table: &Table<K, V>,
        range: &KeyRange<'_>,
        recent: &'a RefCell<RecentRows>,
    ) -> Result<StoredRows<'a, K, V>> {
        match self {
            Self::Here(keeper) => {
                Ok(keeper.rows(table, range)?.map_or(StoredRows::None, StoredRows::Here))
            }
            Self::Remote(keeper) => Ok(StoredRows::Remote(keeper.rows(table.id, range, recent))),
        }
    }

    /// Numbers for new files of a keeper that has other nodes; none if it is here.
    pub(super) fn numbers(&self) -> Result<Option<std::ops::Range<u64>>> {
        match self {
            Self::Here(_) => Ok(None),
            Self::Remote(keeper) => keeper.numbers().map(Some),
        }
    }

    /// How many rows a table has, and whether the changes of a batch are among them that this node
    /// still keeps.
    pub(super) fn len<K: StoreKey, V: Value + 'static>(
        &self,
        table: &Table<K, V>,
        batch: u64,
    ) -> Result<(u64, bool)> {
        match self {
            Self::Here(keeper) => Ok((keeper.len(table)?, false)),
            Self::Remote(keeper) => {
                let (rows, next_batch) = keeper.len(table.id)?;
                Ok((rows, batch < next_batch))
            }
        }
    }
}
