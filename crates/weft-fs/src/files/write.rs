//! Writing files.
//!
//! Writes go to the cache; a part of a block is merged with the rest of it first.
//!
//! *The end.* No line beyond the end of a file is active, unless it is unwritten or zeros: sizes
//! grow together with records. Bytes of the last line beyond the end may be anything: the line
//! keeps its blocks when a file is cut, and a crash may leave a block new and the size old. They
//! are not read, and are cleared when the end moves over them.

use std::rc::Rc;

use weft_rt::{Buf, Frozen};

use super::read::{active_within, index};
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES, blocks_of};
use crate::format::inode::{Ino, Inode};
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::{Node, PendingAttributes, WriteGuard};
use crate::write::new_lines::without_place;

/// The largest size of a file: that of the kernel, which so refuses a longer one at once.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();
/// Blocks beyond the end that are cleared at a time.
const CLEARED_BLOCKS: usize = 1024;

/// The parts of `data` that go to each block: the block, where in it, and the bytes.
fn parts_of(offset: u64, data: &Frozen) -> impl Iterator<Item = (u64, usize, Frozen)> {
    let end = offset + data.len() as u64;
    blocks_of(offset, data.len() as u64).map(move |block| {
        let at = block * BLOCK_BYTES;
        let (from, to) = (at.max(offset), (at + BLOCK_BYTES).min(end));
        (block, index(from - at), data.slice(index(from - offset), index(to - from)))
    })
}

/// Where bytes are to be written.
#[derive(Debug, Clone, Copy)]
enum WriteAt {
    /// From this byte of the file on.
    Offset(u64),
    /// The same, as far as the file goes.
    Within(u64),
    /// Behind the file's last byte.
    End,
}

impl WriteAt {
    /// Where it begins, if that does not depend on the file.
    fn offset(self) -> Option<u64> {
        match self {
            Self::Offset(offset) | Self::Within(offset) => Some(offset),
            Self::End => None,
        }
    }

    /// Where the first byte comes in a file of this size, and the bytes that are written.
    fn place(self, size: u64, data: &Frozen) -> (u64, Frozen) {
        match self {
            Self::Offset(offset) => (offset, data.clone()),
            Self::End => (size, data.clone()),
            Self::Within(offset) => {
                let len = size.saturating_sub(offset).min(data.len() as u64);
                (offset, data.slice(0, index(len)))
            }
        }
    }
}

/// A write that has changed the file.
struct Written {
    /// Where it begins.
    offset: u64,
    /// Whether its bytes are still there.
    kept: Result<()>,
}

/// Where a write ends, if a file can be that long.
fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or(FsError::TooLarge)
}

/// A partly written block; the rest is as in `old`, or zeros.
fn whole_block(within: usize, part: Frozen, old: Option<Buf>) -> Frozen {
    if part.len() == BLOCK && part.is_aligned_to(BLOCK) {
        return part;
    }
    let mut merged = old.unwrap_or_else(|| Buf::zeroed(BLOCK));
    merged[within..within + part.len()].copy_from_slice(&part);
    merged.freeze()
}

impl FsState {
    /// The contents of one block, with zeros beyond the end of the file.
    async fn block_before(&self, node: &Node, block: u64, end: u64) -> Result<Buf> {
        let mut buf = self.block(node, block).await?;
        let within = end.saturating_sub(block * BLOCK_BYTES).min(BLOCK_BYTES);
        buf[index(within)..].fill(0);
        Ok(buf)
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

    /// Clears the bytes beyond the end of a file in its last line, if the end moves without a write
    /// there: the file is to grow to `to`, or to be written from there on.
    pub(crate) async fn clear_behind_end(&self, node: &Rc<Node>, end: u64, to: u64) -> Result<()> {
        if to <= end {
            return Ok(());
        }
        let block_end = end.next_multiple_of(BLOCK_BYTES);
        self.clear_in_block(node, end, block_end).await?;
        let behind = block_end / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES);
        let active = self.meta().run(|tx| active_within(tx, node.ino, behind.clone())).await?;
        for (n, blocks) in active.chunks(CLEARED_BLOCKS).enumerate() {
            if n > 0 {
                self.flush_node(node).await?;
            }
            blocks.iter().for_each(|block| self.dirty(node, *block, Frozen::zeros(BLOCK)));
        }
        Ok(())
    }

