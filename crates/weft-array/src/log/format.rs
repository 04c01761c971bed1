//! The bytes of the log. A batch is a 4 KiB header block, followed by the payloads. Little-endian;
//! documented in `docs/on-disk-format.md`.

use std::ops::Range;

use weft_code::UnitSet;
use weft_rt::Frozen;
use weft_stripe::{Generation, StripeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{crc32c, crc32c_skipping};
use crate::format::length::to_len;

/// Batches start at multiples of this; the header block has this size.
pub(crate) const BATCH_ALIGN: usize = 4096;

const MAGIC: [u8; 8] = *b"WEFTPPL2";

/// The array and the assembly that a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogId {
    pub array: [u8; 16],
    /// Random number, new for each assembly; records of any other epoch are void.
    pub epoch: u64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BatchHeader {
    magic: [u8; 8],
    array: [u8; 16],
    epoch: U64,
    /// All records with a lower sequence number are retired.
    retired_below: U64,
    entries: U32,
    /// Length of the whole batch in bytes.
    len: U32,
    /// CRC32C of this header and its entries, with this field taken as zeros. Not of the whole
    /// block: most hold one or two entries, and a small write would checksum twice its bytes.
    crc: U32,
    reserved: [u8; 12],
}

/// One record in a batch header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Entry {
    seq: U64,
    stripe: U64,
    /// The data units that the payload leaves out, and all parity units with a record of the same
    /// write and offsets. Bit u mod 64 of word u / 64 is unit u.
    named: [U64; 4],
    from: U32,
    len: U32,
    /// Offset of the payload in the batch; 0 if there is no payload (it would be all zeros).
    payload_at: U32,
    payload_crc: U32,
    unit: U16,
    /// The geometry in which the stripe's number counts.
    generation: U16,
    reserved: [u8; 4],
}

const HEADER_LEN: usize = size_of::<BatchHeader>();
const ENTRY_LEN: usize = size_of::<Entry>();
const CRC_AT: usize = std::mem::offset_of!(BatchHeader, crc);

/// Length of a header with `entries` entries.
fn used(entries: usize) -> usize {
    HEADER_LEN + entries * ENTRY_LEN
}

/// Entries that fit in one header block.
pub(crate) const ENTRIES_MAX: usize = (BATCH_ALIGN - HEADER_LEN) / ENTRY_LEN;

/// Longest payload of one record; longer bands become several records.
pub(crate) const PAYLOAD_MAX: usize = 128 << 10;

/// Most payload bytes in one batch. A ring holds several batches, so that one can be written while
/// older ones wait for their retirement.
const BATCH_PAYLOAD_MAX: usize = 512 << 10;

/// Length of the longest possible batch in a ring of `ring_bytes`.
fn batch_max(ring_bytes: usize) -> usize {
    BatchHeader::batch_len(payload_max(ring_bytes).max(PAYLOAD_MAX))
}

/// Most payload bytes in a batch of several records.
pub(super) fn payload_max(ring_bytes: usize) -> usize {
    BATCH_PAYLOAD_MAX.min(ring_bytes / 4)
}

fn small(n: usize) -> U32 {
    U32::new(u32::try_from(n).expect("a batch is far below 4 GiB"))
}

impl Entry {
    pub fn new(
        seq: u64,
        stripe: StripeId,
        unit: usize,
        from: u64,
        len: usize,
        named: UnitSet,
        payload: Option<&[u8]>,
    ) -> Self {
        Self {
            seq: U64::new(seq),
            stripe: U64::new(stripe.number),
            named: named.words().map(U64::new),
            from: small(to_len(from)),
            len: small(len),
            payload_at: U32::ZERO,
            payload_crc: U32::new(payload.map_or(0, crc32c)),
            unit: U16::new(u16::try_from(unit).expect("a stripe has at most 256 units")),
            generation: U16::new(stripe.generation.0),
            reserved: [0; 4],
        }
    }

    pub fn seq(&self) -> u64 {
        self.seq.get()
    }
}

impl BatchHeader {
    /// Length of a batch with `payload_bytes` of payload.
    pub fn batch_len(payload_bytes: usize) -> usize {
        (BATCH_ALIGN + payload_bytes).next_multiple_of(BATCH_ALIGN)
    }

    /// Writes the header block of a batch into `block`: entries with the lengths of their payloads,
    /// whose offsets are filled in.
    pub fn fill<'a>(
        block: &mut [u8],
        id: LogId,
        retired_below: u64,
        batch_len: usize,
        entries: impl ExactSizeIterator<Item = (&'a Entry, usize)>,
    ) {
        block[..BATCH_ALIGN].fill(0);
        let count = entries.len();
        let mut at = BATCH_ALIGN;
        for (index, (entry, payload_len)) in entries.enumerate() {
            let mut entry = *entry;
            if payload_len > 0 {
                entry.payload_at = small(at);
                at += payload_len;
            }
            let start = used(index);
            block[start..start + ENTRY_LEN].copy_from_slice(entry.as_bytes());
        }
        let header = Self {
            magic: MAGIC,
            array: id.array,
            epoch: U64::new(id.epoch),
            retired_below: U64::new(retired_below),
            entries: small(count),
            len: small(batch_len),
            crc: U32::ZERO,
            reserved: [0; 12],
        };
        block[..HEADER_LEN].copy_from_slice(header.as_bytes());
        // The field itself is zero so far.
        let crc = crc32c(&block[..used(count)]);
        block[CRC_AT..CRC_AT + size_of::<U32>()].copy_from_slice(U32::new(crc).as_bytes());
    }
}

