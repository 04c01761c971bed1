//! Users as a trace has them: its requests come at its own times, whether earlier ones are answered
//! or not, to addresses that are scaled onto what is used.

use std::rc::Rc;

use weft_rt::{Nanos, SECOND};
use weft_trace::Record;
use weft_trace::replay::{AddressMap, Fit, Options, Pace, Speed, Volumes};

/// Requests in flight at most, which is more than there ever are.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// Where the requests of a trace lie on so many bytes, in whole blocks.
pub(crate) fn scaled(records: &[Record], size_bytes: u64, block_bytes: u32) -> AddressMap {
    let mut volumes = Volumes::default();
    records.iter().for_each(|record| volumes.add(record));
    AddressMap::new(&volumes, size_bytes, block_bytes, Fit::Scale)
}

/// A replay at the requests' own times, measured in intervals.
pub(crate) fn open_loop(interval: Nanos) -> Options {
    Options {
        pace: Pace::Open { speed: Speed::REAL, in_flight_max: IN_FLIGHT_MAX },
        interval_ns: Some(interval),
        ..Options::default()
    }
}

/// The requests of a trace at the given mean rate, repeated without end, from request number
/// `first`.
pub(crate) fn endless(
    records: Rc<[Record]>,
    rate_milli: u32,
    first: usize,
) -> impl Iterator<Item = Record> {
    let count = records.len();
    let span = u128::from(records.last().map_or(0, |record| record.at_ns)).max(1);
    let wanted = count as u128 * 1000 * u128::from(SECOND) / u128::from(rate_milli.max(1));
    let due = move |number: usize| {
        let (round, record) = (number / count, records[number % count]);
        (round as u128 * wanted + u128::from(record.at_ns) * wanted / span, record)
    };
    let begin = due(first).0;
    (first..).map(move |number| {
        let (at, record) = due(number);
        Record { at_ns: u64::try_from(at - begin).unwrap_or(u64::MAX), ..record }
    })
}
