//! HP's SRT: the traces of hplajw, snake and cello.
//!
//! A header of text, ended by a form feed (0x0c), describes the machine and its disks; then come
//! records of big-endian 32-bit words: size, id, seconds, microseconds, start, stop, bytes, sector,
//! device, driver type, cylinder, flags, info, and more that is not needed. The size counts the
//! whole record. The low half of the id is the kind: 1 is a request, 4 a suspect one; other events
//! are no requests. A request's time is that at which it entered the queue; start and stop count
//! from there and are not used. Bit 0 of the flags is set for reads.
//!
//! The disk is the second byte of the device. Addresses count in the disk's own sectors, whose
//! length the header gives (`sectorsize`, 256 for the disks of 1992); 512 if it does not.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use crate::fault::Fault;
use crate::formats::{BinaryParser, Block, Parsed, in_sectors, read_up_to};
use crate::input::fill;
use crate::record::Op;

const END_OF_HEADER: u8 = 0x0c;
/// Bytes of the words up to info.
const FIXED_BYTES: usize = 52;
/// No record is longer: a longer one is damaged.
const RECORD_BYTES_MAX: usize = 256;
const SHORT_IO: u32 = 1;
const SUSPECT_IO: u32 = 4;
const FLAG_READ: u32 = 1;
const SECTOR_BYTES: u64 = 512;

/// Whether a file starts like an SRT trace.
pub(crate) fn is_sure(head: &[u8]) -> bool {
    head.starts_with(b"$$TR_IOREC")
}

pub(crate) struct Srt {
    in_header: bool,
    /// Length of a sector of each disk that the header describes.
    sectors: BTreeMap<u32, u64>,
}

impl Srt {
    pub(crate) fn new(head: &[u8]) -> Self {
        let header = head.split(|byte| *byte == END_OF_HEADER).next().unwrap_or_default();
        Self { in_header: true, sectors: sector_lengths(&String::from_utf8_lossy(header)) }
    }

    fn parse(&self, record: &[u8]) -> Result<Parsed, Fault> {
        let word = |number: usize| {
            let bytes = record.get(number * 4..number * 4 + 4).unwrap_or_default();
            bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte))
        };
        if !matches!(word(1) & 0xffff, SHORT_IO | SUSPECT_IO) {
            return Ok(Parsed::Nothing);
        }
        let (seconds, micros) = (u64::from(word(2)), u64::from(word(3)));
        if micros >= 1_000_000 {
            return Err(Fault::new("the record has more than 999999 microseconds"));
        }
        let at_ns = seconds * 1_000_000_000 + micros * 1000;
        let device = word(8) >> 8 & 0xff;
        let op = if word(11) & FLAG_READ != 0 { Op::Read } else { Op::Write };
        let sector = self.sectors.get(&device).copied().unwrap_or(SECTOR_BYTES);
        let mut request = in_sectors(at_ns, device, op, (u64::from(word(7)), 0), sector)?;
        request.len = u64::from(word(6));
        Ok(Parsed::Request(request))
    }
}

/// The `sectorsize` of each disk: `disks = { 0 -> { … sectorsize = 256, … } … }`.
fn sector_lengths(header: &str) -> BTreeMap<u32, u64> {
    let mut lengths = BTreeMap::new();
    let (mut depth, mut disk) = (0, 0);
    for line in header.lines() {
        let line = line.trim();
        // A disk opens within `disks = {`; deeper ones are its sections.
        if let Some((number, _)) = line.split_once("->")
            && depth == 1
            && let Ok(number) = number.trim().parse()
        {
            disk = number;
        }
        if let Some(value) = line.strip_prefix("sectorsize") {
            let digits = value.trim_matches(|c: char| !c.is_ascii_digit());
            if let Some(length) = digits.parse().ok().filter(|length| *length > 0) {
                lengths.insert(disk, length);
            }
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
    }
    lengths
}

impl BinaryParser for Srt {
    fn next(&mut self, source: &mut dyn BufRead, byte: &mut u64) -> io::Result<Block> {
        if self.in_header {
            self.in_header = false;
            return skip_header(source, byte);
        }
        let mut buffer = [0; RECORD_BYTES_MAX];
        let len = read_up_to(source, &mut buffer[..4])?;
        *byte += len as u64;
        let cut = || Fault::new("the file ends within a record");
        if len < 4 {
            return Ok(if len == 0 { Block::End } else { Block::Lost(cut()) });
        }
        let size = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if !(FIXED_BYTES..=RECORD_BYTES_MAX).contains(&size) {
            return Ok(Block::Lost(Fault::new("the size of the record cannot be right")));
        }
        let rest = read_up_to(source, &mut buffer[4..size])?;
        *byte += rest as u64;
        if 4 + rest < size {
            return Ok(Block::Lost(cut()));
        }
        Ok(self.parse(&buffer[..size]).map_or_else(Block::Bad, Block::Parsed))
    }
}

fn skip_header(source: &mut dyn BufRead, byte: &mut u64) -> io::Result<Block> {
    loop {
        let buffered = fill(source)?;
        if buffered.is_empty() {
            return Ok(Block::Lost(Fault::new("the header has no end")));
        }
        let end = memchr::memchr(END_OF_HEADER, buffered);
        let taken = end.map_or(buffered.len(), |end| end + 1);
        source.consume(taken);
        *byte += taken as u64;
        if end.is_some() {
            return Ok(Block::Header);
        }
    }
}
