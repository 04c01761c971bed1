//! The table of bad blocks: disk and block.

use redb::ReadableTable as _;

use super::transaction::Tx;
use crate::error::{InDatabase as _, Result};

impl Tx<'_> {
    /// A block is not to be used any more.
    pub(crate) fn put_bad(&self, disk: u16, block: u64) -> Result<()> {
        self.change(&self.bad, None)?.insert((u64::from(disk), block), ()).db()?;
        Ok(())
    }

    /// All bad blocks, in the order of disks.
    pub(crate) fn bad_blocks(&self) -> Result<Vec<(u16, u64)>> {
        let table = self.read(&self.bad)?;
        let mut bad = Vec::new();
        for row in table.iter().db()? {
            let (disk, block) = row.db()?.0.value();
            // A disk with another number is none; fsck compares the table with the disks.
            bad.push((u16::try_from(disk).unwrap_or(u16::MAX), block));
        }
        Ok(bad)
    }

    /// A disk leaves, and its bad blocks with it.
    pub(crate) fn remove_bad_of(&self, disk: u16) -> Result<()> {
        let disk = u64::from(disk);
        let mut table = self.change(&self.bad, None)?;
        table.retain_in((disk, 0)..=(disk, u64::MAX), |_, ()| false).db()
    }
}
