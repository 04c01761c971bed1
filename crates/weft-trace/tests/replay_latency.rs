//! The results of a replay match a disk of known latency: open and closed loop, queueing, lateness,
//! warm-up, series. In virtual time, so every figure is exact.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{all_at_once, at_ms, one_at_a_time, replay, replay_live, seeded_rt};
use weft_disk::Fault;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_trace::replay::{DiskTimes, Live, Options, Pace, Speed, Writes};
use weft_trace::{Op, Record};

const MIB: u64 = 1 << 20;

/// `count` reads of 4 KiB, one every `every_ms`.
fn reads(count: u64, every_ms: u64) -> Vec<Record> {
    (0..count).map(|n| at_ms(n * every_ms, Op::Read, n % 200 * 4096, 4096)).collect()
}

fn closed(outstanding: usize) -> Options {
    Options { pace: Pace::Closed { outstanding }, ..Options::default() }
}

#[test]
fn an_idle_disk_takes_its_service_time() {
    let rt = seeded_rt(1);
    let (disk, _) = one_at_a_time(&rt, MIB, 3 * MILLISECOND);
    let outcome = replay(&rt, &disk, &reads(100, 10), &Options::default());
    let all = outcome.all;
    assert_eq!((all.requests, all.mean_ns, all.min_ns), (100, 3 * MILLISECOND, 3 * MILLISECOND));
    assert_eq!(
        (all.p50_ns, all.p999_ns, all.max_ns),
        (3 * MILLISECOND, 3 * MILLISECOND, 3 * MILLISECOND)
    );
    assert_eq!(outcome.elapsed_ns, 993 * MILLISECOND);
    assert_eq!(outcome.requests_per_1000_s, 100 * 1000 * SECOND / (993 * MILLISECOND));
    assert_eq!((outcome.late.requests, outcome.late.max_ns, outcome.in_flight_max), (0, 0, 1));
    assert_eq!((outcome.reads, outcome.writes.requests), (all, 0));
    assert_eq!((outcome.read_bytes, outcome.written_bytes), (409_600, 0));
}

#[test]
fn an_open_loop_counts_the_time_in_line() {
    // A request every 2 ms for a disk that takes 3: the n-th waits n ms.
    let rt = seeded_rt(2);
    let (disk, _) = one_at_a_time(&rt, MIB, 3 * MILLISECOND);
    let outcome = replay(&rt, &disk, &reads(101, 2), &Options::default());
    assert_eq!(outcome.all.mean_ns, 53 * MILLISECOND);
    assert_eq!((outcome.all.min_ns, outcome.all.max_ns), (3 * MILLISECOND, 103 * MILLISECOND));
    // The disk's line is not lateness: all were issued when they were due.
    assert_eq!((outcome.late.max_ns, outcome.service), (0, outcome.all));
    let p50 = outcome.all.p50_ns;
    assert!((53 * MILLISECOND..=53 * MILLISECOND * 129 / 128).contains(&p50), "{p50}");
}

#[test]
fn a_late_start_is_counted_and_not_hidden() {
    // The same disk, but only one request may be in flight: the line is in the replay now.
    let rt = seeded_rt(3);
    let (disk, _) = one_at_a_time(&rt, MIB, 3 * MILLISECOND);
    let pace = Pace::Open { speed: Speed::REAL, in_flight_max: 1 };
    let options = Options { pace, late_after_ns: 10 * MILLISECOND, ..Options::default() };
    let outcome = replay(&rt, &disk, &reads(101, 2), &options);
    assert_eq!((outcome.all.mean_ns, outcome.all.max_ns), (53 * MILLISECOND, 103 * MILLISECOND));
    assert_eq!(
        (outcome.service.mean_ns, outcome.service.max_ns),
        (3 * MILLISECOND, 3 * MILLISECOND)
    );
    // The n-th starts n ms late: 11 to 100 are more than 10.
    assert_eq!((outcome.late.requests, outcome.late.mean_ns), (90, 50 * MILLISECOND));
    assert_eq!(outcome.late.max_ns, 100 * MILLISECOND);
}

