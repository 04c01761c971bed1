//! The table of bad blocks: disk and block.

use std::ops::{Bound, ControlFlow};

use super::rows::{BAD, RowKey, all};
use super::transaction::Tx;
use crate::error::Result;

impl Tx<'_> {
    /// A block is not to be used any more.
    pub(crate) fn put_bad(&self, disk: u16, block: u64) -> Result<()> {
        self.store(&BAD, &(u64::from(disk), block), &())
    }

    /// All bad blocks, in the order of disks.
    pub(crate) fn bad_blocks(&self) -> Result<Vec<(u16, u64)>> {
        let mut bad = Vec::new();
        self.scan(&BAD, &all(), |(disk, block), ()| {
            // A disk with another number is none; fsck compares the table with the disks.
            bad.push((u16::try_from(disk).unwrap_or(u16::MAX), block));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(bad)
    }

    /// A disk leaves, and its bad blocks with it.
    pub(crate) fn remove_bad_of(&self, disk: u16) -> Result<()> {
        let disk = u64::from(disk);
        let (first, last) = (RowKey::pair(disk, 0), RowKey::pair(disk, u64::MAX));
        let mut gone = Vec::new();
        self.scan(&BAD, &(Bound::Included(first), Bound::Included(last)), |key, ()| {
            gone.push(key);
            Ok(ControlFlow::Continue(()))
        })?;
        gone.iter().try_for_each(|key| self.drop_row(&BAD, key))
    }
}
