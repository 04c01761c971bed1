//! The label of a disk: what it is, and where its parts lie.
//!
//! ```text
//! byte 0        label              4 KiB
//!      4 KiB    diagnostic blocks  2 · 4 KiB: one that is known, one that is numbered
//!      12 KiB   number of the last mount or unmount, twice ([`super::use_number`])
//!      64 KiB   metadata slice
//!      …        data               blocks of 4 KiB
//!      end      diagnostic blocks  2 · 4 KiB, second site
//!               label, second copy 4 KiB
//! ```
//!
//! *The metadata slice* may get more pieces: runs of the data's blocks
//! ([`crate::state::metadata_room`]). A label with such pieces has another version, a list of them
//! at 512 bytes, with a CRC of its own, and a count of its changes. They are written to the first
//! copy, durably, and then to the second. Of copies that differ the one with more changes counts,
//! and a mount writes it to both; so does the mounted file system if the disk refused one of them.
//! So whatever a crash leaves, a piece that one copy names is never taken for free.
//!
//! A label is written when the disk joins, and again if it comes back after a loss, with another
//! number, or its slice gets a piece. What else changes is metadata. A crash may leave it with the
//! old number in one copy and the new one in the other; either will do, as the metadata knows both.
//! Creating a file system writes the labels last.
//!
//! *A disk that becomes larger*, as its file or volume was enlarged, is used as before until a
//! command ([`crate::Fs::grow_disk`]) gives it a new label, which differs in size and number of
//! blocks only. Its parts stay where they are; the data ends further on, and after it there are
//! other sites and another second copy. These are written first, durably, then the first copy,
//! durably, and last the metadata gets the new number of blocks, which decides what may be used:
//!
//! | crash | first copy | metadata | the disk |
//! |---|---|---|---|
//! | before | old | old | as before |
//! | in the middle of the first copy | old, new or torn: then the second copy counts, the new one | old | as before |
//! | after that | new | old | as before, with the new sites; the command can be given again |
//! | at the end | new | new | has the new blocks |
//!
//! Only then the places of the old sites and of the old second copy become free blocks, when no
//! diagnosis is in progress, which would write to the old site.
//!
//! *Limits.* The second copy is looked for at the end of the disk, and where the first copy tells
//! that the end was. So it is not found while the disk is larger than its label records and the
//! first copy is damaged.

use std::ops::Range;

use weft_array::Id;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;

const MAGIC: [u8; 8] = *b"weftfs.1";
/// What a disk has in place of a label while it joins.
const JOINING: [u8; 8] = *b"weftjoin";
/// The version of the format of everything below a label.
const VERSION: u32 = 2;
/// That of a label whose metadata slice has several pieces.
const WITH_PIECES: u32 = 3;
/// Where the list of pieces is in a label.
const PIECES_AT: usize = 512;
/// The most pieces besides the first one.
pub(crate) const PIECES_MAX: usize = 200;
/// Where the first site of diagnostic blocks is.
const DIAGNOSTIC_AT: u64 = 4096;
/// Bytes after the data: the second site, and the second copy of the label.
const END_BYTES: u64 = 3 * BLOCK_BYTES;
/// Where the metadata slice starts.
const SLICE_AT: u64 = 64 << 10;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    crc32c: U32,
    version: U32,
    fs_id: [u8; 16],
    disk_id: [u8; 16],
    number: U16,
    name_bytes: U16,
    /// How often its pieces have changed.
    changes: U32,
    size_bytes: U64,
    slice_at: U64,
    slice_bytes: U64,
    data_at: U64,
    blocks: U64,
    name: [u8; NAME_BYTES_MAX],
}

/// A piece of the metadata slice, in blocks of the data.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RawPiece {
    start: U64,
    blocks: U64,
}

/// The list of pieces.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPieces {
    /// Of the disk's identity, the count of changes, and the rest of this.
    crc32c: U32,
    count: U32,
    pieces: [RawPiece; PIECES_MAX],
}

const _: () = assert!(PIECES_AT + size_of::<RawPieces>() <= BLOCK);

