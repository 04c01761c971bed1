//! The text that blkparse prints of Linux's block traces, in its default form:
//!
//! ```text
//!   8,16   3        4     0.000011950  3645  Q   R 4938888 + 256 [java]
//!   major,minor  cpu  sequence  seconds.ns  pid  action  RWBS  sector + sectors [process]
//! ```
//!
//! One request appears in several events: Q (queued by the submitter), I (inserted in the
//! scheduler), D (issued to the driver), C (complete). One kind is used: Q if the start of the
//! file has any, else I, else D. RWBS tells what it is: R and W, D for discards, F for flushes; a
//! write of no sectors is a flush, too. S, M, A and the like mean nothing here. Sectors are of 512
//! bytes.
//!
//! Every processor has a buffer of its own, and blkparse merges these in pieces: events near to
//! each other may be out of order, and are sorted.
//!
//! Messages and other events are passed over. From the summary (`CPU0 (8,16):`) on there are no
//! events.

use crate::fault::Fault;
use crate::fields::{decimal, number};
use crate::formats::weft::device_number;
use crate::formats::{LineParser, Parsed, in_sectors};
use crate::record::Op;

/// Events that may represent a request, best first.
const EVENTS: [&[u8]; 3] = [b"Q", b"I", b"D"];

pub(crate) struct Blkparse {
    event: &'static [u8],
    in_summary: bool,
}

impl Blkparse {
    pub(crate) fn new(head: &[u8]) -> Self {
        let has = |event: &[u8]| {
            head.split(|byte| *byte == b'\n').any(|line| words(line).nth(5) == Some(event))
        };
        let event = EVENTS.into_iter().find(|event| has(event)).unwrap_or(EVENTS[0]);
        Self { event, in_summary: false }
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

impl LineParser for Blkparse {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let summary = [&b"CPU"[..], b"Total (", b"Throughput (", b"Input file "];
        self.in_summary |= summary.iter().any(|start| line.starts_with(start));
        if self.in_summary {
            return Ok(Parsed::Nothing);
        }
        let mut words = words(line);
        let mut word = |what: &'static str| words.next().ok_or_else(|| Fault::new(what));
        let device = device(word("the line has no device")?)?;
        number("no processor", word("the line has no processor")?)?;
        number("no sequence number", word("the line has no sequence number")?)?;
        let at_ns = decimal("no time in seconds", word("the line has no time")?, 1_000_000_000)?;
        number("no process id", word("the line has no process id")?)?;
        if word("the line has no action")? != self.event {
            return Ok(Parsed::Nothing);
        }
        let rwbs = word("the line has no RWBS")?;
        let has = |letter: u8| rwbs.contains(&letter);
        let op = match () {
            () if has(b'D') => Op::Trim,
            () if has(b'R') => Op::Read,
            () if has(b'W') => Op::Write,
            () if has(b'F') => Op::Flush,
            () if has(b'N') => return Ok(Parsed::Nothing),
            () => return Err(Fault::at("RWBS says nothing", rwbs)),
        };
        let address = match (words.next(), words.next(), words.next()) {
            (Some(sector), Some(b"+"), Some(count)) => {
                (number("no sector", sector)?, number("no number of sectors", count)?)
            }
            // A flush carries no data: nothing, or the process, comes next.
            _ if has(b'F') => {
                return in_sectors(at_ns, device, Op::Flush, (0, 0), 512).map(Parsed::Request);
            }
            _ => return Err(Fault::new("the line has no `sector + sectors`")),
        };
        let op = if op == Op::Write && address.1 == 0 { Op::Flush } else { op };
        in_sectors(at_ns, device, op, address, 512).map(Parsed::Request)
    }
}

/// `major,minor`.
fn device(word: &[u8]) -> Result<u32, Fault> {
    let fault = || Fault::at("no device as major,minor", word);
    let comma = word.iter().position(|byte| *byte == b',').ok_or_else(fault)?;
    let major = number("", &word[..comma]).map_err(|_| fault())?;
    let minor = number("", &word[comma + 1..]).map_err(|_| fault())?;
    device_number(major, minor).ok_or_else(fault)
}
