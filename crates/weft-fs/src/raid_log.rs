//! The RAID log: lines to be overwritten in place, durable before the overwrite.
//!
//! New lines need no log: no record names their blocks until they are durable. Where lines that a
//! record names are written, a crash may leave their parity and their checksums wrong. So a flush
//! first appends one log record of all such lines, with the partial parity of each: the sum over
//! the units that are *not* being written. Recovery sets parity := partial parity + the units that
//! were being written, as found ([`crate::mount::recovery`]).
//!
//! That is not enough if several units of a line are being written and the disk of one is lost with
//! the crash: its unit would have to be computed from parity and the other units, and some of these
//! are old and some new. A file system writes whole blocks, also where a user changed a part of
//! one, and the rest was acknowledged long ago. So the log record of such lines has the new
//! contents of these units as well, and recovery writes them again.
//!
//! *Few blocks.* The log record of a flush of few blocks, all of lines that exist, has all of their
//! contents. Then the disks need no flush: until a commit ends the log record, which flushes them
//! first, recovery can write the blocks again. It has the sizes and times of these files as well.
//! So fsync of a file that was only overwritten is done with one durable write of the log.
//!
//! The log is a ring: that of node 0 on the metadata array, that of another node on blocks of
//! disks ([`Medium`], [`crate::disks::log_medium`]). Positions count up forever; a log record that
//! does not fit before the end of the ring is placed at its start. Write ids are consecutive. A
//! commit of the metadata stores the *completed id* and the position after its log record: earlier
//! log records are dead. A log record is live if its epoch is that of the mount, its id follows the
//! one before it, and its CRC is right. The next one is written only when it is durable, so the
//! first that is not live is the end. A log record that leaves contents out is *bare*: before it is
//! appended the disks are flushed, and again before the next one is. So of a bare log record that
//! is not the last one everything is on the disks. A mount looks at all copies of the metadata, and
//! makes what it finds durable on all of them before it acts on it ([`ring`]).
//!
//! Each log record carries the file system's records of its lines, as they will be: code, places
//! and new checksums. Recovery compares the places with the committed record. Lines that are not
//! named there, or lie elsewhere, were new: recovery does not touch them.

pub(crate) mod ring;

use std::cell::Cell;

use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Result;
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::{crc32c, has_crc32c_at};
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Time};

const MAGIC: [u8; 8] = *b"weftrlog";
/// The most blocks whose contents go to the log, so that the disks need no flush.
pub(crate) const CONTENTS_BLOCKS_MAX: usize = 64;
/// A log record takes at most this part of the ring.
const SHARE: u64 = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    crc32c: U32,
    /// Bytes of the log record, without padding.
    bytes: U32,
    epoch: U64,
    /// The node that writes.
    node: U32,
    bands: U32,
    write_id: U64,
    files: U32,
    /// 1 if it is bare.
    bare: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawFile {
    ino: U64,
    size: U64,
    modified_s: I64,
    modified_ns: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BandHeader {
    ino: U64,
    block: U64,
    written: [U64; 4],
    record_bytes: U32,
    parities: U32,
    data: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UnitHeader {
    unit: U32,
    /// 0 for a partial parity that is zero.
    bytes: U32,
}

/// Lines that are being overwritten.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoggedBand {
    pub(crate) ino: Ino,
    /// The first block of the file in the first line.
    pub(crate) block: u64,
    /// These lines, as they will be.
    pub(crate) record: Extent,
    /// The data units that the partial parities leave out.
    pub(crate) written: UnitSet,
    /// Parity units with their partial parities; none if it is zero.
    pub(crate) parities: Vec<(usize, Option<Vec<u8>>)>,
    /// The new contents of the units being written, if there are several or few.
    pub(crate) data: Vec<(usize, Vec<u8>)>,
}

/// What becomes of a file by the flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggedFile {
    pub(crate) ino: Ino,
    pub(crate) size: u64,
    pub(crate) modified: Time,
}

/// A log record: one flush.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LogRecord {
    pub(crate) bands: Vec<LoggedBand>,
    /// Whether contents are left out.
    pub(crate) is_bare: bool,
    /// Files that nothing else was done to since the last commit.
    pub(crate) files: Vec<LoggedFile>,
}

impl LoggedFile {
    /// Bytes that it takes.
    pub(crate) const BYTES: u64 = size_of::<RawFile>() as u64;