#[test]
fn speed_moves_the_times_and_only_them() {
    for (numerator, denominator, elapsed_ms) in
        [(1, 1, 993), (2, 1, 498), (1, 4, 3963), (3, 2, 663)]
    {
        let rt = seeded_rt(4);
        let (disk, _) = all_at_once(&rt, MIB, 3 * MILLISECOND);
        let speed = Speed { numerator, denominator };
        let pace = Pace::Open { speed, in_flight_max: 100 };
        let outcome = replay(&rt, &disk, &reads(100, 10), &Options { pace, ..Options::default() });
        assert_eq!(outcome.elapsed_ns, elapsed_ms * MILLISECOND, "{speed:?}");
        assert_eq!(outcome.all.max_ns, 3 * MILLISECOND);
    }
}

#[test]
fn a_closed_loop_keeps_its_depth() {
    for (outstanding, wide, each_ms) in [(1, false, 2), (8, false, 16), (8, true, 2)] {
        let rt = seeded_rt(5);
        let make = if wide { all_at_once } else { one_at_a_time };
        let (disk, _) = make(&rt, MIB, 2 * MILLISECOND);
        // The times of the trace must not matter.
        let outcome = replay(&rt, &disk, &reads(800, 1000), &closed(outstanding));
        assert_eq!(outcome.in_flight_max, outstanding as u64);
        assert_eq!(outcome.all.p50_ns, each_ms * MILLISECOND);
        assert_eq!(outcome.all.max_ns, each_ms * MILLISECOND);
        let in_all_ms = if wide { 800 / 8 * 2 } else { 800 * 2 };
        assert_eq!(outcome.elapsed_ns, in_all_ms * MILLISECOND);
        assert_eq!(outcome.late.requests, 0);
    }
}

#[test]
fn the_warm_up_is_done_and_not_counted() {
    let rt = seeded_rt(6);
    let (disk, faults) = one_at_a_time(&rt, MIB, 3 * MILLISECOND);
    let by_count = Options { warm_up_requests: 40, ..Options::default() };
    let outcome = replay(&rt, &disk, &reads(100, 10), &by_count);
    assert_eq!((outcome.all.requests, outcome.warm_up, outcome.issued), (60, 40, 100));
    assert_eq!((outcome.elapsed_ns, outcome.read_bytes), (593 * MILLISECOND, 60 * 4096));
    assert_eq!(faults.counts().reads, 100);
    let rt = seeded_rt(6);
    let (disk, _) = one_at_a_time(&rt, MIB, 3 * MILLISECOND);
    let by_time = Options { warm_up_ns: 395 * MILLISECOND, ..Options::default() };
    let again = replay(&rt, &disk, &reads(100, 10), &by_time);
    assert_eq!((again.all, again.warm_up, again.elapsed_ns), (outcome.all, 40, outcome.elapsed_ns));
}

#[test]
fn the_series_adds_up_and_follows_the_disk() {
    let rt = seeded_rt(7);
    let (disk, faults) = all_at_once(&rt, MIB, 3 * MILLISECOND);
    // Slower from the 500th request on.
    faults.inject_at(500, Fault::Delay(9 * MILLISECOND));
    let options = Options { interval_ns: Some(SECOND), ..Options::default() };
    let outcome = replay(&rt, &disk, &reads(1000, 10), &options);
    let counts: Vec<u64> = outcome.series.iter().map(|point| point.latency.requests).collect();
    assert_eq!(counts.iter().sum::<u64>(), 1000);
    assert_eq!(outcome.series.len(), 10, "{counts:?}");
    assert_eq!(outcome.series.iter().map(|point| point.read_bytes).sum::<u64>(), 1000 * 4096);
    for (number, point) in outcome.series.iter().enumerate() {
        assert_eq!(point.at_ns, number as u64 * SECOND);
        let expected = if number < 5 { 3 } else { 9 } * MILLISECOND;
        assert_eq!((point.latency.mean_ns, point.latency.max_ns), (expected, expected));
    }
}

