//! Cutting files, and punching holes into them.
//!
//! Lines that lie wholly beyond the new end are removed from the metadata, and their blocks become
//! free. In the line that holds the new end, blocks beyond it are overwritten with zeros and stay:
//! removing one would change the parity of the line. Holes are punched alike.
//!
//! *Order.* Blocks beyond the new end, and those in the hole, need not be written any more. But
//! while the metadata has an older end, one of them may hold the zeros beyond it. So a file that is
//! cut has its new size before anything is written; and a hole's lines are removed before a size is
//! stored that lies beyond them.
//!
//! A file may have very many lines. They are removed in steps; each step sets the file's size. A
//! crash between them leaves lines beyond the end, like those of a file that reserved them: they
//! are cleared before the end moves over them, and go with the file.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use weft_rt::Frozen;

use crate::error::{FsError, Result};
use crate::files::write::FILE_BYTES_MAX;
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::{Node, PendingAttributes};
use crate::write::new_lines::covering;

impl FsState {
    /// Sets the size of a file. The caller has the tokens of all of it.
    pub(crate) async fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let file = self.lock(ino).await;
        let inode = self.file(ino).await?;
        inode.flags.check_set()?;
        if size < inode.size {
            return self.clear(&file, size..inode.size, Some(size)).await;
        }
        self.clear_behind_end(&file, inode.size, size).await?;
        file.live.set(Some(PendingAttributes { size, modified: self.now() }));
        self.flush_node(&file).await
    }

    /// Makes bytes of a file read as zeros, frees whole lines of them, and sets its size.
    async fn clear(&self, node: &Rc<Node>, bytes: Range<u64>, size: Option<u64>) -> Result<()> {
        let ino = node.ino;
        self.settle_early_locked(node).await?;
        let whole = match size {
            Some(size) => size.div_ceil(BLOCK_BYTES)..u64::MAX,
            None => bytes.start.div_ceil(BLOCK_BYTES)..bytes.end / BLOCK_BYTES,
        };
        self.clear_in_block(node, bytes.start, bytes.end.min(whole.start * BLOCK_BYTES)).await?;
        if size.is_none() && whole.end >= whole.start {
            self.clear_in_block(node, whole.end * BLOCK_BYTES, bytes.end).await?;
        }
        {
            let mut dirty = node.dirty.borrow_mut();
            let dropped: Vec<u64> = match whole.start < whole.end {
                true => dirty.range(whole.clone()).map(|(block, _)| *block).collect(),
                false => Vec::new(),
            };
            dropped.iter().for_each(|block| drop(dirty.remove(block)));
            self.note_dirty(self.unwritten().blocks() - dropped.len() as u64);
        }
        let staying = self.meta().run(|tx| staying_within(tx, ino, whole.clone())).await?;
        for block in staying {
            self.dirty(node, block, Frozen::zeros(BLOCK));
        }
        let (now, end) = (self.now(), self.file(ino).await?.size);
        node.live.set(Some(PendingAttributes { size: size.unwrap_or(end), modified: now }));
        if size.is_some() {
            self.flush_node(node).await?;
        }
        let (mut from, mut steps) = (Some(whole.start), 0);
        while let Some(start) = from {
            let remove = |tx: &Tx<'_>| {
                let mut inode = tx.inode(ino)?;
                let (blocks, next) = self.remove_lines(tx, ino, &whole, start)?;
                inode.blocks -= blocks;
                inode.size = size.unwrap_or(inode.size);
                (inode.modified, inode.changed) = (now, now);
                tx.put_inode(ino, &inode)?;
                Ok(next)
            };
            from = self.meta().run(remove).await?;
            if from.is_some() {
                self.commit_now_and_then(&mut steps).await?;
            }
        }
        self.flush_node(node).await
    }

    /// Removes the lines that lie wholly in the range, out of some records from `start` on. Returns
    /// the data blocks they had, and where to go on, if anywhere.
    fn remove_lines(
        &self,
        tx: &Tx<'_>,
        ino: Ino,
        range: &Range<u64>,
        start: u64,
    ) -> Result<(u64, Option<u64>)> {
        let mut blocks = 0;
        if range.is_empty() {
            return Ok((blocks, None));
        }
        let records = tx.first_records(ino, start..range.end, self.meta().at_a_time())?;
        let is_all = records.len() < self.meta().at_a_time();
        let next = records.last().filter(|_| !is_all).map(|(first, _)| first + 1);
        for (first, record) in records {
            let lines = lines_inside(tx, ino, (first, &record), range)?;
            if lines.is_empty() {
                continue;
            }
            let k = record.k();
            tx.remove_record(ino, first)?;
            let mut head = record;
            let tail = head.split_off(lines.end);
            let cut = head.split_off(lines.start);
            if head.lines > 0 {
                tx.put_record(ino, first, &head)?;
            }
            if tail.lines > 0 {
                tx.put_record(ino, first + lines.end * k, &tail)?;
            }
            blocks += cut.data_blocks();
            self.free_later(&cut);
        }
        Ok((blocks, next))
    }

    /// Where a piece of a hole from one byte on ends, so that no line is cut in two by it.
    async fn piece_end(&self, ino: Ino, from: u64, end: u64) -> Result<u64> {
        let block = from / BLOCK_BYTES + PIECE_BLOCKS;
        let next = self.meta().run(|tx| tx.next_record(ino, block)).await?;
        Ok(next.map_or(end, |next| end.min(next.saturating_mul(BLOCK_BYTES))))
    }

    async fn punch(
        self: &Rc<Self>,
        ino: Ino,
        offset: u64,
        len: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        // A record with a hole is two.
        self.begin_change().await?;
        self.check_room(0, false)?;
        let file = self.lock_to_change(ino, offset, len).await;
        let inode = self.file(ino).await?;
        inode.flags.check_set()?;
        let end = offset.saturating_add(len).min(inode.size);
        let mut at = offset;
        while at < end {
            if at > offset && !goes_on() {
                return Err(FsError::Cancelled);
            }
            let to = self.piece_end(ino, at, end).await?;
            self.clear(&file, at..to, None).await?;
            at = to;
        }
        Ok(())
    }
}

