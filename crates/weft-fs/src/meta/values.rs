//! Values of any length: of extended attributes, and targets of symbolic links.
//!
//! A row that is longer than a page of the database takes several pages that lie together, and
//! there may be none although many are free. So a long value is cut into parts, which are rows of
//! their own; the row of the value itself is empty then. A part is so short that pages stay a third
//! full, however rows come and go. Older versions stored long values in one row: these are read as
//! they are.

use std::ops::RangeInclusive;

use super::transaction::Tx;
use crate::error::{FsError, InDatabase as _, Result};
use crate::format::inode::Ino;

use redb::ReadableTable as _;

/// Longest part, and longest value that is not cut.
const PART_BYTES: usize = 512;
/// The name of a symbolic link's target among the parts. No attribute has it.
const TARGET: &[u8] = b"";

/// The keys of all parts of a value.
fn parts_of(ino: Ino, name: &[u8]) -> RangeInclusive<(u64, &[u8], u64)> {
    (ino, name, 0)..=(ino, name, u64::MAX)
}

/// What the row of a value holds itself.
fn in_row(value: &[u8]) -> &[u8] {
    if value.len() > PART_BYTES { &[] } else { value }
}

impl Tx<'_> {
    fn parts(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let table = self.read(&self.parts)?;
        let mut value = Vec::new();
        for row in table.range(parts_of(ino, name)).db()? {
            value.extend_from_slice(row.db()?.1.value());
        }
        Ok(value)
    }

    fn remove_parts(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut count = 0;
        for row in self.read(&self.parts)?.range(parts_of(ino, name)).db()? {
            row.db()?;
            count += 1;
        }
        (0..count).try_for_each(|part| self.take(&self.parts, ino, &(ino, name, part)).map(drop))
    }

    /// Stores the parts of a value, if it has any. Those of another one are gone.
    fn put_parts(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        if value.len() <= PART_BYTES {
            return Ok(());
        }
        let mut parts = (0..).zip(value.chunks(PART_BYTES));
        parts.try_for_each(|(n, part)| self.put(&self.parts, ino, &(ino, name, n), &part))
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let row = {
            let table = self.read(&self.xattrs)?;
            table.get((ino, name)).db()?.map(|value| value.value().to_vec())
        };
        match row {
            Some(value) if value.is_empty() => self.parts(ino, name).map(Some),
            row => Ok(row),
        }
    }

    /// Whether there is one.
    pub(crate) fn has_xattr(&self, ino: Ino, name: &[u8]) -> Result<bool> {
        Ok(self.read(&self.xattrs)?.get((ino, name)).db()?.is_some())
    }

    pub(crate) fn put_xattr(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        self.remove_parts(ino, name)?;
        self.put(&self.xattrs, ino, &(ino, name), &in_row(value))?;
        self.put_parts(ino, name, value)
    }

    /// Whether there was one.
    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<bool> {
        self.remove_parts(ino, name)?;
        self.take(&self.xattrs, ino, &(ino, name))
    }

    /// Names of attributes, with a zero behind each up to so many bytes, and the first beyond.
    pub(crate) fn xattr_names(&self, ino: Ino, most: usize) -> Result<Vec<Vec<u8>>> {
        let table = self.read(&self.xattrs)?;
        let (mut names, mut bytes) = (Vec::new(), 0);
        for row in table.range((ino, &[][..])..(ino + 1, &[][..])).db()? {
            let name = row.db()?.0.value().1.to_vec();
            bytes += name.len() + 1;
            names.push(name);
            if bytes > most {
                break;
            }
        }
        Ok(names)
    }

    /// Bytes of the names of attributes, with a zero behind each, and of their values.
    pub(crate) fn xattr_bytes(&self, ino: Ino) -> Result<(u64, u64)> {
        let (mut names, mut values) = (0, 0);
        let table = self.read(&self.xattrs)?;
        for row in table.range((ino, &[][..])..(ino + 1, &[][..])).db()? {
            let (key, value) = row.db()?;
            names += key.value().1.len() as u64 + 1;
            values += value.value().len() as u64;
        }
        let parts = self.read(&self.parts)?;
        for row in parts.range((ino, &[][..], 0)..(ino + 1, &[][..], 0)).db()? {
            values += row.db()?.1.value().len() as u64;
        }
        Ok((names, values))
    }

    pub(crate) fn symlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = {
            let table = self.read(&self.symlinks)?;
            let target = table.get(ino).db()?.ok_or(FsError::NotFound)?;
            target.value().to_vec()
        };
        if target.is_empty() { self.parts(ino, TARGET) } else { Ok(target) }
    }

    pub(crate) fn put_symlink(&self, ino: Ino, target: &[u8]) -> Result<()> {
        self.put(&self.symlinks, ino, &ino, &in_row(target))?;
        self.put_parts(ino, TARGET, target)
    }

    /// Removes the target, if there is one.
    pub(super) fn remove_symlink(&self, ino: Ino) -> Result<()> {
        if self.take(&self.symlinks, ino, &ino)? {
            self.remove_parts(ino, TARGET)?;
        }
        Ok(())
    }
}
