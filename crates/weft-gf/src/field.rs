//! The field itself: GF(2^8) = GF(2)\[x\] / (x^8 + x^4 + x^3 + x^2 + 1), one element at a time.
//!
//! An element is a byte whose bit `i` is the coefficient of `x^i`. Addition and subtraction are
//! XOR. The polynomial is 0x11d, for which `x` (the byte 2) generates all 255 non-zero elements; it
//! is the field of Linux MD's RAID-6 (H. P. Anvin, "The mathematics of RAID-6") and of ISA-L.
//!
//! Everything here is `const` and goes through logarithm tables. It is meant for coefficients and
//! small matrices; bulk data goes through the kernels.

/// The reduction polynomial x^8 + x^4 + x^3 + x^2 + 1, with the bit of x^8.
pub const POLYNOMIAL: u16 = 0x11d;

/// The generator whose powers are the coefficients of RAID-6's Q.
pub const GENERATOR: u8 = 2;

/// Number of non-zero elements, the order of [`GENERATOR`].
pub const ORDER: usize = 255;

/// The low byte of [`POLYNOMIAL`]: what `x^8` reduces to.
pub(crate) const REDUCTION: u8 = 0x1d;

/// `EXP[i] = 2^i` for `i` in `0..510`, so that a sum of two logarithms needs no reduction.
static EXP: [u8; 2 * ORDER] = exp_table();

/// `LOG[a]` with `2^LOG[a] = a`; `LOG[0]` is unused.
static LOG: [u8; 256] = log_table();

const fn exp_table() -> [u8; 2 * ORDER] {
    let mut table = [0; 2 * ORDER];
    let mut element = 1;
    let mut i = 0;
    while i < ORDER {
        table[i] = element;
        table[i + ORDER] = element;
        element = double(element);
        i += 1;
    }
    table
}

#[allow(clippy::cast_possible_truncation, reason = "i < 255")]
const fn log_table() -> [u8; 256] {
    let exp = exp_table();
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[exp[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// `2·a`.
pub(crate) const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 != 0 { REDUCTION } else { 0 })
}

/// The product `a·b`.
#[must_use]
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The inverse `a⁻¹`.
///
/// # Panics
/// If `a` is zero, which has none.
#[must_use]
pub const fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[ORDER - LOG[a as usize] as usize]
}

/// The quotient `a / b`.
///
/// # Panics
/// If `b` is zero.
#[must_use]
pub const fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// `2^i`, for any `i`.
#[must_use]
pub const fn exp(i: usize) -> u8 {
    EXP[i % ORDER]
}

/// The logarithm of `a` to base 2, in `0..255`.
///
/// # Panics
/// If `a` is zero, which has none.
#[must_use]
pub const fn log(a: u8) -> u8 {
    assert!(a != 0, "zero has no logarithm");
    LOG[a as usize]
}

/// `a^n`, with `a^0 = 1` also for `a = 0`.
#[must_use]
pub const fn pow(a: u8, n: usize) -> u8 {
    if n == 0 {
        1
    } else if a == 0 {
        0
    } else {
        EXP[(LOG[a as usize] as usize * (n % ORDER)) % ORDER]
    }
}