/// Longest name of a file system, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// What the metadata array calls the slice of a disk. No other disk ever has its number.
pub(crate) fn slice_name(number: u16) -> String {
    format!("disk {number}")
}

/// Where diagnostic blocks are, in bytes of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// The one that is written when the disk joins.
    pub(crate) known: u64,
    /// The one that each diagnosis writes.
    pub(crate) numbered: u64,
}

/// The contents of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The file system.
    pub fs_id: Id,
    /// Its name.
    pub name: String,
    /// The disk.
    pub disk_id: Id,
    /// Its number in the file system.
    pub number: u16,
    /// Bytes of the disk when it joined.
    pub size_bytes: u64,
    /// Bytes of the first piece of the metadata slice.
    pub slice_bytes: u64,
    /// Blocks of data.
    pub blocks: u64,
    /// More pieces of the metadata slice, in blocks of the data.
    pub pieces: Vec<Range<u64>>,
    /// How often these have changed.
    pub(crate) changes: u32,
}

impl Label {
    /// Lays out a disk of `size_bytes`.
    ///
    /// # Errors
    /// If it is too small.
    pub fn plan(
        fs_id: Id,
        name: &str,
        number: u16,
        size_bytes: u64,
        slice_bytes: u64,
    ) -> Result<Self> {
        let size_bytes = size_bytes - size_bytes % BLOCK_BYTES;
        let blocks = size_bytes.saturating_sub(SLICE_AT + slice_bytes + END_BYTES) / BLOCK_BYTES;
        if blocks < 16 {
            let needed = (SLICE_AT + slice_bytes + END_BYTES + 16 * BLOCK_BYTES) >> 10;
            let have = size_bytes >> 10;
            let why = format!("a disk of {have} KiB is too small: at least {needed} are needed");
            return Err(FsError::Invalid(why));
        }
        let disk_id = fs_id.member(0, u64::from(number));
        let name = name.to_owned();
        let (pieces, changes) = (Vec::new(), 0);
        Ok(Self { fs_id, name, disk_id, number, size_bytes, slice_bytes, blocks, pieces, changes })
    }

    /// The label of this disk now that it has `size_bytes`; `None` if that gives it no more blocks.
    pub(crate) fn larger(&self, size_bytes: u64) -> Option<Self> {
        let Self { fs_id, name, number, slice_bytes, disk_id, .. } = self;
        let label = Self::plan(*fs_id, name, *number, size_bytes, *slice_bytes).ok()?;
        let is_larger = label.blocks >= self.blocks && label.size_bytes >= self.size_bytes;
        let (pieces, changes) = (self.pieces.clone(), self.changes_after());
        is_larger.then_some(Self { disk_id: *disk_id, pieces, changes, ..label })
    }

    /// The count of changes of the label after this one.
    fn changes_after(&self) -> u32 {
        // Labels that never had pieces are as older versions write them.
        let had_none = self.pieces.is_empty() && self.changes == 0;
        if had_none { 0 } else { self.changes.saturating_add(1) }
    }

    /// The label of this disk with more pieces of the metadata slice; `None` if they are too many.
    pub(crate) fn with_pieces(&self, more: &[Range<u64>]) -> Option<Self> {
        let pieces = [&self.pieces[..], more].concat();
        let changes = self.changes.saturating_add(1);
        (pieces.len() <= PIECES_MAX).then(|| Self { pieces, changes, ..self.clone() })
    }

    /// The label of this disk with only the first `count` of the pieces in its list.
    pub(crate) fn with_first_pieces(&self, count: usize) -> Self {
        let pieces = self.pieces.iter().take(count).cloned().collect();
        Self { pieces, changes: self.changes.saturating_add(1), ..self.clone() }
    }

