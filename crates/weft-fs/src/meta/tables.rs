//! The tables of the database, and what operations do with their rows.

use std::ops::Range;

use redb::{AccessGuard, ReadableTable as _, ReadableTableMetadata as _};

use super::room::row_bytes;
use super::transaction::{Bytes, Tx};
use crate::error::{FsError, InDatabase as _, Result};
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

impl<'a> Tx<'a> {
    /// A number of the state; 0 if it was never set.
    pub(crate) fn state(&self, name: &str) -> Result<u64> {
        let table = self.read(&self.state)?;
        Ok(table.get(name).db()?.map_or(0, |value| value.value()))
    }

    pub(crate) fn set_state(&self, name: &str, value: u64) -> Result<()> {
        self.change(&self.state, None)?.insert(name, value).db()?;
        Ok(())
    }

    pub(crate) fn disks(&self) -> Result<Vec<(u16, DiskRow)>> {
        let table = self.read(&self.disks)?;
        let mut disks = Vec::new();
        for row in table.iter().db()? {
            let (number, bytes) = row.db()?;
            let damaged = || FsError::Damaged("the row of a disk cannot be read".into());
            let number = u16::try_from(number.value()).map_err(|_| damaged())?;
            disks.push((number, DiskRow::decode(bytes.value()).ok_or_else(damaged)?));
        }
        Ok(disks)
    }

    pub(crate) fn put_disk(&self, number: u16, row: &DiskRow) -> Result<()> {
        let mut table = self.change(&self.disks, None)?;
        table.insert(u64::from(number), &row.encode()[..]).db()?;
        Ok(())
    }

    pub(crate) fn remove_disk(&self, number: u16) -> Result<()> {
        self.change(&self.disks, None)?.remove(u64::from(number)).db()?;
        Ok(())
    }

