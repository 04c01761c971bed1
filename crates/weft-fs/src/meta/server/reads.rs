//! What nodes read: rows, and how many a table has.
//!
//! Keys come from other machines: one that no row of its table can have ends the connection, before
//! the store is used. An answer has a bounded number of rows and bytes, and says whether there are
//! more.

use std::ops::{Bound, RangeBounds as _};

use redb::Value;
use weft_rt::fiber;
use weft_wire::{Answer, Row};

use super::{ConnectionEnd, Peer, Server};
use crate::error::{InDatabase as _, Result};
use crate::meta::ROWS_MAX;
use crate::meta::keeper::Keeper;
use crate::meta::remote::is_value;
use crate::meta::rows::{
    KeyRange, RowChange, RowKey, StoreKey, Table, TableId, by_table, is_empty,
};

/// The most bytes of values in an answer, unless one row has more.
const ANSWER_BYTES: usize = 256 << 10;
/// The longest name in a key.
const NAME_BYTES_MAX: usize = 1024;
/// The longest value.
const VALUE_BYTES_MAX: usize = 64 << 10;

impl Server {
    /// The value of a row.
    pub(super) async fn row(
        &self,
        table: TableId,
        key: &RowKey<'_>,
    ) -> std::result::Result<Answer, ConnectionEnd> {
        if !is_key_of(table, key) {
            return Err(ConnectionEnd);
        }
        let _using = self.using.acquire(1).await;
        let look = || by_table!(table, |of| row(&self.keeper, of, key));
        Ok(self.read(look, Answer::Row).await)
    }

    /// Rows of a range, up to `max`.
    pub(super) async fn rows(
        &self,
        table: TableId,
        range: &KeyRange<'_>,
        is_backward: bool,
        max: u32,
    ) -> std::result::Result<Answer, ConnectionEnd> {
        let is_known = |bound: Bound<&RowKey<'_>>| match bound {
            Bound::Unbounded => true,
            Bound::Included(key) | Bound::Excluded(key) => is_key_of(table, key),
        };
        if !is_known(range.start_bound()) || !is_known(range.end_bound()) {
            return Err(ConnectionEnd);
        }
        let max = usize::try_from(max).unwrap_or(usize::MAX).min(ROWS_MAX);
        let _using = self.using.acquire(1).await;
        let look = || by_table!(table, |of| rows(&self.keeper, of, range, is_backward, max));
        Ok(self.read(look, |(rows, is_end)| Answer::Rows { rows, is_end }).await)
    }

    /// How many rows a table has, and the next batch of the node.
    pub(super) async fn count(
        &self,
        peer: &Peer,
        table: TableId,
    ) -> std::result::Result<Answer, ConnectionEnd> {
        let _using = self.using.acquire(1).await;
        let next_batch = self.next_batch(peer)?;
        let look = || by_table!(table, |of| self.keeper.len(of));
        Ok(self.read(look, |rows| Answer::Count { rows, next_batch }).await)
    }

    /// Looks at the store. The caller holds `using`.
    async fn read<T>(
        &self,
        look: impl FnOnce() -> Result<T>,
        answer: impl FnOnce(T) -> Answer,
    ) -> Answer {
        self.result(fiber::run(look).await).map_or_else(|failed| failed, answer)
    }
}

fn is_key_of(table: TableId, key: &RowKey<'_>) -> bool {
    by_table!(table, |of| is_key(of, key))
}

fn is_key<K: StoreKey, V: Value>(_: &Table<K, V>, key: &RowKey<'_>) -> bool {
    key.name.len() <= NAME_BYTES_MAX && K::is_key(key)
}

/// Whether a row can be changed in this way.
pub(super) fn is_change(row: &RowChange) -> bool {
    fn is_sound<K: StoreKey, V: Value>(of: &Table<K, V>, row: &RowChange) -> bool {
        let is_sound = |value: &[u8]| value.len() <= VALUE_BYTES_MAX && is_value::<V>(value);
        is_key(of, &row.key) && row.value.as_deref().is_none_or(is_sound)
    }
    by_table!(row.table, |of| is_sound(of, row))
}

fn row<K: StoreKey, V: Value>(
    keeper: &Keeper,
    table: &Table<K, V>,
    key: &RowKey<'_>,
) -> Result<Option<Box<[u8]>>> {
    keeper.value(table, &K::of(key))
}

/// Rows of a range, up to `max`, and whether there are no more.
fn rows<K: StoreKey, V: Value>(
    keeper: &Keeper,
    table: &Table<K, V>,
    range: &KeyRange<'_>,
    is_backward: bool,
    max: usize,
) -> Result<(Vec<Row>, bool)> {
    let mut found = Vec::new();
    if is_empty(range) {
        return Ok((found, true));
    }
    let Some(mut stored) = keeper.rows(table, range)? else { return Ok((found, true)) };
    let mut bytes = 0;
    while found.len() < max.max(1) && bytes < ANSWER_BYTES {
        let row = if is_backward { stored.next_back() } else { stored.next() };
        let Some((key, value)) = row.transpose().db()? else { return Ok((found, true)) };
        let value: Box<[u8]> = V::as_bytes(&value.value()).as_ref().into();
        bytes += value.len();
        found.push((K::row(&key.value()).into_owned(), value));
    }
    Ok((found, false))
}
