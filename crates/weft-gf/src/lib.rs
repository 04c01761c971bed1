//! The arithmetic of parity: sums and products over GF(2^8) of whole units, at the speed of memory.
//!
//! Every redundancy scheme of weft is linear: a parity unit is `Σ_j c_j·src_j` over the field
//! GF(2^8) with polynomial 0x11d ([`field`]), byte by byte. Addition is XOR. That leaves four
//! inner loops – a sum of sources, P and Q together by Horner's rule, the general product of a few
//! rows with all sources, and the replacement of one source in existing outputs – which are written
//! once over an abstract vector and compiled for each set of vector instructions. The best set the
//! machine has is found at run time, once.
//!
//! | kernel | needs | multiplies by |
//! |---|---|---|
//! | `avx512-gfni` | AVX-512F, BW, GFNI | bit matrix, 64 bytes an instruction |
//! | `avx512` | AVX-512F, BW | two nibble look-ups |
//! | `avx2-gfni` | AVX2, GFNI | bit matrix |
//! | `avx2` | AVX2 | two nibble look-ups |
//! | `ssse3` | SSSE3 | two nibble look-ups |
//! | `neon` | any AArch64 | two nibble look-ups |
//! | `portable` | nothing | doubling in 64-bit words |
//!
//! Units may have any length, none included, and any alignment; all units of one call have the same
//! length. Nothing allocates, blocks, or keeps state.
//!
//! ```
//! let (a, b) = ([1u8, 2, 3], [4u8, 5, 6]);
//! let (mut p, mut q) = ([0; 3], [0; 3]);
//! weft_gf::pq(&mut p, &mut q, &[&a, &b]);
//! assert_eq!(p, [5, 7, 5]);
//! assert_eq!(q[0], 1 ^ weft_gf::field::mul(2, 4));
//! ```

pub mod field;

mod encode;
mod kernel;
mod loops;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod tables;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use kernel::{Kernel, kernel, kernels, kernels_not_here};

/// `dst = Σ srcs`: the XOR of all sources, zeros if there are none. What `dst` held is overwritten.
///
/// # Panics
/// If a source is not as long as `dst`.
pub fn xor(dst: &mut [u8], srcs: &[&[u8]]) {
    kernel().xor(dst, srcs);
}

/// `dst = dst + Σ srcs`: adds the XOR of all sources to what `dst` holds.
///
/// # Panics
/// If a source is not as long as `dst`.
pub fn xor_acc(dst: &mut [u8], srcs: &[&[u8]]) {
    kernel().xor_acc(dst, srcs);
}

/// `dst = c·src`.
///
/// # Panics
/// If the lengths differ.
pub fn mul(dst: &mut [u8], c: u8, src: &[u8]) {
    kernel().mul(dst, c, src);
}

/// `dst = dst + c·src`.
///
/// # Panics
/// If the lengths differ.
pub fn mul_acc(dst: &mut [u8], c: u8, src: &[u8]) {
    kernel().mul_acc(dst, c, src);
}

/// RAID-6: `p = Σ src_j` and `q = Σ 2^j·src_j`, reading each source once.
///
/// The powers repeat after 255 sources; to tell two lost sources apart, give no more.
///
/// # Panics
/// If the lengths differ.
pub fn pq(p: &mut [u8], q: &mut [u8], srcs: &[&[u8]]) {
    kernel().pq(p, q, srcs);
}

/// `dsts[r] = Σ_j rows[r][j]·srcs[j]`: the general product. What `dsts` held is overwritten.
///
/// Rows of ones and zeros, and the pair of P's and Q's rows, cost no more than [`xor`] and [`pq`].
/// Memory is read once, however many rows there are.
///
/// # Panics
/// If there are not as many rows as outputs, a row has not as many coefficients as there are
/// sources, or the lengths of units differ.
pub fn encode(rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]]) {
    kernel().encode(rows, srcs, dsts);
}

/// `dsts[r] = dsts[r] + Σ_j rows[r][j]·srcs[j]`: as [`encode`], added to what `dsts` hold.
///
/// # Panics
/// As [`encode`].
pub fn encode_acc(rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]]) {
    kernel().encode_acc(rows, srcs, dsts);
}

/// `dsts[r] = dsts[r] + coefs[r]·(old + new)`: replaces a data unit's old contents by new ones in
/// the parity units of its stripe. Memory is read once, however many outputs there are.
///
/// # Panics
/// If there are not as many coefficients as outputs, or the lengths of units differ.
pub fn fold(coefs: &[u8], old: &[u8], new: &[u8], dsts: &mut [&mut [u8]]) {
    kernel().fold(coefs, old, new, dsts);
}

/// As [`fold`], and `without[r] = dsts[r] + coefs[r]·old`: the parity of all other data units.
///
/// # Panics
/// As [`fold`]; also if there are not as many outputs of both kinds.
pub fn fold_keeping(
    coefs: &[u8],
    old: &[u8],
    new: &[u8],
    dsts: &mut [&mut [u8]],
    without: &mut [&mut [u8]],
) {
    kernel().fold_keeping(coefs, old, new, dsts, without);
}
