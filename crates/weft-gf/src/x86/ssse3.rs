//! 16-byte vectors with the byte shuffle of SSSE3.

use core::arch::x86_64::*;

use crate::{
    field::REDUCTION,
    tables::{NIBBLES, Nibbles},
    vector::{Vector, with_features},
};

/// Witness of SSSE3.
#[derive(Clone, Copy)]
pub(crate) struct Ssse3(__m128i);

// SAFETY: loads and stores touch the 16 bytes they are given.
unsafe impl Vector for Ssse3 {
    const BYTES: usize = 16;
    type Coef = &'static Nibbles;
    /// The low and the high nibbles.
    type Split = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller grants the feature.
        Self(unsafe { _mm_setzero_si128() })
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller grants 16 readable bytes.
        Self(unsafe { _mm_loadu_si128(p.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller grants 16 writable bytes.
        unsafe { _mm_storeu_si128(p.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        // SAFETY: the caller grants 16 writable, aligned bytes; `self` witnesses the feature.
        unsafe { _mm_stream_si128(p.cast(), self.0) }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    fn xor(self, a: Self) -> Self {
        Self(with_features!(_mm_xor_si128(self.0, a.0)))
    }

    #[inline(always)]
    fn double(self) -> Self {
        Self(with_features!({
            let reduction = _mm_and_si128(
                _mm_cmpgt_epi8(_mm_setzero_si128(), self.0),
                _mm_set1_epi8(REDUCTION.cast_signed()),
            );
            _mm_xor_si128(_mm_add_epi8(self.0, self.0), reduction)
        }))
    }

    #[inline(always)]
    fn coef(c: u8) -> &'static Nibbles {
        &NIBBLES[usize::from(c)]
    }

    #[inline(always)]
    fn split(self) -> (__m128i, __m128i) {
        with_features!({
            let mask = _mm_set1_epi8(0x0f);
            let high = _mm_and_si128(_mm_srli_epi64::<4>(self.0), mask);
            (_mm_and_si128(self.0, mask), high)
        })
    }

    #[inline(always)]
    fn mul_add(sum: Self, (low, high): (__m128i, __m128i), c: &'static Nibbles) -> Self {
        let table = c.0.as_ptr().cast::<__m128i>();
        Self(with_features!({
            // Both halves of the 32-byte table are in bounds and aligned to 16.
            let a = _mm_shuffle_epi8(_mm_load_si128(table), low);
            let b = _mm_shuffle_epi8(_mm_load_si128(table.add(1)), high);
            _mm_xor_si128(sum.0, _mm_xor_si128(a, b))
        }))
    }
}
