//! The formats: one file each, and one line in the table below.
//!
//! A format turns lines, or the bytes of a binary file, into requests with the trace's *own* times,
//! in nanoseconds since any zero; the [`Reader`](crate::Reader) does the work common to all. Each
//! file starts with the facts needed to read its format correctly: units, the meaning of its times,
//! pitfalls.

mod arc;
mod blkparse;
mod clouds;
mod etw;
mod fio;
mod msr;
mod spc;
mod srt;
mod vscsi;
pub(crate) mod weft;

use std::io::{self, BufRead};
use std::str::FromStr;

use crate::error::TraceError;
use crate::fault::Fault;
use crate::format::Format;
use crate::record::{Op, Record};

/// The meaning of a line.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A request; its time counts from the trace's own zero.
    Request(Record),
    /// Not a disk request: a header, a comment, another kind of event.
    Nothing,
}

/// Reads one line at a time.
pub(crate) trait LineParser {
    /// Parses `line` (without its end).
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault>;
}

/// The meaning of a binary record.
pub(crate) enum Block {
    /// A header before the records.
    Header,
    /// A request, or a record that is not a disk request.
    Parsed(Parsed),
    /// A damaged record; the next one can be found.
    Bad(Fault),
    /// A damaged record; the next one cannot be found.
    Lost(Fault),
    /// The end of the file.
    End,
}

/// Reads one binary record at a time.
pub(crate) trait BinaryParser {
    /// Reads the next record, and adds its length to `byte`.
    fn next(&mut self, source: &mut dyn BufRead, byte: &mut u64) -> io::Result<Block>;
}

/// The kind of parser of a format.
pub(crate) enum Parser {
    /// Line by line.
    Lines(Box<dyn LineParser>),
    /// As binary records.
    Binary(Box<dyn BinaryParser>),
}

fn lines(parser: impl LineParser + 'static) -> Parser {
    Parser::Lines(Box::new(parser))
}

impl Format {
    /// The window within which requests of this format are sorted by time. Formats that are logged
    /// in order of issue need none.
    pub fn reorder_window(self) -> usize {
        match self {
            // Logged at completion: the window covers the requests that may be in flight together.
            // blkparse merges the events of several processors in pieces.
            Self::Etw | Self::Blkparse => 4096,
            _ => 0,
        }
    }

    /// Whether the requests of this format have times; otherwise only their order is known.
    pub fn has_times(self) -> bool {
        self != Self::Arc
    }

    /// Whether a file that starts with `head` can be in no other format.
    pub(crate) fn is_sure(self, head: &[u8]) -> bool {
        match self {
            Self::Weft => head.starts_with(weft::HEADER.as_bytes()),
            Self::Etw => etw::is_sure(head),
            Self::Srt => srt::is_sure(head),
            Self::Vscsi => vscsi::is_sure(head),
            Self::Fio => fio::is_sure(head),
            Self::Spc | Self::Msr | Self::Alibaba | Self::Tencent => false,
            Self::Blkparse | Self::Arc => false,
        }
    }

    /// A parser; `head` is the start of the file.
    pub(crate) fn parser(self, head: &[u8]) -> Parser {
        match self {
            Self::Weft => lines(weft::Weft),
            Self::Spc => lines(spc::Spc),
            Self::Msr => lines(msr::Msr::default()),
            Self::Etw => lines(etw::Etw::default()),
            Self::Srt => Parser::Binary(Box::new(srt::Srt::new(head))),
            Self::Vscsi => Parser::Binary(Box::new(vscsi::Vscsi::new(head))),
            Self::Alibaba => lines(clouds::Alibaba),
            Self::Tencent => lines(clouds::Tencent),
            Self::Fio => lines(fio::Fio::default()),
            Self::Blkparse => lines(blkparse::Blkparse::new(head)),
            Self::Arc => lines(arc::Arc),
        }
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        let found = Self::all().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        let unknown = || TraceError::UnknownFormat { name: name.to_owned() };
        found.map(|(format, ..)| format).ok_or_else(unknown)
    }
}

/// A request whose address and length are in sectors of `sector` bytes.
pub(crate) fn in_sectors(
    at_ns: u64,
    device: u32,
    op: Op,
    (first, count): (u64, u64),
    sector: u64,
) -> Result<Record, Fault> {
    let beyond = || Fault::new("the address is beyond 2^64 bytes");
    let offset = first.checked_mul(sector).ok_or_else(beyond)?;
    let len = count.checked_mul(sector).ok_or_else(beyond)?;
    Ok(Record { at_ns, device, offset, len, op })
}

/// Fills `buffer` as far as the file goes; returns how far that is.
pub(crate) fn read_up_to(source: &mut dyn BufRead, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
