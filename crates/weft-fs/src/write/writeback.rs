//! Dirty memory: blocks that are written in the cache and not on the disks yet, and when they go
//! there.
//!
//! New lines are written soon, as they need nothing from the disks; blocks that have a place wait
//! for long, as many of them together cost fewer seeks, and some are overwritten while they wait. A
//! program that writes waits only when the memory for such blocks is full.

use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};

use crate::error::{FsError, Result};
use crate::format::redundancy::Redundancy;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::{Loss, Node};
use crate::state::promised_room::HeldRoom;
use crate::write::dirty_memory::{BLOCKS_MAX, FlushScope};
use crate::write::new_lines::{covering, without_place};

/// New lines are written from this part of the blocks that may wait. Blocks that have a place wait
/// until only this part is left: the more of them are sorted and written together, the less disks
/// have to seek, and the more of them are overwritten while they wait.
const DRAINED_PART: u64 = 4;
/// Files that are flushed together.
const FILES_MAX: usize = 256;

impl FsState {
    /// Writes a file's dirty blocks and size.
    pub(crate) async fn flush_file(&self, node: &Rc<Node>) -> Result<()> {
        let flushed = self.flush_files(std::slice::from_ref(node), FlushScope::All, false).await;
        self.open_files().forget_clean(node);
        flushed
    }

    /// Flushes several files, in the order of their numbers. Each of them is flushed, even if
    /// another one fails. With `gives_up` blocks go for which there is no room.
    async fn flush_files(
        &self,
        nodes: &[Rc<Node>],
        extent: FlushScope,
        gives_up: bool,
    ) -> Result<()> {
        let mut locks = Vec::with_capacity(nodes.len());
        for node in nodes {
            locks.push(node.alone().await);
            node.set_only_flushed(true);
        }
        let mut result = self.flush_nodes(nodes, extent).await;
        if result.is_err() {
            result = Ok(());
            for node in nodes {
                result = result.and(self.flush_as_possible(node, extent, gives_up).await);
            }
        }
        nodes.iter().for_each(|node| node.set_only_flushed(false));
        result
    }

    /// Flushes a file. Blocks of lines that cannot be written, as nothing gives the rest of them
    /// any more, are dropped, so that other blocks are written and memory does not fill: as Linux
    /// has it, the file's next fsync fails, and they are not there. With `gives_up` it is the same
    /// with new blocks for which there is no room. The caller holds its lock exclusively.
    async fn flush_as_possible(
        &self,
        node: &Rc<Node>,
        extent: FlushScope,
        gives_up: bool,
    ) -> Result<()> {
        let mut result = Ok(());
        loop {
            let flushed = self.flush_nodes(std::slice::from_ref(node), extent).await;
            if gives_up && matches!(flushed, Err(FsError::NoSpace)) {
                let (dropped, any_acknowledged) = self.drop_without_place(node).await?;
                if dropped == 0 {
                    return result.and(flushed);
                }
                // A write that has not returned tells its caller, or is repeated.
                if any_acknowledged {
                    self.lose(node.ino, Loss::NoRoom);
                }
                result = result.and(flushed);
                continue;
            }
            let Err(FsError::Unreadable { inode, block }) = flushed else {
                return result.and(flushed);
            };
            if inode != node.ino || !self.drop_unwritable(node, block).await? {
                return result.and(flushed);
            }
            self.lose(node.ino, Loss::Disks(block));
            result = result.and(flushed);
        }
    }

    /// Forgets the dirty blocks of the lines of a record of which disks are lost, or of one line if
    /// that is not why it cannot be written. Returns whether there are any. What is only reserved
    /// needs none of these disks.
    async fn drop_unwritable(&self, node: &Node, block: u64) -> Result<bool> {
        let covered = self.meta().run(|tx| covering(tx, node.ino, block)).await?;
        let Some((first, record)) = covered.filter(|(_, record)| !record.unwritten) else {
            return Ok(false);
        };
        let blocks = match self.pool().lay(&record)?.is_readable() {
            true => {
                let start = first + record.locate(block - first).0 * record.k();
                start..start + record.k()
            }
            false => first..first + record.blocks(),
        };
        Ok(self.drop_blocks(node, |block| blocks.contains(&block)).0 > 0)
    }

    /// Forgets the dirty blocks of a file that have no place yet. Returns how many there are, and
    /// whether something of them was acknowledged.
    async fn drop_without_place(&self, node: &Node) -> Result<(usize, bool)> {
        let blocks: Vec<u64> = node.dirty.borrow().keys().copied().collect();
        let without_place = self.meta().run(|tx| without_place(tx, node.ino, blocks)).await?;
        Ok(self.drop_blocks(node, |block| without_place.contains(&block)))
    }

    /// Forgets dirty blocks of a file. Returns how many there are, and whether something of them
    /// was acknowledged.
    fn drop_blocks(&self, node: &Node, is_dropped: impl Fn(u64) -> bool) -> (usize, bool) {
        let (dropped, any_acknowledged) = node.drop_dirty(is_dropped);
        self.note_dirty(self.unwritten().blocks() - dropped as u64);
        self.unwritten().note_written();
        (dropped, any_acknowledged)
    }

