//! 64-byte vectors: AVX-512BW by shuffles, and AVX-512 with GFNI.
//!
//! Masked loads and stores take the bytes that do not fill a vector, and `VPTERNLOG` adds three
//! vectors at once.

use core::arch::x86_64::*;

use crate::{
    field::REDUCTION,
    tables::{MATRICES, NIBBLES, Nibbles, matrix},
    vector::{Vector, with_features},
};

/// `VPTERNLOG`'s truth table of `a ^ b ^ c`.
const XOR3: i32 = 0x96;

/// The mask of the first `n < 64` bytes.
#[inline(always)]
const fn first(n: usize) -> __mmask64 {
    (1 << n) - 1
}

/// Witness of AVX-512F and BW.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512i);

/// Witness of AVX-512F, BW and GFNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Gfni(__m512i);

/// The methods that both types share.
macro_rules! moves_and_sums {
    () => {
        const BYTES: usize = 64;

        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller grants the features.
            Self(unsafe { _mm512_setzero_si512() })
        }

        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            // SAFETY: the caller grants the features and 64 readable bytes.
            Self(unsafe { _mm512_loadu_si512(p.cast()) })
        }

        #[inline(always)]
        unsafe fn load_part(p: *const u8, n: usize) -> Self {
            // SAFETY: the caller grants the features and n readable bytes; masked-out bytes are not
            // accessed.
            Self(unsafe { _mm512_maskz_loadu_epi8(first(n), p.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut u8) {
            // SAFETY: the caller grants 64 writable bytes; `self` witnesses the features.
            unsafe { _mm512_storeu_si512(p.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            // SAFETY: the caller grants 64 writable, aligned bytes; `self` witnesses the features.
            unsafe { _mm512_stream_si512(p.cast(), self.0) }
        }

        #[inline(always)]
        fn fence() {
            // SAFETY: SSE is part of x86-64.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        unsafe fn store_part(self, p: *mut u8, n: usize) {
            // SAFETY: the caller grants n writable bytes; masked-out bytes are not accessed; `self`
            // witnesses the features.
            unsafe { _mm512_mask_storeu_epi8(p.cast(), first(n), self.0) }
        }

        #[inline(always)]
        fn xor(self, a: Self) -> Self {
            Self(with_features!(_mm512_xor_si512(self.0, a.0)))
        }

        #[inline(always)]
        fn xor3(self, a: Self, b: Self) -> Self {
            Self(with_features!(_mm512_ternarylogic_epi64::<XOR3>(self.0, a.0, b.0)))
        }
    };
}

// SAFETY: loads and stores touch the bytes they are given.
unsafe impl Vector for Avx512 {
    type Coef = &'static Nibbles;
    /// The low and the high nibbles.
    type Split = (__m512i, __m512i);

    moves_and_sums!();

    #[inline(always)]
    fn double(self) -> Self {
        Self(with_features!({
            let top = _mm512_movepi8_mask(self.0);
            let reduction = _mm512_maskz_mov_epi8(top, _mm512_set1_epi8(REDUCTION.cast_signed()));
            _mm512_xor_si512(_mm512_add_epi8(self.0, self.0), reduction)
        }))
    }

    #[inline(always)]
    fn coef(c: u8) -> &'static Nibbles {
        &NIBBLES[usize::from(c)]
    }

    #[inline(always)]
    fn split(self) -> (__m512i, __m512i) {
        with_features!({
            let mask = _mm512_set1_epi8(0x0f);
            let high = _mm512_and_si512(_mm512_srli_epi64::<4>(self.0), mask);
            (_mm512_and_si512(self.0, mask), high)
        })
    }

    #[inline(always)]
    fn mul_add(sum: Self, (low, high): (__m512i, __m512i), c: &'static Nibbles) -> Self {
        let table = c.0.as_ptr().cast::<__m128i>();
        Self(with_features!({
            // Both halves of the 32-byte table are in bounds and aligned to 16.
            let a = _mm512_broadcast_i32x4(_mm_load_si128(table));
            let b = _mm512_broadcast_i32x4(_mm_load_si128(table.add(1)));
            let (a, b) = (_mm512_shuffle_epi8(a, low), _mm512_shuffle_epi8(b, high));
            _mm512_ternarylogic_epi64::<XOR3>(sum.0, a, b)
        }))
    }
}

// SAFETY: loads and stores touch the bytes they are given.
unsafe impl Vector for Avx512Gfni {
    type Coef = u64;
    type Split = __m512i;

    moves_and_sums!();

    #[inline(always)]
    fn double(self) -> Self {
        Self(affine(self.0, const { matrix(2) }))
    }

    #[inline(always)]
    fn horner2(self, a: Self, b: Self) -> Self {
        // 4·self does not wait for 2·a: half the steps on the chain from source to source.
        let quadruple = Self(affine(self.0, const { matrix(4) }));
        quadruple.xor3(a.double(), b)
    }

    #[inline(always)]
    fn coef(c: u8) -> u64 {
        MATRICES[usize::from(c)]
    }

    #[inline(always)]
    fn split(self) -> __m512i {
        self.0
    }

    #[inline(always)]
    fn mul_add(sum: Self, x: __m512i, c: u64) -> Self {
        sum.xor(Self(affine(x, c)))
    }
}

/// Applies a bit matrix to every byte. For use by [`Avx512Gfni`] only.
#[inline(always)]
fn affine(x: __m512i, matrix: u64) -> __m512i {
    with_features!({
        let matrices = _mm512_set1_epi64(matrix.cast_signed());
        _mm512_gf2p8affine_epi64_epi8::<0>(x, matrices)
    })
}