    /// Bytes of all pieces of the metadata slice.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.slice_bytes + self.piece_blocks() * BLOCK_BYTES
    }

    /// Blocks of the data that are pieces of the metadata slice.
    pub(crate) fn piece_blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }

    /// A run of data blocks, in bytes of the disk.
    pub(crate) fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        let data = self.data().start;
        data + blocks.start * BLOCK_BYTES..data + blocks.end * BLOCK_BYTES
    }

    /// All pieces of the metadata slice, in bytes of the disk.
    pub(crate) fn slice_ranges(&self) -> Vec<Range<u64>> {
        let more = self.pieces.iter().map(|piece| self.bytes_of(piece));
        std::iter::once(self.slice()).chain(more).collect()
    }

    /// The label of the same disk under another number.
    pub(crate) fn renumbered(&self, number: u16) -> Self {
        let (disk_id, changes) = (self.fs_id.member(0, u64::from(number)), self.changes_after());
        Self { number, disk_id, changes, ..self.clone() }
    }

    /// The first piece of the metadata slice, in bytes of the disk.
    #[must_use]
    pub fn slice(&self) -> Range<u64> {
        SLICE_AT..SLICE_AT + self.slice_bytes
    }

    /// The data, in bytes of the disk.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        let start = SLICE_AT + self.slice_bytes;
        start..start + self.blocks * BLOCK_BYTES
    }

    /// The sites of its diagnostic blocks.
    pub(crate) fn sites(&self) -> [Site; 2] {
        let site = |known| Site { known, numbered: known + BLOCK_BYTES };
        [site(DIAGNOSTIC_AT), site(self.size_bytes - END_BYTES)]
    }

    /// The contents of the diagnostic blocks that are known: 8 bytes of zeros, where numbered
    /// blocks have their number, the disk's identity, and a text, all again and again.
    pub(crate) fn diagnostic(&self) -> Frozen {
        let text = b"weftfs diagnostic block: a disk on which this can be read works\n";
        let all = [&[0; 8], &self.disk_id.0[..], text].concat();
        let bytes: Vec<u8> = all.into_iter().cycle().take(BLOCK).collect();
        Frozen::copy_from(&bytes)
    }

    fn encode(&self) -> Frozen {
        self.encode_as(MAGIC)
    }

    fn encode_as(&self, magic: [u8; 8]) -> Frozen {
        let mut name = [0; NAME_BYTES_MAX];
        let name_bytes = self.name.len().min(NAME_BYTES_MAX);
        name[..name_bytes].copy_from_slice(&self.name.as_bytes()[..name_bytes]);
        let mut raw = Raw {
            magic,
            crc32c: U32::ZERO,
            version: U32::new(if self.pieces.is_empty() { VERSION } else { WITH_PIECES }),
            fs_id: self.fs_id.0,
            disk_id: self.disk_id.0,
            number: U16::new(self.number),
            name_bytes: U16::new(u16::try_from(name_bytes).expect("at most 64")),
            changes: U32::new(self.changes),
            size_bytes: U64::new(self.size_bytes),
            slice_at: U64::new(SLICE_AT),
            slice_bytes: U64::new(self.slice_bytes),
            data_at: U64::new(SLICE_AT + self.slice_bytes),
            blocks: U64::new(self.blocks),
            name,
        };
        raw.crc32c = U32::new(crc32c(raw.as_bytes()));
        let mut block = Buf::zeroed(BLOCK);
        block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        if !self.pieces.is_empty() {
            let pieces = self.encode_pieces();
            block[PIECES_AT..PIECES_AT + size_of::<RawPieces>()].copy_from_slice(pieces.as_bytes());
        }
        block.freeze()
    }

    fn encode_pieces(&self) -> RawPieces {
        let mut raw = RawPieces::new_zeroed();
        let pieces = self.pieces.iter().take(PIECES_MAX);
        raw.count = U32::new(u32::try_from(pieces.len()).expect("at most 200"));
        for (piece, to) in pieces.zip(&mut raw.pieces) {
            let (start, blocks) = (piece.start, piece.end - piece.start);
            *to = RawPiece { start: U64::new(start), blocks: U64::new(blocks) };
        }
        raw.crc32c = self.crc_of(&raw);
        raw
    }

    /// The CRC of a list of pieces, which has none.
    fn crc_of(&self, pieces: &RawPieces) -> U32 {
        let of = [&self.disk_id.0[..], &self.changes.to_le_bytes(), pieces.as_bytes()].concat();
        U32::new(crc32c(&of))
    }

    /// Its pieces, as they are in a block; `None` if they cannot be these.
    fn decode_pieces(&self, block: &[u8]) -> Option<Vec<Range<u64>>> {
        let (mut raw, _) = RawPieces::read_from_prefix(block.get(PIECES_AT..)?).ok()?;
        let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
        if stored != self.crc_of(&raw) {
            return None;
        }
        let count = usize::try_from(raw.count.get()).ok()?;
        let of = raw.pieces.get(..count).filter(|of| !of.is_empty())?;
        let pieces = of.iter().map(|piece| {
            let (start, blocks) = (piece.start.get(), piece.blocks.get());
            let end = start.checked_add(blocks).filter(|end| *end <= self.blocks && blocks > 0)?;
            Some(start..end)
        });
        let pieces = pieces.collect::<Option<Vec<_>>>()?;
        let mut sorted = pieces.clone();
        sorted.sort_by_key(|piece| piece.start);
        let are_apart = sorted.windows(2).all(|pair| pair[0].end <= pair[1].start);
        are_apart.then_some(pieces)
    }

    /// The label in a block; `None` if it is none.
    fn decode(block: &[u8]) -> Result<Option<Self>> {
        Self::decode_as(MAGIC, block)
    }

    fn decode_as(magic: [u8; 8], block: &[u8]) -> Result<Option<Self>> {
        let Ok((mut raw, _)) = Raw::read_from_prefix(block) else { return Ok(None) };
        if raw.magic != magic {
            return Ok(None);
        }
        let stored = std::mem::replace(&mut raw.crc32c, U32::ZERO);
        if stored.get() != crc32c(raw.as_bytes()) {
            return Ok(None);
        }
        if !(VERSION..=WITH_PIECES).contains(&raw.version.get()) {
            return Err(FsError::Unmountable(format!(
                "its format is version {}, and this program knows version {VERSION} and {WITH_PIECES}",
                raw.version
            )));
        }
        let name = raw.name.get(..usize::from(raw.name_bytes.get())).unwrap_or_default();
        let mut label = Self {
            fs_id: Id(raw.fs_id),
            name: String::from_utf8_lossy(name).into_owned(),
            disk_id: Id(raw.disk_id),
            number: raw.number.get(),
            size_bytes: raw.size_bytes.get(),
            slice_bytes: raw.slice_bytes.get(),
            blocks: raw.blocks.get(),
            pieces: Vec::new(),
            changes: raw.changes.get(),
        };
        let fits = label.slice_bytes < 1 << 60
            && label.blocks < 1 << 48
            && raw.slice_at.get() == SLICE_AT
            && raw.data_at.get() == SLICE_AT + label.slice_bytes
            && label.data().end + END_BYTES <= label.size_bytes;
        if !fits {
            return Ok(None);
        }
        if raw.version.get() == WITH_PIECES {
            let Some(pieces) = label.decode_pieces(block) else { return Ok(None) };
            label.pieces = pieces;
        }
        Ok(Some(label))
    }

    /// Writes the diagnostic blocks, and both copies, durably.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn write(&self, disk: &dyn Disk) -> Result<()> {
        for Site { known, numbered } in self.sites() {
            for at in [known, numbered] {
                disk.write(at, self.diagnostic(), WriteOpts::MAINTENANCE).await?;
            }
        }
        for at in [0, self.size_bytes - BLOCK_BYTES] {
            disk.write(at, self.encode(), WriteOpts::MAINTENANCE).await?;
        }
        Ok(disk.flush().await?)
    }

    /// Writes the label of a disk that has become larger, durably: the new structures at its end
    /// first. Until then the first copy is that of the smaller disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) async fn write_larger(&self, disk: &dyn Disk) -> Result<()> {
        let [_, Site { known, numbered }] = self.sites();
        for at in [known, numbered] {
            disk.write(at, self.diagnostic(), WriteOpts::MAINTENANCE).await?;
        }
        for at in [self.size_bytes - BLOCK_BYTES, 0] {
            disk.write(at, self.encode(), WriteOpts::MAINTENANCE).await?;
            disk.flush().await?;
        }
        Ok(())
    }

    /// The label of a disk: of its first copy, or the second if the first is damaged. The second is
    /// at the end of the disk; or where the end was when the first was written, if the disk has
    /// become larger since.
    ///
    /// # Errors
    /// If neither copy can be read, its version is unknown, or the disk has shrunk.
    pub async fn read(disk: &dyn Disk) -> Result<Option<Self>> {
        let size = disk.size_now();
        if size < 2 * BLOCK_BYTES {
            return Ok(None);
        }
        let (mut failed, mut newest) = (None, None::<Self>);
        let mut places = vec![0, size - size % BLOCK_BYTES - BLOCK_BYTES];
        let mut looked = 0;
        while let Some(at) = places.get(looked).copied() {
            looked += 1;
            let (result, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
            let label = match result {
                Ok(()) => Self::decode(&block)?,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            let Some(label) = label else { continue };
            if label.size_bytes > size {
                return Err(FsError::Unmountable(format!(
                    "it is too short: it has {size} bytes, and had {} when it joined",
                    label.size_bytes
                )));
            }
            let [_, second] = label.copies();
            // What is elsewhere is that of another disk, in blocks that are not used.
            if at > 0 && at != second {
                continue;
            }
            if !places.contains(&second) {
                places.push(second);
            }
            let is_newer = |before: &Self| {
                (before.fs_id, before.changes < label.changes) == (label.fs_id, true)
            };
            if newest.as_ref().is_none_or(is_newer) {
                newest = Some(label);
            }
        }
        match (newest, failed) {
            (Some(label), _) => Ok(Some(label)),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Ok(None),
        }
    }

    /// Writes the label of a disk whose pieces of the metadata slice have changed, durably. Returns
    /// whether both copies are written.
    ///
    /// # Errors
    /// If neither copy can be written.
    pub(crate) async fn write_pieces(&self, disk: &dyn Disk) -> Result<bool> {
        let mut written = Vec::new();
        for at in self.copies() {
            written.push(disk.write(at, self.encode(), WriteOpts::USER_FUA).await);
        }
        match written.iter().filter(|written| written.is_ok()).count() {
            0 => Ok(written.into_iter().collect::<std::result::Result<(), _>>().map(|()| false)?),
            count => Ok(count == written.len()),
        }
    }

    /// Where its copies are.
    fn copies(&self) -> [u64; 2] {
        [0, self.size_bytes - BLOCK_BYTES]
    }

    /// Makes both copies this label, which was read, if a crash may have left one of them behind. A
    /// disk on which that fails has the other one.
    pub(crate) async fn settle(&self, disk: &dyn Disk) {
        for at in self.copies() {
            let (result, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
            let found = result.ok().and_then(|()| Self::decode(&block).ok().flatten());
            let is_behind = found.is_none_or(|found| found.changes < self.changes);
            if is_behind && (at == 0 || self.changes > 0) {
                // It is tried again by the next mount.
                let _ = disk.write(at, self.encode(), WriteOpts::USER_FUA).await;
            }
        }
    }

    /// Marks a disk that is about to get this label, durably: writes from now on have no value
    /// before the label is there.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) async fn announce(&self, disk: &dyn Disk) -> Result<()> {
        disk.write(0, self.encode_as(JOINING), WriteOpts::MAINTENANCE).await?;
        let end = self.size_bytes - BLOCK_BYTES;
        disk.write_zeroes(end, BLOCK_BYTES, WriteOpts::MAINTENANCE).await?;
        Ok(disk.flush().await?)
    }

    /// The label that a disk was about to get when its joining was cut short.
    pub(crate) async fn announced(disk: &dyn Disk) -> Option<Self> {
        let (result, block) = disk.read(0, Buf::new(BLOCK), Class::User).await;
        result.ok().and_then(|()| Self::decode_as(JOINING, &block).ok().flatten())
    }

    /// Makes a disk no longer look like a member.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn erase(disk: &dyn Disk) -> Result<()> {
        let size = disk.size_now();
        let end = (size - size % BLOCK_BYTES).saturating_sub(BLOCK_BYTES);
        let label = Self::read(disk).await.ok().flatten();
        let second = label.map(|label| label.copies()[1]).filter(|second| *second != end);
        for at in [0, end].into_iter().chain(second) {
            disk.write_zeroes(at, BLOCK_BYTES, WriteOpts::MAINTENANCE).await?;
        }
        Ok(disk.flush().await?)
    }
}

