//! Counts and times as the numbers of a figure.

use weft_rt::{MILLISECOND, Nanos, SECOND};

/// A count.
#[expect(clippy::cast_precision_loss, reason = "a number for people")]
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// A time in seconds.
pub(crate) fn seconds(ns: Nanos) -> f64 {
    real(ns) / real(SECOND)
}

/// A time in milliseconds.
pub(crate) fn millis(ns: Nanos) -> f64 {
    real(ns) / real(MILLISECOND)
}

/// A part of something, as a share.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    real(part) / real(whole.max(1))
}

/// Millions of bytes a second.
pub(crate) fn mb_s(bytes: u64, ns: Nanos) -> f64 {
    real(bytes) * 1e3 / real(ns.max(1))
}

/// By how much a number is below another, in per cent of it.
pub(crate) fn below(number: f64, base: f64) -> f64 {
    100.0 - 100.0 * number / base
}
