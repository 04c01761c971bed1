//! Mutual proof of a shared key: two messages and a proof, without I/O.
//!
//! ```text
//!   node   ── hello: version, mode, its nonce, the cluster ──────────▶ keeper
//!          ◀── answer: version, mode, what is wrong, nonce, proof ───
//!          ── proof ─────────────────────────────────────────────────▶
//! ```
//!
//! A proof is an HMAC-SHA256 with the shared key of a label, which tells the two ends apart, and of
//! all that was said before it: of both nonces, so that no proof serves twice. The keeper proves
//! itself first; a node with another key sends nothing more. Without a key there are no proofs.
//!
//! | offset | bytes | of a hello |
//! |---|---|---|
//! | 0 | 8 | `weftchan` |
//! | 8 | 2 | version: 1 |
//! | 10 | 1 | mode: 0 without a key, 1 with one |
//! | 11 | 1 | 0 |
//! | 12 | 32 | nonce |
//! | 44 | 64 | the cluster's name, and zeros |
//!
//! | offset | bytes | of an answer |
//! |---|---|---|
//! | 0 | 11 | as in a hello |
//! | 11 | 1 | 0: none of the following; 1: it keeps another cluster; 2: it has a key; 3: it has none |
//! | 12 | 32 | nonce |
//! | 44 | 32 | proof, or zeros |
//!
//! The first 12 bytes stay in all versions.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::SharedKey;
use super::seal::{Opener, Sealer};
use crate::ClusterName;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 44 + 64;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 44 + PROOF_BYTES;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"weftchan";
const VERSION: u16 = 1;

/// Random bytes that are used once.
pub type Nonce = [u8; NONCE_BYTES];

/// Why two ends do not come together. What a peer without a proof says may be wrong, too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// It is something else.
    #[error("the peer is no node or keeper of weft")]
    NotWeft,
    /// It has another version.
    #[error("the peer speaks version {0} of the protocol, and this program speaks {VERSION}")]
    Version(u16),
    /// It belongs to another cluster.
    #[error("the peer belongs to another cluster")]
    OtherCluster,
    /// Only it has a key.
    #[error("the peer demands a shared key, and this end was given none")]
    KeyNeeded,
    /// Only this end has a key.
    #[error("the peer has no shared key, and this end was given one")]
    NoKey,
    /// It does not know the key.
    #[error("the peer has another shared key")]
    OtherKey,
}

/// What an end knows of its cluster.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The cluster.
    pub cluster: ClusterName,
    /// Its key, if it has one.
    pub key: Option<SharedKey>,
}

/// Both directions of a channel with a key.
pub type Seals = Option<(Sealer, Opener)>;

const KEEPER_PROOF: &str = "weft channel 1: proof of the keeper";
const NODE_PROOF: &str = "weft channel 1: proof of the node";
const TO_KEEPER: &str = "weft channel 1: to the keeper";
const TO_NODE: &str = "weft channel 1: to the node";

type HmacSha256 = Hmac<Sha256>;

fn mac(key: &SharedKey, label: &str, said: &[&[u8]]) -> HmacSha256 {
    let mut mac = HmacSha256::new_from_slice(key.bytes()).expect("a key of any length");
    mac.update(label.as_bytes());
    mac.update(&[0]);
    said.iter().for_each(|part| mac.update(part));
    mac
}

fn code(key: &SharedKey, label: &str, said: &[&[u8]]) -> [u8; PROOF_BYTES] {
    mac(key, label, said).finalize().into_bytes().into()
}

fn head(terms: &Terms, wrong: u8, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(u8::from(terms.key.is_some()));
    bytes.push(wrong);
    bytes.extend(nonce);
    bytes
}

/// The mode and the byte after it, if the peer speaks this version.
fn modes(bytes: &[u8]) -> Result<(u8, u8), HandshakeError> {
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    match (&bytes[..8] == MAGIC, version, bytes[10]) {
        (true, VERSION, 0 | 1) => Ok((bytes[10], bytes[11])),
        (true, VERSION, _) | (false, ..) => Err(HandshakeError::NotWeft),
        (true, other, _) => Err(HandshakeError::Version(other)),
    }
}

/// A node's end.
#[derive(Debug)]
pub struct Opening<'a> {
    terms: &'a Terms,
    hello: Vec<u8>,
}

