//! Writes requests and replies.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::wire::*;
use super::{Errno, Request, clip};

/// Appends a request's head.
pub fn put_request(out: &mut Vec<u8>, request: &Request) {
    let head = RequestHead {
        magic: REQUEST_MAGIC.into(),
        flags: request.flags.into(),
        command: request.command.into(),
        cookie: request.cookie.into(),
        offset: request.offset.into(),
        len: request.len.into(),
    };
    out.extend_from_slice(head.as_bytes());
}

/// Appends a simple reply; the data of a successful read follows it.
pub fn put_simple_reply(out: &mut Vec<u8>, cookie: u64, error: Option<Errno>) {
    let reply = SimpleReply {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: error.map_or(0, Errno::code).into(),
        cookie: cookie.into(),
    };
    out.extend_from_slice(reply.as_bytes());
}

fn put_chunk_head(out: &mut Vec<u8>, cookie: u64, kind: u16, done: bool, len: usize) {
    let head = ChunkHead {
        magic: CHUNK_MAGIC.into(),
        flags: if done { CHUNK_DONE } else { 0 }.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: u32::try_from(len).expect("a chunk is bounded by the largest payload").into(),
    };
    out.extend_from_slice(head.as_bytes());
}

/// Appends the head of a chunk of `len` bytes of data that stand at `offset` of the export; the
/// data follows it. `done` marks the last chunk of its reply.
///
/// # Panics
/// If `len` is near 4 GiB.
pub fn put_data_chunk_head(out: &mut Vec<u8>, cookie: u64, offset: u64, len: usize, done: bool) {
    put_chunk_head(out, cookie, CHUNK_OFFSET_DATA, done, len + 8);
    out.extend_from_slice(U64::new(offset).as_bytes());
}

/// Appends a structured reply that only reports success.
pub fn put_empty_chunk(out: &mut Vec<u8>, cookie: u64) {
    put_chunk_head(out, cookie, CHUNK_NONE, true, 0);
}

/// Appends a structured reply that is one error chunk.
pub fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, message: &str) {
    let message = clip(message);
    put_chunk_head(out, cookie, CHUNK_ERROR, true, 6 + message.len());
    out.extend_from_slice(U32::new(error.code()).as_bytes());
    let len = u16::try_from(message.len()).expect("a message was clipped");
    out.extend_from_slice(U16::new(len).as_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Appends a structured reply with the `base:allocation` status: (length, flags) of each
/// extent in turn.
pub fn put_block_status(
    out: &mut Vec<u8>,
    cookie: u64,
    extents: impl ExactSizeIterator<Item = (u32, u32)>,
) {
    put_chunk_head(out, cookie, CHUNK_BLOCK_STATUS, true, 4 + extents.len() * 8);
    out.extend_from_slice(U32::new(BASE_ALLOCATION_ID).as_bytes());
    for (len, flags) in extents {
        out.extend_from_slice(U32::new(len).as_bytes());
        out.extend_from_slice(U32::new(flags).as_bytes());
    }
}
