//! The keeper's half of the metadata: the database, and its file.
//!
//! It takes changes of rows as plain data ([`weft_wire`]), and applies the parts of a batch all
//! or none: they go to one transaction of redb, which ends with the batch. Reads see the store
//! after the last batch, without the open transaction. A node in the same process calls it
//! ([`super::reach`]); nodes elsewhere send messages ([`super::server`]).
//!
//! All of this is synchronous, and runs on a fiber, one call at a time: redb's locks are never met
//! by another call while one waits for a page.

use std::any::Any;
use std::cell::RefCell;
use std::ops::{Bound, RangeBounds as _};

use redb::{
    Builder, Database, Range, ReadOnlyTable, ReadTransaction, ReadableDatabase as _,
    ReadableTable as _, ReadableTableMetadata as _, TableError, Value, WriteTransaction,
};
use weft_array::{Array, Id};
use weft_rt::fiber;

use super::header::{Areas, HeaderFields};
use super::image::Image;
use super::room;
use super::rows::{
    ANEW, BAD, DISKS, EXTENTS, INODES, KeyRange, MAPS, NAMES, ORPHANS, PARTS, POSITIONS, RINGS,
    RowChange, STATE, SYMLINKS, StoreKey, TABLES, Table, TableId, XATTRS, by_table,
};
use crate::error::{InDatabase as _, Result};

/// The fewest rows that are put into a table in one go.
const RUN_MIN: usize = 8;
/// The part of the memory for metadata that redb itself has, in which pages are found fastest; less
/// if the database is small ([`room`]).
const REDB_SHARE: u64 = 4;

/// The tables as the last batch left them.
struct Snapshot([Option<Box<dyn Any>>; TABLES]);

impl Snapshot {
    fn new(db: &Database) -> Result<Self> {
        fn open<K: StoreKey + 'static, V: Value + 'static>(
            reading: &ReadTransaction,
            table: &Table<K, V>,
        ) -> Result<Option<Box<dyn Any>>> {
            match reading.open_table(table.definition) {
                Ok(table) => Ok(Some(Box::new(table))),
                // Older versions had fewer tables.
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error).db(),
            }
        }
        let reading = db.begin_read().db()?;
        Ok(Self([
            open(&reading, &STATE)?,
            open(&reading, &DISKS)?,
            open(&reading, &INODES)?,
            open(&reading, &NAMES)?,
            open(&reading, &POSITIONS)?,
            open(&reading, &XATTRS)?,
            open(&reading, &SYMLINKS)?,
            open(&reading, &PARTS)?,
            open(&reading, &EXTENTS)?,
            open(&reading, &ORPHANS)?,
            open(&reading, &ANEW)?,
            open(&reading, &MAPS)?,
            open(&reading, &BAD)?,
            open(&reading, &RINGS)?,
        ]))
    }

    fn table<K: StoreKey, V: Value>(&self, table: &Table<K, V>) -> Option<&ReadOnlyTable<K, V>> {
        self.0[table.id as usize].as_ref()?.downcast_ref()
    }
}

/// The store, and its file.
pub(super) struct Keeper {
    pub(super) image: Image,
    db: Database,
    /// What was applied of the batch that is under way.
    open: RefCell<Option<WriteTransaction>>,
    /// None while a batch ends.
    snapshot: RefCell<Option<Snapshot>>,
}

/// Puts the first of these rows into a table if at least [`RUN_MIN`] of them come to lie between
/// two rows of the table, or behind the last: then each page is made once, and not changed by each
/// row. Returns how many these are.
fn put_run<K: StoreKey, V: Value>(
    table: &mut redb::Table<'_, K, V>,
    rows: &[RowChange],
) -> Result<usize> {
    let Some(fewest) = rows.get(..RUN_MIN) else { return Ok(0) };
    if fewest.iter().any(|row| row.value.is_none()) {
        return Ok(0);
    }
    let mut cursor = table.lower_bound_mut(Bound::Included(K::of(&rows[0].key))).db()?;
    let next = cursor.peek_next().db()?;
    let next = next.map(|(key, _)| K::row(&key.value()).into_owned());
    let is_before = |row: &RowChange| next.as_ref().is_none_or(|next| row.key < *next);
    if !is_before(&fewest[RUN_MIN - 1]) {
        return Ok(0);
    }
    let mut run = 0;
    for RowChange { key, value, .. } in rows.iter().take_while(|row| is_before(row)) {
        let Some(value) = value else { break };
        cursor.insert_before(K::of(key), V::from_bytes(value)).db()?;
        run += 1;
    }
    cursor.close().db()?;
    Ok(run)
}

/// Removes the first of these rows from a table if at least [`RUN_MIN`] rows that follow each other
/// in the table are removed: then each page is changed once. Returns how many these are.
fn remove_run<K: StoreKey, V: Value>(
    table: &mut redb::Table<'_, K, V>,
    rows: &[RowChange],
) -> Result<usize> {
    let Some(fewest) = rows.get(..RUN_MIN) else { return Ok(0) };
    if fewest.iter().any(|row| row.value.is_some()) {
        return Ok(0);
    }
    let mut run = 0;
    let stored = table.range::<K::SelfType<'_>>(K::of(&rows[0].key)..).db()?;
    for (row, stored) in rows.iter().take_while(|row| row.value.is_none()).zip(stored) {
        let (key, _) = stored.db()?;
        if K::row(&key.value()) != row.key {
            break;
        }
        run += 1;
    }
    if run < RUN_MIN {
        return Ok(0);
    }
    let range = K::of(&rows[0].key)..=K::of(&rows[run - 1].key);
    table.retain_in::<K::SelfType<'_>, _>(range, |_, _| false).db()?;
    Ok(run)
}

