//! Cutting files, and punching holes into them.
//!
//! Lines that lie wholly behind the new end are removed from the metadata, and their
//! blocks become free. In the line that holds the new end, blocks behind it are overwritten with
//! zeros and stay: removing one would change the parity of the others. Holes are punched alike.

use std::ops::Range;
use std::rc::Rc;

use weft_rt::Frozen;

use crate::block::{BLOCK, BLOCK_BYTES};
use crate::error::{FsError, Result};
use crate::file::{FILE_BYTES_MAX, index};
use crate::inode::Ino;
use crate::meta::Tx;
use crate::mounted::{Fs, Inner, Live, Node};
use crate::record::Record;

impl Inner {
    /// Sets the size of a file. The caller has the tokens of all of it.
    pub(crate) async fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let node = self.node(ino);
        let alone = node.alone().await;
        let inode = self.file(ino).await?;
        let modified = self.now();
        let cut = if size < inode.size {
            self.clear(&node, size..inode.size, Some(size)).await
        } else {
            self.clear_behind_end(&node, inode.size, size).await?;
            node.live.set(Some(Live { size, modified }));
            self.flush_node(&node).await
        };
        drop(alone);
        self.forget_clean(&node);
        cut
    }

    /// Makes bytes of a file read as zeros, frees whole lines of them, and then sets its size. First
    /// come the zeros in lines that stay: once the file ends before them, they must be there.
    async fn clear(&self, node: &Rc<Node>, bytes: Range<u64>, size: Option<u64>) -> Result<()> {
        let ino = node.ino;
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
            self.note_dirty(self.dirty_blocks.get() - dropped.len() as u64);
        }
        let lines = self.meta.run(|tx| lines_within(tx, ino, whole.clone())).await?;
        for block in lines.staying {
            self.dirty(node, block, Frozen::zeros(BLOCK));
        }
        self.flush_node(node).await?;
        let now = self.now();
        self.meta
            .run(|tx| {
                let mut inode = tx.inode(ino)?;
                inode.blocks -= self.remove_lines(tx, ino, whole)?;
                inode.size = size.unwrap_or(inode.size);
                (inode.modified, inode.changed) = (now, now);
                tx.put_inode(ino, &inode)
            })
            .await
    }

    /// Makes a part of one block read as zeros.
    pub(crate) async fn clear_in_block(&self, node: &Rc<Node>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from / BLOCK_BYTES;
        let mut buf = self.block(node, block).await?;
        let at = block * BLOCK_BYTES;
        let part = &mut buf[index(from - at)..index(to - at)];
        if part.iter().any(|byte| *byte != 0) {
            part.fill(0);
            self.dirty(node, block, buf.freeze());
        }
        Ok(())
    }

    /// Removes the lines of which all blocks are in the range. Returns the data blocks they had.
    fn remove_lines(&self, tx: &Tx<'_>, ino: Ino, range: Range<u64>) -> Result<u64> {
        let mut blocks = 0;
        for (first, record, lines) in lines_within(tx, ino, range)?.gone {
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
        Ok(blocks)
    }

    async fn punch(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let _held = self.hold_to_change(ino, offset, len).await;
        let node = self.node(ino);
        let alone = node.alone().await;
        let inode = self.file(ino).await?;
        let end = offset.saturating_add(len).min(inode.size);
        let cleared =
            if offset < end { self.clear(&node, offset..end, None).await } else { Ok(()) };
        drop(alone);
        self.forget_clean(&node);
        cleared
    }
}

/// What removing a range of blocks does.
struct Lines {
    /// Records of which lines go: first block, record, lines.
    gone: Vec<(u64, Record, Range<u64>)>,
    /// Active blocks in the range whose lines stay.
    staying: Vec<u64>,
}

/// The lines of which all blocks are in a range, and active blocks of the range in other lines.
fn lines_within(tx: &Tx<'_>, ino: Ino, range: Range<u64>) -> Result<Lines> {
    let mut lines = Lines { gone: Vec::new(), staying: Vec::new() };
    if range.is_empty() {
        return Ok(lines);
    }
    for (first, record) in tx.records(ino, range.start, range.end)? {
        let k = record.k();
        let next = tx.next_record(ino, first + 1)?.unwrap_or(u64::MAX);
        let end = (first + record.blocks()).min(next);
        // The next record may cut a line short.
        let line_end = |line: u64| (first + (line + 1) * k).min(end);
        let is_inside =
            |line: &u64| first + line * k >= range.start && line_end(*line) <= range.end;
        let inside: Vec<u64> = (0..record.lines).filter(is_inside).collect();
        let gone = match (inside.first(), inside.last()) {
            (Some(from), Some(to)) => *from..to + 1,
            _ => 0..0,
        };
        let active = |block: &u64| {
            let (line, unit) = record.locate(block - first);
            !gone.contains(&line) && record.columns[unit].is_some()
        };
        lines.staying.extend((range.start.max(first)..range.end.min(end)).filter(active));
        if !gone.is_empty() {
            lines.gone.push((first, record, gone));
        }
    }
    Ok(lines)
}

impl Fs {
    /// Makes a range of a file read as zeros; its size stays. Whole lines are freed.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn punch_hole(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let fs = self.0.clone();
        self.0.rt.attach(|| async move { fs.punch(ino, offset, len).await }).await
    }
}
