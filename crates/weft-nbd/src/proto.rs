//! The NBD protocol without any I/O: bytes in, decisions and bytes out.
//!
//! The protocol has two phases. In the **handshake** (fixed newstyle) the server greets, the client
//! sends options one after the other, and each is answered with one or more option replies; `GO`
//! (or the older `EXPORT_NAME`) ends it by choosing an export. In **transmission** the client sends
//! requests of 28 bytes (a write's payload follows), many at a time, each with a cookie; the server
//! answers in any order, with simple replies or, when both agreed, structured ones made of chunks.
//! Everything on the wire is big-endian.
//!
//! * [`Negotiation`] is the server's handshake, [`ClientNegotiation`] the client's.
//! * [`Request`] parses and checks a request; the `put_…` functions write replies.
//! * [`Response`] parses a server's answers, [`Coverage`] tells when a read is complete.
//!
//! This module does not trust the peer: it bounds every length before it allocates memory for it,
//! and no input makes it panic (`fuzz/fuzz_targets/nbd_proto.rs`).
//!
//! What is not offered: TLS (`STARTTLS` is answered `ERR_UNSUP`: encryption belongs to a tunnel,
//! or to a Unix socket and its permissions), extended headers, `CACHE`, and `RESIZE`.
//!
//! Source: "The NBD protocol", doc/proto.md of the network block device project.

mod connect;
mod coverage;
mod negotiate;
mod reply;
mod request;
mod response;
pub mod wire;

pub use connect::{ClientNegotiation, ClientStep, Peer};
pub use coverage::Coverage;
pub use negotiate::{Catalogue, ExportInfo, Negotiation, Session, Step};
pub use reply::{
    put_block_status, put_data_chunk_head, put_empty_chunk, put_error_chunk, put_request,
    put_simple_reply,
};
pub use request::{Command, Limits, Request};
pub use response::{Chunk, Response, error_of_chunk};

/// Longest export name or other string in the protocol, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Largest payload of one request that is accepted or sent, in bytes: what every client may
/// assume (32 MiB).
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Largest option that is parsed, in bytes; bigger ones are skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// An option bigger than this ends the connection.
pub const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;

/// Options in one handshake, at most.
pub const OPTIONS_MAX: u32 = 1024;

/// Longest text sent with an error, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Sizes of a request, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it; a power of two up to 64 KiB.
    pub min: u32,
    /// Offsets and lengths should be multiples of it; a power of two.
    pub preferred: u32,
    /// No payload is larger.
    pub max: u32,
}

impl Default for BlockSizes {
    /// The protocol's defaults when nothing was negotiated.
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max: PAYLOAD_BYTES_MAX }
    }
}

/// An error number of the protocol. They are Linux's, but fixed by the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// The data cannot be read or written.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// Malformed or out of range.
    Invalid = 22,
    /// Beyond the end, or no space left.
    NoSpace = 28,
    /// The reply would be too large.
    Overflow = 75,
    /// Not supported (a fast zero that would not be fast).
    NotSupported = 95,
    /// The server is going down.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The error of a number on the wire; unknown ones are [`Errno::Invalid`], as the protocol
    /// demands of a client.
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpace,
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Invalid,
        }
    }
}

/// The peer broke the protocol so that the connection cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A magic number is wrong: the peer does not speak NBD, or both have lost step.
    #[error("bad magic {found:#x} in {place}")]
    Magic {
        /// What was being read.
        place: &'static str,
        /// The number found.
        found: u64,
    },
    /// The server speaks only the oldstyle handshake.
    #[error("the server speaks only the oldstyle handshake; a newstyle one is needed")]
    Oldstyle,
    /// Unknown flags in the handshake.
    #[error("unknown handshake flags {0:#x}")]
    Flags(u32),
    /// A length is beyond its bound.
    #[error("{place} of {len} bytes, more than the {max} allowed")]
    TooLong {
        /// What was being read.
        place: &'static str,
        /// The length announced.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// More options than any honest client sends.
    #[error("more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// `EXPORT_NAME` asked for an export that does not exist; the protocol has no reply for it.
    #[error("no export named {0:?}")]
    UnknownExport(String),
    /// An option before fixed newstyle was agreed.
    #[error("option {0} without fixed newstyle")]
    OptionWithoutFixed(u32),
    /// A message has not the form that its type demands.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// The server refused the export.
    #[error("the server refused export {export:?}: {reason}")]
    Refused {
        /// The name asked for.
        export: String,
        /// The kind of refusal, and the server's message.
        reason: String,
    },
    /// A reply to a request that was not made.
    #[error("reply to unknown request {0:#x}")]
    Cookie(u64),
}

/// Shortens a text to [`MESSAGE_BYTES_MAX`] at a character's border.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
