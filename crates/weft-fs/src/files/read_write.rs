//! Reading and writing files.
//!
//! Writes go to the cache; a part of a block is merged with the rest of it first.
//!
//! *The end.* No line beyond the end of a file is active, unless it is unwritten or zeros: sizes
//! grow together with records. Bytes of the last line beyond the end may be anything: the line
//! keeps its blocks when a file is cut, and a crash may leave a block new and the size old. They
//! are not read, and are cleared when the end moves over them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};

use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES, blocks_of};
use crate::format::extent::Extent;
use crate::format::inode::{Flags, Ino, Inode};
use crate::meta::Tx;
use crate::state::mounted::{AccessTimes, Fs, FsState};
use crate::state::open_files::{Node, PendingAttributes, WriteGuard};
use crate::write::new_lines::without_place;

/// The largest size of a file: that of the kernel, which so refuses a longer one at once.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();
/// Seconds after which a reader is noted although the file was not changed since the last one.
const ACCESS_S: i64 = 24 * 3600;
/// Blocks beyond the end that are cleared at a time.
const CLEARED_BLOCKS: usize = 1024;
/// Blocks that are read in one go and then are at hand. Longer reads follow the order of a file:
/// their blocks are seldom overwritten one by one.
const AT_HAND_BLOCKS: u64 = 16;

/// Blocks that were read: columns of a record, and for each block its column and place in it.
#[derive(Default)]
struct BlocksRead {
    columns: Vec<Buf>,
    places: Vec<(u64, usize, Range<usize>)>,
}

/// Blocks of a range that are not zeros.
struct RangeContents {
    cached: BTreeMap<u64, Frozen>,
    read: Vec<BlocksRead>,
}

impl RangeContents {
    fn count(&self) -> u64 {
        let read: usize = self.read.iter().map(|read| read.places.len()).sum();
        (self.cached.len() + read) as u64
    }

    fn for_each(self, mut take: impl FnMut(u64, &[u8])) {
        for BlocksRead { columns, places } in self.read {
            for (block, column, part) in places {
                take(block, &columns[column][part]);
            }
        }
        self.cached.iter().for_each(|(block, data)| take(*block, data));
    }

    /// The result, if it is `blocks` consecutive blocks in one piece of memory.
    fn whole(&mut self, blocks: u64) -> Option<Buf> {
        let [BlocksRead { columns, places }] = &mut self.read[..] else { return None };
        let follow =
            |(n, (_, _, part)): (usize, &(u64, usize, Range<usize>))| part.start == n * BLOCK;
        let is_whole = self.cached.is_empty()
            && columns.len() == 1
            && places.len() as u64 == blocks
            && places.iter().enumerate().all(follow);
        if is_whole { columns.pop() } else { None }
    }
}

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

/// Blocks of a range that have a place and were written.
pub(crate) fn active_within(tx: &Tx<'_>, ino: Ino, range: Range<u64>) -> Result<Vec<u64>> {
    let mut active = Vec::new();
    if range.is_empty() {
        return Ok(active);
    }
    let records = tx.records(ino, range.start, range.end)?;
    for (at, (first, record)) in records.iter().enumerate() {
        let next = records.get(at + 1).map_or(u64::MAX, |(next, _)| *next);
        let end = (first + record.blocks()).min(next).min(range.end);
        if record.unwritten {
            continue;
        }
        let has_place = |block: &u64| record.columns[record.locate(block - first).1].is_some();
        active.extend((range.start.max(*first)..end).filter(has_place));
    }
    Ok(active)
}

/// Reads these blocks of a record, which are active, one by one.
async fn read_singly(
    laid: &ExtentStripe,
    (ino, first): (Ino, u64),
    record: &Extent,
    needed: &[u64],
) -> Result<BlocksRead> {
    let mut all = BlocksRead::default();
    for block in needed {
        let (line, unit) = record.locate(block - first);
        let read = laid.read(record, (ino, first), UnitSet::one(unit), line..line + 1).await?;
        all.places.push((*block, all.columns.len(), part_of(line, line)));
        all.columns.extend(read.into_iter().map(|(_, buf)| buf));
    }
    Ok(all)
}

/// The bytes of a range: these blocks, and zeros elsewhere.
fn bytes_of(mut found: RangeContents, offset: u64, len: usize) -> Buf {
    let end = offset + len as u64;
    let blocks = blocks_of(offset, len as u64);
    let count = blocks.end - blocks.start;
    if offset.is_multiple_of(BLOCK_BYTES)
        && let Some(mut whole) = found.whole(count)
    {
        whole.truncate(len);
        return whole;
    }
    let mut out = if found.count() == count { Buf::new(len) } else { Buf::zeroed(len) };
    found.for_each(|block, data| {
        let at = block * BLOCK_BYTES;
        let (from, to) = (at.max(offset), (at + BLOCK_BYTES).min(end));
        if from < to {
            out[index(from - offset)..index(to - offset)]
                .copy_from_slice(&data[index(from - at)..index(to - at)]);
        }
    });
    out
}

pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).expect("a length in memory")
}

/// Records that a search for holes looks at before other operations have a turn.
const SOUGHT_RECORDS: usize = 256;

impl FsState {
    /// Reads the blocks of a range that are not zeros. The caller holds the file's lock.
    async fn read_blocks(&self, node: &Node, range: Range<u64>) -> Result<RangeContents> {
        let cached: BTreeMap<u64, Frozen> = {
            let dirty = node.dirty.borrow();
            let cached = dirty.range(range.clone());
            cached.map(|(block, (_, data))| (*block, data.clone())).collect()
        };
        let records = self.meta().run(|tx| tx.records(node.ino, range.start, range.end)).await?;
        let is_short = range.end - range.start <= AT_HAND_BLOCKS;
        let reads = records.iter().enumerate().map(|(at, (first, record))| {
            let next = records.get(at + 1).map_or(u64::MAX, |(next, _)| *next);
            let from = range.start.max(*first);
            let to = range.end.min(first + record.blocks()).min(next);
            let needed: Vec<u64> = (from..to).filter(|block| !cached.contains_key(block)).collect();
            self.read_record(node.ino, *first, record, needed, is_short)
        });
        let read = join_all(reads).await.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(RangeContents { cached, read })
    }

    /// Reads the active ones of these blocks of an extent; the blocks of short reads are cached.
    async fn read_record(
        &self,
        ino: Ino,
        first: u64,
        record: &Extent,
        mut needed: Vec<u64>,
        is_short: bool,
    ) -> Result<BlocksRead> {
        if record.unwritten {
            return Ok(BlocksRead::default());
        }
        needed.retain(|block| record.columns[record.locate(block - first).1].is_some());
        let (Some(from), Some(to)) = (needed.first(), needed.last()) else {
            return Ok(BlocksRead::default());
        };
        let lines = record.locate(from - first).0..record.locate(to - first).0 + 1;
        let units: UnitSet = needed.iter().map(|block| record.locate(block - first).1).collect();
        let laid = self.pool().lay(record)?;
        if laid.stripe().lost.intersects(&units) {
            self.hot_parts().note(ino, first, self.rt().now());
        }
        let read = match laid.read(record, (ino, first), units, lines.clone()).await {
            // It may be a block of these lines that is not needed.
            Err(FsError::Unreadable { .. }) if needed.len() > 1 => {
                return read_singly(&laid, (ino, first), record, &needed).await;
            }
            read => read?,
        };
        if is_short {
            let at_hand = &self.pool().at_hand;
            read.iter().for_each(|(unit, buf)| at_hand.put_read(record, *unit, &lines, buf));
        }
        let place = |block: u64| {
            let (line, unit) = record.locate(block - first);
            let column = read.iter().position(|(of, _)| *of == unit);
            (block, column.expect("its unit was read"), part_of(lines.start, line))
        };
        let places = needed.into_iter().map(place).collect();
        Ok(BlocksRead { columns: read.into_iter().map(|(_, buf)| buf).collect(), places })
    }

    /// The contents of one block.
    pub(crate) async fn block(&self, node: &Node, block: u64) -> Result<Buf> {
        let mut found = self.read_blocks(node, block..block + 1).await?;
        if let Some(buf) = found.whole(1) {
            return Ok(buf);
        }
        let mut buf = Buf::zeroed(BLOCK);
        found.for_each(|_, data| buf.copy_from_slice(data));
        Ok(buf)
    }

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

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Buf> {
        let file = self.lock_to_read(ino, offset, len as u64).await;
        let inode = self.file(ino).await?;
        let len = index((len as u64).min(inode.size.saturating_sub(offset)));
        let found = self.read_blocks(&file, blocks_of(offset, len as u64)).await?;
        let out = bytes_of(found, offset, len);
        // Another node may have the attributes already, but for the size.
        if !file.is_late() {
            self.note_access(ino, &inode).await?;
        }
        Ok(out)
    }

