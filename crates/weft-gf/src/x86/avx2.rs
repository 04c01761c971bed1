//! 32-byte vectors: AVX2 by shuffles, and AVX2 with GFNI (small cores without AVX-512 have it).

use core::arch::x86_64::*;

use crate::{
    field::REDUCTION,
    tables::{MATRICES, NIBBLES, Nibbles, matrix},
    vector::{Vector, with_features},
};

/// Witness of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256i);

// SAFETY: loads and stores touch the 32 bytes they are given.
unsafe impl Vector for Avx2 {
    const BYTES: usize = 32;
    type Coef = &'static Nibbles;
    /// The low and the high nibbles.
    type Split = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller grants the feature.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller grants the feature and 32 readable bytes.
        Self(unsafe { _mm256_loadu_si256(p.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller grants 32 writable bytes; `self` witnesses the feature.
        unsafe { _mm256_storeu_si256(p.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        // SAFETY: the caller grants 32 writable, aligned bytes; `self` witnesses the features.
        unsafe { _mm256_stream_si256(p.cast(), self.0) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    fn xor(self, a: Self) -> Self {
        Self(with_features!(_mm256_xor_si256(self.0, a.0)))
    }

    #[inline(always)]
    fn double(self) -> Self {
        Self(with_features!({
            let reduction = _mm256_and_si256(
                _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0),
                _mm256_set1_epi8(REDUCTION.cast_signed()),
            );
            _mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduction)
        }))
    }

    #[inline(always)]
    fn coef(c: u8) -> &'static Nibbles {
        &NIBBLES[usize::from(c)]
    }

    #[inline(always)]
    fn split(self) -> (__m256i, __m256i) {
        with_features!({
            let mask = _mm256_set1_epi8(0x0f);
            let high = _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), mask);
            (_mm256_and_si256(self.0, mask), high)
        })
    }

    #[inline(always)]
    fn mul_add(sum: Self, (low, high): (__m256i, __m256i), c: &'static Nibbles) -> Self {
        let table = c.0.as_ptr().cast::<__m128i>();
        Self(with_features!({
            // Both halves of the 32-byte table are in bounds and aligned to 16.
            let a = _mm256_broadcastsi128_si256(_mm_load_si128(table));
            let b = _mm256_broadcastsi128_si256(_mm_load_si128(table.add(1)));
            let product =
                _mm256_xor_si256(_mm256_shuffle_epi8(a, low), _mm256_shuffle_epi8(b, high));
            _mm256_xor_si256(sum.0, product)
        }))
    }
}

/// Witness of AVX2 and GFNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Gfni(__m256i);

// SAFETY: loads and stores touch the 32 bytes they are given.
unsafe impl Vector for Avx2Gfni {
    const BYTES: usize = 32;
    type Coef = u64;
    type Split = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller grants the features.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller grants the features and 32 readable bytes.
        Self(unsafe { _mm256_loadu_si256(p.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller grants 32 writable bytes; `self` witnesses the features.
        unsafe { _mm256_storeu_si256(p.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        // SAFETY: the caller grants 32 writable, aligned bytes; `self` witnesses the features.
        unsafe { _mm256_stream_si256(p.cast(), self.0) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    fn xor(self, a: Self) -> Self {
        Self(with_features!(_mm256_xor_si256(self.0, a.0)))
    }

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
    fn split(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    fn mul_add(sum: Self, x: __m256i, c: u64) -> Self {
        sum.xor(Self(affine(x, c)))
    }
}

/// Applies a bit matrix to every byte. For use by [`Avx2Gfni`] only.
#[inline(always)]
fn affine(x: __m256i, matrix: u64) -> __m256i {
    with_features!({
        let matrices = _mm256_set1_epi64x(matrix.cast_signed());
        _mm256_gf2p8affine_epi64_epi8::<0>(x, matrices)
    })
}
