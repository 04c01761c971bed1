//! What a server answers in transmission, as a client reads it.

use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

use super::wire::*;
use super::{Errno, PAYLOAD_BYTES_MAX, Violation};

/// Head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// A simple reply; the data of a successful read follows.
    Simple {
        /// The request's.
        cookie: u64,
        /// What went wrong.
        error: Option<Errno>,
    },
    /// A chunk of a structured reply; `len` bytes follow.
    Chunk {
        /// The request's.
        cookie: u64,
        /// What it holds.
        kind: Chunk,
        /// Whether it is the last of its reply.
        done: bool,
        /// Bytes that follow.
        len: u32,
    },
}

/// What a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// Nothing.
    None,
    /// An offset, and data.
    Data,
    /// An offset, and the length (32 bits) of zeros.
    Hole,
    /// An error.
    Error,
    /// Something that was not asked for.
    Other(u16),
}

/// Bytes of an error chunk that are parsed.
const ERROR_BYTES_MAX: u32 = 6 + 4096 + 8;

impl Response {
    /// The head at the front of `input` and its length in bytes; `None` if more is needed.
    ///
    /// # Errors
    /// The magic is wrong or a length is beyond all bounds: the connection cannot continue.
    pub fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Ok((magic, _)) = U32::read_from_prefix(input) else { return Ok(None) };
        match magic.get() {
            SIMPLE_REPLY_MAGIC => Ok(SimpleReply::ref_from_prefix(input).ok().map(|(reply, _)| {
                let code = reply.error.get();
                let error = (code != 0).then(|| Errno::from_code(code));
                (Self::Simple { cookie: reply.cookie.get(), error }, SIMPLE_REPLY_BYTES)
            })),
            CHUNK_MAGIC => {
                let Ok((head, _)) = ChunkHead::ref_from_prefix(input) else { return Ok(None) };
                Ok(Some((Self::chunk(head)?, CHUNK_HEAD_BYTES)))
            }
            found => Err(Violation::Magic { place: "a reply", found: found.into() }),
        }
    }

    fn chunk(head: &ChunkHead) -> Result<Self, Violation> {
        let (kind, len) = (head.kind.get(), head.len.get());
        let done = head.flags.get() & CHUNK_DONE != 0;
        let (kind, range) = match kind {
            CHUNK_NONE if !done => return Err(Violation::Malformed("empty chunk: not the last")),
            CHUNK_NONE => (Chunk::None, 0..=0),
            CHUNK_OFFSET_DATA => (Chunk::Data, 9..=PAYLOAD_BYTES_MAX + 8),
            CHUNK_OFFSET_HOLE => (Chunk::Hole, 12..=12),
            _ if kind & CHUNK_ERROR_BIT != 0 => (Chunk::Error, 6..=ERROR_BYTES_MAX),
            _ => (Chunk::Other(kind), 0..=PAYLOAD_BYTES_MAX),
        };
        if len > *range.end() {
            let max = (*range.end()).into();
            return Err(Violation::TooLong { place: "a chunk", len: len.into(), max });
        }
        if len < *range.start() {
            return Err(Violation::Malformed("chunk: it is too short"));
        }
        Ok(Self::Chunk { cookie: head.cookie.get(), kind, done, len })
    }
}

/// The error and the message of an error chunk's `payload`.
///
/// # Errors
/// It is malformed.
pub fn error_of_chunk(payload: &[u8]) -> Result<(Errno, String), Violation> {
    let malformed = || Violation::Malformed("error chunk");
    let (code, rest) = U32::read_from_prefix(payload).map_err(|_| malformed())?;
    let (len, rest) = U16::read_from_prefix(rest).map_err(|_| malformed())?;
    let text = rest.get(..usize::from(len.get())).ok_or_else(malformed)?;
    if code.get() == 0 {
        return Err(malformed());
    }
    Ok((Errno::from_code(code.get()), String::from_utf8_lossy(text).into_owned()))
}