    /// Notes that a file, folder or link was read, if that is wanted, and tells something: whether
    /// it was read since its last change, and on which day (Linux's `relatime`).
    pub(crate) async fn note_access(&self, ino: Ino, inode: &Inode) -> Result<()> {
        let now = self.now();
        let last = inode.accessed;
        let is_new = last <= inode.modified.max(inode.changed) || now.s - last.s >= ACCESS_S;
        let is_wanted = match self.access_times() {
            AccessTimes::Relative => is_new,
            AccessTimes::NotOfFolders => is_new && !inode.is_folder(),
            AccessTimes::Strict => true,
            AccessTimes::None => false,
        };
        // It is not worth a commit.
        let has_place = !self.is_read_only() && !self.meta().is_crowded();
        if !is_wanted || !has_place || inode.flags.contains(Flags::NOATIME) {
            return Ok(());
        }
        let note = |tx: &Tx<'_>| {
            let mut inode = tx.inode(ino)?;
            inode.accessed = now;
            tx.put_inode(ino, &inode)
        };
        // fsync does not wait for it.
        self.meta().run(|tx| tx.logged(|| note(tx))).await
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

    /// The first byte from `offset` on that is data, or a hole. Other operations have turns in
    /// between, and it ends when it is told to stop.
    async fn seek(
        &self,
        ino: Ino,
        offset: u64,
        data: bool,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<u64>> {
        let file = self.lock_to_seek(ino, offset).await;
        let size = self.file(ino).await?.size;
        let end = size.div_ceil(BLOCK_BYTES);
        let mut from = offset / BLOCK_BYTES;
        loop {
            if from >= end || offset >= size {
                return Ok((!data && offset < size).then_some(size));
            }
            if !goes_on() {
                return Err(FsError::Cancelled);
            }
            let records =
                self.meta().run(|tx| tx.first_records(ino, from..end, SOUGHT_RECORDS)).await?;
            // The next record may begin within the last one.
            let is_all = records.len() < SOUGHT_RECORDS;
            let last = records.last().filter(|_| !is_all).map_or(end, |(first, _)| *first);
            if let Some(block) = first_block(&file.dirty.borrow(), &records, from..last, data) {
                return Ok(Some((block * BLOCK_BYTES).max(offset)));
            }
            from = last;
            self.rt().yield_now().await;
        }
    }
}

/// The first block of a range that is data, or none. All records of the range are there.
fn first_block(
    dirty: &BTreeMap<u64, (u64, Frozen)>,
    records: &[(u64, Extent)],
    range: Range<u64>,
    data: bool,
) -> Option<u64> {
    let mut at = range.start;
    for (n, (first, record)) in records.iter().enumerate() {
        let next = records.get(n + 1).map_or(range.end, |(next, _)| *next);
        let (from, to) = (at.max(*first), next.min(first + record.blocks()).min(range.end));
        if let Some(found) = first_without_record(dirty, at..from.min(range.end), data) {
            return Some(found);
        }
        // What is only reserved is a hole.
        let is_active = |block: u64| {
            !record.unwritten && record.columns[record.locate(block - first).1].is_some()
        };
        let is_data = |block: &u64| (dirty.contains_key(block) || is_active(*block)) == data;
        if let Some(found) = (from..to).find(is_data) {
            return Some(found);
        }
        at = at.max(to);
    }
    first_without_record(dirty, at..range.end, data)
}

/// Blocks that are allocated but have no extent.
fn first_without_record(
    dirty: &BTreeMap<u64, (u64, Frozen)>,
    mut range: Range<u64>,
    data: bool,
) -> Option<u64> {
    match data {
        _ if range.is_empty() => None,
        true => dirty.range(range).next().map(|(block, _)| *block),
        false => range.find(|block| !dirty.contains_key(block)),
    }
}

impl Fs {
    /// Reads up to `len` bytes of a file; fewer at its end.
    ///
    /// # Errors
    /// If it is no file, or blocks can be neither read nor reconstructed.
    pub async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Buf> {
        let request = self.0.job_pace().begin_request(self.0.rt());
        let read = self.0.read(ino, offset, len).await;
        drop(request);
        self.0.relocate_soon();
        read
    }

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

    /// The first byte from `offset` on that is data (or, with `data` unset, in a hole; the end of
    /// the file counts as one).
    ///
    /// # Errors
    /// If it is no file.
    pub async fn seek(&self, ino: Ino, offset: u64, data: bool) -> Result<Option<u64>> {
        self.0.seek(ino, offset, data, &|| true).await
    }

    /// As above, while `goes_on` says so.
    ///
    /// # Errors
    /// Also [`FsError::Cancelled`] if it was told to stop.
    pub async fn seek_while(
        &self,
        ino: Ino,
        offset: u64,
        data: bool,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<u64>> {
        self.0.seek(ino, offset, data, &goes_on).await
    }
}
