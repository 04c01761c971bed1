//! Seek times.
//!
//! In a short seek the arm accelerates for half the way and brakes for the other half, so the time
//! grows with the square root of the distance. In a long one it reaches its greatest speed and
//! coasts, so the time grows linearly (Ruemmler and Wilkes, "An introduction to disk drive
//! modeling", IEEE Computer 27(3), 1994). With x the distance as a fraction of all cylinders:
//!
//! ```text
//! seek(x) = t + b √x                             for x ≤ c
//! seek(x) = t + b √c + b (x − c) / (2 √c)        for x > c      (value and slope continuous at c)
//! ```
//!
//! Data sheets state three numbers: t, the time between adjacent tracks; the full stroke F =
//! seek(1), which gives b = 2 (F − t) √c / (1 + c); and the average A over all pairs of cylinders,
//! whose distances have the density 2(1 − x). The ratio (A − t)/(F − t) falls from 8/15 for c = 1
//! to 1/3 for c → 0, so bisection finds c from A.

use super::spec::SeekSpec;
use crate::number::MS;

/// Seek times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeekCurve {
    least: f64,
    /// b, per square root of a cylinder.
    root: f64,
    /// c, in cylinders.
    knee: f64,
    at_knee: f64,
    slope: f64,
}

/// (A − t)/(F − t) for a knee at `c`, by Simpson's rule over √x (smooth there).
fn mean_share(c: f64) -> f64 {
    let root = c.sqrt();
    let b = 2.0 * root / (1.0 + c);
    let steps = 200;
    let h = 1.0 / f64::from(steps);
    let term = |i: i32| {
        let y = f64::from(i) * h;
        let x = y * y;
        let seek = if x <= c { b * y } else { b * root + b * (x - c) / (2.0 * root) };
        // dx = 2 y dy.
        seek * 2.0 * (1.0 - x) * 2.0 * y
    };
    let inner: f64 = (1..steps).map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * term(i)).sum();
    (term(0) + inner + term(steps)) * h / 3.0
}

impl SeekCurve {
    pub(super) fn new(spec: SeekSpec, cylinders: u64) -> Self {
        let cylinders = cylinders.max(2) as f64;
        let (t, full) = (spec.track_to_track_ms * MS, spec.full_stroke_ms * MS);
        let share = (spec.average_ms * MS - t) / (full - t);
        let (mut low, mut high) = (1e-4, 1.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if mean_share(middle) < share { low = middle } else { high = middle }
        }
        let c = 0.5 * (low + high);
        let b = 2.0 * (full - t) * c.sqrt() / (1.0 + c);
        Self {
            least: t,
            root: b / cylinders.sqrt(),
            knee: c * cylinders,
            at_knee: t + b * c.sqrt(),
            slope: b / (2.0 * c.sqrt()) / cylinders,
        }
    }

    /// Nanoseconds for a seek over `distance` cylinders.
    pub(super) fn time(&self, distance: u64) -> f64 {
        if distance == 0 {
            return 0.0;
        }
        // Adjacent cylinders are one apart; `least` is the time for that.
        let d = (distance - 1) as f64;
        if d <= self.knee {
            self.least + self.root * d.sqrt()
        } else {
            self.at_knee + self.slope * (d - self.knee)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_numbers_come_out_again() {
        let specs = [(0.8, 8.5, 18.0), (2.0, 8.9, 21.0), (0.3, 4.7, 9.7), (0.8, 6.3, 13.0)];
        for (track_to_track_ms, average_ms, full_stroke_ms) in specs {
            let spec = SeekSpec { track_to_track_ms, average_ms, full_stroke_ms };
            let cylinders = 3000;
            let curve = SeekCurve::new(spec, cylinders);
            assert_eq!(curve.time(0), 0.0);
            assert!((curve.time(1) - track_to_track_ms * MS).abs() < 1.0);
            assert!((curve.time(cylinders) - full_stroke_ms * MS).abs() < 0.02 * MS, "{:?}", curve);
            let n = cylinders as f64;
            let weighted = (1..cylinders).map(|d| curve.time(d) * 2.0 * (n - d as f64));
            let mean = weighted.sum::<f64>() / (n * n);
            assert!((mean / MS - average_ms).abs() < 0.03, "{} for {average_ms}", mean / MS);
        }
    }

    #[test]
    fn farther_never_takes_less() {
        let spec = SeekSpec { track_to_track_ms: 0.8, average_ms: 8.5, full_stroke_ms: 18.0 };
        let curve = SeekCurve::new(spec, 50_000);
        let times: Vec<f64> = (0..50_000).map(|d| curve.time(d)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