/// A record found after a crash.
#[derive(Debug, Clone)]
pub(crate) struct FoundRecord {
    pub seq: u64,
    pub stripe: StripeId,
    pub unit: usize,
    pub from: u64,
    pub len: usize,
    /// The data units left out, and the parity units with a record of the same write.
    pub named: UnitSet,
    /// `None` stands for an all-zero payload: the sum over no units.
    pub payload: Option<Frozen>,
}

/// What a scan of one member's log area found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scan {
    /// The valid records; foreign, torn and overwritten ones are skipped.
    pub records: Vec<FoundRecord>,
    /// The highest "retired below" found.
    pub retired_below: u64,
    /// The lowest sequence number in the newest batch. A record with a lower one was durable in
    /// this ring before that batch was started.
    pub newest_batch_from: u64,
    /// Byte range of the newest batch.
    newest_batch: Range<usize>,
}

impl Scan {
    /// Whether the block at `at` may belong to the batch that was being written at the crash. That
    /// batch is the newest, if its header is intact, or the one after it. The one after it starts
    /// at the start of the area if the rest (the area has `area_len` bytes) was too short. No
    /// stripe write that such a batch logs had started.
    pub fn may_be_torn(&self, at: usize, area_len: usize) -> bool {
        let end = self.newest_batch.end + batch_max(area_len);
        (self.newest_batch.start..end).contains(&at) || end > area_len && at < batch_max(area_len)
    }
}

/// A log area is read in pieces of this size. The size of the log comes from the disk, and must not
/// decide how much memory recovery takes.
const PIECE: usize = 4 << 20;

/// A piece of a log area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Batches that start in this range belong to the piece.
    pub heads: Range<usize>,
    /// The bytes to read: `heads`, and the rest of a batch that starts near its end.
    pub bytes: Range<usize>,
}

/// Cuts a log area of `area_len` bytes into pieces.
pub(crate) fn pieces(area_len: usize) -> impl Iterator<Item = Piece> {
    (0..area_len).step_by(PIECE).map(move |from| {
        let end = (from + PIECE).min(area_len);
        Piece { heads: from..end, bytes: from..(end + batch_max(area_len)).min(area_len) }
    })
}

impl Scan {
    /// Adds the records of a piece; `bytes` are the contents of `piece.bytes`.
    pub fn add(&mut self, piece: &Piece, bytes: &Frozen, id: LogId) {
        let blocks = piece.heads.len() / BATCH_ALIGN;
        let mut found = Vec::new();
        for at in (0..blocks).map(|block| block * BATCH_ALIGN) {
            let Some((header, entries)) = parse_header(&bytes[at..at + BATCH_ALIGN], id) else {
                continue;
            };
            self.retired_below = self.retired_below.max(header.retired_below.get());
            let from = entries.iter().map(Entry::seq).min().unwrap_or(0);
            if from >= self.newest_batch_from {
                self.newest_batch_from = from;
                let start = piece.heads.start + at;
                self.newest_batch = start..start + to_len(u64::from(header.len.get()));
            }
            found.extend(entries.iter().filter_map(|entry| parse_entry(bytes, at, entry)));
        }
        self.records.extend(found);
        // Most records of a log are retired.
        self.records.retain(|record| record.seq >= self.retired_below);
    }
}

fn parse_header(block: &[u8], id: LogId) -> Option<(BatchHeader, Vec<Entry>)> {
    let (header, _) = BatchHeader::read_from_prefix(block).ok()?;
    if header.magic != MAGIC || header.array != id.array || header.epoch.get() != id.epoch {
        return None;
    }
    let count = to_len(u64::from(header.entries.get()));
    if count > ENTRIES_MAX || header.reserved != [0; 12] {
        return None;
    }
    let block = &block[..used(count)];
    if crc32c_skipping(block, CRC_AT) != header.crc.get() {
        return None;
    }
    let entries = block[HEADER_LEN..].chunks_exact(ENTRY_LEN);
    let entries = entries.map(Entry::read_from_bytes).collect::<Result<_, _>>().ok()?;
    Some((header, entries))
}

