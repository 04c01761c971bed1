//! Errors of older replay tools do not happen here: completions lost and counted as zero time, one
//! buffer for all requests, requests cut to a maximum length, rounded addresses, ignored failures,
//! a maximum number of requests. (All are of RAIDmeter as published, 2007.)

mod common;

use std::rc::Rc;

use common::{Shuffled, all_at_once, at_ms, replay, seeded_rt};
use weft_disk::{Disk, Fault, FaultDisk, RamDisk};
use weft_rt::MILLISECOND;
use weft_trace::replay::{AddressMap, Fit, Options, Pace, Placed, Verify, Volumes};
use weft_trace::{Op, Record};

const MIB: u64 = 1 << 20;

/// Hundreds end in the same nanosecond, others overtake each other: each is counted once, with its
/// time.
#[test]
fn no_completion_is_lost() {
    let records: Vec<Record> =
        (0..5000).map(|n| at_ms(n / 500, Op::Read, n % 256 * 4096, 4096)).collect();
    let rt = seeded_rt(1);
    let (disk, faults) = all_at_once(&rt, MIB, 3 * MILLISECOND);
    let outcome = replay(&rt, &disk, &records, &Options::default());
    assert_eq!((outcome.issued, outcome.completed, outcome.all.requests), (5000, 5000, 5000));
    assert_eq!((outcome.all.min_ns, outcome.all.max_ns), (3 * MILLISECOND, 3 * MILLISECOND));
    assert_eq!(faults.counts().reads, 5000);

    let disk: Rc<dyn Disk> = Rc::new(Shuffled::new(&rt, disk, 7));
    let outcome = replay(&rt, &disk, &records, &Options::default());
    assert_eq!((outcome.completed, outcome.all.requests), (5000, 5000));
    assert!(outcome.all.min_ns >= 3 * MILLISECOND, "{:?}", outcome.all);
}

/// 256 writes in flight at a time, of different data, on a disk where they overtake each other, and
/// their reads.
#[test]
fn every_request_has_its_own_buffer() {
    let rt = seeded_rt(2);
    let ram: Rc<dyn Disk> = Rc::new(RamDisk::new("ram", 4 * MIB, 512));
    let disk: Rc<dyn Disk> = Rc::new(Shuffled::new(&rt, ram, 3));
    let half = |op| move |n: u64| at_ms(0, op, n * 8192, 8192);
    let records: Vec<Record> =
        (0..512).map(half(Op::Write)).chain((0..512).map(half(Op::Read))).collect();
    let pace = Pace::Closed { outstanding: 256 };
    let options = Options { pace, verify: Verify::All, ..Options::default() };
    let outcome = replay(&rt, &disk, &records, &options);
    assert_eq!(outcome.in_flight_max, 256);
    let verified = outcome.verified.expect("it was asked for");
    assert_eq!((verified.blocks_wrong, verified.blocks_unknown), (0, 0), "{verified:?}");
    assert_eq!(verified.blocks_right, 2 * 512 * 16);
}

/// As many bytes reach the disk as the trace asks for, however long a request is.
#[test]
fn no_request_is_cut() {
    let rt = seeded_rt(3);
    let (disk, faults) = all_at_once(&rt, 64 * MIB, MILLISECOND);
    let lens = [512, 128 << 10, (128 << 10) + 512, MIB, 4 * MIB + 512, 33 * MIB];
    for op in [Op::Read, Op::Write] {
        let before = faults.counts();
        let records: Vec<Record> =
            lens.iter().enumerate().map(|(n, len)| at_ms(n as u64, op, 1024, *len)).collect();
        let outcome = replay(&rt, &disk, &records, &Options::default());
        let asked = lens.iter().sum::<u64>();
        assert_eq!((outcome.all.requests, outcome.beyond), (lens.len() as u64, 0));
        assert_eq!(outcome.read_bytes + outcome.written_bytes, asked);
        let after = faults.counts();
        let served = after.read_bytes + after.written_bytes;
        assert_eq!(served - before.read_bytes - before.written_bytes, asked, "{op:?}");
    }
}

/// Sectors that a `float` could not tell apart, on a volume of 8 EiB, are different sectors of the
/// target, too.
#[test]
fn addresses_are_not_rounded() {
    let mut volumes = Volumes::default();
    volumes.set(0, 1 << 63);
    let map = AddressMap::new(&volumes, 1 << 40, 512, Fit::Scale);
    for offset in [0, 1 << 30, (1 << 60) + 512, (1 << 63) - 8192] {
        let place = |offset| match map.place(&at_ms(0, Op::Read, offset, 512)) {
            Placed::At { offset, .. } => offset,
            other => panic!("{offset} has no place: {other:?}"),
        };
        assert_eq!(place(offset + 512), place(offset) + 512, "{offset}");
    }
}

/// A failed request is reported, and counts in no mean.
#[test]
fn failures_are_not_passed_over() {
    let rt = seeded_rt(4);
    let (faulty, faults) = FaultDisk::new(&rt, Rc::new(RamDisk::new("ram", MIB, 512)));
    faults.inject(Fault::FailWrites(0..4096));
    let disk: Rc<dyn Disk> = Rc::new(faulty);
    let records: Vec<Record> = (0..400)
        .map(|n| at_ms(n, if n % 2 == 0 { Op::Write } else { Op::Read }, n % 4 * 4096, 4096))
        .collect();
    let outcome = replay(&rt, &disk, &records, &Options::default());
    assert_eq!((outcome.failed.writes, outcome.failed.reads), (100, 0));
    assert_eq!((outcome.completed, outcome.all.requests), (400, 300));
    assert!(!outcome.failed.first.is_empty());
}

/// More requests than such a tool could hold.
#[test]
fn the_number_of_requests_has_no_limit() {
    let rt = seeded_rt(5);
    let (disk, _) = all_at_once(&rt, MIB, 1000);
    let count = 600_000;
    let records: Vec<Record> =
        (0..count).map(|n| at_ms(0, Op::Read, n % 2048 * 512, 512)).collect();
    let pace = Pace::Closed { outstanding: 64 };
    let outcome = replay(&rt, &disk, &records, &Options { pace, ..Options::default() });
    assert_eq!((outcome.completed, outcome.all.requests), (count, count));
}