/// Blocks of a hole that are punched at a time, at least: an interrupted request ends after them.
const PIECE_BLOCKS: u64 = 256 << 10;

/// The end of a record's blocks: the next record may cut its last line short.
fn end_of(tx: &Tx<'_>, ino: Ino, (first, record): (u64, &Extent)) -> Result<u64> {
    let next = tx.next_record(ino, first + 1)?.unwrap_or(u64::MAX);
    Ok((first + record.blocks()).min(next))
}

/// The lines of a record that lie wholly in a range.
fn lines_inside(
    tx: &Tx<'_>,
    ino: Ino,
    (first, record): (u64, &Extent),
    range: &Range<u64>,
) -> Result<Range<u64>> {
    let k = record.k();
    let end = end_of(tx, ino, (first, record))?;
    let line_end = |line: u64| (first + (line + 1) * k).min(end);
    let is_inside = |line: &u64| first + line * k >= range.start && line_end(*line) <= range.end;
    let inside: Vec<u64> = (0..record.lines).filter(is_inside).collect();
    Ok(match (inside.first(), inside.last()) {
        (Some(from), Some(to)) => *from..to + 1,
        _ => 0..0,
    })
}

/// Active blocks of a range in lines that are not wholly in it. There is one at each of its ends,
/// at most.
fn staying_within(tx: &Tx<'_>, ino: Ino, range: Range<u64>) -> Result<Vec<u64>> {
    let mut staying = Vec::new();
    if range.is_empty() {
        return Ok(staying);
    }
    for at in BTreeSet::from([range.start, range.end - 1]) {
        // What is not written is zeros.
        let covered = covering(tx, ino, at)?.filter(|(_, record)| !record.unwritten);
        let Some((first, record)) = covered else { continue };
        let inside = lines_inside(tx, ino, (first, &record), &range)?;
        let end = end_of(tx, ino, (first, &record))?;
        let line = record.locate(at - first).0;
        let from = first + line * record.k();
        let blocks = range.start.max(from)..range.end.min(end).min(from + record.k());
        let is_active = |block: &u64| record.columns[record.locate(block - first).1].is_some();
        if !inside.contains(&line) {
            staying.extend(blocks.filter(is_active));
        }
    }
    staying.sort_unstable();
    staying.dedup();
    Ok(staying)
}

impl Fs {
    /// Makes a range of a file read as zeros; its size stays. Whole lines are freed.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn punch_hole(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.punch_hole_while(ino, offset, len, || true).await
    }

    /// [`Fs::punch_hole`], while `goes_on` returns true.
    ///
    /// # Errors
    /// The same, and [`FsError::Cancelled`] then: a part at the front is a hole.
    pub async fn punch_hole_while(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<()> {
        let fs = self.0.clone();
        let punch = || async move { fs.punch(ino, offset, len, &goes_on).await };
        self.0.rt().attach(punch).await
    }
}
