//! Writing a file's dirty blocks to the disks.
//!
//! ```text
//!   sort the blocks ── new lines:    columns, parity from the cache ─────────┐
//!                  └── active lines: read and check old contents, new parity │
//!                                    append to the RAID log, durably         │
//!                                                      write all blocks ◀────┘
//!                                    flush the disks, if contents are not in the log
//!                                    records, checksums, size: open transaction
//! ```
//!
//! The order is what a crash needs: the log is durable before a block is overwritten, blocks are
//! durable before a durable record names them, and a lost disk is on record before other disks get
//! the writes that it misses. A commit starts by flushing the disks. So new lines need no flush of
//! their own, and neither do few blocks of lines that exist, as their contents are in the log. A
//! flush takes as many blocks as its log record may name, and goes on with the next ones. Small
//! files are written together. Many new lines are written in batches that overlap
//! ([`crate::write::new_line_stream`]), and heavily overwritten records become new lines
//! ([`crate::write::out_of_place`]).
//!
//! Blocks that cannot be written on disks that work go elsewhere ([`crate::write::remap`]). If a
//! disk is lost while new lines are written, they are rewritten on other disks. Active lines do
//! without it. If it is lost when it is flushed, the lines that were in its cache do without it as
//! well; fsync fails if they cannot ([`FsState::note_lost`], [`FsState::note_gone`]).

use std::rc::Rc;

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use crate::raid_log::{CONTENTS_BLOCKS_MAX, LoggedFile};
use crate::state::mounted::FsState;
use crate::state::open_files::{Dirty, Node, live_of, node_among};
use crate::write::dirty_memory::{BLOCKS_MAX, FlushScope};
use crate::write::line_writes::{are_logged_with_contents, forget_live, put_live};
use crate::write::new_line_stream::StreamEnd;
use crate::write::new_lines::{LineWrite, NewPlaces, covering};

impl FsState {
    /// Writes all dirty blocks of a file, and its size. The caller holds its lock exclusively.
    pub(crate) async fn flush_node(&self, node: &Rc<Node>) -> Result<()> {
        self.flush_nodes(std::slice::from_ref(node), FlushScope::All).await
    }

    /// Writes dirty blocks of several files, in the order of their numbers, as `extent` says. If
    /// blocks of one cannot be written, those of others may stay dirty as well.
    pub(crate) async fn flush_nodes(&self, nodes: &[Rc<Node>], extent: FlushScope) -> Result<()> {
        loop {
            let losses = self.pool().losses();
            match self.try_flush_nodes(nodes, extent).await {
                // Disks were lost after places on them had been chosen: there are others.
                Err(FsError::Unreadable { inode, block })
                    if self.pool().losses() > losses
                        && self.holds_nothing(inode, block).await? => {}
                flushed => return flushed,
            }
        }
    }

    /// Whether nothing was written to the line of a block: it is new, or only reserved.
    async fn holds_nothing(&self, ino: Ino, block: u64) -> Result<bool> {
        let covered = self.meta().run(|tx| covering(tx, ino, block)).await?;
        Ok(covered.is_none_or(|(_, record)| record.unwritten))
    }

    async fn try_flush_nodes(&self, nodes: &[Rc<Node>], extent: FlushScope) -> Result<()> {
        // What is written meanwhile is left to the next flush, if a stream does not take it.
        let mut until = self.unwritten().writes();
        let mut live = live_of(nodes);
        while nodes.iter().any(|node| node.has_dirty(until)) {
            match self.flush_new(nodes, &mut until, extent, &mut live).await? {
                StreamEnd::Complete if extent != FlushScope::All => break,
                StreamEnd::Complete | StreamEnd::Interrupted => {}
                StreamEnd::Blocked => {
                    let _alone = self.flush_alone().await;
                    let files = dirty_of(nodes, until);
                    self.flush_some(files, until, &mut live).await?;
                }
            }
        }
        // A file does not end before its blocks.
        let is_written = |file: &LoggedFile| {
            node_among(nodes, file.ino).is_some_and(|node| !node.has_dirty(until))
        };
        if extent != FlushScope::All {
            live.retain(is_written);
        }
        if live.is_empty() {
            return Ok(());
        }
        let now = self.now();
        self.meta().run(|tx| live.iter().try_for_each(|file| put_live(tx, file, now))).await?;
        forget_live(nodes, &live);
        Ok(())
    }