#[cfg(test)]
mod tests {
    use weft_random::Rng;

    use super::*;
    use crate::format::checksum::put_crc32c_at;

    fn label() -> Label {
        Label::plan(Id([7; 16]), "home", 3, (64 << 20) + 512, 8 << 20).expect("large enough")
    }

    #[test]
    fn it_reads_back_and_a_damaged_one_is_none() {
        let block = label().encode();
        assert_eq!(Label::decode(&block).expect("known"), Some(label()));
        for at in [0, 9, 20, 70, 100] {
            let mut bad = block.to_vec();
            bad[at] ^= 1;
            assert_eq!(Label::decode(&bad).ok().flatten(), None, "byte {at}");
        }
        Label::plan(Id([7; 16]), "home", 0, 8 << 20, 8 << 20).expect_err("too small");
    }

    /// The bytes of labels as they are on disks.
    #[test]
    fn labels_are_as_they_have_always_been() {
        let plain = label().encode();
        let label = label().with_pieces(&[100..612, 20..36]).expect("few");
        assert_eq!((label.pieces.len(), label.changes), (2, 1));
        let block = label.encode();
        assert_eq!((block[12], block[52]), (3, 1), "version and changes");
        assert_eq!(
            [crc32c(&plain), crc32c(&block)],
            [4_047_535_874, 2_238_162_042],
            "without pieces, and with some"
        );
        assert_eq!(&block[PIECES_AT + 4..PIECES_AT + 8], [2, 0, 0, 0]);
        assert_eq!(&block[PIECES_AT + 8..PIECES_AT + 16], 100_u64.to_le_bytes());
        assert_eq!(&block[PIECES_AT + 16..PIECES_AT + 24], 512_u64.to_le_bytes());
    }

