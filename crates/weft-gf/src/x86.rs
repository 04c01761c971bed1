//! Vectors of x86-64, from SSSE3 (2006) to AVX-512 with GFNI (2019).
//!
//! Two ways to multiply: without GFNI, a byte shuffle looks up each nibble's product
//! ([`crate::tables::NIBBLES`]); with it, one `GF2P8AFFINEQB` applies the multiplier's bit matrix
//! ([`crate::tables::MATRICES`]) – the field that `GF2P8MULB` has built in is another one (0x11b).

mod avx2;
mod avx512;
mod ssse3;

pub(crate) use avx2::{Avx2, Avx2Gfni};
pub(crate) use avx512::{Avx512, Avx512Gfni};
pub(crate) use ssse3::Ssse3;