    /// An inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode> {
        let table = self.read(&self.inodes)?;
        let row = table.get(ino).db()?.ok_or(FsError::NotFound)?;
        Inode::decode(row.value())
    }

    pub(crate) fn has_inode(&self, ino: Ino) -> Result<bool> {
        Ok(self.read(&self.inodes)?.get(ino).db()?.is_some())
    }

    pub(crate) fn put_inode(&self, ino: Ino, inode: &Inode) -> Result<()> {
        self.put(&self.inodes, ino, &ino, &&inode.encode()[..])
    }

    pub(crate) fn remove_inode(&self, ino: Ino) -> Result<()> {
        self.take(&self.inodes, ino, &ino)?;
        self.remove_symlink(ino)?;
        self.remove_orphan(ino)?;
        self.xattr_names(ino, usize::MAX)?
            .iter()
            .try_for_each(|name| self.remove_xattr(ino, name).map(drop))
    }

    /// Up to `max` inodes, from number `from` on.
    pub(crate) fn inodes(&self, from: Ino, max: usize) -> Result<Vec<(Ino, Inode)>> {
        let table = self.read(&self.inodes)?;
        let mut inodes = Vec::new();
        for row in table.range(from..).db()?.take(max) {
            let (ino, row) = row.db()?;
            inodes.push((ino.value(), Inode::decode(row.value())?));
        }
        Ok(inodes)
    }

    /// The inode with the highest number.
    pub(crate) fn last_inode(&self) -> Result<Option<Ino>> {
        let last = self.read(&self.inodes)?.last().db()?.map(|(ino, _)| ino.value());
        Ok(last)
    }

    /// The number of inodes.
    pub(crate) fn inode_count(&self) -> Result<u64> {
        self.read(&self.inodes)?.len().db()
    }

    /// An entry of a folder.
    pub(crate) fn entry(&self, folder: Ino, name: &[u8]) -> Result<Option<Entry>> {
        let table = self.read(&self.names)?;
        let row = table.get((folder, name)).db()?;
        Ok(row.map(|row| {
            let (ino, mode, position) = row.value();
            Entry { ino, mode, position }
        }))
    }

    /// Adds an entry, or replaces the one with this name and position.
    pub(crate) fn put_entry(&self, folder: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        let Entry { ino, mode, position } = *entry;
        self.changes.note(Some(ino));
        self.put(&self.names, folder, &(folder, name), &(ino, mode, position))?;
        self.put(&self.positions, folder, &(folder, position), &name)
    }

    pub(crate) fn remove_entry(&self, folder: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        self.changes.note(Some(entry.ino));
        self.take(&self.names, folder, &(folder, name))?;
        self.take(&self.positions, folder, &(folder, entry.position))?;
        Ok(())
    }

    /// Up to `max` entries of a folder from a position on: name and entry.
    pub(crate) fn entries(
        &self,
        folder: Ino,
        from: u64,
        max: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>> {
        let positions = self.read(&self.positions)?;
        let names = self.read(&self.names)?;
        let mut entries = Vec::new();
        for row in positions.range((folder, from)..(folder + 1, 0)).db()?.take(max) {
            let (key, name) = row.db()?;
            let position = key.value().1;
            let name = name.value().to_vec();
            let entry = names.get((folder, &name[..])).db()?;
            let lost = || FsError::Damaged(format!("position {position} of {folder} has no entry"));
            let (ino, mode, _) = entry.ok_or_else(lost)?.value();
            entries.push((name, Entry { ino, mode, position }));
        }
        Ok(entries)
    }

    /// The records that cover blocks from `from` to before `to`, by their first block.
    pub(crate) fn records(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<(u64, Extent)>> {
        self.first_records(ino, from..to, usize::MAX)
    }

    /// The first of these, up to `max` and the one that begins before `blocks`.
    pub(crate) fn first_records(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        max: usize,
    ) -> Result<Vec<(u64, Extent)>> {
        let Range { start: from, end: to } = blocks;
        let table = self.read(&self.extents)?;
        let mut records = Vec::new();
        if let Some(row) = table.range((ino, 0)..(ino, from)).db()?.next_back() {
            let (key, row) = row.db()?;
            let (first, record) = (key.value().1, Extent::decode(row.value())?);
            if first + record.blocks() > from {
                records.push((first, record));
            }
        }
        for row in table.range((ino, from)..(ino, to)).db()?.take(max) {
            let (key, row) = row.db()?;
            records.push((key.value().1, Extent::decode(row.value())?));
        }
        Ok(records)
    }

    /// The last record that begins before a block.
    pub(crate) fn record_before(&self, ino: Ino, block: u64) -> Result<Option<(u64, Extent)>> {
        let table = self.read(&self.extents)?;
        let Some(row) = table.range((ino, 0)..(ino, block)).db()?.next_back() else {
            return Ok(None);
        };
        let (key, row) = row.db()?;
        Ok(Some((key.value().1, Extent::decode(row.value())?)))
    }

    /// The first block of the first record that begins at a block or behind it.
    pub(crate) fn next_record(&self, ino: Ino, block: u64) -> Result<Option<u64>> {
        let table = self.read(&self.extents)?;
        let row = table.range((ino, block)..=(ino, u64::MAX)).db()?.next().transpose().db()?;
        Ok(row.map(|(key, _)| key.value().1))
    }

    pub(crate) fn put_record(&self, ino: Ino, first: u64, record: &Extent) -> Result<()> {
        let bytes = record.encode();
        let mut table = self.change(&self.extents, ino)?;
        let old = table.insert((ino, first), &bytes[..]).db()?;
        self.note_record(ino, old.as_ref().map(AccessGuard::value), Some(&bytes))
    }

    pub(crate) fn remove_record(&self, ino: Ino, first: u64) -> Result<()> {
        let mut table = self.change(&self.extents, ino)?;
        let old = table.remove((ino, first)).db()?;
        self.note_record(ino, old.as_ref().map(AccessGuard::value), None)
    }

    /// A record of a file, as stored, is replaced by another one. None: there is none.
    fn note_record(&self, ino: Ino, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        let bytes =
            |row: Option<&[u8]>| row.map(|row| row_bytes::<(u64, u64), Bytes>(&(0, 0), &row));
        self.changes.note_row(bytes(old), bytes(new));
        self.map_record(ino, old, new)
    }

    /// Calls `each` for every record of every file, in order.
    pub(crate) fn each_record(
        &self,
        mut each: impl FnMut(Ino, u64, Extent) -> Result<()>,
    ) -> Result<()> {
        let table = self.read(&self.extents)?;
        for row in table.iter().db()? {
            let (key, row) = row.db()?;
            let (ino, first) = key.value();
            each(ino, first, Extent::decode(row.value())?)?;
        }
        Ok(())
    }

    /// Up to `max` records of any files, from one of a file on.
    pub(crate) fn records_from(
        &self,
        from: (Ino, u64),
        max: usize,
    ) -> Result<Vec<(Ino, u64, Extent)>> {
        let table = self.read(&self.extents)?;
        let mut records = Vec::new();
        for row in table.range(from..).db()?.take(max) {
            let (key, row) = row.db()?;
            let (ino, first) = key.value();
            records.push((ino, first, Extent::decode(row.value())?));
        }
        Ok(records)
    }

    pub(crate) fn put_orphan(&self, ino: Ino) -> Result<()> {
        self.put(&self.orphans, ino, &ino, &())
    }

    pub(crate) fn remove_orphan(&self, ino: Ino) -> Result<()> {
        self.take(&self.orphans, ino, &ino).map(drop)
    }

    pub(crate) fn orphans(&self) -> Result<Vec<Ino>> {
        let table = self.read(&self.orphans)?;
        let mut orphans = Vec::new();
        for row in table.iter().db()? {
            orphans.push(row.db()?.0.value());
        }
        Ok(orphans)
    }

    /// A file waits to be laid out anew.
    pub(crate) fn put_relayout(&self, ino: Ino) -> Result<()> {
        self.put(&self.anew, ino, &ino, &())
    }

    pub(crate) fn remove_relayout(&self, ino: Ino) -> Result<()> {
        self.take(&self.anew, ino, &ino).map(drop)
    }

    /// The first file, from a number on, that waits to be laid out anew.
    pub(crate) fn next_relayout(&self, from: Ino) -> Result<Option<Ino>> {
        let table = self.read(&self.anew)?;
        let first = table.range(from..).db()?.next().transpose().db()?;
        Ok(first.map(|(ino, _)| ino.value()))
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

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (blocks, rest) = rest.split_first_chunk()?;
        let (lost, name) = rest.split_first()?;
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Self { id: *id, blocks: u64::from_le_bytes(*blocks), lost: *lost != 0, name })
    }
}
