//! A cell's results, as bytes that restore them to the last bit of a number.

use weft_cache::Stats;
use weft_trace::replay::{Latency, Point as Interval};

use crate::bench::{FilesRebuilt, Lived, Recovered, Served};
use crate::figure::{Panel, Point, Series, Shape};
use crate::reshape::{Counted, Measured};

/// A result that can be kept.
pub(crate) trait Found: Sized + Send {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it from the front of some bytes; `None`: they are none.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

impl Found for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        from.split_off(..8)?.try_into().ok().map(Self::from_le_bytes)
    }
}

/// Implements [`Found`] by another type.
macro_rules! by {
    ($type:ty: $as:ty, $to:expr, $from:expr) => {
        impl Found for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let to: fn(&$type) -> $as = $to;
                to(self).put(out);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let of: fn($as) -> Option<$type> = $from;
                of(<$as>::take(from)?)
            }
        }
    };
}

by!(f64: u64, |number| number.to_bits(), |bits| Some(f64::from_bits(bits)));
by!(bool: u64, |is| u64::from(*is), |is| Some(is == 1));
by!(u8: u64, |byte| u64::from(*byte), |byte| u8::try_from(byte).ok());
by!(u16: u64, |part| u64::from(*part), |part| u16::try_from(part).ok());
by!(String: Vec<u8>, |text| text.clone().into_bytes(), |bytes| String::from_utf8(bytes).ok());
by!(Shape: u64, |shape| *shape as u64, |number| {
    [Shape::Bars, Shape::Lines, Shape::LogLines].into_iter().find(|shape| *shape as u64 == number)
});

impl<T: Found> Found for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        (0..u64::take(from)?).map(|_| T::take(from)).collect()
    }
}

impl<T: Found> Found for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<A: Found, B: Found> Found for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

/// Implements [`Found`] for a struct, field by field.
macro_rules! found {
    ($type:ty: $($field:ident),*) => {
        impl $crate::found::Found for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::found::Found::put(&self.$field, out);)*
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::found::Found::take(from)?),* })
            }
        }
    };
}
pub(crate) use found;

found!(Panel: title, x_label, y_label, shape, log_y, series, phases);
found!(Series: name, points);
found!(Point: x, at, ours, range, paper);
found!(Latency: requests, mean_ns, min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns);
found!(Interval: at_ns, len_ns, latency, read_bytes, written_bytes, in_flight, busy_per_mille);
found!(Stats: hits, misses, disk_blocks, evictions);
found!(Counted: reads, writes, checkpoints);
found!(Measured: took_ns, ended, counted, users, series);
found!(Served: ns, cache);
found!(Lived: phases, series);
found!(FilesRebuilt: rebuild_ns, own, equal, computed, series);
found!(Recovered: rebuild_ns, own, equal, series, units, interval, survivors_busy, cache);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_comes_back_to_the_last_bit() {
        let numbers =
            [0.1 + 0.2, f64::NAN, f64::INFINITY, -0.0, 1e-300].map(|n| Point::new("x", n));
        let range = Point { range: Some((0.1, 0.3)), paper: Some(1.0 / 3.0), ..numbers[0].clone() };
        let panel = Panel::lines("a", "b", "ü").with("s", numbers.into()).with("", vec![range]);
        let panel = Panel { shape: Shape::LogLines, log_y: true, ..panel };
        let mut bytes = Vec::new();
        panel.put(&mut bytes);
        let back = Panel::take(&mut &bytes[..]).expect("a panel");
        assert_eq!(format!("{panel:?}"), format!("{back:?}"));
        assert!(Panel::take(&mut &bytes[..bytes.len() - 1]).is_none(), "cut short");
    }
}