    fn encode(&self) -> RawFile {
        RawFile {
            ino: U64::new(self.ino),
            size: U64::new(self.size),
            modified_s: I64::new(self.modified.s),
            modified_ns: U32::new(self.modified.ns),
            reserved: U32::ZERO,
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (raw, rest) = RawFile::read_from_prefix(bytes).ok()?;
        *bytes = rest;
        let modified = Time { s: raw.modified_s.get(), ns: raw.modified_ns.get() };
        Some(Self { ino: raw.ino.get(), size: raw.size.get(), modified })
    }
}

impl LoggedBand {
    /// Most bytes of a band of this number of lines for each unit that it writes.
    pub(crate) fn bytes_max(record: &Extent, lines: u64) -> u64 {
        let units = record.coded.columns as u64;
        let parities = record.coded.p() as u64;
        let sums = 4 * lines * units;
        let blocks = (parities + 1) * lines;
        (size_of::<BandHeader>() as u64) + 128 + sums + 16 * units + blocks * BLOCK_BYTES
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut written = [0; 4];
        self.written.iter().for_each(|unit| written[unit / 64] |= 1 << (unit % 64));
        let record = self.record.encode();
        let count = |n: usize| U32::new(u32::try_from(n).expect("bounded by the ring"));
        let header = BandHeader {
            ino: U64::new(self.ino),
            block: U64::new(self.block),
            written: written.map(U64::new),
            record_bytes: count(record.len()),
            parities: count(self.parities.len()),
            data: count(self.data.len()),
            reserved: U32::ZERO,
        };
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&record);
        let parities = self.parities.iter().map(|(unit, partial)| (unit, partial.as_deref()));
        let data = self.data.iter().map(|(unit, data)| (unit, Some(&data[..])));
        for (unit, bytes) in parities.chain(data) {
            let bytes = bytes.unwrap_or_default();
            let header = UnitHeader { unit: count(*unit), bytes: count(bytes.len()) };
            out.extend_from_slice(header.as_bytes());
            out.extend_from_slice(bytes);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (header, rest) = BandHeader::read_from_prefix(bytes).ok()?;
        let (record, mut rest) = rest.split_at_checked(header.record_bytes.get() as usize)?;
        let record = Extent::decode(record).ok()?;
        let (ino, block) = (header.ino.get(), header.block.get());
        block.checked_add(record.blocks())?;
        let width = record.coded.columns;
        let column_bytes = usize::try_from(record.lines).ok()? * BLOCK;
        let words = header.written.map(U64::get);
        let has = |unit: &usize| words[unit / 64] >> (unit % 64) & 1 == 1;
        let written: UnitSet = (0..256).filter(has).collect();
        if !written.is_subset(&UnitSet::first(width)) {
            return None;
        }
        let mut unit = || {
            let (unit, after) = UnitHeader::read_from_prefix(rest).ok()?;
            let (bytes, after) = after.split_at_checked(unit.bytes.get() as usize)?;
            rest = after;
            let unit = unit.unit.get() as usize;
            let is_whole = bytes.is_empty() || bytes.len() == column_bytes;
            (unit < width && is_whole).then(|| (unit, bytes.to_vec()))
        };
        let partial =
            |(unit, bytes): (usize, Vec<u8>)| (unit, Some(bytes).filter(|b| !b.is_empty()));
        let parities = (0..header.parities.get()).map(|_| unit().map(partial));
        let parities = parities.collect::<Option<_>>()?;
        let data = (0..header.data.get()).map(|_| unit().filter(|(_, bytes)| !bytes.is_empty()));
        let data = data.collect::<Option<_>>()?;
        *bytes = rest;
        Some(Self { ino, block, record, written, parities, data })
    }
}

/// Where a log lies: a ring of which there are copies.
pub(crate) trait Medium {
    /// Bytes of the ring.
    fn bytes(&self) -> u64;

    /// Writes to all copies, durably.
    async fn write(&self, at: u64, bytes: Frozen) -> Result<()>;

    /// What lies at an offset, of the first copy that has it ([`ring::read_any`]).
    async fn read_any<T>(
        &self,
        at: u64,
        len: impl Fn(&[u8]) -> Option<usize>,
        decode: impl Fn(&mut [u8]) -> Option<T>,
    ) -> Result<Option<(Buf, T)>>;
}

/// Where the log starts, by a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// All writes up to this one are part of the commit.
    pub(crate) completed: u64,
    /// Where the next log record starts.
    pub(crate) position: u64,
}

/// The log of a mount.
#[derive(Debug)]
pub(crate) struct Log {
    /// Bytes of the ring.
    size: Cell<u64>,
    epoch: u64,
    node: u32,
    last_id: Cell<u64>,
    head: Cell<u64>,
    tail: Cell<u64>,
    /// The write that is not complete, as before it.
    pending: Cell<Option<Mark>>,
}

