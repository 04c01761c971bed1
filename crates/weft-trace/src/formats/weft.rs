//! weft's own CSV: `t_us,dev,offset,size,op`.
//!
//! Microseconds since the first request, with up to three decimal places; the device as a number or
//! as `major:minor`; offset and size in bytes; `R`, `W`, `F` (flush) or `T` (trim). The first line
//! may be the header, and lines that start with `#` are comments, in which a generator describes
//! itself.

use std::io::{self, Write};

use crate::fault::Fault;
use crate::fields::{Columns, decimal, number, number32, trim};
use crate::formats::{LineParser, Parsed};
use crate::record::{Op, Record};

/// The first line of a file in this format.
pub const HEADER: &str = "t_us,dev,offset,size,op";

pub(crate) struct Weft;

impl LineParser for Weft {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        if line.starts_with(b"#") || line == HEADER.as_bytes() {
            return Ok(Parsed::Nothing);
        }
        let mut columns = Columns::new(line);
        let at_ns = decimal("no time in µs", columns.next("the line has no time")?, 1000)?;
        let device = device(columns.next("the line has no device")?)?;
        let offset = number("no offset", columns.next("the line has no offset")?)?;
        let len = number("no size", columns.next("the line has no size")?)?;
        let op = match trim(columns.next("the line has no op")?) {
            b"R" | b"r" => Op::Read,
            b"W" | b"w" => Op::Write,
            b"F" | b"f" => Op::Flush,
            b"T" | b"t" => Op::Trim,
            other => return Err(Fault::at("the op is none of R, W, F, T", other)),
        };
        if columns.has_more() {
            return Err(Fault::new("the line has more than five columns"));
        }
        Ok(Parsed::Request(Record { at_ns, device, offset, len, op }))
    }
}

/// A number, or `major:minor` as Linux shows devices.
fn device(text: &[u8]) -> Result<u32, Fault> {
    let fault = || Fault::at("no device", text);
    let Some(colon) = text.iter().position(|byte| *byte == b':') else {
        return number32("no device", text);
    };
    let major = number("no device", &text[..colon]).map_err(|_| fault())?;
    let minor = number("no device", &text[colon + 1..]).map_err(|_| fault())?;
    device_number(major, minor).ok_or_else(fault)
}

/// `major << 20 | minor`, as Linux numbers its devices.
pub(crate) fn device_number(major: u64, minor: u64) -> Option<u32> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    u32::try_from(major << 20 | minor).ok().filter(|_| fits)
}

/// Writes requests in this format.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes `comments`, a line each, and the header.
    ///
    /// # Errors
    /// If the output fails.
    pub fn new(mut out: W, comments: &[&str]) -> io::Result<Self> {
        for comment in comments {
            writeln!(out, "# {comment}")?;
        }
        writeln!(out, "{HEADER}")?;
        Ok(Self { out })
    }

    /// Writes one request; its time to the nanosecond.
    ///
    /// # Errors
    /// If the output fails.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let Record { at_ns, device, offset, len, op } = record;
        let (us, ns) = (at_ns / 1000, at_ns % 1000);
        writeln!(self.out, "{us}.{ns:03},{device},{offset},{len},{}", op.letter())
    }

    /// Flushes everything and ends.
    ///
    /// # Errors
    /// If the output fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}
