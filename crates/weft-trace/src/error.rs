//! Errors of reading a trace, with their place.

use std::fmt;
use std::io;

use crate::Format;

/// A place in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of a text, counted from 1.
    Line {
        /// The file's name.
        file: String,
        /// The line.
        line: u64,
    },
    /// A record of a binary file, counted from 1.
    Record {
        /// The file's name.
        file: String,
        /// The record.
        record: u64,
        /// Where it begins, in bytes of the uncompressed file.
        byte: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::Record { file, record, byte } => {
                write!(f, "{file}: record {record} at byte {byte}")
            }
        }
    }
}

/// Why a line or record is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    what: &'static str,
    text: String,
}

/// Bytes of the offending text that a message repeats.
const SHOWN_MAX: usize = 60;

impl Fault {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, text: String::new() }
    }

    /// A fault, with the bytes that caused it.
    pub(crate) fn at(what: &'static str, bytes: &[u8]) -> Self {
        let shown = &bytes[..bytes.len().min(SHOWN_MAX)];
        let text = shown.escape_ascii().to_string();
        Self { what, text: if bytes.len() > shown.len() { text + "…" } else { text } }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": `{}`", self.text) }
    }
}

/// A trace that cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A damaged or truncated line or record.
    /// [`ReadOptions::skip_bad`](crate::ReadOptions::skip_bad) skips these.
    #[error("{place}: {fault}")]
    Bad {
        /// Where.
        place: Place,
        /// Why.
        fault: Fault,
    },
    /// The file itself cannot be read or decompressed. Never skipped, as the rest cannot be found.
    #[error("{file}: {source}")]
    Io {
        /// The file's name.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// A format was named that does not exist.
    #[error("no trace format is named `{name}`; known are {}", Format::known())]
    UnknownFormat {
        /// The name asked for.
        name: String,
    },
    /// No format was given, and the file is not recognised.
    #[error("{file} looks like no known trace format; known are {}", Format::known())]
    Unrecognised {
        /// The file's name.
        file: String,
    },
}
