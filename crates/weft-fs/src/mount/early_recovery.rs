//! What a dead node had committed early, after its log was recovered
//! ([`crate::write::early_commit`]).
//!
//! It is written as a program would write it, but under the tokens that the dead node still has: no
//! other node has anything of these files in memory. It overwrites blocks that have places. The
//! keeper forgets it when it is durable, so all of this can be repeated.

use std::pin::pin;

use futures_util::future::{Either, select};
use weft_rt::Nanos;
use weft_token::NodeId;
use weft_wire::EarlyAttributes;

use crate::error::{FsError, Result};
use crate::format::inode::{Ino, Kind, Time};
use crate::state::early_desk::EarlyFile;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::PendingAttributes;

impl FsState {
    /// Writes what a dead node had committed early, durably. Its log is recovered. Returns how many
    /// blocks that were.
    pub(crate) async fn write_early_of(&self, node: NodeId) -> Result<usize> {
        let files = self.early_desk().files(node);
        if files.is_empty() && !self.early_desk().is_complete(node) {
            return Ok(0);
        }
        // The node may have changed these rows.
        self.meta().forget_recent();
        let mut written = 0;
        for (ino, file) in files {
            written += self.write_early_file(ino, file).await?;
        }
        if self.early_desk().is_complete(node) {
            self.meta().run(|tx| tx.found_early_commits(node)).await?;
        }
        self.commit().await?;
        Ok(written)
    }

    async fn write_early_file(&self, ino: Ino, early: EarlyFile) -> Result<usize> {
        // It may have been deleted since.
        let inode = match self.meta().run(|tx| tx.inode(ino)).await {
            Err(FsError::NotFound) => return Ok(0),
            inode => inode?,
        };
        if inode.kind() != Kind::File {
            return Ok(0);
        }
        let node = self.open_files().node(ino);
        let alone = node.alone().await;
        let count = early.blocks.len();
        early.blocks.into_iter().for_each(|(block, data)| self.dirty(&node, block, data));
        // What is newer than the early commit stays.
        if let Some(EarlyAttributes { size, modified_s, modified_ns }) = early.attributes {
            let inode = self.live(ino, inode);
            let modified = Time { s: modified_s, ns: modified_ns };
            let (size, modified) = (inode.size.max(size), inode.modified.max(modified));
            node.live.set(Some(PendingAttributes { size, modified }));
        }
        drop(alone);
        match self.flush_file(&node).await {
            // Too many disks are lost: its users are told.
            Err(FsError::Unreadable { .. }) => Ok(count),
            flushed => flushed.map(|()| count),
        }
    }
}

impl Fs {
    /// Node 0 is about to end in order: from now on it takes no early commits, and it waits until
    /// nodes have written what they have, and dead ones are recovered, but no longer than this.
    /// Whether nothing is left in its memory.
    pub async fn settle_early_commits(&self, patience: Nanos) -> bool {
        let (closed, late) = (self.0.early_desk().close(), self.0.rt().sleep(patience));
        matches!(select(pin!(closed), pin!(late)).await, Either::Left(_))
    }
}