    /// Writes at an offset, or at the end.
    async fn write(self: &Rc<Self>, ino: Ino, at: WriteAt, data: &Frozen) -> Result<Written> {
        let len = data.len() as u64;
        let offset = at.offset().unwrap_or(0);
        end_of(offset, len)?;
        self.check_writable()?;
        if len == 0 {
            return Ok(Written { offset, kept: Ok(()) });
        }
        self.write_if_rows_are_scarce(blocks_of(offset, len)).await;
        let tokens = match at.offset() {
            Some(offset) => self.hold_to_write(ino, offset, len).await,
            None => self.hold_to_append(ino).await,
        };
        let node = self.node(ino);
        let write = node.begin_write();
        let (offset, len) = match self.write_meanwhile(&node, &write, at, data).await? {
            Some(written) => written,
            None => {
                let alone = node.alone().await;
                let inode = self.file(ino).await?;
                inode.flags.check_change()?;
                let (offset, data) = at.place(inode.size, data);
                let len = data.len() as u64;
                if len == 0 {
                    return Ok(Written { offset, kept: Ok(()) });
                }
                let end = end_of(offset, len)?;
                let reserved = self.reserve(&node, &inode, blocks_of(offset, len)).await?;
                self.clear_behind_end(&node, inode.size, offset).await?;
                for (block, within, part) in parts_of(offset, &data) {
                    let is_old = part.len() < BLOCK && block * BLOCK_BYTES < inode.size;
                    let old = match is_old {
                        true => Some(self.block_before(&node, block, inode.size).await?),
                        false => None,
                    };
                    write.note(block);
                    self.dirty(&node, block, whole_block(within, part, old));
                }
                self.grow(&node, &inode, end);
                drop((reserved, alone));
                (offset, len)
            }
        };
        let mut drops = node.drops();
        drop(tokens);
        let drained = self.drain().await;
        // fsync tells of other blocks that had to go.
        while node.drops() != drops {
            drops = node.drops();
            if !self.are_there(&node, offset, len).await? {
                return Ok(Written { offset, kept: Err(FsError::NoSpace) });
            }
        }
        // From here on its blocks are acknowledged.
        drop(write);
        Ok(Written { offset, kept: drained })
    }

    /// Whether all blocks of a range that was written wait, or have a place.
    async fn are_there(&self, node: &Node, offset: u64, len: u64) -> Result<bool> {
        let mut blocks: Vec<u64> = blocks_of(offset, len).collect();
        blocks.retain(|block| !node.dirty.borrow().contains_key(block));
        let without_place = self.meta().run(|tx| without_place(tx, node.ino, blocks)).await?;
        // Blocks may have been written again meanwhile.
        Ok(without_place.iter().all(|block| node.dirty.borrow().contains_key(block)))
    }

    /// Writes to a file that is being flushed, if that needs nothing from the disks. Returns where
    /// it wrote, and how much, if it does.
    async fn write_meanwhile(
        &self,
        node: &Node,
        write: &WriteGuard<'_>,
        at: WriteAt,
        data: &Frozen,
    ) -> Result<Option<(u64, u64)>> {
        if !node.is_only_flushed() {
            return Ok(None);
        }
        let inode = self.file(node.ino).await?;
        inode.flags.check_change()?;
        let (offset, data) = at.place(inode.size, data);
        let len = data.len() as u64;
        if len == 0 {
            return Ok(Some((offset, 0)));
        }
        let end = end_of(offset, len)?;
        // From here on nothing waits: all of it happens, or nothing.
        let count = parts_of(offset, &data).count() as u64;
        let last = inode.size / BLOCK_BYTES;
        let is_cached = node.dirty.borrow().contains_key(&last);
        let leaves_end = offset > inode.size
            && (!is_cached || offset > inode.size.next_multiple_of(BLOCK_BYTES));
        if !node.is_only_flushed() || leaves_end || !self.has_room_for(&inode, count) {
            return Ok(None);
        }
        let mut blocks = Vec::new();
        for (block, within, part) in parts_of(offset, &data) {
            let cached = node.dirty.borrow().get(&block).map(|(_, data)| data.clone());
            let is_old = part.len() < BLOCK && block * BLOCK_BYTES < inode.size;
            if is_old && cached.is_none() {
                return Ok(None);
            }
            let old = cached.filter(|_| is_old).map(|data| Buf::copy_from(&data));
            blocks.push((block, whole_block(within, part, old)));
        }
        for (block, data) in blocks {
            write.note(block);
            self.dirty(node, block, data);
        }
        self.grow(node, &inode, end);
        Ok(Some((offset, len)))
    }

    /// A file was written up to `end`.
    pub(crate) fn grow(&self, node: &Node, inode: &Inode, end: u64) {
        let known = node.live.get().map_or(inode.size, |live| live.size);
        node.live.set(Some(PendingAttributes { size: known.max(end), modified: self.now() }));
    }

