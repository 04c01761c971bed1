//! Reads a trace as a stream of requests, in memory that does not grow with the file.
//!
//! These rules hold for all formats:
//!
//! * **Time** starts at 0 with the first request. A request that is earlier than its predecessor
//!   gets the predecessor's time ("time never goes backwards"), and is counted; requests of formats
//!   that are logged at completion ([`Format::reorder_window`]) are first sorted by issue time
//!   within a window.
//! * **Empty requests** – a read, write or trim of 0 bytes – are left out, and counted. A flush has
//!   no length.
//! * **Beyond 2⁶⁴**: a request whose end does not fit 64 bits is damaged. (Only a replay can tell
//!   what lies beyond a *volume*; see [`crate::replay::AddressMap`].)
//! * **Damaged** lines and records are errors with their place. With [`ReadOptions::skip_bad`] they
//!   are skipped and counted, and the first ones are kept for the report. In a binary format whose
//!   records are found only by their own lengths, a damaged length ends the trace in either case.
//! * A last line without an end of line counts as a line.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, BufRead, Cursor, Read};
use std::path::Path;

use serde::Serialize;

use crate::error::TraceError;
use crate::fault::{Fault, TracePosition};
use crate::format::Format;
use crate::formats::{Block, Parsed, Parser};
use crate::input::{self, Progress};
use crate::lines::{Line, Lines};
use crate::record::{Op, Record};
use crate::sniff::{self, HEAD_BYTES};

/// Number of descriptions of damaged lines that are kept.
const BAD_KEPT: usize = 10;

/// Bytes of a label that are kept.
const LABEL_CHARS_MAX: usize = 200;

/// Options for reading a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format; detected from the start of the file if not given.
    pub format: Option<Format>,
    /// Skip (and count) damaged lines instead of ending with an error.
    pub skip_bad: bool,
}

/// Irregularities found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReadStats {
    /// Requests returned.
    pub requests: u64,
    /// Damaged lines or records that were skipped.
    pub bad: u64,
    /// The first of them: place and reason.
    pub bad_first: Vec<String>,
    /// Reads, writes and trims of 0 bytes, left out.
    pub empty: u64,
    /// Requests that were earlier than their predecessor, and got its time.
    pub backwards: u64,
    /// The largest step back in time.
    pub backwards_ns_max: u64,
}

enum Source {
    Lines(Lines, Box<dyn crate::formats::LineParser>),
    Binary(Box<dyn BufRead>, Box<dyn crate::formats::BinaryParser>, Position),
}

/// The position in a binary trace.
#[derive(Default)]
struct Position {
    records: u64,
    /// The start and end of the last record read, in bytes.
    begins: u64,
    ends: u64,
}