impl Keeper {
    /// Opens the database on an array, or makes it. About `cache_bytes` of it may be in memory.
    pub(super) async fn open(
        array: Array,
        fs_id: Id,
        (areas, stored): (&Areas, HeaderFields),
        cache_bytes: u64,
    ) -> Result<Self> {
        let capacity = areas.db.bytes();
        let of_redb = (cache_bytes / REDB_SHARE).min(room::reserve_bytes(capacity));
        let image = Image::open(array, fs_id, areas, stored, cache_bytes - of_redb).await?;
        let file = image.clone();
        let made = fiber::run(move || {
            let mut builder = Builder::new();
            builder.set_cache_size(usize::try_from(of_redb).unwrap_or(usize::MAX));
            let db = builder.create_with_backend(file).db()?;
            let snapshot = RefCell::new(Some(Snapshot::new(&db)?));
            Result::Ok((db, snapshot))
        });
        let (db, snapshot) = made.await?;
        image.write_epochs().await?;
        Ok(Self { image, db, open: RefCell::default(), snapshot })
    }

    /// The value of a row, as the store keeps it.
    pub(super) fn value<'k, K: StoreKey, V: Value + 'static>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
    ) -> Result<Option<Box<[u8]>>> {
        self.row(table, key, |value| V::as_bytes(&value).as_ref().into())
    }

    /// The result of `look` for a row.
    pub(super) fn row<'k, K: StoreKey, V: Value, T>(
        &self,
        table: &Table<K, V>,
        key: &K::SelfType<'k>,
        look: impl FnOnce(V::SelfType<'_>) -> T,
    ) -> Result<Option<T>> {
        let snapshot = self.snapshot.borrow();
        let table = snapshot.as_ref().and_then(|snapshot| snapshot.table(table));
        let Some(table) = table else { return Ok(None) };
        Ok(table.get(key).db()?.map(|row| look(row.value())))
    }

    /// The rows of a part of a table.
    pub(super) fn rows<K: StoreKey, V: Value>(
        &self,
        table: &Table<K, V>,
        range: &KeyRange<'_>,
    ) -> Result<Option<Range<'static, K, V>>> {
        let snapshot = self.snapshot.borrow();
        let table = snapshot.as_ref().and_then(|snapshot| snapshot.table(table));
        let Some(table) = table else { return Ok(None) };
        let bounds: (Bound<K::SelfType<'_>>, Bound<K::SelfType<'_>>) =
            (range.start_bound().map(K::of), range.end_bound().map(K::of));
        table.range::<K::SelfType<'_>>(bounds).db().map(Some)
    }

    /// How many rows a table has.
    pub(super) fn len<K: StoreKey, V: Value>(&self, table: &Table<K, V>) -> Result<u64> {
        let snapshot = self.snapshot.borrow();
        let table = snapshot.as_ref().and_then(|snapshot| snapshot.table(table));
        table.map_or(Ok(0), |table| table.len().db())
    }

    /// Makes all tables.
    pub(super) fn create_tables(&self) -> Result<()> {
        TableId::ALL.iter().try_for_each(|table| self.apply_to(*table, &[]))
    }

    /// Takes rows of a batch, in the order of tables and keys.
    pub(super) fn take(&self, rows: &[RowChange]) -> Result<()> {
        let of_tables = rows.chunk_by(|one, next| one.table == next.table);
        of_tables.into_iter().try_for_each(|rows| self.apply_to(rows[0].table, rows))
    }

    /// Forgets what was taken of the batch.
    pub(super) fn discard(&self) -> Result<()> {
        let open = self.open.take();
        open.map_or(Ok(()), |open| open.abort().db())
    }

    fn apply_to(&self, table: TableId, rows: &[RowChange]) -> Result<()> {
        fn apply<K: StoreKey, V: Value>(
            open: &WriteTransaction,
            table: &Table<K, V>,
            rows: &[RowChange],
        ) -> Result<()> {
            let mut table = open.open_table(table.definition).db()?;
            let (mut rest, mut singly) = (rows, 0);
            // After each look for a run that finds none, twice as many rows go by.
            let mut until_next_look = 1;
            while let Some((RowChange { key, value, .. }, behind)) = rest.split_first() {
                if singly == 0 {
                    let run = match value {
                        Some(_) => put_run(&mut table, rest)?,
                        None => remove_run(&mut table, rest)?,
                    };
                    rest = &rest[run..];
                    until_next_look = if run > 0 { 1 } else { 2 * until_next_look };
                    singly = until_next_look;
                    continue;
                }
                match value {
                    Some(value) => drop(table.insert(K::of(key), V::from_bytes(value)).db()?),
                    None => drop(table.remove(K::of(key)).db()?),
                }
                (rest, singly) = (behind, singly - 1);
            }
            Ok(())
        }
        let mut open = self.open.borrow_mut();
        let open = match &mut *open {
            Some(open) => open,
            none => {
                let mut open = self.db.begin_write().db()?;
                open.set_two_phase_commit(true);
                none.insert(open)
            }
        };
        by_table!(table, |table| apply(open, table, rows))
    }

    /// Ends a batch: reads see it from now on, and it is durable when the file's next epochs are.
    /// With the last one it is stored which pages are free, and the next mount need not find out.
    pub(super) fn end(&self, is_last: bool) -> Result<()> {
        // Who reads an older state keeps the pages that the batch has freed.
        self.snapshot.take();
        if let Some(mut open) = self.open.take() {
            open.set_quick_repair(is_last);
            open.commit().db()?;
        }
        self.snapshot.replace(Some(Snapshot::new(&self.db)?));
        Ok(())
    }
}

impl Drop for Keeper {
    /// redb would bring its file into order, which only a fiber could do. What is not committed is
    /// not to be there.
    fn drop(&mut self) {
        self.image.close();
    }
}
