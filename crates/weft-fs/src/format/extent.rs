//! Records: where consecutive lines of a file lie, and the checksums of their blocks.
//!
//! ```text
//!   record of file blocks 6…14, code raid5 on 4 columns (k = 3), 3 lines
//!
//!            column 0    column 1    column 2    column 3
//!            disk 2      disk 0      not active  disk 1
//!   line 0   block 6     block 7     (zeros)     P
//!   line 1   block 9     block 10    (zeros)     P
//!   line 2   block 12    block 13    (zeros)     P
//! ```
//!
//! A column is one run of blocks on its disk. A column that is not active reads as zeros and has no
//! place; its blocks become active all together, so a record is cut where only some of its lines
//! get another block.
//!
//! A record that is *unwritten* has its places reserved: its blocks read as zeros, regardless of
//! the disks' contents there. It is stored like a written record, with checksums that are 0, so
//! that it takes no more room once it is written.

use weft_code::CodeSpec;

use crate::error::{FsError, Result};
use crate::format::redundancy::Coded;

/// The most lines of a record.
pub(crate) const LINES_MAX: u64 = 64;
/// Bytes of the longest record: it fits into one page of the database, which may have no two free
/// pages that lie together. Older versions stored longer ones of wide codes.
const BYTES_MAX: u64 = 3900;
/// The bit of the number of lines that marks an unwritten record.
const UNWRITTEN: u8 = 0x80;
/// Stands for a column that is not active.
const NOT_ACTIVE: u16 = u16::MAX;

/// A column that has a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The disk's number.
    pub disk: u16,
    /// Its first block there.
    pub start: u64,
    /// CRC32C of each block; 0: not known.
    pub sums: Vec<u32>,
}

/// Consecutive blocks on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) disk: u16,
    pub(crate) start: u64,
    pub(crate) blocks: u64,
}

impl Column {
    /// Its blocks.
    pub(crate) fn run(&self) -> Run {
        Run { disk: self.disk, start: self.start, blocks: self.sums.len() as u64 }
    }
}

/// Consecutive lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Their code.
    pub coded: Coded,
    /// Number of the stripe whose pattern they have, for codes that differ from stripe to stripe.
    pub pattern: u64,
    /// Lines.
    pub lines: u64,
    /// Data columns, then parity columns.
    pub columns: Vec<Option<Column>>,
    /// Its places are reserved, and nothing was written there: all of it reads as zeros.
    pub unwritten: bool,
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("at most 64 lines")
}

impl Extent {
    /// Lines without any place.
    pub(crate) fn new(coded: Coded, pattern: u64, lines: u64) -> Self {
        let columns = vec![None; coded.columns];
        Self { coded, pattern, lines, columns, unwritten: false }
    }

    /// Data blocks of a line.
    pub(crate) fn k(&self) -> u64 {
        self.coded.k() as u64
    }

    /// Blocks of the file that it covers, if no other record starts before.
    pub(crate) fn blocks(&self) -> u64 {
        self.lines * self.k()
    }

    /// Line and unit of the block with this number in the record.
    pub(crate) fn locate(&self, block: u64) -> (u64, usize) {
        (block / self.k(), index(block % self.k()))
    }

