//! Reading files: what is in the cache, and from the disks the rest. Bytes beyond the end are
//! never read ([`super::write`]).

use std::collections::BTreeMap;
use std::ops::Range;

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
use crate::state::open_files::Node;

/// Seconds after which a reader is noted although the file was not changed since the last one.
const ACCESS_S: i64 = 24 * 3600;
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