    /// The memory for blocks that wait is full, and they cannot be written, or this is the end of
    /// the mount: those go for which there is no room, so that other files can be written. Their
    /// users are told.
    pub(crate) async fn give_up_what_has_no_room(&self) {
        for node in self.open_files().unclean() {
            // What fails to be written for other reasons stays, and fsync reports it.
            let _ = self.flush_files(std::slice::from_ref(&node), FlushScope::All, true).await;
        }
    }

    /// Writes dirty blocks and sizes of all files.
    pub(crate) async fn flush_all(&self, extent: FlushScope) -> Result<()> {
        self.flush_many(self.open_files().unclean(), extent).await
    }

    /// Dirty blocks of these files, in the order of their numbers.
    pub(crate) async fn flush_many(&self, nodes: Vec<Rc<Node>>, extent: FlushScope) -> Result<()> {
        let mut result = Ok(());
        let mut rest = &nodes[..];
        while !rest.is_empty() {
            let mut blocks = 0;
            let fits = |node: &&Rc<Node>| {
                blocks += node.dirty.borrow().len();
                blocks <= BLOCKS_MAX
            };
            let count = rest.iter().take(FILES_MAX).take_while(fits).count().max(1);
            let (nodes, behind) = rest.split_at(count);
            result = result.and(self.flush_files(nodes, extent, false).await);
            result = result.and(self.commit_if_crowded().await);
            rest = behind;
        }
        // Other operations may hold them too: the last to release them removes them.
        for node in nodes {
            self.open_files().forget_clean(&node);
        }
        result
    }

    /// Writes dirty blocks if there are many; waits only if there are too many. The caller holds no
    /// lock.
    pub(crate) async fn drain(self: &Rc<Self>) -> Result<()> {
        self.fill_stock_if_low();
        let (dirty, part) =
            (self.unwritten().blocks(), self.unwritten().blocks_max() / DRAINED_PART);
        let extent = match dirty + part >= self.unwritten().blocks_max() {
            true => FlushScope::Whole,
            false if dirty >= self.unwritten().skipped() + part => FlushScope::New,
            false => return Ok(()),
        };
        if let Some(draining) = self.unwritten().begin_drain() {
            let fs = self.clone();
            self.rt().launch(Box::pin(async move {
                let until = fs.unwritten().writes();
                // The blocks stay dirty if this fails, and fsync reports it.
                let _ = fs.flush_all(extent).await;
                fs.unwritten().set_skipped(fs.open_files().count_dirty(until) as u64);
                drop(draining);
            }));
        }
        if !self.unwritten().is_full() {
            return Ok(());
        }
        let _turn = self.unwritten().turn().await;
        while self.unwritten().is_full() {
            let (drained, written) =
                (pin!(self.unwritten().drained()), pin!(self.unwritten().written()));
            match select(drained, written).await {
                Either::Left((none, _)) => {
                    drop(none);
                    if self.unwritten().is_full() {
                        let flushed = self.flush_all(FlushScope::All).await;
                        // What fails to be written of other files is told by their own fsync.
                        if self.unwritten().is_full() {
                            self.give_up_what_has_no_room().await;
                        }
                        if self.unwritten().is_full() {
                            return flushed;
                        }
                    }
                }
                Either::Right(_) => {}
            }
        }
        Ok(())
    }

    /// Holds back this number of blocks for a batch of a job: what waits has its room besides
    /// these. The caller holds nothing.
    pub(crate) async fn hold_room(&self, blocks: u64) -> HeldRoom<'_> {
        let held = self.promised().hold(blocks).await;
        if self.unwritten().blocks() > 0
            && !self.promised().fits(self.pool(), self.unwritten().blocks(), Redundancy::Single, 0)
        {
            // Without room the batch is not done, and without this the blocks wait as before.
            let _ = self.write_all().await;
        }
        held
    }

    /// Writes all dirty blocks, and makes everything durable.
    pub(crate) async fn write_all(&self) -> Result<()> {
        let early = self.early_commits().all();
        let flushed = self.flush_all(FlushScope::All).await;
        flushed.and(self.commit().await)?;
        self.end_early(&early).await
    }

    /// Moves blocks that have failed, writes all dirty blocks, and makes everything durable. The
    /// caller holds no token.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.relocate().await?;
        self.write_all().await
    }
}

impl Fs {
    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// If blocks cannot be written, or the metadata has failed. [`FsError::Unreadable`] or
    /// [`FsError::NoSpace`], once, if blocks of any file that were written before are nowhere,
    /// whether or not the fsync of the file has told of it.
    pub async fn sync(&self) -> Result<()> {
        self.0.check()?;
        if self.0.is_read_only() {
            return Ok(());
        }
        let synced = self.0.sync().await;
        // An error tells of it.
        let (lost, _) = self.0.take_losses();
        synced?;
        lost.map_or(Ok(()), Err)
    }
}
