//! The open transaction as an operation sees it: the tables, and rows that count as taking room.

use std::cell::{RefCell, RefMut};

use redb::{Key, ReadableTable as _, Table, TableDefinition, Value, WriteTransaction};

use super::changes::Changes;
use super::room::row_bytes;
use crate::error::{InDatabase as _, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;

pub(super) type Bytes = &'static [u8];

const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");
const DISKS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("disks");
const INODES: TableDefinition<'_, u64, Bytes> = TableDefinition::new("inodes");
const NAMES: TableDefinition<'_, (u64, Bytes), (u64, u32, u64)> = TableDefinition::new("names");
const POSITIONS: TableDefinition<'_, (u64, u64), Bytes> = TableDefinition::new("positions");
const XATTRS: TableDefinition<'_, (u64, Bytes), Bytes> = TableDefinition::new("xattrs");
const PARTS: TableDefinition<'_, (u64, Bytes, u64), Bytes> = TableDefinition::new("parts");
const SYMLINKS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("symlinks");
const EXTENTS: TableDefinition<'_, (u64, u64), Bytes> = TableDefinition::new("extents");
const ORPHANS: TableDefinition<'_, u64, ()> = TableDefinition::new("orphans");
const ANEW: TableDefinition<'_, u64, ()> = TableDefinition::new("anew");
const BAD: TableDefinition<'_, (u64, u64), ()> = TableDefinition::new("bad");
const MAPS: TableDefinition<'_, (u64, u64), u64> = TableDefinition::new("maps");

/// A table, opened when an operation first needs it: to open one costs more than to read a row.
pub(super) struct Opened<'a, K: Key + 'static, V: Value + 'static> {
    definition: TableDefinition<'static, K, V>,
    table: RefCell<Option<Table<'a, K, V>>>,
}

impl<'a, K: Key, V: Value> Opened<'a, K, V> {
    fn new(definition: TableDefinition<'static, K, V>) -> Self {
        Self { definition, table: RefCell::new(None) }
    }

    fn get(&self, open: &'a WriteTransaction) -> Result<RefMut<'_, Table<'a, K, V>>> {
        let mut table = self.table.borrow_mut();
        if table.is_none() {
            *table = Some(open.open_table(self.definition).db()?);
        }
        Ok(RefMut::map(table, |table| table.as_mut().expect("just opened")))
    }
}

/// The open transaction, for one operation.
pub(crate) struct Tx<'a> {
    pub(super) open: &'a WriteTransaction,
    pub(super) changes: &'a Changes,
    pub(super) state: Opened<'a, &'static str, u64>,
    pub(super) disks: Opened<'a, u64, Bytes>,
    pub(super) inodes: Opened<'a, u64, Bytes>,
    pub(super) names: Opened<'a, (u64, Bytes), (u64, u32, u64)>,
    pub(super) positions: Opened<'a, (u64, u64), Bytes>,
    pub(super) xattrs: Opened<'a, (u64, Bytes), Bytes>,
    pub(super) symlinks: Opened<'a, u64, Bytes>,
    pub(super) parts: Opened<'a, (u64, Bytes, u64), Bytes>,
    pub(super) extents: Opened<'a, (u64, u64), Bytes>,
    pub(super) orphans: Opened<'a, u64, ()>,
    pub(super) anew: Opened<'a, u64, ()>,
    pub(super) maps: Opened<'a, (u64, u64), u64>,
    pub(super) bad: Opened<'a, (u64, u64), ()>,
}

impl<'a> Tx<'a> {
    /// The transaction; `changes` hears of everything that changes.
    pub(super) fn new(open: &'a WriteTransaction, changes: &'a Changes) -> Self {
        Self {
            open,
            changes,
            state: Opened::new(STATE),
            disks: Opened::new(DISKS),
            inodes: Opened::new(INODES),
            names: Opened::new(NAMES),
            positions: Opened::new(POSITIONS),
            xattrs: Opened::new(XATTRS),
            symlinks: Opened::new(SYMLINKS),
            parts: Opened::new(PARTS),
            extents: Opened::new(EXTENTS),
            orphans: Opened::new(ORPHANS),
            anew: Opened::new(ANEW),
            maps: Opened::new(MAPS),
            bad: Opened::new(BAD),
        }
    }

    /// A table, to read it.
    pub(super) fn read<'t, K: Key, V: Value>(
        &self,
        table: &'t Opened<'a, K, V>,
    ) -> Result<RefMut<'t, Table<'a, K, V>>> {
        table.get(self.open)
    }

    /// A table, to change what belongs to a file or folder, or to none.
    pub(super) fn change<'t, K: Key, V: Value>(
        &self,
        table: &'t Opened<'a, K, V>,
        ino: impl Into<Option<Ino>>,
    ) -> Result<RefMut<'t, Table<'a, K, V>>> {
        self.changes.note(ino.into());
        table.get(self.open)
    }

    /// Stores a row of a table whose rows count as taking room.
    pub(super) fn put<'k, 'v, K: Key, V: Value>(
        &self,
        table: &Opened<'a, K, V>,
        ino: Ino,
        key: &K::SelfType<'k>,
        value: &V::SelfType<'v>,
    ) -> Result<()> {
        let mut table = self.change(table, ino)?;
        let old = table.insert(key, value).db()?;
        let old = old.map(|old| row_bytes::<K, V>(key, &old.value()));
        self.changes.note_row(old, Some(row_bytes::<K, V>(key, value)));
        Ok(())
    }

    /// Removes such a row; says whether there was one.
    pub(super) fn take<'k, K: Key, V: Value>(
        &self,
        table: &Opened<'a, K, V>,
        ino: Ino,
        key: &K::SelfType<'k>,
    ) -> Result<bool> {
        let mut table = self.change(table, ino)?;
        let old = table.remove(key).db()?;
        let old = old.map(|old| row_bytes::<K, V>(key, &old.value()));
        self.changes.note_row(old, None);
        Ok(old.is_some())
    }

    /// The bytes of all rows that [`Tx::put`] stores, by a look at each of them.
    pub(crate) fn count_row_bytes(&self) -> Result<u64> {
        fn sum<K: Key, V: Value>(table: &Table<'_, K, V>) -> Result<u64> {
            let mut bytes = 0;
            for row in table.iter().db()? {
                let (key, value) = row.db()?;
                bytes += row_bytes::<K, V>(&key.value(), &value.value());
            }
            Ok(bytes)
        }
        Ok(sum(&*self.read(&self.inodes)?)?
            + sum(&*self.read(&self.names)?)?
            + sum(&*self.read(&self.positions)?)?
            + sum(&*self.read(&self.xattrs)?)?
            + sum(&*self.read(&self.symlinks)?)?
            + sum(&*self.read(&self.parts)?)?
            + sum(&*self.read(&self.orphans)?)?
            + sum(&*self.read(&self.anew)?)?
            + sum(&*self.read(&self.extents)?)?
            + sum(&*self.read(&self.maps)?)?)
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

    /// Creates all tables.
    pub(crate) fn create_tables(&self) -> Result<()> {
        self.change(&self.state, None)?;
        self.change(&self.disks, None)?;
        self.change(&self.inodes, None)?;
        self.change(&self.names, None)?;
        self.change(&self.positions, None)?;
        self.change(&self.xattrs, None)?;
        self.change(&self.symlinks, None)?;
        self.change(&self.parts, None)?;
        self.change(&self.extents, None)?;
        self.change(&self.orphans, None)?;
        self.change(&self.anew, None)?;
        self.change(&self.maps, None)?;
        self.change(&self.bad, None)?;
        Ok(())
    }
}
