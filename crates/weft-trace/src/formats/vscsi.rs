//! CloudPhysics `vscsi` traces: binary, little-endian, of VMware's vscsiStats.
//!
//! | version | record |
//! |---|---|
//! | 1, 32 bytes | u32 serial number, length, scatter-gather entries; u16 command, version; u64 block, time |
//! | 2, 40 bytes | u16 command, version; u32 serial number, length, scatter-gather entries; u64 block, time, response time |
//!
//! The version is the high byte of its field; two records must agree on it. Blocks are of 512
//! bytes, times in microseconds. Descriptions state that the length is in sectors, the files hold
//! bytes: it is taken as bytes if every length in the start of the file is a multiple of 512,
//! else as sectors. Commands other than reads, writes and "synchronize cache" are ignored.

use std::io::{self, BufRead};

use crate::fault::Fault;
use crate::fields::scaled;
use crate::formats::{BinaryParser, Block, Parsed, in_sectors, read_up_to};
use crate::record::{Op, Record};

const BLOCK_BYTES: u64 = 512;

/// The layout of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    const fn bytes(self) -> usize {
        match self {
            Self::One => 32,
            Self::Two => 40,
        }
    }

    /// Whether `record` claims to be of this version.
    fn is_of(self, record: &[u8]) -> bool {
        match self {
            Self::One => u16_at(record, 14) >> 8 == 1,
            Self::Two => u16_at(record, 2) >> 8 == 2,
        }
    }

    /// The version of the first two records; one is enough if there is no second.
    fn of(head: &[u8]) -> Option<Self> {
        [Self::One, Self::Two].into_iter().find(|version| {
            let records = head.chunks_exact(version.bytes());
            records.len() > 0 && records.take(2).all(|record| version.is_of(record))
        })
    }

    fn len_of(self, record: &[u8]) -> u64 {
        u64::from(u32_at(record, if self == Self::One { 4 } else { 8 }))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|n| bytes.get(at + n).copied().unwrap_or(0)))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|n| bytes.get(at + n).copied().unwrap_or(0)))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|n| bytes.get(at + n).copied().unwrap_or(0)))
}

/// Whether a file starts with records of either version, in a way that no text does.
pub(crate) fn is_sure(head: &[u8]) -> bool {
    head.iter().take(64).any(|byte| *byte == 0) && Version::of(head).is_some()
}

pub(crate) struct Vscsi {
    version: Version,
    /// The unit of lengths, in bytes.
    len_unit: u64,
}

impl Vscsi {
    pub(crate) fn new(head: &[u8]) -> Self {
        let version = Version::of(head).unwrap_or(Version::One);
        let mut records = head.chunks_exact(version.bytes());
        let in_bytes = records.all(|record| version.len_of(record).is_multiple_of(BLOCK_BYTES));
        Self { version, len_unit: if in_bytes { 1 } else { BLOCK_BYTES } }
    }

    fn parse(&self, record: &[u8]) -> Result<Parsed, Fault> {
        if !self.version.is_of(record) {
            return Err(Fault::new("the record is of another version"));
        }
        let (command, block, time) = match self.version {
            Version::One => (u16_at(record, 12), u64_at(record, 16), u64_at(record, 24)),
            Version::Two => (u16_at(record, 0), u64_at(record, 16), u64_at(record, 24)),
        };
        // Operation codes of SCSI: 6, 10, 12, 16 byte forms.
        let op = match command {
            0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
            0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
            0x35 | 0x91 => Op::Flush,
            _ => return Ok(Parsed::Nothing),
        };
        let at_ns = scaled("the time is beyond all times", time, 1000)?;
        let mut request = in_sectors(at_ns, 0, op, (block, 0), BLOCK_BYTES)?;
        request.len = self.version.len_of(record) * self.len_unit;
        Ok(Parsed::Request(Record { ..request }))
    }
}

impl BinaryParser for Vscsi {
    fn next(&mut self, source: &mut dyn BufRead, byte: &mut u64) -> io::Result<Block> {
        let mut buffer = [0; 40];
        let record = &mut buffer[..self.version.bytes()];
        let len = read_up_to(source, record)?;
        *byte += len as u64;
        if len == 0 {
            return Ok(Block::End);
        }
        if len < record.len() {
            return Ok(Block::Bad(Fault::new("the file ends within a record")));
        }
        Ok(self.parse(record).map_or_else(Block::Bad, Block::Parsed))
    }
}
