//! Conversions between integers and floating-point measures.

use weft_rt::Nanos;

/// Nanoseconds per millisecond.
pub(super) const MS: f64 = 1e6;
/// Nanoseconds per microsecond.
pub(super) const US: f64 = 1e3;

/// The integer part, saturated at 0 and at the greatest `u64`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(super) const fn whole(x: f64) -> u64 {
    x as u64
}

/// The first nanosecond at or after `t`.
pub(super) fn instant(t: f64) -> Nanos {
    let down = whole(t);
    if (down as f64) < t { down + 1 } else { down }
}

/// Adding and subtracting this rounds a number below 2^51 to an integer.
const ROUNDER: f64 = 1.5 * (1_u64 << 52) as f64;

/// The fractional part, in [0, 1), also of a negative number.
pub(super) fn fraction(x: f64) -> f64 {
    let nearest = (x + ROUNDER) - ROUNDER;
    let rest = x - nearest;
    if rest < 0.0 { rest + 1.0 } else { rest }
}

/// Division by a constant, without the processor's slow division instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Divisor {
    pub(super) by: u64,
    inverse: f64,
}

impl Divisor {
    /// Divides by `by`, which must not be 0.
    pub(super) fn new(by: u64) -> Self {
        Self { by, inverse: 1.0 / by as f64 }
    }

    /// Quotient and remainder of a number below 2^52.
    pub(super) fn divide(self, n: u64) -> (u64, u64) {
        let mut quotient = whole(n as f64 * self.inverse);
        // The product may be off by one unit in its last place.
        if quotient * self.by > n {
            quotient -= 1;
        }
        let mut rest = n - quotient * self.by;
        if rest >= self.by {
            quotient += 1;
            rest -= self.by;
        }
        (quotient, rest)
    }
}

/// Nanoseconds per byte at `mb_s` million bytes per second.
pub(super) const fn ns_per_byte(mb_s: f64) -> f64 {
    1e3 / mb_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_lie_between_zero_and_one() {
        for x in [0.0, 0.25, 1.0, 7.75, -0.25, -3.0, -3.5, 1e12 + 0.5] {
            let f = fraction(x);
            assert!((0.0..=1.0).contains(&f), "{x}: {f}");
            let turns = x - f;
            assert!((turns - turns.round()).abs() < 1e-3, "{x}: {f}");
        }
        for by in [1, 2, 7, 20, 1299, 2_000_003, 1 << 40] {
            let divisor = Divisor::new(by);
            for quotient in [0, 1, 2, 1000, 12_345_678, (1 << 51) / by] {
                for n in (quotient * by).saturating_sub(2)..=quotient * by + 2 {
                    assert_eq!(divisor.divide(n), (n / by, n % by), "{n} / {by}");
                }
            }
        }
        assert_eq!((instant(7.0), instant(7.1), whole(-4.0)), (7, 8, 0));
    }
}