    /// Makes a file durable on the disks. With an error comes of how many losses it tells, if it
    /// tells of any.
    async fn sync_to_disks(&self, ino: Ino) -> std::result::Result<(), (Option<u64>, FsError)> {
        let early = self.early_commits().of_file(ino);
        if let Some(node) = self.open_files().get(ino) {
            let flushed = self.flush_file(&node).await;
            if flushed.is_err() {
                // This tells of it.
                node.tell_losses(0);
            }
            flushed.map_err(|error| (Some(node.losses()), error))?;
        }
        let committed = async {
            self.commit_file(ino).await?;
            self.end_early(&early).await
        };
        committed.await.map_err(|error| (None, error))
    }
}

impl Fs {
    /// Writes to a file, which grows if needed. The bytes are durable after [`Fs::fsync`].
    ///
    /// # Errors
    /// If there is no room, or the rest of a block that is written in part cannot be read.
    pub async fn write(&self, ino: Ino, offset: u64, data: Frozen) -> Result<()> {
        self.write_at(ino, WriteAt::Offset(offset), data).await
    }

    /// Writes bytes of pages of a mapped file, which never make it longer: what lies behind its end
    /// is left out. The kernel writes pages as far as it knows the file, and another node may have
    /// cut that.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn write_pages(&self, ino: Ino, offset: u64, data: Frozen) -> Result<()> {
        self.write_at(ino, WriteAt::Within(offset), data).await
    }

    async fn write_at(&self, ino: Ino, at: WriteAt, data: Frozen) -> Result<()> {
        let fs = self.0.clone();
        let write = || async move {
            let _request = fs.job_pace().begin_request(fs.rt());
            fs.with_room(async || fs.write(ino, at, &data).await?.kept).await
        };
        self.0.rt().attach(write).await
    }

    /// Writes to the end of a file, wherever that is when other nodes write there too. Returns
    /// where the bytes begin.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn append(&self, ino: Ino, data: Frozen) -> Result<u64> {
        let fs = self.0.clone();
        // What has grown the file is not tried again: it would be there twice.
        let write = || async move {
            let _request = fs.job_pace().begin_request(fs.rt());
            let written = fs.with_room(async || fs.write(ino, WriteAt::End, &data).await).await?;
            written.kept.map(|()| written.offset)
        };
        self.0.rt().attach(write).await
    }

    /// Writes what waits of a file, so that the next commit has it.
    ///
    /// # Errors
    /// If blocks cannot be written.
    pub async fn write_back(&self, ino: Ino) -> Result<()> {
        self.0.check()?;
        let Some(node) = self.0.open_files().get(ino) else { return Ok(()) };
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.flush_file(&node).await }).await
    }

    /// Makes a file durable, with its name, and a folder with its entries.
    ///
    /// # Errors
    /// If blocks cannot be written, or the metadata has failed; [`FsError::Unreadable`], once, if
    /// blocks were lost with a disk before they were durable, or [`FsError::NoSpace`] if there was
    /// no room for them.
    pub async fn fsync(&self, ino: Ino) -> Result<()> {
        let mut known = self.told_losses(ino);
        self.fsync_for(ino, &mut known).await
    }

    /// How many losses of blocks of a file were told by fsync: what a user who opens it knows.
    #[must_use]
    pub fn told_losses(&self, ino: Ino) -> u64 {
        self.0.open_files().get(ino).map_or(0, |node| node.told_losses())
    }

    /// As [`Fs::fsync`], for one of several users of a file: each is told of losses that are not
    /// among the `known` ones, which then include them. The file is in use ([`Fs::begin_use`])
    /// since `known` was [`Fs::told_losses`].
    ///
    /// # Errors
    /// As [`Fs::fsync`].
    pub async fn fsync_for(&self, ino: Ino, known: &mut u64) -> Result<()> {
        self.0.check()?;
        if self.0.is_read_only() {
            return Ok(());
        }
        let knew = *known;
        let fs = self.0.clone();
        let synced = || async move {
            let _request = fs.job_pace().begin_request(fs.rt());
            let is_early = match fs.open_files().get(ino) {
                Some(node) => fs.commit_early(&node).await.map_err(|error| (knew, error))?,
                None => false,
            };
            if !is_early {
                fs.sync_to_disks(ino).await.map_err(|(now, error)| (now.unwrap_or(knew), error))?;
            }
            let Some(node) = fs.open_files().get(ino) else { return Ok(knew) };
            match node.tell_losses(knew) {
                Some(loss) => Err((node.losses(), loss.error(ino))),
                None => Ok(node.losses()),
            }
        };
        match self.0.rt().attach(synced).await {
            Ok(now) => {
                *known = now;
                Ok(())
            }
            Err((now, error)) => {
                *known = now;
                Err(error)
            }
        }
    }
}