    /// Columns with a place.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, &Column)> {
        let columns = self.columns.iter().enumerate();
        columns.filter_map(|(unit, column)| Some((unit, column.as_ref()?)))
    }

    /// Blocks with a place, of data and parity.
    pub(crate) fn active_blocks(&self) -> u64 {
        self.active().count() as u64 * self.lines
    }

    /// Data blocks with a place.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.active().filter(|(unit, _)| *unit < self.coded.k()).count() as u64 * self.lines
    }

    /// Cuts it before a line: the second part is returned.
    pub(crate) fn split_off(&mut self, line: u64) -> Self {
        let rest = self.lines - line;
        let columns = self.columns.iter_mut().map(|column| {
            let column = column.as_mut()?;
            let sums = column.sums.split_off(index(line));
            Some(Column { disk: column.disk, start: column.start + line, sums })
        });
        let columns = columns.collect();
        self.lines = line;
        Self { lines: rest, columns, ..*self }
    }

    /// Some of its lines.
    pub(crate) fn part(&self, lines: std::ops::Range<u64>) -> Self {
        let mut part = self.clone();
        part.split_off(lines.end);
        part.split_off(lines.start)
    }

    /// Joins the record of the lines that follow, if their columns do.
    pub(crate) fn join(&mut self, next: &Self) -> bool {
        let follows = |(a, b): (&Option<Column>, &Option<Column>)| match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => a.disk == b.disk && a.start + self.lines == b.start,
            _ => false,
        };
        let joins = self.coded == next.coded
            && self.pattern == next.pattern
            && self.unwritten == next.unwritten
            && self.lines + next.lines <= Self::lines_max(self.coded)
            && self.columns.iter().zip(&next.columns).all(follows);
        if joins {
            for (column, next) in self.columns.iter_mut().zip(&next.columns) {
                if let (Some(column), Some(next)) = (column, next) {
                    column.sums.extend(&next.sums);
                }
            }
            self.lines += next.lines;
        }
        joins
    }

    /// The most lines of a record that is made or joined now.
    pub(crate) fn lines_max(coded: Coded) -> u64 {
        let per_column = BYTES_MAX.saturating_sub(Self::bytes_of(coded, 0)) / coded.columns as u64;
        (per_column / 4).clamp(1, LINES_MAX)
    }

    /// Bytes of a record of as many lines as can be, with all columns.
    pub(crate) fn full_bytes(coded: Coded) -> u64 {
        Self::bytes_of(coded, Self::lines_max(coded))
    }

    /// Bytes of a record of `lines` lines, with all columns.
    fn bytes_of(coded: Coded, lines: u64) -> u64 {
        let name = coded.spec.to_string().len() as u64;
        1 + name + 1 + 8 + 1 + coded.columns as u64 * (10 + 4 * lines)
    }

    /// Its bytes in the database.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let name = self.coded.spec.to_string();
        let mut bytes = Vec::with_capacity(64 + self.columns.len() * (10 + 4 * index(self.lines)));
        bytes.push(u8::try_from(name.len()).expect("a short name"));
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(u8::try_from(self.columns.len()).expect("at most 255 columns"));
        bytes.extend_from_slice(&self.pattern.to_le_bytes());
        let lines = u8::try_from(self.lines).expect("at most 64 lines");
        bytes.push(if self.unwritten { lines | UNWRITTEN } else { lines });
        for column in &self.columns {
            let Some(Column { disk, start, sums }) = column else {
                bytes.extend_from_slice(&NOT_ACTIVE.to_le_bytes());
                continue;
            };
            bytes.extend_from_slice(&disk.to_le_bytes());
            bytes.extend_from_slice(&start.to_le_bytes());
            sums.iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        }
        bytes
    }

    /// The record with these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| FsError::Damaged("a record cannot be read".into()))
    }

    /// The disks of the record with these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn disks_of(bytes: &[u8]) -> Result<Vec<u16>> {
        let disks = Self::parse_disks(bytes);
        disks.ok_or_else(|| FsError::Damaged("a record cannot be read".into()))
    }

    fn parse_disks(bytes: &[u8]) -> Option<Vec<u16>> {
        let (name_bytes, rest) = bytes.split_first()?;
        let rest = rest.get(usize::from(*name_bytes)..)?;
        let (columns, rest) = rest.split_first()?;
        let (_pattern, rest) = rest.split_first_chunk::<8>()?;
        let (lines, mut rest) = rest.split_first()?;
        let mut disks = Vec::with_capacity((*columns).into());
        for _ in 0..*columns {
            let (disk, after) = rest.split_first_chunk()?;
            rest = after;
            let disk = u16::from_le_bytes(*disk);
            if disk != NOT_ACTIVE {
                rest = rest.get(8 + 4 * usize::from(*lines & !UNWRITTEN)..)?;
                disks.push(disk);
            }
        }
        rest.is_empty().then_some(disks)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (name_bytes, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*name_bytes))?;
        let spec: CodeSpec = std::str::from_utf8(name).ok()?.parse().ok()?;
        let (columns, rest) = rest.split_first()?;
        let (pattern, rest) = rest.split_first_chunk()?;
        let (lines, mut rest) = rest.split_first()?;
        let coded = Coded { spec, columns: usize::from(*columns) };
        let fits = spec.shape(coded.columns).is_ok_and(|shape| shape.width() == coded.columns);
        let unwritten = lines & UNWRITTEN != 0;
        let lines = u64::from(lines & !UNWRITTEN);
        if !fits || lines == 0 || lines > LINES_MAX {
            return None;
        }
        let mut record = Self::new(coded, u64::from_le_bytes(*pattern), lines);
        record.unwritten = unwritten;
        for column in &mut record.columns {
            let (disk, after) = rest.split_first_chunk()?;
            rest = after;
            let disk = u16::from_le_bytes(*disk);
            if disk == NOT_ACTIVE {
                continue;
            }
            let (start, after) = rest.split_first_chunk()?;
            let start = u64::from_le_bytes(*start);
            start.checked_add(lines)?;
            let (sums, after) = after.split_at_checked(4 * index(lines))?;
            rest = after;
            let sum = |sum: &[u8]| u32::from_le_bytes(sum.try_into().expect("four bytes"));
            let sums = sums.chunks_exact(4).map(sum).collect();
            *column = Some(Column { disk, start, sums });
        }
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use weft_random::Rng;

    use super::*;
    use crate::format::redundancy::Redundancy;

    /// Changes some bytes, or cuts them off.
    pub(crate) fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
        for _ in 0..rng.index(4) {
            let at = rng.index(bytes.len());
            match rng.below(8) {
                0 => bytes.truncate(at.max(1)),
                1..4 => bytes[at] ^= 1 << rng.below(8),
                4 => bytes[at] = 0xff,
                _ => bytes[at] = rng.next_u64().to_le_bytes()[0],
            }
        }
    }

    fn record(lines: u64) -> Extent {
        let coded = Redundancy::Auto.coded(4).expect("four disks");
        let mut record = Extent::new(coded, 0, lines);
        for (unit, disk) in [(0, 2), (1, 0), (3, 1)] {
            let sums = (0..).map(|line: u32| u32::from(disk) + 10 * line);
            let sums = sums.take(index(lines)).collect();
            record.columns[unit] = Some(Column { disk, start: 100 * u64::from(disk), sums });
        }
        record
    }

    #[test]
    fn a_record_of_any_code_fits_into_a_page() {
        for name in ["none", "auto", "raid6", "rs:10+4", "rs:40+8", "rs:56+8"] {
            let redundancy: crate::Redundancy = name.parse().expect("known");
            let coded = redundancy.coded(64).expect("enough disks");
            let lines = Extent::lines_max(coded);
            let mut record = Extent::new(coded, 0, lines);
            for (disk, column) in (0..).zip(&mut record.columns) {
                let sums = vec![7; usize::try_from(lines).expect("few")];
                *column = Some(Column { disk, start: 1 << 40, sums });
            }
            let bytes = record.encode().len() as u64;
            assert_eq!(bytes, Extent::full_bytes(coded), "{name}");
            assert!(bytes <= BYTES_MAX, "{bytes} bytes for {name}");
            assert!(lines == LINES_MAX || coded.columns > 14, "{lines} lines for {name}");
            // It does not grow beyond that.
            let mut next = Extent::new(coded, 0, 1);
            for (disk, column) in (0..).zip(&mut next.columns) {
                *column = Some(Column { disk, start: (1 << 40) + lines, sums: vec![7] });
            }
            assert!(!record.join(&next), "{name}");
        }
    }

    #[test]
    fn it_reads_back_and_nothing_shorter_or_longer_does() {
        let (record, bytes) = (record(5), record(5).encode());
        assert_eq!(Extent::decode(&bytes).expect("readable"), record);
        assert_eq!(Extent::disks_of(&bytes).expect("readable"), [2, 0, 1]);
        for cut in 0..bytes.len() {
            Extent::decode(&bytes[..cut]).expect_err("shorter");
            Extent::disks_of(&bytes[..cut]).expect_err("shorter");
        }
        Extent::disks_of(&[&bytes[..], &[0]].concat()).expect_err("longer");
        Extent::decode(&[&bytes[..], &[0]].concat()).expect_err("longer");
    }

    #[test]
    fn any_bytes_are_refused_or_read_back() {
        let mut rng = Rng::new(3);
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut bytes = record(1 + rng.below(LINES_MAX)).encode();
            damage(&mut rng, &mut bytes);
            let Ok(record) = Extent::decode(&bytes) else { continue };
            accepted += 1;
            let disks: Vec<u16> = record.active().map(|(_, column)| column.disk).collect();
            assert_eq!(Extent::disks_of(&bytes).expect("readable"), disks);
            // A number of the code may have been written in another way.
            assert_eq!(Extent::decode(&record.encode()).expect("readable"), record);
            let (mut first, lines) = (record.clone(), record.lines);
            if lines > 1 {
                let rest = first.split_off(lines / 2);
                assert!(first.join(&rest) && first == record);
            }
        }
        assert!((5_000..45_000).contains(&accepted), "{accepted}");
    }

    #[test]
    fn its_bytes_are_the_format() {
        let place = |disk: u16, start: u64, sum: u32| {
            let mut bytes = disk.to_le_bytes().to_vec();
            bytes.extend_from_slice(&start.to_le_bytes());
            bytes.extend_from_slice(&sum.to_le_bytes());
            bytes
        };
        let head: &[u8] = &[5, b'r', b'a', b'i', b'd', b'5', 4, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let columns = [place(2, 200, 2), place(0, 0, 0), vec![0xff, 0xff], place(1, 100, 1)];
        let mut bytes = [head, &columns.concat()].concat();
        assert_eq!(record(1).encode(), bytes);
        bytes[head.len() - 1] = 0x81;
        let reserved = Extent { unwritten: true, ..record(1) };
        assert_eq!(reserved.encode(), bytes);
        assert_eq!(Extent::decode(&bytes).expect("readable"), reserved);
        assert_eq!(Extent::disks_of(&bytes).expect("readable"), [2, 0, 1]);
    }

    #[test]
    fn parts_join_again_and_strangers_do_not() {
        let whole = record(5);
        let mut first = whole.clone();
        let mut rest = first.split_off(2);
        assert_eq!((first.lines, rest.lines, whole.locate(7)), (2, 3, (2, 1)));
        let joined = {
            let mut joined = first.clone();
            joined.join(&rest).then_some(joined)
        };
        assert_eq!(joined, Some(whole));
        rest.columns[0].as_mut().expect("active").start += 1;
        assert!(!first.join(&rest));
    }
}