    #[test]
    fn a_list_of_pieces_is_whole_and_that_of_its_label_or_the_copy_is_none() {
        let first = label().with_pieces(&[100..356]).expect("few");
        let second = first.with_pieces(&[400..656]).expect("few");
        assert_eq!(Label::decode(&second.encode()).expect("known"), Some(second.clone()));
        assert_eq!(second.metadata_bytes(), (8 << 20) + (2 << 20));
        assert_eq!(
            second.slice_ranges()[1],
            second.data().start + 100 * 4096..second.data().start + 356 * 4096
        );
        for at in [PIECES_AT, PIECES_AT + 4, PIECES_AT + 8, PIECES_AT + 30, PIECES_AT + 3000] {
            let mut bad = second.encode().to_vec();
            bad[at] ^= 1;
            assert_eq!(Label::decode(&bad).ok().flatten(), None, "byte {at}");
        }
        // A write that was torn between sectors.
        for sectors in 1..8 {
            let mut torn = second.encode().to_vec();
            torn[sectors * 512..].copy_from_slice(&first.encode()[sectors * 512..]);
            let found = Label::decode(&torn).expect("known");
            assert!(found.is_none_or(|found| found == second), "{sectors} sectors");
        }
        for wrong in [[100..100, 1..2], [100..356, 355..400], [0..second.blocks + 1, 1..1]] {
            let label = Label { pieces: wrong.to_vec(), ..first.clone() };
            assert_eq!(Label::decode(&label.encode()).ok().flatten(), None, "{wrong:?}");
        }
        let many: Vec<Range<u64>> = (0..PIECES_MAX as u64).map(|n| n * 8..n * 8 + 4).collect();
        let full = label().with_pieces(&many).expect("as many as there can be");
        assert_eq!(Label::decode(&full.encode()).expect("known"), Some(full.clone()));
        assert!(full.with_pieces(&[9000..9004]).is_none());
    }

