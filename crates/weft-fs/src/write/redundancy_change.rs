//! Giving files another redundancy: step by step, while they are used.
//!
//! `write/relayout.rs` rewrites the lines; this file selects them. Files that wait are laid out by
//! a job ([`crate::jobs::set`]), also after a crash.

use std::ops::Range;

use weft_token::Mode::{Exclusive, Shared};

use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Kind};
use crate::format::redundancy::Redundancy;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};
use crate::write::dirty_memory::BLOCKS_MAX;
use crate::write::relayout::{OldLines, Rewritten, at_a_time};

impl FsState {
    /// Sets the redundancy of a file. Its contents wait to be rewritten.
    pub(crate) async fn want_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<()> {
        let now = self.now();
        let _held = self.hold_files([ino]).await;
        // What waits of it has room for the lines that it was to have.
        if let Some(node) = self.open_files().unclean_node(ino) {
            self.flush_file(&node).await?;
        }
        let set = |tx: &Tx<'_>| {
            let mut inode = tx.inode(ino)?;
            (inode.redundancy, inode.changed) = (redundancy, now);
            tx.put_inode(ino, &inode)?;
            if inode.kind() == Kind::File { tx.put_relayout(ino) } else { Ok(()) }
        };
        self.note_wanted();
        self.meta().run(set).await
    }

    /// Rewrites the lines of a waiting file, some at a time: users access the file in between.
    /// `step` is told of each, and may end it; then the file goes on waiting, as it does for want
    /// of room. Returns how many blocks that were.
    ///
    /// `is_part`: for node 0, which does what this node cannot ([`crate::jobs::set`]). So the file
    /// goes on waiting whatever fails, also if lines would be narrower here than at node 0.
    pub(crate) async fn relayout_file(
        &self,
        ino: Ino,
        is_part: bool,
        mut step: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let mut done = 0;
        loop {
            let redundancy = match self.meta().run(|tx| tx.inode(ino)).await {
                Ok(inode) => Some(inode.redundancy),
                Err(FsError::NotFound) => None,
                Err(error) => return Err(error),
            };
            let (mut from, mut laid, mut was_set_again) = (Some(0), Ok(()), false);
            while let (Some(block), Some(redundancy), Ok(())) = (from, redundancy, &laid) {
                match self.relayout_some(ino, redundancy, block, is_part).await {
                    Ok(Some((blocks, next))) => {
                        done += blocks;
                        from = next;
                        step(blocks)?;
                    }
                    // By now it may be what it was.
                    Ok(None) => (from, was_set_again) = (None, true),
                    Err(error) => laid = Err(error),
                }
                self.commit_if_crowded().await?;
            }
            self.check_writable()?;
            let goes_on_waiting = match laid {
                Ok(()) => false,
                Err(FsError::NoSpace) => true,
                Err(_) => is_part,
            };
            // Another node may have set it again, or deleted it, and has stored that then.
            let held = self.hold_files([ino]).await;
            self.check()?;
            let is_set_again = |tx: &Tx<'_>| match tx.inode(ino) {
                Ok(inode) if was_set_again || Some(inode.redundancy) != redundancy => Ok(true),
                _ if goes_on_waiting => Ok(false),
                _ => tx.remove_relayout(ino).map(|()| false),
            };
            let is_set_again = self.meta().run(is_set_again).await?;
            drop(held);
            if !is_set_again {
                return laid.map(|()| done);
            }
        }
    }

    /// Sets the redundancy of a file, and lays out what it holds. Returns how many blocks that
    /// were.
    pub(crate) async fn set_redundancy(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        self.check_redundancy(redundancy)?;
        self.want_redundancy(ino, redundancy).await?;
        let step = |_| if goes_on() { Ok(()) } else { Err(FsError::Cancelled) };
        self.relayout_file(ino, false, step).await
    }

    /// Rewrites some records; where there is no room for that, after a commit: what has been
    /// replaced is free then.
    async fn relayout_last(&self, records: &[OldLines]) -> Result<()> {
        match self.relayout_all(records).await {
            Err(FsError::NoSpace) => {
                self.commit_within_flush().await?;
                self.relayout_all(records).await
            }
            laid => laid,
        }
    }

    /// Whether there is room here for these blocks on each disk that has room at any node: new
    /// lines are as wide as at node 0 then.
    fn has_room_on_all_disks(&self, blocks: u64) -> bool {
        let members = self.pool().members();
        members.iter().all(|member| member.room() == 0 || member.free_blocks() > blocks)
    }

    /// Rewrites some lines of a file, from a block on. Returns the blocks of the records that were
    /// looked at, and where there are more; none if the file waits for another redundancy by now.
    async fn relayout_some(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        from: u64,
        is_part: bool,
    ) -> Result<Option<(u64, Option<u64>)>> {
        let blocks =
            self.meta().run(|tx| Ok(tx.inode(ino).map_or(0, |inode| inode.blocks))).await?;
        let most = blocks.min(BLOCKS_MAX as u64);
        let columns = redundancy.columns_min() as u64;
        let _room = self.hold_room(columns * most).await;
        // An unmount has waited for the room of the last batch.
        self.check()?;
        let _everything = self.hold_everything().await;
        self.obtain_room(most, false).await;
        if is_part && !self.has_room_on_all_disks(most) {
            return Err(FsError::NoSpace);
        }
        let tokens = self.hold_files_of_batch([ino], Shared).await;
        let max = self.meta().at_a_time();
        let blocks = |(_, _, record): &(Ino, u64, Extent)| record.data_blocks();
        let found = self.meta().run(|tx| {
            let mut some = match tx.inode(ino) {
                Ok(inode) if inode.redundancy == redundancy => tx.records_from((ino, from), max)?,
                Ok(_) => return Ok(None),
                Err(FsError::NotFound) => Vec::new(),
                Err(error) => return Err(error),
            };
            some.retain(|(of, ..)| *of == ino);
            // It may have grown since room was looked for.
            some.truncate(at_a_time(&some, most, blocks));
            let watched = |(_, first, record): (Ino, u64, Extent)| {
                let watch = tx.watch_extent(ino, first, &record);
                (first, record, watch)
            };
            let done: u64 = some.iter().map(blocks).sum();
            Ok(Some((done, some.into_iter().map(watched).collect::<Vec<_>>())))
        });
        let Some((done, some)) = found.await? else { return Ok(None) };
        let (mut records, mut next) = (Vec::new(), None);
        for (first, record, watch) in some {
            let old = self.old(ino, first, record).await?;
            next = Some(old.end);
            if self.pool().coded_now(redundancy)? != old.record.coded {
                records.push((old, Some(watch)));
            }
        }
        drop(tokens);
        let mut laid = Ok(());
        let rewritten = self.relayout_unlocked(&records).await?;
        for ((old, _), rewritten) in records.iter().zip(rewritten) {
            let again = match rewritten {
                Rewritten::Done(_) => Ok(()),
                Rewritten::Failed(FsError::NoSpace) | Rewritten::Changed | Rewritten::Hard => {
                    self.relayout_range(ino, redundancy, old.first..old.end).await
                }
                Rewritten::Failed(error) => Err(error),
            };
            laid = laid.and(again);
        }
        laid.map(|()| Some((done, next)))
    }

    /// Rewrites the lines of a range of a file under its lock, one record after the other.
    async fn relayout_range(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        blocks: Range<u64>,
    ) -> Result<()> {
        let _tokens = self.hold_files_of_batch([ino], Exclusive).await;
        let _file = self.lock(ino).await;
        let _one = self.flush_alone().await;
        let found = self.meta().run(|tx| match tx.inode(ino) {
            Ok(inode) if inode.redundancy == redundancy => {
                tx.records(ino, blocks.start, blocks.end)
            }
            Ok(_) | Err(FsError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        });
        for (first, record) in found.await? {
            if self.pool().coded_now(redundancy)? != record.coded {
                self.relayout_last(&[self.old(ino, first, record).await?]).await?;
            }
        }
        Ok(())
    }
}

impl Fs {
    /// Sets the redundancy of a file, and rewrites its contents, while users may access it; of a
    /// folder: of files that will be made in it. Returns the blocks that it had.
    ///
    /// # Errors
    /// If there are too few disks, or too little room: a part of the file may be unchanged.
    pub async fn set_redundancy(&self, ino: Ino, redundancy: Redundancy) -> Result<u64> {
        self.set_redundancy_while(ino, redundancy, || true).await
    }

    /// [`Fs::set_redundancy`], while `goes_on` returns true.
    ///
    /// # Errors
    /// The same, and [`FsError::Cancelled`] then: the rest of the file waits for a job to lay it
    /// out.
    pub async fn set_redundancy_while(
        &self,
        ino: Ino,
        redundancy: Redundancy,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<u64> {
        let fs = self.0.clone();
        let set = || async move { fs.set_redundancy(ino, redundancy, &goes_on).await };
        self.0.rt().attach(set).await
    }
}