/// A request in the sorting window: ordered by time, then by its place in the file.
#[derive(PartialEq, Eq)]
struct Held {
    record: Record,
    number: u64,
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.record.at_ns, self.number).cmp(&(other.record.at_ns, other.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A trace being read: an iterator of its requests. After an error it ends.
pub struct Reader {
    file: String,
    format: Format,
    label: Option<String>,
    source: Source,
    skip_bad: bool,
    progress: Progress,
    stats: ReadStats,
    window: BinaryHeap<Reverse<Held>>,
    window_len: usize,
    numbered: u64,
    /// The trace's own time of the first request returned.
    zero_ns: Option<u64>,
    last_ns: u64,
    ended: bool,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("file", &self.file)
            .field("format", &self.format)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Opens the trace at `path`, compressed or not.
///
/// # Errors
/// If the file cannot be read, or its format was not named and is not recognised.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Reader, TraceError> {
    let file = path.display().to_string();
    match input::open(path) {
        Ok((bytes, progress)) => Reader::new(file, bytes, progress, options),
        Err(source) => Err(TraceError::Io { file, source }),
    }
}

/// Reads a trace from `source`, compressed or not; `name` is what messages call it.
///
/// # Errors
/// As [`open`].
pub fn read(
    name: &str,
    source: impl Read + 'static,
    options: &ReadOptions,
) -> Result<Reader, TraceError> {
    match input::wrap(source, 0) {
        Ok((bytes, progress)) => Reader::new(name.to_owned(), bytes, progress, options),
        Err(source) => Err(TraceError::Io { file: name.to_owned(), source }),
    }
}

impl Reader {
    fn new(
        file: String,
        mut bytes: Box<dyn BufRead>,
        progress: Progress,
        options: &ReadOptions,
    ) -> Result<Self, TraceError> {
        let mut head = Vec::new();
        let read = bytes.by_ref().take(HEAD_BYTES).read_to_end(&mut head);
        read.map_err(|source| TraceError::Io { file: file.clone(), source })?;
        let sniffed = options.format.or_else(|| sniff::format_of(&head));
        let format = sniffed.ok_or_else(|| TraceError::Unrecognised { file: file.clone() })?;
        let parser = format.parser(&head);
        let label = if format == Format::Weft { label_of(&head) } else { None };
        let bytes: Box<dyn BufRead> = Box::new(Cursor::new(head).chain(bytes));
        let source = match parser {
            Parser::Lines(parser) => Source::Lines(Lines::new(bytes), parser),
            Parser::Binary(parser) => Source::Binary(bytes, parser, Position::default()),
        };
        Ok(Self {
            file,
            format,
            label,
            source,
            skip_bad: options.skip_bad,
            progress,
            stats: ReadStats::default(),
            window: BinaryHeap::new(),
            window_len: format.reorder_window(),
            numbered: 0,
            zero_ns: None,
            last_ns: 0,
            ended: false,
        })
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The label that marks the file as generated or looped; it must be shown with all figures of
    /// the trace.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Irregularities found so far.
    pub fn stats(&self) -> &ReadStats {
        &self.stats
    }

    /// The progress through the file.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// The next request with the trace's own time; `None` at the end.
    fn request(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let (parsed, lost) = match self.step() {
                Ok(Step::End) => return Ok(None),
                Ok(Step::Parsed(parsed)) => (parsed.and_then(sound), false),
                Ok(Step::Lost(fault)) => (Err(fault), true),
                Err(source) => return Err(TraceError::Io { file: self.file.clone(), source }),
            };
            match parsed {
                Ok(Some(record)) if record.len == 0 && record.op != Op::Flush => {
                    self.stats.empty += 1;
                }
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => {}
                Err(fault) => self.bad(fault, lost)?,
            }
            if lost {
                return Ok(None);
            }
        }
    }

    fn step(&mut self) -> io::Result<Step> {
        match &mut self.source {
            Source::Lines(lines, parser) => lines.next(|line| match line {
                Line::End => Step::End,
                Line::TooLong => Step::Parsed(Err(Fault::new("the line is too long"))),
                Line::Text(b"") => Step::Parsed(Ok(Parsed::Nothing)),
                Line::Text(line) => Step::Parsed(parser.parse(line)),
            }),
            Source::Binary(source, parser, position) => {
                position.begins = position.ends;
                let block = parser.next(&mut **source, &mut position.ends)?;
                position.records += u64::from(!matches!(block, Block::End | Block::Header));
                Ok(match block {
                    Block::End => Step::End,
                    Block::Header => Step::Parsed(Ok(Parsed::Nothing)),
                    Block::Parsed(parsed) => Step::Parsed(Ok(parsed)),
                    Block::Bad(fault) => Step::Parsed(Err(fault)),
                    Block::Lost(fault) => Step::Lost(fault),
                })
            }
        }
    }

    /// A damaged record: an error, or counted.
    fn bad(&mut self, fault: Fault, lost: bool) -> Result<(), TraceError> {
        let file = self.file.clone();
        let place = match &self.source {
            Source::Lines(lines, _) => TracePosition::Line { file, line: lines.number() },
            Source::Binary(_, _, at) => {
                TracePosition::Record { file, record: at.records, byte: at.begins }
            }
        };
        if !self.skip_bad {
            return Err(TraceError::Bad { place, fault });
        }
        self.stats.bad += 1;
        if self.stats.bad_first.len() < BAD_KEPT {
            let rest = if lost { "; what follows cannot be read" } else { "" };
            self.stats.bad_first.push(format!("{place}: {fault}{rest}"));
        }
        Ok(())
    }

    /// The next request in order of time, as far as the window reaches.
    fn sorted(&mut self) -> Result<Option<Record>, TraceError> {
        if self.window_len == 0 {
            return self.request();
        }
        while self.window.len() <= self.window_len
            && let Some(record) = self.request()?
        {
            self.window.push(Reverse(Held { record, number: self.numbered }));
            self.numbered += 1;
        }
        Ok(self.window.pop().map(|Reverse(held)| held.record))
    }

    /// Shifts the time to start at 0, and never to go backwards.
    fn timed(&mut self, mut record: Record) -> Record {
        let zero_ns = *self.zero_ns.get_or_insert(record.at_ns);
        let last_ns = zero_ns + self.last_ns;
        if record.at_ns < last_ns {
            self.stats.backwards += 1;
            let step = last_ns - record.at_ns;
            self.stats.backwards_ns_max = self.stats.backwards_ns_max.max(step);
        }
        self.last_ns = record.at_ns.max(last_ns) - zero_ns;
        record.at_ns = self.last_ns;
        self.stats.requests += 1;
        record
    }
}

impl Iterator for Reader {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.sorted() {
            Ok(Some(record)) => Some(Ok(self.timed(record))),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        }
    }
}

/// The first comment that starts with `generated` or `looped`.
fn label_of(head: &[u8]) -> Option<String> {
    let comments = head.split(|byte| *byte == b'\n').map_while(|line| line.strip_prefix(b"# "));
    let mut texts = comments.map(|comment| String::from_utf8_lossy(comment));
    let label = texts.find(|text| text.starts_with("generated") || text.starts_with("looped"))?;
    Some(label.chars().filter(|c| !c.is_control()).take(LABEL_CHARS_MAX).collect())
}

/// One step through the file.
enum Step {
    Parsed(Result<Parsed, Fault>),
    /// Damaged, and the rest cannot be found.
    Lost(Fault),
    End,
}

/// The request, if there is one and its end fits 64 bits. Flushes have neither address nor length.
fn sound(parsed: Parsed) -> Result<Option<Record>, Fault> {
    let Parsed::Request(mut record) = parsed else { return Ok(None) };
    if record.op == Op::Flush {
        (record.offset, record.len) = (0, 0);
    }
    match record.offset.checked_add(record.len) {
        Some(_) => Ok(Some(record)),
        None => Err(Fault::new("the request ends beyond 2^64 bytes")),
    }
}
