//! Microsoft's production traces (SNIA): disk events of Event Tracing for Windows, as CSV.
//!
//! A block from `BeginHeader` to `EndHeader` names the columns of each kind of event; they differ
//! between kinds and between collections, so the names decide. Used are `DiskRead`, `DiskWrite` and
//! `DiskFlush`; of the other events (`DiskReadInit`, `FileIoRead`, `CSwitch` …) there are many, and
//! they do not concern disks.
//!
//! Times are in microseconds. An event is logged when the request is *complete*: it was issued
//! `ElapsedTime` before its `TimeStamp`, and so requests must be sorted by issue. `ByteOffset` and
//! `IOSize` are hexadecimal with `0x`. The name of the process may hold blanks and commas, and the
//! file's name is in quotes: columns are counted from both sides of the process.
//!
//! Without a header the columns are those of the SNIA collections of 2008.

use crate::fault::Fault;
use crate::fields::{hex_or_number, number32, scaled, trim};
use crate::formats::{LineParser, Parsed};
use crate::record::{Op, Record};

const DEFAULT: [&str; 3] = [
    "DiskRead, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ByteOffset, IOSize, ElapsedTime, \
     DiskNum, IrpFlags, DiskSvcTime, I/O Pri, VolSnap, FileObject, FileName",
    "DiskWrite, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ByteOffset, IOSize, ElapsedTime, \
     DiskNum, IrpFlags, DiskSvcTime, I/O Pri, VolSnap, FileObject, FileName",
    "DiskFlush, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ElapsedTime, DiskNum, IrpFlags, \
     DiskSvcTime, I/O Pri",
];

/// Whether a file starts with a header of such events.
pub(crate) fn is_sure(head: &[u8]) -> bool {
    let begin = &head[..head.len().min(4096)];
    memchr::memmem::find(begin, b"BeginHeader").is_some()
        && memchr::memmem::find(head, b"DiskRead").is_some()
}

/// The places of the columns of one kind of event.
#[derive(Debug, Default, Clone)]
struct Columns {
    count: usize,
    process: Option<usize>,
    time: Option<usize>,
    elapsed: Option<usize>,
    offset: Option<usize>,
    size: Option<usize>,
    disk: Option<usize>,
    /// Whether the last column is a file's name, in quotes.
    file: bool,
}

impl Columns {
    fn of(header: &[u8]) -> Self {
        let mut columns = Self::default();
        for (at, name) in header.split(|byte| *byte == b',').enumerate() {
            let name = trim(name);
            let place = Some(at);
            match name {
                b"TimeStamp" => columns.time = place,
                b"ElapsedTime" => columns.elapsed = place,
                b"ByteOffset" => columns.offset = place,
                b"IOSize" => columns.size = place,
                b"DiskNum" => columns.disk = place,
                _ if name.starts_with(b"Process Name") => columns.process = place,
                _ => {}
            }
            columns.count = at + 1;
            columns.file = name == b"FileName";
        }
        columns
    }

    /// The column at `place` of `line`.
    fn get<'a>(
        &self,
        line: &'a [u8],
        place: Option<usize>,
        what: &'static str,
    ) -> Result<&'a [u8], Fault> {
        let place = place.ok_or_else(|| Fault::new(what))?;
        // The file's name may hold anything; before it nothing is in quotes.
        let (line, expected) = match memchr::memchr(b'"', line) {
            Some(quote) if self.file => (&line[..quote], self.count),
            _ => (line, self.count),
        };
        let found = memchr::memchr_iter(b',', line).count() + 1;
        // More columns than there should be: commas in the name of the process.
        let extra = found.saturating_sub(expected);
        let shift = if self.process.is_some_and(|process| place > process) { extra } else { 0 };
        let column = line.split(|byte| *byte == b',').nth(place + shift);
        column.ok_or_else(|| Fault::new(what))
    }
}

pub(crate) struct Etw {
    in_header: bool,
    read: Columns,
    write: Columns,
    flush: Columns,
}

impl Default for Etw {
    fn default() -> Self {
        let [read, write, flush] = DEFAULT.map(|header| Columns::of(header.as_bytes()));
        Self { in_header: false, read, write, flush }
    }
}

impl LineParser for Etw {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let end = memchr::memchr(b',', line).unwrap_or(line.len());
        let kind = trim(&line[..end]);
        match kind {
            b"BeginHeader" => self.in_header = true,
            b"EndHeader" => self.in_header = false,
            b"DiskRead" if self.in_header => self.read = Columns::of(line),
            b"DiskWrite" if self.in_header => self.write = Columns::of(line),
            b"DiskFlush" if self.in_header => self.flush = Columns::of(line),
            _ if self.in_header => {}
            b"DiskRead" => return request(line, &self.read, Op::Read),
            b"DiskWrite" => return request(line, &self.write, Op::Write),
            b"DiskFlush" => return request(line, &self.flush, Op::Flush),
            // Any other event has a name and columns.
            _ if end < line.len() && kind.first().is_some_and(u8::is_ascii_alphabetic) => {}
            _ => return Err(Fault::at("the line is no event", kind)),
        }
        Ok(Parsed::Nothing)
    }
}

fn request(line: &[u8], columns: &Columns, op: Op) -> Result<Parsed, Fault> {
    let column = |place, what| columns.get(line, place, what);
    let number = |place, what| hex_or_number(what, column(place, what)?);
    let time_us = number(columns.time, "no TimeStamp")?;
    let elapsed_us = number(columns.elapsed, "no ElapsedTime")?;
    let disk = number32("no DiskNum", column(columns.disk, "no DiskNum")?)?;
    let (offset, len) = if op == Op::Flush {
        (0, 0)
    } else {
        (number(columns.offset, "no ByteOffset")?, number(columns.size, "no IOSize")?)
    };
    let issued_us = time_us.saturating_sub(elapsed_us);
    let at_ns = scaled("the time is beyond all times", issued_us, 1000)?;
    Ok(Parsed::Request(Record { at_ns, device: disk, offset, len, op }))
}