    #[test]
    fn the_copy_with_more_changes_counts_and_is_written_to_both() {
        let rt = weft_rt::virtual_rt(weft_rt::Schedule::Fifo);
        rt.block_on(async {
            let disk = weft_disk::RamDisk::new("disk", 64 << 20, 512);
            let old = Label::plan(Id([7; 16]), "home", 3, 64 << 20, 8 << 20).expect("large enough");
            let new = old.with_pieces(&[100..356]).expect("few");
            let [first, second] = old.copies();
            let read = async || Label::read(&disk).await.expect("readable").expect("a label");
            for (at, torn) in [(first, false), (second, false), (first, true)] {
                old.write(&disk).await.expect("written");
                let bytes = match torn {
                    true => Frozen::copy_from(&[&new.encode()[..512], &[0; 3584]].concat()),
                    false => new.encode(),
                };
                disk.write(at, bytes, WriteOpts::USER).await.expect("written");
                let found = read().await;
                assert_eq!(found, if torn { old.clone() } else { new.clone() });
                found.settle(&disk).await;
                for at in [first, second] {
                    let (_, block) = disk.read(at, Buf::new(BLOCK), Class::User).await;
                    assert_eq!(*block, *found.encode(), "at {at}");
                }
            }
        });
        rt.kill_all();
    }

