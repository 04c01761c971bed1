//! A histogram of fixed size with a stated error.
//!
//! Values below 256 have a bucket each; above, every power of two is cut in 128 buckets of equal
//! width, as in an HDR histogram of two digits. A bucket is therefore never wider than 1/128 of the
//! values in it: a percentile is exact to 0.8 %. Count, sum (and so the mean), minimum and maximum
//! are exact.

use serde::{Deserialize, Serialize};
use weft_rt::Nanos;

/// Buckets of one power of two.
const SUB: u64 = 128;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Values below 2·SUB are exact; above, each of the remaining powers of two has SUB buckets.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

/// The distribution of values.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

/// The bucket of `value`.
fn bucket_of(value: u64) -> usize {
    let shift = (63 - (value | SUB).leading_zeros()) - SUB_BITS;
    let index = u64::from(shift) * SUB + (value >> shift);
    usize::try_from(index).unwrap_or(BUCKETS - 1)
}

/// The least value of a bucket.
fn low_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    (bucket - shift * SUB) << shift
}

/// The greatest value of a bucket.
fn high_of(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS { u64::MAX } else { low_of(bucket + 1) - 1 }
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Clears it.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Their mean, rounded down; 0 without values.
    pub fn mean(&self) -> u64 {
        let mean = self.sum / u128::from(self.count.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// The least; 0 without values.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The greatest; 0 without values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The bucket that holds the value of rank ⌈count·per_mille/1000⌉.
    fn bucket(&self, per_mille: u32) -> Option<usize> {
        let wanted = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen >= wanted
        })
    }

    /// The value that `per_mille` of a thousand values do not exceed (999: p99.9); never too small
    /// and at most 1/128 too large. 0 without values.
    pub fn percentile(&self, per_mille: u32) -> u64 {
        self.bucket(per_mille).map_or(0, |at| high_of(at).clamp(self.min(), self.max))
    }

    /// The value at this rank, rounded down: exact for "round" values, such as lengths of requests
    /// that are multiples of 512 up to 64 KiB and of 4 KiB up to 512 KiB.
    pub fn percentile_low(&self, per_mille: u32) -> u64 {
        self.bucket(per_mille).map_or(0, |at| low_of(at).clamp(self.min(), self.max))
    }
}

/// The latency of requests. Mean, minimum and maximum are exact; a percentile is never too small
/// and at most 1/128 (0.8 %) too large.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests.
    pub requests: u64,
    /// Mean in nanoseconds.
    pub mean_ns: Nanos,
    /// Least.
    pub min_ns: Nanos,
    /// Median.
    pub p50_ns: Nanos,
    /// 90th percentile.
    pub p90_ns: Nanos,
    /// 99th percentile.
    pub p99_ns: Nanos,
    /// 99.9th percentile.
    pub p999_ns: Nanos,
    /// Greatest.
    pub max_ns: Nanos,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        Self {
            requests: histogram.count(),
            mean_ns: histogram.mean(),
            min_ns: histogram.min(),
            p50_ns: histogram.percentile(500),
            p90_ns: histogram.percentile(900),
            p99_ns: histogram.percentile(990),
            p999_ns: histogram.percentile(999),
            max_ns: histogram.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        assert_eq!(low_of(0), 0);
        for bucket in 0..BUCKETS {
            let (low, high) = (low_of(bucket), high_of(bucket));
            assert_eq!((bucket_of(low), bucket_of(high)), (bucket, bucket));
            assert!(high - low <= low / SUB, "bucket {bucket}: {low}..={high}");
            if bucket > 0 {
                assert_eq!(high_of(bucket - 1) + 1, low);
            }
        }
        assert_eq!(high_of(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut values: Vec<u64> = (0..5000u64).map(|n| n * n * 7919 % 1_000_003).collect();
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        values.sort_unstable();
        for per_mille in [1, 500, 900, 990, 999, 1000] {
            let exact = values[(5000 * per_mille as usize).div_ceil(1000) - 1];
            let found = histogram.percentile(per_mille);
            assert!(exact <= found && found <= exact + exact / 128, "{exact} {found}");
        }
        assert_eq!(histogram.percentile(1000), histogram.max());
        assert_eq!(
            u128::from(histogram.mean()),
            values.iter().map(|v| u128::from(*v)).sum::<u128>() / 5000
        );
        histogram.clear();
        assert_eq!((histogram.percentile(500), histogram.min(), histogram.mean()), (0, 0, 0));
    }
}
