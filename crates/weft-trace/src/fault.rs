//! Where and why a line or record of a trace is not a valid request.

use std::fmt;

/// A place in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracePosition {
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
        /// Where it starts, in bytes of the uncompressed file.
        byte: u64,
    },
}

impl fmt::Display for TracePosition {
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