#[test]
fn failures_are_counted_and_in_no_latency() {
    let rt = seeded_rt(8);
    let (disk, faults) = all_at_once(&rt, MIB, 3 * MILLISECOND);
    faults.inject(Fault::Medium(0..4096));
    let outcome = replay(&rt, &disk, &reads(400, 10), &Options::default());
    assert_eq!((outcome.failed.reads, outcome.failed.total()), (2, 2));
    assert!(outcome.failed.first[0].contains("read of 4096 bytes at 0"), "{:?}", outcome.failed);
    assert_eq!((outcome.all.requests, outcome.issued), (398, 400));
}

#[test]
fn lengths_are_kept_and_what_lies_beyond_is_said() {
    let rt = seeded_rt(9);
    let (disk, faults) = all_at_once(&rt, 4 * MIB, MILLISECOND);
    let records = [
        at_ms(0, Op::Read, 0, 3 * MIB),
        at_ms(1, Op::Read, 100, 1000),
        at_ms(2, Op::Read, 4 * MIB - 512, 1024),
        at_ms(3, Op::Write, 0, 4096),
        at_ms(4, Op::Trim, 100, 500),
        at_ms(5, Op::Flush, 0, 0),
    ];
    // In pieces of 64 KiB: none is cut.
    let options = Options { piece_bytes_max: 65536, ..Options::default() };
    let outcome = replay(&rt, &disk, &records, &options);
    assert_eq!((outcome.beyond, outcome.widened, outcome.trims_too_small), (1, 1, 1));
    assert_eq!((outcome.reads.requests, outcome.read_bytes), (2, 3 * MIB + 1536));
    assert_eq!((outcome.flushes.requests, outcome.written_bytes), (1, 4096));
    assert_eq!((faults.counts().reads, faults.counts().read_bytes), (49, 3 * MIB + 1536));
    let skip = Options { writes: Writes::Skip, ..Options::default() };
    let outcome = replay(&rt, &disk, &records, &skip);
    assert_eq!((outcome.writes_skipped, outcome.written_bytes), (2, 0));
    assert_eq!(faults.counts().writes, 1);
}

#[test]
fn a_run_ends_when_told() {
    let rt = seeded_rt(10);
    let (disk, _) = all_at_once(&rt, MIB, 3 * MILLISECOND);
    let limit = Options { duration_ns: Some(495 * MILLISECOND), ..Options::default() };
    assert_eq!(replay(&rt, &disk, &reads(100, 10), &limit).issued, 50);

    let live = Live::new();
    let (watcher, clock) = (live.clone(), rt.clone());
    let stop_at = rt.now() + 295 * MILLISECOND;
    drop(rt.spawn(async move {
        clock.sleep_until(stop_at).await;
        watcher.stop();
    }));
    let outcome = replay_live(&rt, &disk, &reads(100, 10), &Options::default(), &live);
    assert_eq!((outcome.issued, live.progress()), (30, (30, 30)));
    assert_eq!(live.latency(), outcome.all);
    // And it ended then, not at the end of the trace.
    assert!(rt.now() <= stop_at + 3 * MILLISECOND);
}

/// A disk that is busy half of the time.
struct Half(Rt, Cell<u32>);

impl DiskTimes for Half {
    fn busy(&self) -> Vec<(String, Nanos)> {
        self.1.set(self.1.get() + 1);
        vec![("half".into(), self.0.now() / 2), ("idle".into(), 0)]
    }
}

#[test]
fn utilisation_is_that_of_the_time_measured() {
    let rt = seeded_rt(11);
    let (disk, _) = all_at_once(&rt, MIB, 3 * MILLISECOND);
    let live = Live::watching(Rc::new(Half(rt.clone(), Cell::new(0))));
    let options = Options { interval_ns: Some(SECOND), warm_up_requests: 10, ..Options::default() };
    let outcome = replay_live(&rt, &disk, &reads(500, 10), &options, &live);
    let shares: Vec<u16> = outcome.utilisation.iter().map(|disk| disk.busy_per_mille).collect();
    assert_eq!(shares, [500, 0]);
    assert!(outcome.series.iter().all(|point| point.busy_per_mille == [500, 0]));
}
