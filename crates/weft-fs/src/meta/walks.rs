//! Walks through all rows of tables, some at a time: others have turns in between.

use std::ops::Bound;

use redb::ReadableTable as _;

use super::tables::Entry;
use super::transaction::Tx;
use crate::error::{InDatabase as _, Result};
use crate::format::inode::Ino;

impl Tx<'_> {
    /// Up to `max` names of any folders, behind one of a folder: folder, name and entry.
    pub(crate) fn names_behind(
        &self,
        (folder, name): (Ino, &[u8]),
        max: usize,
    ) -> Result<Vec<(Ino, Vec<u8>, Entry)>> {
        let table = self.read(&self.names)?;
        let mut entries = Vec::new();
        let behind = (Bound::Excluded((folder, name)), Bound::Unbounded);
        for row in table.range::<(u64, &[u8])>(behind).db()?.take(max) {
            let (key, value) = row.db()?;
            let ((folder, name), (ino, mode, position)) = (key.value(), value.value());
            entries.push((folder, name.to_vec(), Entry { ino, mode, position }));
        }
        Ok(entries)
    }

    /// Up to `max` positions of any folders, from one on: folder, position and name.
    pub(crate) fn positions_from(
        &self,
        from: (Ino, u64),
        max: usize,
    ) -> Result<Vec<(Ino, u64, Vec<u8>)>> {
        let table = self.read(&self.positions)?;
        let mut positions = Vec::new();
        for row in table.range(from..).db()?.take(max) {
            let (key, name) = row.db()?;
            let (folder, position) = key.value();
            positions.push((folder, position, name.value().to_vec()));
        }
        Ok(positions)
    }

    /// Up to `max` rows of inode maps, from one on: disk, file and records.
    pub(crate) fn mapped_from(&self, from: (u64, Ino), max: usize) -> Result<Vec<(u64, Ino, u64)>> {
        let table = self.read(&self.maps)?;
        let mut rows = Vec::new();
        for row in table.range(from..).db()?.take(max) {
            let (key, records) = row.db()?;
            let (disk, ino) = key.value();
            rows.push((disk, ino, records.value()));
        }
        Ok(rows)
    }

    /// Whether a file is one without a name.
    pub(crate) fn is_orphan(&self, ino: Ino) -> Result<bool> {
        Ok(self.read(&self.orphans)?.get(ino).db()?.is_some())
    }
}
