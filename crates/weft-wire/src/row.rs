//! Tables of the metadata, and keys of their rows, as nodes and keeper know them.
//!
//! A key of any table is a number, a name and a number; parts that a table does not use are zero or
//! empty. They are compared in this order. So one ordered map holds the rows of any table, and a
//! row can be sent to a store that is somewhere else: it borrows nothing, and its value is the
//! bytes that the store keeps.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Bound;

use crate::fields::{Fields, Put as _, Result, WireError};

/// The number of tables.
pub const TABLES: usize = 14;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "docs/weftfs.md has the tables and what is in them")]
pub enum Table {
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
    Rings,
}

impl Table {
    /// All tables, in their order.
    pub const ALL: [Self; TABLES] = [
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
        Self::Rings,
    ];

    /// Whether the keys start with the number of a file or folder.
    pub fn is_by_file(self) -> bool {
        !matches!(self, Self::State | Self::Disks | Self::Maps | Self::Bad | Self::Rings)
    }

    /// The file or folder that a row belongs to, if it belongs to one.
    pub fn ino(self, key: &Key<'_>) -> Option<u64> {
        match self {
            Self::Maps => Some(key.second),
            _ => self.is_by_file().then_some(key.first),
        }
    }

    pub(crate) fn put(self, bytes: &mut Vec<u8>) {
        bytes.put_u8(self as u8);
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let table = Self::ALL.get(usize::from(fields.u8()?));
        table.copied().ok_or(WireError::Malformed("an unknown table"))
    }
}

/// The key of a row of any table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'a> {
    /// Mostly a file or folder, or a disk.
    pub first: u64,
    /// A name of any bytes.
    pub name: Cow<'a, [u8]>,
    /// Mostly a place.
    pub second: u64,
}

impl Ord for Key<'_> {
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

impl PartialOrd for Key<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// First and last key of a part of a table.
pub type KeyRange<'a> = (Bound<Key<'a>>, Bound<Key<'a>>);

impl<'a> Key<'a> {
    /// A key that is a number, or the first key with this number.
    #[inline]
    pub fn number(first: u64) -> Self {
        Self::pair(first, 0)
    }

    /// A key of two numbers.
    #[inline]
    pub fn pair(first: u64, second: u64) -> Self {
        Self { first, name: Cow::Borrowed(&[]), second }
    }

    /// A key with a name, or the first with this one.
    #[inline]
    pub fn named(first: u64, name: &'a [u8]) -> Self {
        Self { first, name: Cow::Borrowed(name), second: 0 }
    }

    /// This key without borrowed parts.
    #[inline]
    pub fn into_owned(self) -> Key<'static> {
        let Self { first, name, second } = self;
        Key { first, name: Cow::Owned(name.into_owned()), second }
    }

    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.first);
        bytes.put_bytes(&self.name);
        bytes.put_u64(self.second);
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Key<'static>> {
        let (first, name) = (fields.u64()?, fields.bytes()?.to_vec());
        Ok(Key { first, name: Cow::Owned(name), second: fields.u64()? })
    }
}

fn put_bound(bytes: &mut Vec<u8>, bound: &Bound<Key<'_>>) {
    match bound {
        Bound::Unbounded => bytes.put_u8(0),
        Bound::Included(key) => {
            bytes.put_u8(1);
            key.put(bytes);
        }
        Bound::Excluded(key) => {
            bytes.put_u8(2);
            key.put(bytes);
        }
    }
}

fn read_bound(fields: &mut Fields<'_>) -> Result<Bound<Key<'static>>> {
    match fields.u8()? {
        0 => Ok(Bound::Unbounded),
        1 => Key::read(fields).map(Bound::Included),
        2 => Key::read(fields).map(Bound::Excluded),
        _ => Err(WireError::Malformed("an unknown bound")),
    }
}

pub(crate) fn put_range(bytes: &mut Vec<u8>, (from, to): &KeyRange<'_>) {
    put_bound(bytes, from);
    put_bound(bytes, to);
}

pub(crate) fn read_range(fields: &mut Fields<'_>) -> Result<KeyRange<'static>> {
    Ok((read_bound(fields)?, read_bound(fields)?))
}

/// A row: its key, and its value as the store keeps it.
pub type Row = (Key<'static>, Box<[u8]>);

pub(crate) fn put_row(bytes: &mut Vec<u8>, (key, value): &Row) {
    key.put(bytes);
    bytes.put_bytes(value);
}

pub(crate) fn read_row(fields: &mut Fields<'_>) -> Result<Row> {
    Ok((Key::read(fields)?, fields.bytes()?.into()))
}

/// A value, or none.
pub(crate) fn put_value(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    bytes.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        bytes.put_bytes(value);
    }
}

pub(crate) fn read_value(fields: &mut Fields<'_>) -> Result<Option<Box<[u8]>>> {
    Ok(if fields.flag()? { Some(fields.bytes()?.into()) } else { None })
}

/// A row that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// Its table.
    pub table: Table,
    /// Its key.
    pub key: Key<'static>,
    /// Its value from now on, as the store keeps it. None: the row is removed.
    pub value: Option<Box<[u8]>>,
}

impl RowChange {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        self.table.put(bytes);
        self.key.put(bytes);
        put_value(bytes, self.value.as_deref());
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let (table, key) = (Table::read(fields)?, Key::read(fields)?);
        Ok(Self { table, key, value: read_value(fields)? })
    }
}
