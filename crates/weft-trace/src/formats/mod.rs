//! The formats: one file each, and one line in the table below.
//!
//! A format turns lines, or the bytes of a binary file, into requests with the trace's *own* times,
//! in nanoseconds since any zero; the [`Reader`](crate::Reader) does what is common to all. Each
//! file begins with what is needed to read its format right: units, the meaning of its times,
//! pitfalls.

mod blkparse;
mod clouds;
mod etw;
mod fio;
mod msr;
mod spc;
mod srt;
mod vscsi;
pub(crate) mod weft;

use std::fmt;
use std::io::{self, BufRead};
use std::str::FromStr;

use serde::Serialize;

use crate::error::{Fault, TraceError};
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

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// weft's own: `t_us,dev,offset,size,op`.
    Weft,
    /// Storage Performance Council: `ASU,LBA,size,opcode,timestamp`.
    Spc,
    /// MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
    Msr,
    /// Microsoft's production servers: disk events of Event Tracing for Windows.
    Etw,
    /// HP Labs SRT.
    Srt,
    /// CloudPhysics vscsi, version 1 and 2.
    Vscsi,
    /// Alibaba 2020.
    Alibaba,
    /// Tencent CBS 2018.
    Tencent,
    /// fio's I/O log, version 2 and 3.
    Fio,
    /// The output of blkparse.
    Blkparse,
}

/// Name, description, constructor of each format.
type Row = (Format, &'static str, &'static str, fn(&[u8]) -> Parser);

const TABLE: &[Row] = &[
    (Format::Weft, "weft", "weft's own CSV: t_us,dev,offset,size,op", |_| lines(weft::Weft)),
    (Format::Spc, "spc", "Storage Performance Council, UMass (.spc)", |_| lines(spc::Spc)),
    (Format::Msr, "msr", "MSR Cambridge CSV", |_| lines(msr::Msr::default())),
    (Format::Etw, "etw", "Microsoft production servers: disk events of ETW, CSV", |_| {
        lines(etw::Etw::default())
    }),
    (Format::Srt, "srt", "HP Labs SRT (hplajw, snake, cello), binary", |head| {
        Parser::Binary(Box::new(srt::Srt::new(head)))
    }),
    (Format::Vscsi, "vscsi", "CloudPhysics vscsi 1 and 2, binary", |head| {
        Parser::Binary(Box::new(vscsi::Vscsi::new(head)))
    }),
    (Format::Alibaba, "alibaba", "Alibaba block traces 2020, CSV", |_| lines(clouds::Alibaba)),
    (Format::Tencent, "tencent", "Tencent CBS 2018, CSV", |_| lines(clouds::Tencent)),
    (Format::Fio, "fio", "fio I/O log, version 2 and 3", |_| lines(fio::Fio::default())),
    (Format::Blkparse, "blkparse", "output of blkparse for a Linux block trace", |head| {
        lines(blkparse::Blkparse::new(head))
    }),
];

fn lines(parser: impl LineParser + 'static) -> Parser {
    Parser::Lines(Box::new(parser))
}

impl Format {
    /// Every format with its name and a line about it.
    pub fn all() -> impl Iterator<Item = (Self, &'static str, &'static str)> {
        TABLE.iter().map(|(format, name, about, _)| (*format, *name, *about))
    }

    /// The names of all formats, for messages.
    pub fn known() -> String {
        let names: Vec<&str> = Self::all().map(|(_, name, _)| name).collect();
        names.join(", ")
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::all().find(|(format, ..)| *format == self).map_or("?", |(_, name, _)| name)
    }

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

    /// Whether a file that begins with `head` can be in no other format.
    pub(crate) fn is_sure(self, head: &[u8]) -> bool {
        match self {
            Self::Weft => head.starts_with(weft::HEADER.as_bytes()),
            Self::Etw => etw::is_sure(head),
            Self::Srt => srt::is_sure(head),
            Self::Vscsi => vscsi::is_sure(head),
            Self::Fio => fio::is_sure(head),
            Self::Spc | Self::Msr | Self::Alibaba | Self::Tencent | Self::Blkparse => false,
        }
    }

    /// A parser; `head` is the beginning of the file.
    pub(crate) fn parser(self, head: &[u8]) -> Parser {
        let row = TABLE.iter().find(|(format, ..)| *format == self);
        row.map(|(.., parser)| parser(head)).expect("every format is in the table")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