fn parse_entry(bytes: &Frozen, batch_at: usize, entry: &Entry) -> Option<FoundRecord> {
    if entry.reserved != [0; 4] {
        return None;
    }
    let len = to_len(u64::from(entry.len.get()));
    let payload = match to_len(u64::from(entry.payload_at.get())) {
        0 => None,
        at => {
            let start = batch_at.checked_add(at)?;
            if start.checked_add(len)? > bytes.len() {
                return None;
            }
            let payload = &bytes[start..start + len];
            if crc32c(payload) != entry.payload_crc.get() {
                return None;
            }
            // A copy, so that the record does not keep the whole piece in memory.
            Some(Frozen::copy_from(payload))
        }
    };
    Some(FoundRecord {
        seq: entry.seq.get(),
        stripe: StripeId {
            generation: Generation(entry.generation.get()),
            number: entry.stripe.get(),
        },
        unit: usize::from(entry.unit.get()),
        from: u64::from(entry.from.get()),
        len,
        named: UnitSet::from_words(entry.named.map(U64::get)),
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = LogId { array: [7; 16], epoch: 3 };

    fn stripe(number: u64) -> StripeId {
        StripeId { generation: Generation(3), number }
    }

    fn parse(area: &[u8], id: LogId) -> Scan {
        let mut scan = Scan::default();
        for piece in pieces(area.len()) {
            scan.add(&piece, &Frozen::copy_from(&area[piece.bytes.clone()]), id);
        }
        scan
    }

    fn batch() -> Vec<u8> {
        let payload = vec![0xa5u8; 4096];
        let written = UnitSet::one(0).with(5);
        let first = Entry::new(41, stripe(9), 6, 4096, 4096, written, Some(&payload));
        let second = Entry::new(42, stripe(10), 7, 0, 8192, written, None);
        let mut bytes = vec![0; BatchHeader::batch_len(payload.len())];
        let len = bytes.len();
        let entries = [(&first, payload.len()), (&second, 0)];
        BatchHeader::fill(&mut bytes, ID, 40, len, entries.into_iter());
        bytes[BATCH_ALIGN..BATCH_ALIGN + payload.len()].copy_from_slice(&payload);
        bytes
    }

    #[test]
    fn written_records_are_found_again() {
        let mut area = vec![0u8; 4096];
        area.extend(batch());
        let Scan { records: found, retired_below, newest_batch_from, newest_batch } =
            parse(&area, ID);
        assert_eq!((found.len(), retired_below, newest_batch_from), (2, 40, 41));
        assert_eq!(newest_batch, 4096..12288);
        let (a, b) = (&found[0], &found[1]);
        assert_eq!((a.seq, a.stripe, a.unit, a.from, a.len), (41, stripe(9), 6, 4096, 4096));
        assert_eq!(a.named, UnitSet::one(0).with(5));
        assert!(a.payload.as_ref().is_some_and(|p| p.iter().all(|b| *b == 0xa5)));
        assert_eq!((b.seq, b.unit, b.len, b.payload.is_none()), (42, 7, 8192, true));
    }

    #[test]
    fn a_flipped_bit_voids_its_batch_or_record_and_no_others() {
        let good = batch();
        let unused = used(2)..BATCH_ALIGN;
        for at in (0..good.len()).filter(|at| !unused.contains(at)) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let found = parse(&bad, ID).records;
            let expected = if at < BATCH_ALIGN { 0 } else { 1 };
            assert_eq!(found.len(), expected, "byte {at}");
        }
    }

    #[test]
    fn only_the_newest_batch_and_its_successor_may_be_torn() {
        let len = 4 << 20;
        let mut area = vec![0u8; len];
        let torn = |area: &[u8]| {
            let scan = parse(area, ID);
            let blocks = (0..len).step_by(BATCH_ALIGN);
            blocks.filter(|at| scan.may_be_torn(*at, len)).collect::<Vec<_>>()
        };
        let run = |from: usize, to: usize| (from..to).step_by(BATCH_ALIGN).collect::<Vec<_>>();
        let max = batch_max(len);
        assert_eq!(torn(&area), run(0, max), "nothing was written yet");
        let batch = batch();
        area[1 << 20..(1 << 20) + batch.len()].copy_from_slice(&batch);
        assert_eq!(torn(&area), run(1 << 20, (1 << 20) + batch.len() + max));
        area.fill(0);
        area[len - batch.len()..].copy_from_slice(&batch);
        assert_eq!(torn(&area), [run(0, max), run(len - batch.len(), len)].concat());
    }

    #[test]
    fn a_batch_across_the_end_of_a_piece_is_found_once() {
        let batch = batch();
        for at in [PIECE - batch.len(), PIECE - BATCH_ALIGN, PIECE] {
            let mut area = vec![0u8; 2 * PIECE];
            area[at..at + batch.len()].copy_from_slice(&batch);
            let scan = parse(&area, ID);
            assert_eq!((scan.records.len(), scan.newest_batch.start), (2, at));
        }
    }

    #[test]
    fn another_epoch_or_array_is_void() {
        let area = batch();
        for id in [LogId { epoch: 2, ..ID }, LogId { array: [8; 16], ..ID }] {
            let scan = parse(&area, id);
            assert_eq!((scan.records.len(), scan.retired_below), (0, 0));
        }
    }
}
