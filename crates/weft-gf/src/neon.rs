//! 16-byte vectors of AArch64, where NEON is always there: nibble products by table look-up.
//!
//! On another machine its tests run in emulation, with Debian's `qemu-user`,
//! `gcc-aarch64-linux-gnu` and `libc6-dev-arm64-cross`; its speed has not been measured:
//!
//! ```text
//! rustup target add aarch64-unknown-linux-gnu
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
//! CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
//!     cargo test -p weft-gf --target aarch64-unknown-linux-gnu
//! ```

use core::arch::aarch64::*;

use crate::{
    field::REDUCTION,
    tables::{NIBBLES, Nibbles},
    vector::{Vector, with_features},
};

/// A NEON register.
#[derive(Clone, Copy)]
pub(crate) struct Neon(uint8x16_t);

// SAFETY: loads and stores touch the 16 bytes they are given.
unsafe impl Vector for Neon {
    const BYTES: usize = 16;
    type Coef = &'static Nibbles;
    /// The low and the high nibbles.
    type Split = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller grants the feature.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller grants 16 readable bytes.
        Self(unsafe { vld1q_u8(p) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller grants 16 writable bytes.
        unsafe { vst1q_u8(p, self.0) }
    }

    #[inline(always)]
    fn xor(self, a: Self) -> Self {
        Self(with_features!(veorq_u8(self.0, a.0)))
    }

    #[inline(always)]
    fn double(self) -> Self {
        Self(with_features!({
            let top = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
            let reduction = vandq_u8(top, vdupq_n_u8(REDUCTION));
            veorq_u8(vshlq_n_u8::<1>(self.0), reduction)
        }))
    }

    #[inline(always)]
    fn coef(c: u8) -> &'static Nibbles {
        &NIBBLES[usize::from(c)]
    }

    #[inline(always)]
    fn split(self) -> (uint8x16_t, uint8x16_t) {
        with_features!((vandq_u8(self.0, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(self.0)))
    }

    #[inline(always)]
    fn mul_add(sum: Self, (low, high): (uint8x16_t, uint8x16_t), c: &'static Nibbles) -> Self {
        let table = c.0.as_ptr();
        Self(with_features!({
            // Both halves of the 32-byte table are in bounds.
            let (a, b) = (vld1q_u8(table), vld1q_u8(table.add(16)));
            veorq_u8(sum.0, veorq_u8(vqtbl1q_u8(a, low), vqtbl1q_u8(b, high)))
        }))
    }
}