    /// Writes some dirty blocks, or finds that a disk is lost. Completed files leave `live`.
    async fn flush_some(
        &self,
        mut files: Vec<(Rc<Node>, Dirty)>,
        until: u64,
        live: &mut Vec<LoggedFile>,
    ) -> Result<()> {
        let mut afresh = self.choose_out_of_place(&mut files).await?;
        let files = &files[..];
        let mut targets = loop {
            let losses = self.pool().losses();
            match self.lines_of_all(files, std::mem::take(&mut afresh)).await {
                // Lines must be narrower than it seemed before another disk was lost.
                Err(FsError::NoSpace) if self.pool().losses() > losses => {}
                targets => break targets?,
            }
        };
        let mut logged = Vec::new();
        for file in &*live {
            if self.may_log(file, files, &targets, until).await? {
                logged.push(*file);
            }
        }
        self.write_targets(&mut targets, &logged).await?;
        let nodes: Vec<Rc<Node>> = files.iter().map(|(node, _)| node.clone()).collect();
        self.take_over(&nodes, &targets, until, live, &logged).await?;
        if targets.iter().any(|target| !target.moved.is_empty()) {
            self.pool().bad.note_logged_elsewhere();
        }
        live.retain(|file| !logged.contains(file));
        Ok(())
    }

    /// Sorts blocks into lines, which are cut and made narrower as needed.
    async fn lines_of_all(
        &self,
        files: &[(Rc<Node>, Dirty)],
        afresh: NewPlaces,
    ) -> Result<Vec<LineWrite>> {
        for (node, dirty) in files {
            self.cut_for_new_columns(node.ino, dirty).await?;
            if self.make_narrower(node.ino, dirty).await? {
                self.cut_for_new_columns(node.ino, dirty).await?;
            }
        }
        self.plan(files, afresh).await
    }

    /// Whether a file's size and time may be in the log record of these targets: they are all that
    /// is left to write of it, and recovery will find the file as the metadata has it now. Beyond
    /// its end there may be lines with truncated contents: it does not grow over them by a log
    /// record that lacks the contents.
    async fn may_log(
        &self,
        file: &LoggedFile,
        files: &[(Rc<Node>, Dirty)],
        targets: &[LineWrite],
        until: u64,
    ) -> Result<bool> {
        let Some((node, _)) = files.iter().find(|(node, _)| node.ino == file.ino) else {
            return Ok(false);
        };
        let of_file = || targets.iter().filter(|target| target.ino == file.ino);
        let planned = of_file().flat_map(LineWrite::written).map(|(block, _)| block);
        let planned = planned.filter(|block| node.waits_since(*block, until)).count();
        let is_logged = planned == node.count_dirty(until) && of_file().all(LineWrite::overwrites);
        if !is_logged || self.meta().has_changed(file.ino)? {
            return Ok(false);
        }
        if are_logged_with_contents(targets) {
            return Ok(true);
        }
        let size = self.meta().run(|tx| Ok(tx.inode(file.ino)?.size)).await?;
        Ok(file.size <= size)
    }
}

/// Dirty blocks of files, as many as are written at a time. Of many, blocks that were written since
/// go with them if they lie between: for the disks it is the same sweep, and to new places all of a
/// record goes in any case.
fn dirty_of(nodes: &[Rc<Node>], until: u64) -> Vec<(Rc<Node>, Dirty)> {
    let mut left = BLOCKS_MAX;
    let mut files = Vec::new();
    let waited: usize = nodes.iter().map(|node| node.count_dirty(until)).sum();
    for node in nodes {
        let dirty = match waited > CONTENTS_BLOCKS_MAX {
            true => node.dirty_among(until, left),
            false => node.dirty_from(0, until, left),
        };
        left -= dirty.len();
        if !dirty.is_empty() {
            files.push((node.clone(), dirty));
        }
    }
    files
}
