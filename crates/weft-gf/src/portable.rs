//! The kernel without vector instructions: four `u64` of eight bytes per step.
//!
//! Doubling works on all bytes of a word at once: the top bits are taken out, the rest shifted, and
//! each byte whose top bit was set receives the reduction. A product is the sum of the doublings
//! that the multiplier's bits select. Compilers turn the steps of four words into the target's
//! default vectors.

use crate::{field::REDUCTION, vector::Vector};

/// Four words of eight elements.
#[derive(Clone, Copy)]
pub(crate) struct Words([u64; 4]);

const fn every_byte(b: u8) -> u64 {
    u64::from_ne_bytes([b; 8])
}

// SAFETY: load and store touch the 32 bytes they are given.
unsafe impl Vector for Words {
    const BYTES: usize = 32;
    /// For each bit of the multiplier, all ones if it is set.
    type Coef = [u64; 8];
    /// The vector times 1, 2, 4, … 128.
    type Split = [Self; 8];

    #[inline(always)]
    unsafe fn zero() -> Self {
        Words([0; 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller grants 32 readable bytes.
        Words(unsafe { p.cast::<[u64; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller grants 32 writable bytes.
        unsafe { p.cast::<[u64; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn xor(mut self, a: Self) -> Self {
        for i in 0..4 {
            self.0[i] ^= a.0[i];
        }
        self
    }

    #[inline(always)]
    fn double(mut self) -> Self {
        for word in &mut self.0 {
            let top = (*word >> 7) & every_byte(0x01);
            let reduction = ((top << 8).wrapping_sub(top)) & every_byte(REDUCTION);
            *word = ((*word & every_byte(0x7f)) << 1) ^ reduction;
        }
        self
    }

    #[inline(always)]
    fn coef(c: u8) -> [u64; 8] {
        let mut masks = [0; 8];
        for (i, mask) in masks.iter_mut().enumerate() {
            *mask = 0u64.wrapping_sub(u64::from((c >> i) & 1));
        }
        masks
    }

    #[inline(always)]
    fn split(self) -> [Self; 8] {
        let mut powers = [self; 8];
        for i in 1..8 {
            powers[i] = powers[i - 1].double();
        }
        powers
    }

    #[inline(always)]
    fn mul_add(mut sum: Self, x: [Self; 8], c: [u64; 8]) -> Self {
        for i in 0..8 {
            for w in 0..4 {
                sum.0[w] ^= x[i].0[w] & c[i];
            }
        }
        sum
    }
}
