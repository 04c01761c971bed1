//! The end of files: one without names goes with its last use.
//!
//! Its records are removed a few at a time, so that neither a transaction nor the list of freed
//! blocks grows with the file. What a crash leaves of it is removed by the next mount
//! ([`crate::mount`]).

use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};

impl FsState {
    /// Ends `count` uses of a file. If it has no name any more, it goes.
    pub(crate) async fn end_uses(&self, ino: Ino, count: u64) -> Result<()> {
        let Some(node) = self.open_files().get(ino) else { return Ok(()) };
        node.end_uses(count);
        if node.is_used() {
            return Ok(());
        }
        let gone = self.meta().run(|tx| Ok(tx.inode(ino)?.links == 0)).await;
        if matches!(gone, Ok(true)) {
            let _held = self.hold_attributes(ino, Mode::Exclusive).await;
            // It may have been looked up by its number since.
            if !node.is_used() {
                self.purge(ino).await?;
            }
        }
        self.open_files().forget_clean(&node);
        Ok(())
    }

    /// Deletes a file that has no name.
    pub(crate) async fn purge(&self, ino: Ino) -> Result<()> {
        let file = self.lock_contents(ino).await;
        self.drop_dirty(&file, 0);
        file.live.set(None);
        let mut steps = 0;
        while self.meta().run(|tx| self.purge_some(tx, ino)).await? {
            self.commit_now_and_then(&mut steps).await?;
        }
        Ok(())
    }

    /// Removes some records of a file without a name, and then the file. Returns whether there is
    /// more to remove: a mount goes on with it after a crash.
    fn purge_some(&self, tx: &Tx<'_>, ino: Ino) -> Result<bool> {
        let mut inode = match tx.inode(ino) {
            // Its last use ended at the same time as its last name.
            Err(FsError::NotFound) => return Ok(false),
            inode => inode?,
        };
        let records = tx.first_records(ino, 0..u64::MAX, self.meta().at_a_time())?;
        for (first, record) in &records {
            tx.remove_record(ino, *first)?;
            inode.blocks -= record.data_blocks();
            self.free_later(record);
        }
        if records.len() < self.meta().at_a_time() {
            tx.remove_inode(ino)?;
            return Ok(false);
        }
        tx.put_inode(ino, &inode)?;
        Ok(true)
    }
}

impl Fs {
    /// `count` uses of a file end. A file without names goes with its last use.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn end_uses(&self, ino: Ino, count: u64) -> Result<()> {
        self.0.end_uses(ino, count).await
    }
}
