//! Multiplication by a constant, in the two shapes that vector instructions take.

use crate::field;

/// `NIBBLES[c] = [c·0, …, c·15, c·0x00, c·0x10, …, c·0xf0]`: a product is the sum of two look-ups,
/// as byte shuffles do (J. Plank et al., "Screaming Fast Galois Field Arithmetic", FAST '13).
pub(crate) static NIBBLES: [Nibbles; 256] = nibbles();

/// The two 16-byte tables of one multiplier.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Nibbles(pub(crate) [u8; 32]);

#[allow(clippy::cast_possible_truncation, reason = "all values are below 256")]
const fn nibbles() -> [Nibbles; 256] {
    let mut tables = [Nibbles([0; 32]); 256];
    let mut c = 0;
    while c < 256 {
        let mut n = 0;
        while n < 16 {
            tables[c].0[n] = field::mul(c as u8, n as u8);
            tables[c].0[n + 16] = field::mul(c as u8, (n << 4) as u8);
            n += 1;
        }
        c += 1;
    }
    tables
}

/// `MATRICES[c]`: multiplication by `c` as an 8×8 bit matrix in the layout of `GF2P8AFFINEQB`,
/// where byte `7 - i` holds the input bits that output bit `i` is the parity of (Intel SDM, vol.
/// 2).
#[cfg(target_arch = "x86_64")]
pub(crate) static MATRICES: [u64; 256] = matrices();

/// The matrix of multiplication by `c`; see [`MATRICES`].
#[cfg(target_arch = "x86_64")]
pub(crate) const fn matrix(c: u8) -> u64 {
    let mut bytes = [0u8; 8];
    let mut input = 0;
    while input < 8 {
        let image = field::mul(c, 1 << input);
        let mut output = 0;
        while output < 8 {
            bytes[7 - output] |= ((image >> output) & 1) << input;
            output += 1;
        }
        input += 1;
    }
    u64::from_le_bytes(bytes)
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::cast_possible_truncation, reason = "c < 256")]
const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        table[c] = matrix(c as u8);
        c += 1;
    }
    table
}
