//! Errors of reading a trace.

use std::io;

use crate::fault::{Fault, TracePosition};
use crate::format::Format;

/// A trace that cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A damaged or truncated line or record.
    /// [`ReadOptions::skip_bad`](crate::ReadOptions::skip_bad) skips these.
    #[error("{place}: {fault}")]
    Bad {
        /// Where.
        place: TracePosition,
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
