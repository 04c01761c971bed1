//! Conversions between counts and measures.

use weft_rt::Nanos;

/// Nanoseconds of a millisecond.
pub(super) const MS: f64 = 1e6;
/// Nanoseconds of a microsecond.
pub(super) const US: f64 = 1e3;

/// The whole part; negative numbers give 0, and what is too great the greatest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(super) const fn whole(x: f64) -> u64 {
    x as u64
}

/// The instant at or after `t` nanoseconds that a clock can show.
pub(super) fn instant(t: f64) -> Nanos {
    let down = whole(t);
    if (down as f64) < t { down + 1 } else { down }
}

/// The part behind the point, in [0, 1), also of a negative number.
pub(super) fn fraction(x: f64) -> f64 {
    let x = x - whole(x) as f64;
    if x < 0.0 { x + whole(1.0 - x) as f64 } else { x }
}

/// Nanoseconds that a byte takes at `mb_s` million bytes a second.
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
        assert_eq!((instant(7.0), instant(7.1), whole(-4.0)), (7, 8, 0));
    }
}
