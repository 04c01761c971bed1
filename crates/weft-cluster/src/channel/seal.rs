//! Sealed parts of a stream: nothing in it can be changed, repeated, moved or left out.
//!
//! | bytes | |
//! |---|---|
//! | 4 | length of the contents, 1 to 64 KiB, little-endian |
//! | *length* | contents |
//! | 16 | the first half of the HMAC-SHA256 of the part's number, the length and the contents |
//!
//! Each direction has a key of its own, and numbers its parts from 0. A reader takes memory only
//! for bytes that have come, and not for more than one part.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

type HmacSha256 = Hmac<Sha256>;

/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
const CODE_BYTES: usize = 16;

/// A part is not what the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came was not sealed by the peer")]
pub struct BrokenSeal;

/// Codes of the parts of one direction.
#[derive(Clone)]
struct Codes {
    keyed: HmacSha256,
    next: u64,
}

impl Codes {
    fn new(key: &[u8; 32]) -> Self {
        let keyed = HmacSha256::new_from_slice(key).expect("a key of any length");
        Self { keyed, next: 0 }
    }

    /// The code of the next part: of its length and contents.
    fn next(&mut self, part: &[u8]) -> HmacSha256 {
        let mut mac = self.keyed.clone();
        mac.update(&self.next.to_le_bytes());
        mac.update(part);
        self.next += 1;
        mac
    }
}

/// The sending end.
pub struct Sealer(Codes);

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sealer").field(&self.0.next).finish()
    }
}

impl Sealer {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(Codes::new(key))
    }

    /// These bytes in sealed parts.
    pub fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let parts = bytes.len().div_ceil(PART_BYTES_MAX);
        let mut sealed = Vec::with_capacity(bytes.len() + parts * (LENGTH_BYTES + CODE_BYTES));
        for part in bytes.chunks(PART_BYTES_MAX) {
            let start = sealed.len();
            sealed.extend(u32::try_from(part.len()).expect("parts are short").to_le_bytes());
            sealed.extend_from_slice(part);
            let code = self.0.next(&sealed[start..]).finalize().into_bytes();
            sealed.extend_from_slice(&code[..CODE_BYTES]);
        }
        sealed
    }
}

/// The receiving end.
pub struct Opener {
    codes: Codes,
    /// What came of the next part.
    waiting: Vec<u8>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.waiting.len();
        f.debug_struct("Opener").field("next", &self.codes.next).field("waiting", &waiting).finish()
    }
}

impl Opener {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self { codes: Codes::new(key), waiting: Vec::new() }
    }

    /// These bytes have come: gives the contents of the parts that are whole now.
    ///
    /// # Errors
    /// A part is not what the peer sent. Nothing more may be taken from the stream.
    pub fn open(&mut self, bytes: &[u8]) -> Result<Vec<u8>, BrokenSeal> {
        self.waiting.extend_from_slice(bytes);
        let (mut contents, mut at) = (Vec::new(), 0);
        while let Some((length, rest)) = self.waiting[at..].split_first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_le_bytes(*length);
            let length = usize::try_from(length).map_err(|_| BrokenSeal)?;
            if !(1..=PART_BYTES_MAX).contains(&length) {
                return Err(BrokenSeal);
            }
            let Some(code) = rest.get(length..length + CODE_BYTES) else { break };
            let end = at + LENGTH_BYTES + length;
            let wanted = self.codes.next(&self.waiting[at..end]);
            wanted.verify_truncated_left(code).map_err(|_| BrokenSeal)?;
            contents.extend_from_slice(&rest[..length]);
            at = end + CODE_BYTES;
        }
        self.waiting.drain(..at);
        Ok(contents)
    }

    /// Bytes that have come and are of no whole part.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.len()
    }
}