    #[test]
    fn the_second_copy_is_found_on_a_disk_that_has_become_larger() {
        let rt = weft_rt::virtual_rt(weft_rt::Schedule::Fifo);
        rt.block_on(async {
            let disk = weft_disk::RamDisk::new("disk", 64 << 20, 512);
            let old = Label::plan(Id([7; 16]), "home", 3, 64 << 20, 8 << 20).expect("large enough");
            let new = old.with_pieces(&[100..356]).expect("few");
            old.write(&disk).await.expect("written");
            let [first, second] = new.copies();
            disk.write(second, new.encode(), WriteOpts::USER).await.expect("written");
            disk.enlarge(80 << 20);
            // What the blocks at the new end held before is no label of this disk.
            let stranger = new.with_pieces(&[400..656]).expect("few");
            let end = (80 << 20) - BLOCK_BYTES;
            disk.write(end, stranger.encode(), WriteOpts::USER).await.expect("written");
            let found = Label::read(&disk).await.expect("readable").expect("a label");
            assert_eq!(found, new, "a piece that one copy names");
            found.settle(&disk).await;
            let (_, block) = disk.read(first, Buf::new(BLOCK), Class::User).await;
            assert_eq!(*block, *new.encode());
            Label::erase(&disk).await.expect("erased");
            let (_, block) = disk.read(second, Buf::new(BLOCK), Class::User).await;
            assert_eq!(Label::decode(&block).ok().flatten(), None, "both are erased");
        });
        rt.kill_all();
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_refused_or_lie_within_the_disk() {
        const CRC_AT: usize = std::mem::offset_of!(Raw, crc32c);
        let mut rng = Rng::new(4);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let mut block = label().encode().to_vec();
            for _ in 0..rng.index(4) {
                let at = CRC_AT + 4 + rng.index(size_of::<Raw>() - CRC_AT - 4);
                block[at] = rng.next_u64().to_le_bytes()[0];
            }
            put_crc32c_at(&mut block[..size_of::<Raw>()], CRC_AT);
            let Ok(Some(label)) = Label::decode(&block) else {
                refused += 1;
                continue;
            };
            accepted += 1;
            assert!(label.slice().end <= label.data().start);
            assert!(label.data().end <= label.size_bytes);
        }
        assert!(accepted > 5_000 && refused > 5_000, "{accepted} {refused}");
    }
}
