//! The tables of the database, and what operations do with their rows.

use std::ops::{Bound, ControlFlow, Range};

use super::extent_watches::ExtentWatch;
use super::rows::{
    ANEW, DISKS, EXTENTS, INODES, KeyRange, NAMES, ORPHANS, POSITIONS, RowKey, STATE, all, between,
    from,
};
use super::transaction::Tx;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Inode};

/// What is stored of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskRow {
    /// Identity, as in its label.
    pub(crate) id: [u8; 16],
    /// Blocks of data.
    pub(crate) blocks: u64,
    /// It missed writes, and is not trusted any more.
    pub(crate) lost: bool,
    /// What it was called when it was seen last.
    pub(crate) name: String,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    /// Type bits of its mode.
    pub(crate) mode: u32,
    pub(crate) position: u64,
}

/// Whether a scan that has `len` of at most `max` rows goes on.
fn up_to(max: usize, len: usize) -> ControlFlow<()> {
    if len < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Rows of a file's blocks.
fn blocks_of(ino: Ino, blocks: Range<u64>) -> KeyRange<'static> {
    between(RowKey::pair(ino, blocks.start), RowKey::pair(ino, blocks.end))
}

impl Tx<'_> {
    /// A number of the state; 0 if it was never set.
    pub(crate) fn state(&self, name: &str) -> Result<u64> {
        Ok(self.find(&STATE, &name, |value| value)?.unwrap_or(0))
    }

    pub(crate) fn set_state(&self, name: &str, value: u64) -> Result<()> {
        self.store(&STATE, &name, &value)
    }

    pub(crate) fn disks(&self) -> Result<Vec<(u16, DiskRow)>> {
        let mut disks = Vec::new();
        self.scan(&DISKS, &all(), |number, bytes| {
            let damaged = || FsError::Damaged("the row of a disk cannot be read".into());
            let number = u16::try_from(number).map_err(|_| damaged())?;
            disks.push((number, DiskRow::decode(bytes).ok_or_else(damaged)?));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(disks)
    }

    pub(crate) fn has_disk(&self, number: u16) -> Result<bool> {
        self.has(&DISKS, &u64::from(number))
    }

    pub(crate) fn put_disk(&self, number: u16, row: &DiskRow) -> Result<()> {
        self.store(&DISKS, &u64::from(number), &&row.encode()[..])
    }

    pub(crate) fn remove_disk(&self, number: u16) -> Result<()> {
        self.drop_row(&DISKS, &u64::from(number))
    }

    /// An inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode> {
        self.find(&INODES, &ino, Inode::decode)?.ok_or(FsError::NotFound)?
    }

    pub(crate) fn has_inode(&self, ino: Ino) -> Result<bool> {
        self.has(&INODES, &ino)
    }

    pub(crate) fn put_inode(&self, ino: Ino, inode: &Inode) -> Result<()> {
        self.put(&INODES, ino, &ino, &&inode.encode()[..])
    }

    pub(crate) fn remove_inode(&self, ino: Ino) -> Result<()> {
        self.take(&INODES, ino, &ino)?;
        self.remove_symlink(ino)?;
        self.remove_orphan(ino)?;
        self.xattr_names(ino, usize::MAX)?
            .iter()
            .try_for_each(|name| self.remove_xattr(ino, name).map(drop))
    }

    /// Up to `max` inodes, from number `first` on.
    pub(crate) fn inodes(&self, first: Ino, max: usize) -> Result<Vec<(Ino, Inode)>> {
        let mut inodes = Vec::new();
        self.scan(&INODES, &from(RowKey::number(first)), |ino, row| {
            inodes.push((ino, Inode::decode(row)?));
            Ok(up_to(max, inodes.len()))
        })?;
        Ok(inodes)
    }

    /// The inode with the highest number.
    pub(crate) fn last_inode(&self) -> Result<Option<Ino>> {
        self.last(&INODES, all(), |ino, _| ino)
    }

    /// The number of inodes.
    pub(crate) fn inode_count(&self) -> Result<u64> {
        self.count(&INODES)
    }

    /// An entry of a folder.
    pub(crate) fn entry(&self, folder: Ino, name: &[u8]) -> Result<Option<Entry>> {
        let entry = |(ino, mode, position)| Entry { ino, mode, position };
        self.find(&NAMES, &(folder, name), entry)
    }

    /// Adds an entry with a name and a position that the folder does not have.
    pub(crate) fn add_entry(&self, folder: Ino, name: &[u8], entry: &Entry) {
        debug_assert!(self.entry(folder, name).is_ok_and(|entry| entry.is_none()));
        let Entry { ino, mode, position } = *entry;
        self.changes.note(Some(ino));
        self.replace(&NAMES, folder, &(folder, name), (None, Some((ino, mode, position))));
        self.replace(&POSITIONS, folder, &(folder, position), (None, Some(name)));
    }

    /// Adds an entry, or replaces the one with this name and position.
    pub(crate) fn put_entry(&self, folder: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        let Entry { ino, mode, position } = *entry;
        self.changes.note(Some(ino));
        self.put(&NAMES, folder, &(folder, name), &(ino, mode, position))?;
        self.put(&POSITIONS, folder, &(folder, position), &name)
    }

    pub(crate) fn remove_entry(&self, folder: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        self.changes.note(Some(entry.ino));
        self.take(&NAMES, folder, &(folder, name))?;
        self.take(&POSITIONS, folder, &(folder, entry.position))?;
        Ok(())
    }

    /// Up to `max` entries of a folder from a position on: name and entry.
    pub(crate) fn entries(
        &self,
        folder: Ino,
        first: u64,
        max: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>> {
        let range = between(RowKey::pair(folder, first), RowKey::number(folder + 1));
        let mut entries = Vec::new();
        self.scan(&POSITIONS, &range, |(_, position), name| {
            if entries.len() == max {
                return Ok(ControlFlow::Break(()));
            }
            let lost = || FsError::Damaged(format!("position {position} of {folder} has no entry"));
            let Entry { ino, mode, .. } = self.entry(folder, name)?.ok_or_else(lost)?;
            entries.push((name.to_vec(), Entry { ino, mode, position }));
            Ok(up_to(max, entries.len()))
        })?;
        Ok(entries)
    }

    /// The records that cover blocks from `from` to before `to`, by their first block.
    pub(crate) fn records(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, Extent)>> {
        self.first_records(ino, from..to, usize::MAX)
    }

    /// The first of these, up to `max` and the one that starts before `blocks`.
    pub(crate) fn first_records(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        max: usize,
    ) -> Result<Vec<(u64, Extent)>> {
        let before = self.record_before(ino, blocks.start)?;
        let covers = |(first, record): &(u64, Extent)| first + record.blocks() > blocks.start;
        let mut records: Vec<(u64, Extent)> = before.filter(covers).into_iter().collect();
        let most = max.saturating_add(records.len());
        if most == records.len() {
            return Ok(records);
        }
        self.scan(&EXTENTS, &blocks_of(ino, blocks), |(_, first), row| {
            records.push((first, Extent::decode(row)?));
            Ok(up_to(most, records.len()))
        })?;
        Ok(records)
    }

    /// The record that starts with a block.
    pub(crate) fn record_at(&self, ino: Ino, first: u64) -> Result<Option<Extent>> {
        self.find(&EXTENTS, &(ino, first), Extent::decode)?.transpose()
    }

    /// The record that starts with a block, if there is one. It is watched from now on.
    pub(crate) fn watch_record(
        &self,
        ino: Ino,
        first: u64,
    ) -> Result<Option<(Extent, ExtentWatch)>> {
        let Some(record) = self.record_at(ino, first)? else { return Ok(None) };
        let watch = self.watch_extent(ino, first, &record);
        Ok(Some((record, watch)))
    }

    /// Watches a record, which starts with block `first`, from now on.
    pub(crate) fn watch_extent(&self, ino: Ino, first: u64, record: &Extent) -> ExtentWatch {
        self.changes.watch_extent(ino, first..first.saturating_add(record.blocks()))
    }

    /// The last record that starts before a block.
    pub(crate) fn record_before(&self, ino: Ino, block: u64) -> Result<Option<(u64, Extent)>> {
        let last = self.last(&EXTENTS, blocks_of(ino, 0..block), |(_, first), row| {
            Ok((first, Extent::decode(row)?))
        });
        last?.transpose()
    }

    /// The first block of the first record that starts at a block or after it.
    pub(crate) fn next_record(&self, ino: Ino, block: u64) -> Result<Option<u64>> {
        let (from, to) = (RowKey::pair(ino, block), RowKey::pair(ino, u64::MAX));
        let mut next = None;
        self.scan(&EXTENTS, &(Bound::Included(from), Bound::Included(to)), |(_, first), _| {
            next = Some(first);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(next)
    }

    pub(crate) fn put_record(&self, ino: Ino, first: u64, record: &Extent) -> Result<()> {
        let bytes = record.encode();
        self.node.note_places_of(record);
        self.changes.note_extent(ino, first..first.saturating_add(record.blocks()));
        let old = self.find(&EXTENTS, &(ino, first), <[u8]>::to_vec)?;
        self.replace(&EXTENTS, ino, &(ino, first), (old.as_deref(), Some(&bytes[..])));
        self.map_record(ino, old.as_deref(), Some(&bytes))
    }

    pub(crate) fn remove_record(&self, ino: Ino, first: u64) -> Result<()> {
        self.changes.note_extent(ino, first..first.saturating_add(1));
        let old = self.find(&EXTENTS, &(ino, first), <[u8]>::to_vec)?;
        self.replace(&EXTENTS, ino, &(ino, first), (old.as_deref(), None));
        self.map_record(ino, old.as_deref(), None)
    }

    /// Calls `each` for every record of every file, in order.
    pub(crate) fn each_record(
        &self,
        mut each: impl FnMut(Ino, u64, Extent) -> Result<()>,
    ) -> Result<()> {
        self.scan(&EXTENTS, &all(), |(ino, first), row| {
            each(ino, first, Extent::decode(row)?).map(ControlFlow::Continue)
        })
    }

    /// Up to `max` records of any files, from one of a file on.
    pub(crate) fn records_from(
        &self,
        (ino, first): (Ino, u64),
        max: usize,
    ) -> Result<Vec<(Ino, u64, Extent)>> {
        let mut records = Vec::new();
        self.scan(&EXTENTS, &from(RowKey::pair(ino, first)), |(ino, first), row| {
            records.push((ino, first, Extent::decode(row)?));
            Ok(up_to(max, records.len()))
        })?;
        Ok(records)
    }

    pub(crate) fn put_orphan(&self, ino: Ino) -> Result<()> {
        self.put(&ORPHANS, ino, &ino, &())
    }

    pub(crate) fn remove_orphan(&self, ino: Ino) -> Result<()> {
        self.take(&ORPHANS, ino, &ino).map(drop)
    }

    pub(crate) fn orphans(&self) -> Result<Vec<Ino>> {
        let mut orphans = Vec::new();
        self.scan(&ORPHANS, &all(), |ino, ()| {
            orphans.push(ino);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(orphans)
    }

    /// A file waits to be rewritten.
    pub(crate) fn put_relayout(&self, ino: Ino) -> Result<()> {
        self.put(&ANEW, ino, &ino, &())
    }

    pub(crate) fn remove_relayout(&self, ino: Ino) -> Result<()> {
        self.take(&ANEW, ino, &ino).map(drop)
    }

    /// The first file, from a number on, that waits to be rewritten.
    pub(crate) fn next_relayout(&self, first: Ino) -> Result<Option<Ino>> {
        let mut next = None;
        self.scan(&ANEW, &from(RowKey::number(first)), |ino, ()| {
            next = Some(ino);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(next)
    }
}

impl DiskRow {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.id.to_vec();
        bytes.extend_from_slice(&self.blocks.to_le_bytes());
        bytes.push(u8::from(self.lost));
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (blocks, rest) = rest.split_first_chunk()?;
        let (lost, name) = rest.split_first()?;
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Self { id: *id, blocks: u64::from_le_bytes(*blocks), lost: *lost != 0, name })
    }
}
