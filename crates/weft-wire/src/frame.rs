//! Frames: messages in a stream of bytes.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the contents |
//! | 4 | 2 | version of the message |
//! | 6 | 2 | kind of the message |
//! | 8 | 4 | CRC-32C of the first 8 bytes and the contents |
//! | 12 | | contents |
//!
//! Numbers are little-endian. A stream that has had a wrong frame is of no more use: where the next
//! one starts is not known.

use crate::fields::{FIRST_VERSION, MESSAGE_BYTES_MAX, Put as _, Result, VERSION, WireError};

/// Bytes before the contents.
const HEAD_BYTES: usize = 12;
/// Of the head, what the checksum covers.
const COVERED_BYTES: usize = 8;

fn checksum(head: &[u8], contents: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&head[..COVERED_BYTES]);
    digest.update(contents);
    u32::try_from(digest.finalize()).expect("the checksum has 32 bits")
}

/// What the head of a frame says of its message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) version: u16,
    pub(crate) kind: u16,
}

/// A frame with contents that `put` adds.
///
/// # Panics
/// If the contents have more than [`MESSAGE_BYTES_MAX`] bytes.
pub(crate) fn frame(Head { version, kind }: Head, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    put(&mut bytes);
    let (head, contents) = bytes.split_at_mut(HEAD_BYTES);
    let len = u32::try_from(contents.len()).ok().filter(|len| *len <= MESSAGE_BYTES_MAX);
    let mut fields = Vec::with_capacity(HEAD_BYTES);
    fields.put_u32(len.expect("messages are short"));
    fields.put_u16(version);
    fields.put_u16(kind);
    fields.put_u32(checksum(&fields, contents));
    head.copy_from_slice(&fields);
    bytes
}

/// Collects the bytes of a stream, and gives its frames.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Bytes of frames that were given.
    given: usize,
}

impl Frames {
    /// These bytes have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.given);
        self.given = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that have come and are of no frame that was given.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes.len() - self.given
    }

    /// The head of the next frame, and its contents, if all of it has come.
    pub(crate) fn next(&mut self) -> Result<Option<(Head, &[u8])>> {
        let waiting = &self.bytes[self.given..];
        let Some((head, rest)) = waiting.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, version, kind, sum) = (word(0), half(4), half(6), word(8));
        if !(FIRST_VERSION..=VERSION).contains(&version) {
            return Err(WireError::Version(version));
        }
        if len > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLong(len));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some(contents) = rest.get(..len) else { return Ok(None) };
        if checksum(head, contents) != sum {
            return Err(WireError::Checksum);
        }
        let start = self.given + HEAD_BYTES;
        self.given = start + len;
        Ok(Some((Head { version, kind }, &self.bytes[start..self.given])))
    }
}
