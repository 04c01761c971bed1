//! Walks through all rows of tables, some at a time: other operations have turns in between.

use std::ops::{Bound, ControlFlow};

use super::rows::{MAPS, NAMES, ORPHANS, POSITIONS, RowKey, from};
use super::tables::Entry;
use super::transaction::Tx;
use crate::error::Result;
use crate::format::inode::Ino;

/// Whether a walk that has `len` of at most `max` rows goes on.
fn up_to(max: usize, len: usize) -> ControlFlow<()> {
    if len < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

impl Tx<'_> {
    /// Up to `max` names of any folders, after one of a folder: folder, name and entry.
    pub(crate) fn names_behind(
        &self,
        (folder, name): (Ino, &[u8]),
        max: usize,
    ) -> Result<Vec<(Ino, Vec<u8>, Entry)>> {
        let mut entries = Vec::new();
        let behind = (Bound::Excluded(RowKey::named(folder, name)), Bound::Unbounded);
        self.scan(&NAMES, &behind, |(folder, name), (ino, mode, position)| {
            entries.push((folder, name.to_vec(), Entry { ino, mode, position }));
            Ok(up_to(max, entries.len()))
        })?;
        Ok(entries)
    }

    /// Up to `max` positions of any folders, from one on: folder, position and name.
    pub(crate) fn positions_from(
        &self,
        (folder, position): (Ino, u64),
        max: usize,
    ) -> Result<Vec<(Ino, u64, Vec<u8>)>> {
        let mut positions = Vec::new();
        let behind = from(RowKey::pair(folder, position));
        self.scan(&POSITIONS, &behind, |(folder, position), name| {
            positions.push((folder, position, name.to_vec()));
            Ok(up_to(max, positions.len()))
        })?;
        Ok(positions)
    }

    /// Up to `max` rows of inode maps, from one on: disk, file and records.
    pub(crate) fn mapped_from(
        &self,
        (disk, ino): (u64, Ino),
        max: usize,
    ) -> Result<Vec<(u64, Ino, u64)>> {
        let mut rows = Vec::new();
        self.scan(&MAPS, &from(RowKey::pair(disk, ino)), |(disk, ino), records| {
            rows.push((disk, ino, records));
            Ok(up_to(max, rows.len()))
        })?;
        Ok(rows)
    }

    /// Whether a file is one without a name.
    pub(crate) fn is_orphan(&self, ino: Ino) -> Result<bool> {
        self.has(&ORPHANS, &ino)
    }
}
