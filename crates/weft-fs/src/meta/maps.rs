//! Inode maps: for each disk, the files that have blocks on it.
//!
//! A disk that is lost or leaves concerns only the files with extents on it. They are found here,
//! without a look at all inodes (the paper's §4.3 has such a map for each volume). A row counts the
//! records of a file with a column on a disk; it changes in the same transaction as these records,
//! so it needs neither a log nor a scan after a crash.

use std::ops::{Bound, ControlFlow};

use super::rows::{KeyRange, MAPS, RowKey};
use super::transaction::Tx;
use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;

impl Tx<'_> {
    /// A record of a file, as stored, is replaced by another one. None: there is none.
    pub(super) fn map_record(
        &self,
        ino: Ino,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<()> {
        let disks = |bytes: Option<&[u8]>| bytes.map_or(Ok(Vec::new()), Extent::disks_of);
        let (old, new) = (disks(old)?, disks(new)?);
        for disk in new.iter().filter(|disk| !old.contains(disk)) {
            let before = self.mapped(*disk, ino)?;
            self.replace_mapped(*disk, ino, (before, before + 1));
        }
        for disk in old.iter().filter(|disk| !new.contains(disk)) {
            let wrong = || FsError::Damaged(format!("the map of disk {disk} lacks inode {ino}"));
            let before = self.mapped(*disk, ino)?;
            let left = before.checked_sub(1).ok_or_else(wrong)?;
            self.replace_mapped(*disk, ino, (before, left));
        }
        Ok(())
    }

    /// How many records of a file have a column on a disk.
    pub(crate) fn mapped(&self, disk: u16, ino: Ino) -> Result<u64> {
        Ok(self.find(&MAPS, &(u64::from(disk), ino), |count| count)?.unwrap_or(0))
    }

    #[cfg(test)]
    pub(crate) fn put_mapped(&self, disk: u16, ino: Ino, records: u64) -> Result<()> {
        let before = self.mapped(disk, ino)?;
        self.replace_mapped(disk, ino, (before, records));
        Ok(())
    }

    /// The number was the first of these, and is the second.
    fn replace_mapped(&self, disk: u16, ino: Ino, (before, records): (u64, u64)) {
        let row = |records: u64| Some(records).filter(|records| *records > 0);
        self.replace(&MAPS, ino, &(u64::from(disk), ino), (row(before), row(records)));
    }

    /// Up to `max` files that have blocks on a disk, from number `from` on.
    pub(crate) fn inodes_on(&self, disk: u16, from: Ino, max: usize) -> Result<Vec<Ino>> {
        let mut inodes = Vec::new();
        self.scan(&MAPS, &of_disk(disk, from), |(_, ino), _| {
            inodes.push(ino);
            let is_enough = inodes.len() >= max;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(inodes)
    }

    /// Whether a file has blocks on a disk.
    pub(crate) fn is_disk_used(&self, disk: u16) -> Result<bool> {
        Ok(!self.inodes_on(disk, 0, 1)?.is_empty())
    }
}

/// The rows of a disk, from a file on.
fn of_disk(disk: u16, from: Ino) -> KeyRange<'static> {
    let disk = u64::from(disk);
    let last = RowKey::pair(disk, Ino::MAX);
    (Bound::Included(RowKey::pair(disk, from)), Bound::Included(last))
}
