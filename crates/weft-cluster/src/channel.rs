//! Channels: streams of bytes between a node and its keeper, whose ends know each other.
//!
//! *What a key gives.* Nodes and keepers of a cluster share a key, 32 random bytes or more in a
//! file. Each end proves that it has the key, and neither sends it ([`handshake`]). Both
//! directions have keys of their own, made of the shared one and of what both ends have drawn for
//! this connection; each part of a stream carries a code of it and of its place ([`seal`]). So
//! bytes that were changed, repeated, left out, or recorded on another connection end the channel.
//!
//! *What it does not give.* **Contents are not encrypted**: who can listen reads names and contents
//! of small files. Who once had the key passes for any node until all have another one. A channel
//! can be cut by whoever is on its way.
//!
//! *Without a key* the ends exchange who they are and nothing else. Then only local users must be
//! able to connect: a Unix socket, or loopback.
//!
//! *Strangers.* Until a peer has proved itself it costs a few hundred bytes and one of
//! [`STRANGERS_MAX`] places, for [`PATIENCE`] at most.

pub mod handshake;
pub mod seal;
mod socket;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

pub use handshake::HandshakeError;
pub use socket::{Address, AddressError, Channel, ChannelError, Listener, connect};

/// Peers at a time that have not proved themselves.
pub const STRANGERS_MAX: usize = 64;
/// How long a peer may take to prove itself.
pub const PATIENCE: weft_rt::Nanos = 5 * weft_rt::SECOND;
/// Fewest bytes of a key.
pub const KEY_BYTES_MIN: usize = 32;
/// Most bytes of a key.
const KEY_BYTES_MAX: usize = 4096;

/// What the nodes of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey(Box<[u8]>);

impl std::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedKey(…)")
    }
}

/// Why a file gives no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("the key cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Other users can read it, or change it.
    #[error("other users may use it: its mode is {0:o}")]
    Open(u32),
    /// It is too short to be secret, or too long to be a key.
    #[error("it has {0} bytes, and a key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX}")]
    Length(usize),
}

impl SharedKey {
    /// The key of these bytes; spaces and ends of lines around them do not count.
    ///
    /// # Errors
    /// They are too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.trim_ascii();
        match bytes.len() {
            KEY_BYTES_MIN..=KEY_BYTES_MAX => Ok(Self(bytes.into())),
            len => Err(KeyError::Length(len)),
        }
    }

    /// Reads it from a file that only its owner may use.
    ///
    /// # Errors
    /// It cannot be read, others may use it, or it is no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let file = File::open(path)?;
        let mode = file.metadata()?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open(mode));
        }
        let mut bytes = Vec::new();
        file.take(KEY_BYTES_MAX as u64 + 64).read_to_end(&mut bytes)?;
        Self::new(&bytes)
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
