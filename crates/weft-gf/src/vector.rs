//! The interface between the loops and the machine: a vector of bytes.
//!
//! The loops over sources and offsets ([`crate::loops`]) are written once, over this trait. A
//! machine adds a register type with a handful of operations, each one or a few instructions.
//!
//! A value of an implementing type is a *witness*: it can only be made by the `unsafe`
//! constructors, whose contract is that the CPU has the features the type stands for. Operations on
//! values are therefore safe to call.
//!
//! All methods are `#[inline(always)]`: they only become single instructions when they end up
//! inside an entry point compiled with the type's `#[target_feature]`s (see [`crate::kernel`]). For
//! the same reason the loops use no closures, which would be compiled without those features.

/// A vector register of bytes, seen as elements of GF(2^8).
///
/// # Safety
/// `load`, `load_part` and `zero` must return, and `store`, `store_part` and `stream` must write,
/// exactly the bytes they are documented to touch.
pub(crate) unsafe trait Vector: Copy {
    /// Bytes in one vector.
    const BYTES: usize;

    /// A multiplier prepared for [`Vector::mul`].
    type Coef: Copy;

    /// A vector prepared to be multiplied by several coefficients.
    type Split: Copy;

    /// The vector of zeros.
    ///
    /// # Safety
    /// The CPU has the features of this type.
    unsafe fn zero() -> Self;

    /// The `BYTES` bytes at `p`, at any alignment.
    ///
    /// # Safety
    /// The CPU has the features of this type; `p` is readable for `BYTES` bytes.
    unsafe fn load(p: *const u8) -> Self;

    /// The `n` bytes at `p`, followed by zeros.
    ///
    /// # Safety
    /// The CPU has the features of this type; `n < BYTES`; `p` is readable for `n` bytes.
    #[inline(always)]
    unsafe fn load_part(p: *const u8, n: usize) -> Self {
        let mut buffer = [0u8; 64];
        assert!(n < Self::BYTES && Self::BYTES <= buffer.len());
        // SAFETY: the caller grants n readable bytes; the buffer holds a whole vector.
        unsafe {
            core::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n);
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the vector to `p`, at any alignment.
    ///
    /// # Safety
    /// `p` is writable for `BYTES` bytes.
    unsafe fn store(self, p: *mut u8);

    /// Writes the first `n` bytes of the vector to `p`.
    ///
    /// # Safety
    /// `n < BYTES`; `p` is writable for `n` bytes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut u8, n: usize) {
        let mut buffer = [0u8; 64];
        assert!(n < Self::BYTES && Self::BYTES <= buffer.len());
        // SAFETY: the buffer holds a whole vector; the caller grants n writable bytes.
        unsafe {
            self.store(buffer.as_mut_ptr());
            core::ptr::copy_nonoverlapping(buffer.as_ptr(), p, n);
        }
    }

    /// Writes the vector to `p` past the caches, where the machine can; else like
    /// [`Vector::store`]. Other threads see it in order only after [`Vector::fence`].
    ///
    /// # Safety
    /// `p` is writable for `BYTES` bytes and aligned to `BYTES`.
    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        // SAFETY: the caller grants BYTES writable bytes.
        unsafe { self.store(p) }
    }

    /// Orders the writes of [`Vector::stream`] before all later ones.
    #[inline(always)]
    fn fence() {}

    /// `self + a`.
    fn xor(self, a: Self) -> Self;

    /// `self + a + b`.
    #[inline(always)]
    fn xor3(self, a: Self, b: Self) -> Self {
        self.xor(a).xor(b)
    }

    /// `2·self`, in every byte.
    fn double(self) -> Self;

    /// Two steps of Horner's rule: `4·self + 2·a + b`.
    #[inline(always)]
    fn horner2(self, a: Self, b: Self) -> Self {
        self.double().xor(a).double().xor(b)
    }

    /// Prepares the multiplier `c`.
    fn coef(c: u8) -> Self::Coef;

    /// Prepares the vector to be multiplied.
    fn split(self) -> Self::Split;

    /// `sum + c·x`.
    fn mul_add(sum: Self, x: Self::Split, c: Self::Coef) -> Self;
}

/// Evaluates intrinsics on values of the vector type at hand.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! with_features {
    ($e:expr) => {{
        // SAFETY: the intrinsics only need CPU features. A value of the vector type exists only
        // where its constructors were allowed to run, which is where the CPU has them.
        unsafe { $e }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use with_features;
