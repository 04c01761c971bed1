//! Values of any length: of extended attributes, and targets of symbolic links.
//!
//! A row that is longer than a page of the database takes several pages that lie together, and
//! there may be none although many are free. So a long value is cut into parts, which are rows of
//! their own; the row of the value itself is empty then. A part is so short that pages stay a third
//! full, however rows come and go. Older versions stored long values in one row: these are read as
//! they are.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use super::rows::{KeyRange, PARTS, RowKey, SYMLINKS, XATTRS, between};
use super::transaction::Tx;
use crate::error::{FsError, Result};
use crate::format::inode::Ino;

/// Longest part, and longest value that is not cut.
const PART_BYTES: usize = 512;
/// The name of a symbolic link's target among the parts. No attribute has it.
const TARGET: &[u8] = b"";

/// The keys of all parts of a value.
fn parts_of(ino: Ino, name: &[u8]) -> KeyRange<'_> {
    let part = |second| RowKey { first: ino, name: Cow::Borrowed(name), second };
    (Bound::Included(part(0)), Bound::Included(part(u64::MAX)))
}

/// The keys of everything of a file.
fn rows_of(ino: Ino) -> KeyRange<'static> {
    between(RowKey::number(ino), RowKey::number(ino + 1))
}

/// What the row of a value holds itself.
fn in_row(value: &[u8]) -> &[u8] {
    if value.len() > PART_BYTES { &[] } else { value }
}

impl Tx<'_> {
    fn parts(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        self.scan(&PARTS, &parts_of(ino, name), |_, part| {
            value.extend_from_slice(part);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(value)
    }

    fn remove_parts(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut count = 0;
        self.scan(&PARTS, &parts_of(ino, name), |_, _| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        (0..count).try_for_each(|part| self.take(&PARTS, ino, &(ino, name, part)).map(drop))
    }

    /// Stores the parts of a value, if it has any. Those of another one are gone.
    fn put_parts(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        if value.len() <= PART_BYTES {
            return Ok(());
        }
        let mut parts = (0..).zip(value.chunks(PART_BYTES));
        parts.try_for_each(|(n, part)| self.put(&PARTS, ino, &(ino, name, n), &part))
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.find(&XATTRS, &(ino, name), <[u8]>::to_vec)? {
            Some(value) if value.is_empty() => self.parts(ino, name).map(Some),
            row => Ok(row),
        }
    }

    /// Whether there is one.
    pub(crate) fn has_xattr(&self, ino: Ino, name: &[u8]) -> Result<bool> {
        self.has(&XATTRS, &(ino, name))
    }

    pub(crate) fn put_xattr(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        self.remove_parts(ino, name)?;
        self.put(&XATTRS, ino, &(ino, name), &in_row(value))?;
        self.put_parts(ino, name, value)
    }

    /// Whether there was one.
    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<bool> {
        self.remove_parts(ino, name)?;
        self.take(&XATTRS, ino, &(ino, name))
    }

    /// Names of attributes, each followed by a zero, up to this number of bytes, and the first
    /// beyond.
    pub(crate) fn xattr_names(&self, ino: Ino, most: usize) -> Result<Vec<Vec<u8>>> {
        let (mut names, mut bytes) = (Vec::new(), 0);
        self.scan(&XATTRS, &rows_of(ino), |(_, name), _| {
            bytes += name.len() + 1;
            names.push(name.to_vec());
            let is_enough = bytes > most;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(names)
    }

    /// Bytes of the names of attributes, each followed by a zero, and of their values.
    pub(crate) fn xattr_bytes(&self, ino: Ino) -> Result<(u64, u64)> {
        let (mut names, mut values) = (0, 0);
        self.scan(&XATTRS, &rows_of(ino), |(_, name), value| {
            names += name.len() as u64 + 1;
            values += value.len() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        self.scan(&PARTS, &rows_of(ino), |_, part| {
            values += part.len() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((names, values))
    }

    pub(crate) fn symlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = self.find(&SYMLINKS, &ino, <[u8]>::to_vec)?.ok_or(FsError::NotFound)?;
        if target.is_empty() { self.parts(ino, TARGET) } else { Ok(target) }
    }

    pub(crate) fn put_symlink(&self, ino: Ino, target: &[u8]) -> Result<()> {
        self.put(&SYMLINKS, ino, &ino, &in_row(target))?;
        self.put_parts(ino, TARGET, target)
    }

    /// Removes the target, if there is one.
    pub(super) fn remove_symlink(&self, ino: Ino) -> Result<()> {
        if self.take(&SYMLINKS, ino, &ino)? {
            self.remove_parts(ino, TARGET)?;
        }
        Ok(())
    }
}