impl Log {
    /// An empty log in a ring of `size` bytes.
    pub(crate) fn new(size: u64, (node, epoch): (u16, u64), last_id: u64) -> Self {
        let (head, tail) = (Cell::new(0), Cell::new(0));
        let (node, last_id, size) = (node.into(), Cell::new(last_id), Cell::new(size));
        Self { size, epoch, node, last_id, head, tail, pending: Cell::new(None) }
    }

    /// The mount that writes it.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The last log record that was begun.
    pub(crate) fn last_id(&self) -> u64 {
        self.last_id.get()
    }

    /// Bytes that one log record may have.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        self.size.get() / SHARE
    }

    /// The start of the log that a commit may store now.
    pub(crate) fn mark(&self) -> Mark {
        let all = Mark { completed: self.last_id.get(), position: self.head.get() };
        self.pending.get().unwrap_or(all)
    }

    /// The start of the log in another ring, which is empty. Nothing that was appended is to be
    /// completed.
    pub(crate) fn mark_in_next(&self) -> Mark {
        debug_assert!(self.pending.get().is_none(), "no flush is under way");
        Mark { completed: self.last_id.get(), position: 0 }
    }

    /// From now on it is in another ring, of `size` bytes: a commit that says so is durable.
    pub(crate) fn go_on_in(&self, size: u64) {
        self.size.set(size);
        self.head.set(0);
        self.tail.set(0);
    }

    /// A commit with this mark is durable.
    pub(crate) fn retire(&self, mark: Mark) {
        self.tail.set(self.tail.get().max(mark.position));
    }

    /// The write whose log record was appended last is part of the open transaction.
    pub(crate) fn complete(&self) {
        self.pending.set(None);
    }

    /// Appends a log record, durably. `false` if a commit has to make room first. Until
    /// [`Log::complete`] no other may be appended.
    pub(crate) async fn append(&self, medium: &impl Medium, record: &LogRecord) -> Result<bool> {
        debug_assert!(self.pending.get().is_none());
        let write_id = self.last_id.get() + 1;
        let bytes = encode(self.epoch, self.node, write_id, record);
        let (size, len) = (self.size.get(), bytes.len() as u64);
        let position = ring::place(size, self.head.get(), len);
        if position + len - self.tail.get() > size {
            return Ok(false);
        }
        self.pending.set(Some(self.mark()));
        self.last_id.set(write_id);
        self.head.set(position + len);
        medium.write(position % size, bytes.freeze()).await?;
        Ok(true)
    }
}

fn encode(epoch: u64, node: u32, write_id: u64, record: &LogRecord) -> Buf {
    let LogRecord { bands, is_bare, files } = record;
    let mut bytes = vec![0; size_of::<Header>()];
    files.iter().for_each(|file| bytes.extend_from_slice(file.encode().as_bytes()));
    bands.iter().for_each(|band| band.encode(&mut bytes));
    let count = |n: usize| U32::new(u32::try_from(n).expect("bounded by the ring"));
    let mut header = Header {
        magic: MAGIC,
        crc32c: U32::ZERO,
        bytes: count(bytes.len()),
        epoch: U64::new(epoch),
        node: U32::new(node),
        bands: count(bands.len()),
        write_id: U64::new(write_id),
        files: count(files.len()),
        bare: U32::new(u32::from(*is_bare)),
    };
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    header.crc32c = U32::new(crc32c(&bytes));
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    let mut padded = Buf::zeroed(bytes.len().next_multiple_of(BLOCK));
    padded[..bytes.len()].copy_from_slice(&bytes);
    padded
}

/// The live log records of a mount, by its node and epoch, after a commit's mark, oldest first, and
/// the last write id.
pub(crate) async fn scan(
    medium: &impl Medium,
    of: (u16, u64),
    mark: Mark,
) -> Result<(Vec<LogRecord>, u64)> {
    let size = medium.bytes();
    let (mut records, mut id, mut position) = (Vec::new(), mark.completed, mark.position);
    loop {
        let read = async |at| read(medium, at, of, id + 1).await;
        let Some((behind, (bytes, found))) = ring::next(size, position, read).await? else {
            return Ok((records, id));
        };
        // Before it is acted on, all copies have it.
        medium.write((behind - bytes.len() as u64) % size, bytes.freeze()).await?;
        records.push(found);
        id += 1;
        position = behind;
    }
}

