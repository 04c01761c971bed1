//! The contents of writes: bytes that identify the cell and the write.
//!
//! A cell of version v starts with the cell's number and v, followed by pseudo-random bytes keyed
//! by both and by the seed. A wrong read can therefore be explained ("cell 17 as of version 3,
//! found in cell 42"), and wrong parity arithmetic cannot produce the right bytes by chance.

use std::collections::BTreeMap;

use weft_rt::rng::mix;

/// The number of a write, with the kind of its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

const KIND: u32 = 0xc000_0000;
const ZERO: u32 = 0x4000_0000;
const FOUND: u32 = 0x8000_0000;
const ANY: u32 = 0xc000_0000;

impl Version {
    /// The zeros of a volume that was never written.
    pub(crate) const BLANK: Self = Self(ZERO);

    pub(crate) fn data(number: u32) -> Self {
        Self(number)
    }

    pub(crate) fn zero(number: u32) -> Self {
        Self(number | ZERO)
    }

    /// Contents that a read found and that no write made.
    pub(crate) fn found(number: u32) -> Self {
        Self(number | FOUND)
    }

    /// Anything.
    pub(crate) fn any(number: u32) -> Self {
        Self(number | ANY)
    }

    pub(crate) fn is_found(self) -> bool {
        self.0 & KIND == FOUND
    }

    pub(crate) fn is_any(self) -> bool {
        self.0 & KIND == ANY
    }

    /// The number, as shown in traces.
    pub fn number(self) -> u32 {
        self.0 & !KIND
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 & KIND {
            ZERO if self.number() == 0 => f.write_str("never written"),
            ZERO => write!(f, "zeros of version {}", self.number()),
            FOUND => write!(f, "contents found earlier ({})", self.number()),
            ANY => write!(f, "anything ({})", self.number()),
            _ => write!(f, "version {}", self.number()),
        }
    }
}

/// Generates and recognises the contents of cells.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    seed: u64,
    cell_bytes: usize,
    found: BTreeMap<u32, Vec<u8>>,
}

/// Without an early exit inside a chunk, so that the compiler can use wide registers.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Contents may be torn only at multiples of this many bytes.
const FRAGMENT: u64 = 512;

impl Contents {
    pub(crate) fn new(seed: u64, cell_bytes: usize) -> Self {
        assert!(cell_bytes >= 16, "a cell must hold its number and version");
        Self { seed, cell_bytes, found: BTreeMap::new() }
    }

    pub(crate) fn cell_bytes(&self) -> usize {
        self.cell_bytes
    }

    pub(crate) fn fill(&self, cell: usize, version: Version, out: &mut [u8]) {
        match version.0 & KIND {
            ZERO => out.fill(0),
            FOUND => out.copy_from_slice(&self.found[&version.number()]),
            _ => self.generate(u32::try_from(cell).unwrap_or(u32::MAX), version.0, out),
        }
    }

    fn generate(&self, cell: u32, version: u32, out: &mut [u8]) {
        out[..4].copy_from_slice(&cell.to_le_bytes());
        out[4..8].copy_from_slice(&version.to_le_bytes());
        let key = self.key(cell, version);
        for (i, chunk) in out[8..].chunks_mut(8).enumerate() {
            let word = mix(key.wrapping_add(i as u64)).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    pub(crate) fn is(&self, cell: usize, version: Version, bytes: &[u8]) -> bool {
        match version.0 & KIND {
            ANY => true,
            ZERO => is_zero(bytes),
            FOUND => self.found[&version.number()] == bytes,
            _ => self.is_generated(u32::try_from(cell).unwrap_or(u32::MAX), version.0, bytes),
        }
    }

    /// Whether `bytes` are what [`Contents::generate`] generates.
    fn is_generated(&self, cell: u32, version: u32, bytes: &[u8]) -> bool {
        let key = self.key(cell, version);
        let word = |i: usize| mix(key.wrapping_add(i as u64)).to_le_bytes();
        let (words, rest) = bytes[8..].as_chunks::<8>();
        bytes[..4] == cell.to_le_bytes()
            && bytes[4..8] == version.to_le_bytes()
            && words.chunks(8).zip((0..).step_by(8)).all(|(words, from)| {
                let differs =
                    |i: usize| u64::from_le_bytes(words[i]) ^ u64::from_le_bytes(word(from + i));
                (0..words.len()).fold(0, |all, i| all | differs(i)) == 0
            })
            && *rest == word(words.len())[..rest.len()]
    }

    fn key(&self, cell: u32, version: u32) -> u64 {
        mix(self.seed ^ (u64::from(cell) << 32) ^ u64::from(version))
    }

    /// Whether every fragment of the cell equals that of one of `allowed`.
    pub(crate) fn is_mixture(&self, cell: usize, allowed: &[Version], bytes: &[u8]) -> bool {
        let start = cell as u64 * self.cell_bytes as u64;
        let images: Vec<Vec<u8>> = allowed
            .iter()
            .map(|version| {
                let mut image = vec![0; self.cell_bytes];
                self.fill(cell, *version, &mut image);
                image
            })
            .collect();
        let mut from = 0;
        while from < self.cell_bytes {
            let room = FRAGMENT - (start + from as u64) % FRAGMENT;
            let to = (from + usize::try_from(room).unwrap_or(usize::MAX)).min(self.cell_bytes);
            if !images.iter().any(|image| image[from..to] == bytes[from..to]) {
                return false;
            }
            from = to;
        }
        true
    }

    /// Stores contents that were found, under a number.
    pub(crate) fn keep_found(&mut self, number: u32, bytes: &[u8]) -> Version {
        self.found.insert(number, bytes.to_vec());
        Version::found(number)
    }

    /// Describes `bytes` in words.
    pub(crate) fn describe(&self, bytes: &[u8]) -> String {
        if bytes.iter().all(|b| *b == 0) {
            return "all zeros".into();
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (cell, version) = (word(0), word(4));
        let mut right = vec![0; bytes.len()];
        self.generate(cell, version, &mut right);
        let same = right.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        if same == bytes.len() {
            format!("cell {cell} as of {}", Version(version))
        } else if same > 16 {
            format!("cell {cell} as of {} up to byte {same}, then other bytes", Version(version))
        } else {
            format!("unknown bytes {:02x?}…", &bytes[..16])
        }
    }
}