impl<'a> Opening<'a> {
    /// Begins, with a nonce that was never used.
    pub fn new(terms: &'a Terms, nonce: &Nonce) -> Self {
        let mut hello = head(terms, 0, nonce);
        hello.extend(terms.cluster.as_str().as_bytes());
        hello.resize(HELLO_BYTES, 0);
        Self { terms, hello }
    }

    /// What to send first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Takes the keeper's answer; gives what to send next, and how to go on.
    ///
    /// # Errors
    /// The peer is not the keeper of this cluster.
    pub fn take(self, answer: &[u8; ANSWER_BYTES]) -> Result<(Vec<u8>, Seals), HandshakeError> {
        let (mode, wrong) = modes(answer)?;
        match (wrong, mode, &self.terms.key) {
            (1, ..) => Err(HandshakeError::OtherCluster),
            (2, ..) | (0, 1, None) => Err(HandshakeError::KeyNeeded),
            (3, ..) | (0, 0, Some(_)) => Err(HandshakeError::NoKey),
            (0, 0, None) => Ok((Vec::new(), None)),
            (0, _, Some(key)) => {
                let said = [&self.hello[..], &answer[..44]];
                let proof = mac(key, KEEPER_PROOF, &said);
                proof.verify_slice(&answer[44..]).map_err(|_| HandshakeError::OtherKey)?;
                let sealer = Sealer::new(&code(key, TO_KEEPER, &said));
                let opener = Opener::new(&code(key, TO_NODE, &said));
                let all = [&self.hello[..], &answer[..]];
                Ok((code(key, NODE_PROOF, &all).to_vec(), Some((sealer, opener))))
            }
            _ => Err(HandshakeError::NotWeft),
        }
    }
}

/// A keeper's end, after the hello.
#[derive(Debug)]
pub struct Acceptance<'a> {
    terms: &'a Terms,
    said: Vec<u8>,
}

impl<'a> Acceptance<'a> {
    /// Takes a hello; gives what to answer, also if that is the last word. The nonce was never
    /// used.
    pub fn new(
        terms: &'a Terms,
        hello: &[u8; HELLO_BYTES],
        nonce: &Nonce,
    ) -> (Vec<u8>, Result<Self, HandshakeError>) {
        let (mode, _) = match modes(hello) {
            Ok(modes) => modes,
            Err(HandshakeError::NotWeft) => return (Vec::new(), Err(HandshakeError::NotWeft)),
            Err(error) => {
                let mut answer = head(terms, 0, nonce);
                answer.resize(ANSWER_BYTES, 0);
                return (answer, Err(error));
            }
        };
        let mut wanted = [0; HELLO_BYTES - 44];
        let name = terms.cluster.as_str().as_bytes();
        wanted[..name.len()].copy_from_slice(name);
        let (wrong, error) = match (hello[44..] == wanted, mode, &terms.key) {
            (false, ..) => (1, Some(HandshakeError::OtherCluster)),
            (_, 0, Some(_)) => (2, Some(HandshakeError::NoKey)),
            (_, 1, None) => (3, Some(HandshakeError::KeyNeeded)),
            _ => (0, None),
        };
        let mut said = hello.to_vec();
        said.extend(head(terms, wrong, nonce));
        let proof = match (&terms.key, &error) {
            (Some(key), None) => code(key, KEEPER_PROOF, &[&said]),
            _ => [0; PROOF_BYTES],
        };
        said.extend(proof);
        let answer = said[HELLO_BYTES..].to_vec();
        (answer, error.map_or(Ok(Self { terms, said }), Err))
    }

    /// Bytes that the node sends next.
    pub fn proof_bytes(&self) -> usize {
        if self.terms.key.is_some() { PROOF_BYTES } else { 0 }
    }

    /// Takes the node's proof.
    ///
    /// # Errors
    /// The node does not know the key.
    pub fn take(self, proof: &[u8]) -> Result<Seals, HandshakeError> {
        let Some(key) = &self.terms.key else { return Ok(None) };
        let wanted = mac(key, NODE_PROOF, &[&self.said]);
        wanted.verify_slice(proof).map_err(|_| HandshakeError::OtherKey)?;
        let said = [&self.said[..HELLO_BYTES + 44]];
        let sealer = Sealer::new(&code(key, TO_NODE, &said));
        Ok(Some((sealer, Opener::new(&code(key, TO_KEEPER, &said)))))
    }
}