/// The log record at an offset of the ring, if it is this one: how many bytes it has on disk, and
/// these.
async fn read(
    medium: &impl Medium,
    at: u64,
    (node, epoch): (u16, u64),
    write_id: u64,
) -> Result<Option<(u64, (Buf, LogRecord))>> {
    let header = |block: &[u8]| {
        let (header, _) = Header::read_from_prefix(block).ok()?;
        let bytes = header.bytes.get() as usize;
        let is_it = header.magic == MAGIC
            && header.epoch.get() == epoch
            && header.node.get() == u32::from(node)
            && header.write_id.get() == write_id
            && bytes >= size_of::<Header>()
            && at + bytes.next_multiple_of(BLOCK) as u64 <= medium.bytes();
        is_it.then_some(bytes)
    };
    let len = |block: &[u8]| Some(header(block)?.next_multiple_of(BLOCK));
    // It may have changed since its length was looked at.
    let decode = |whole: &mut [u8]| {
        let bytes = header(whole)?;
        decode(whole.get_mut(..bytes)?)
    };
    let found = medium.read_any(at, len, decode).await?;
    Ok(found.map(|(whole, record)| (whole.len() as u64, (whole, record))))
}

/// The log record with these bytes, if they are one.
fn decode(bytes: &mut [u8]) -> Option<LogRecord> {
    if !has_crc32c_at(bytes, std::mem::offset_of!(Header, crc32c)) {
        return None;
    }
    let (header, mut rest) = Header::read_from_prefix(bytes).ok()?;
    let files = (0..header.files.get()).map(|_| LoggedFile::decode(&mut rest));
    let files = files.collect::<Option<_>>()?;
    let bands = (0..header.bands.get()).map(|_| LoggedBand::decode(&mut rest));
    let bands = bands.collect::<Option<_>>()?;
    Some(LogRecord { bands, is_bare: header.bare.get() != 0, files })
}

#[cfg(test)]
mod tests {
    use weft_random::Rng;

    use super::*;
    use crate::format::checksum::put_crc32c_at;
    use crate::format::extent::Column;
    use crate::format::extent::tests::damage;
    use crate::format::redundancy::Redundancy;

    fn log_record() -> LogRecord {
        let coded = Redundancy::Auto.coded(3).expect("three disks");
        let mut record = Extent::new(coded, 0, 2);
        record.columns[0] = Some(Column { disk: 1, start: 5, sums: vec![6, 7] });
        let band = LoggedBand {
            ino: 3,
            block: 4,
            record,
            written: [0, 2].into_iter().collect(),
            parities: vec![(2, Some(vec![8; 2 * BLOCK])), (1, None)],
            data: vec![(0, vec![9; 2 * BLOCK])],
        };
        let file = LoggedFile { ino: 10, size: 11, modified: Time { s: -12, ns: 13 } };
        LogRecord { bands: vec![band; 2], is_bare: true, files: vec![file] }
    }

    /// A log record as on the disks, without the bytes after it.
    fn encoded() -> Vec<u8> {
        let padded = encode(1, 2, 3, &log_record());
        assert!(padded.len().is_multiple_of(BLOCK));
        let (header, _) = Header::read_from_prefix(&padded[..]).expect("long enough");
        padded[..header.bytes.get() as usize].to_vec()
    }

    #[test]
    fn it_reads_back() {
        assert_eq!(decode(&mut encoded()), Some(log_record()));
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_refused_or_can_be_used() {
        let mut rng = Rng::new(9);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..5_000 {
            let mut bytes = encoded();
            let contents = bytes.split_off(size_of::<Header>() + 300);
            damage(&mut rng, &mut bytes);
            bytes.extend_from_slice(&contents);
            bytes.resize(bytes.len().max(size_of::<Header>()), 0);
            put_crc32c_at(&mut bytes, std::mem::offset_of!(Header, crc32c));
            let Some(record) = decode(&mut bytes) else {
                refused += 1;
                continue;
            };
            accepted += 1;
            for band in record.bands {
                let lines = usize::try_from(band.record.lines).expect("few");
                let width = band.record.columns.len();
                assert!(band.written.iter().all(|unit| unit < width));
                for (unit, bytes) in band.data {
                    assert!(unit < width && bytes.len() == lines * BLOCK);
                }
                for (unit, bytes) in band.parities {
                    let len = bytes.map_or(lines * BLOCK, |bytes| bytes.len());
                    assert!(unit < width && len == lines * BLOCK);
                }
            }
        }
        assert!(accepted > 500 && refused > 500, "{accepted} {refused}");
    }
}
