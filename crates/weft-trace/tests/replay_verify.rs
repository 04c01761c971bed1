//! Verification finds every kind of wrong data, and never accuses a disk that keeps its promises.

mod common;

use std::rc::Rc;

use common::{Shuffled, all_at_once, at_ms, replay, seeded_rt};
use weft_disk::{Disk, Fault, FaultDisk, RamDisk};
use weft_rt::MILLISECOND;
use weft_trace::replay::{Options, Pace, Verify};
use weft_trace::{Op, Record};

const MIB: u64 = 1 << 20;

fn verify(verify: Verify) -> Options {
    Options { verify, ..Options::default() }
}

/// Requests of all kinds over few blocks, so that nearly all overlap others in flight.
fn crowd(seed: u64, count: u64) -> Vec<Record> {
    let mut state = seed;
    let mut draw = move |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let request = |n: u64| {
        let (sector, sectors) = (draw(24), 1 + draw(8));
        let op = match draw(20) {
            0 => Op::Trim,
            1 => Op::Flush,
            2..=10 => Op::Write,
            _ => Op::Read,
        };
        at_ms(n / 2, op, sector * 512, sectors * 512)
    };
    (0..count).map(request).collect()
}

#[test]
fn overlapping_requests_are_judged_right() {
    for seed in 0..40 {
        let rt = seeded_rt(seed);
        let ram: Rc<dyn Disk> = Rc::new(RamDisk::new("ram", MIB, 512));
        let disk: Rc<dyn Disk> = Rc::new(Shuffled::new(&rt, ram, seed));
        for pace in [Options::default().pace, Pace::Closed { outstanding: 16 }] {
            let options = Options { pace, seed, ..verify(Verify::All) };
            let outcome = replay(&rt, &disk, &crowd(seed, 600), &options);
            let verified = outcome.verified.expect("it was asked for");
            assert_eq!(verified.blocks_wrong, 0, "seed {seed}: {:?}", verified.wrong_first);
            assert!(verified.blocks_right > 300, "seed {seed}: {verified:?}");
        }
    }
}

#[test]
fn failed_writes_leave_both_possibilities() {
    for seed in 0..20 {
        let rt = seeded_rt(seed);
        let (faulty, faults) = FaultDisk::new(&rt, Rc::new(RamDisk::new("ram", MIB, 512)));
        faults.inject(Fault::FailWrites(2048..4096));
        faults.inject_at(150, Fault::FailWrites(0..0));
        let disk: Rc<dyn Disk> = Rc::new(Shuffled::new(&rt, Rc::new(faulty), seed));
        let outcome = replay(&rt, &disk, &crowd(seed, 600), &verify(Verify::All));
        assert!(outcome.failed.writes > 0);
        let verified = outcome.verified.expect("it was asked for");
        assert_eq!(verified.blocks_wrong, 0, "seed {seed}: {:?}", verified.wrong_first);
    }
}

/// The result of verification for one write and read under `fault`.
fn found(fault: Fault, after_write: bool, offset: u64) -> (u64, String) {
    let rt = seeded_rt(1);
    let (disk, faults) = all_at_once(&rt, MIB, MILLISECOND);
    let writes = [at_ms(0, Op::Write, 0, 65536), at_ms(5, Op::Write, 8192, 4096)];
    // The first write lays down what the second one replaces.
    faults.inject_at(if after_write { 2 } else { 1 }, fault);
    let records = [&writes[..], &[at_ms(10, Op::Read, offset, 4096)]].concat();
    let outcome = replay(&rt, &disk, &records, &verify(Verify::Reads));
    let verified = outcome.verified.expect("it was asked for");
    assert_eq!(verified.blocks_right + verified.blocks_wrong, 8);
    (verified.blocks_wrong, verified.wrong_first.first().cloned().unwrap_or_default())
}

#[test]
fn wrong_data_is_found_and_named() {
    let (wrong, text) = found(Fault::LoseWrites(1), false, 8192);
    assert_eq!(wrong, 8);
    assert!(text.contains("offset 8192 should hold write 3, but holds write 1"), "{text}");
    let (wrong, text) = found(Fault::MisdirectWrite(0), false, 0);
    assert!(wrong == 8 && text.contains("the data of offset 8192"), "{text}");
    let (wrong, text) = found(Fault::BitFlip { offset: 8192 + 600, mask: 4 }, true, 8192);
    assert!(wrong == 1 && text.contains("offset 8704 should hold"), "{text}");
    assert!(text.contains("damaged block with the stamp of write 3"), "{text}");
    assert_eq!(found(Fault::Delay(MILLISECOND), true, 8192), (0, String::new()));
}

#[test]
fn the_end_finds_what_no_read_has_seen() {
    let rt = seeded_rt(2);
    let (disk, faults) = all_at_once(&rt, MIB, MILLISECOND);
    faults.inject_at(3, Fault::LoseWrites(1));
    let records: Vec<Record> = (0..8).map(|n| at_ms(n * 10, Op::Write, n * 4096, 4096)).collect();
    let reads = replay(&rt, &disk, &records, &verify(Verify::Reads)).verified.expect("asked for");
    assert_eq!((reads.blocks_right, reads.blocks_wrong), (0, 0));
    let (disk, faults) = all_at_once(&rt, MIB, MILLISECOND);
    faults.inject_at(3, Fault::LoseWrites(1));
    let all = replay(&rt, &disk, &records, &verify(Verify::All)).verified.expect("asked for");
    assert_eq!((all.blocks_right, all.blocks_wrong), (56, 8));
    assert!(all.wrong_first[0].contains("offset 12288") && all.wrong_first[0].contains("zeros"));
}

#[test]
fn what_was_there_before_is_not_judged() {
    let rt = seeded_rt(3);
    let (disk, _) = all_at_once(&rt, MIB, MILLISECOND);
    let old = [at_ms(0, Op::Write, 0, 8192)];
    replay(&rt, &disk, &old, &Options { seed: 7, ..verify(Verify::Reads) });
    let records = [at_ms(0, Op::Write, 0, 4096), at_ms(5, Op::Read, 0, 8192)];
    let verified = replay(&rt, &disk, &records, &verify(Verify::Reads)).verified.expect("asked");
    assert_eq!((verified.blocks_right, verified.blocks_unknown, verified.blocks_wrong), (8, 8, 0));
    // More blocks than may be remembered are said to be so.
    let few = Options { verify_blocks_max: 3, ..verify(Verify::Reads) };
    let verified = replay(&rt, &disk, &records, &few).verified.expect("asked");
    assert_eq!((verified.blocks_right, verified.blocks_not_kept, verified.blocks_wrong), (3, 5, 0));
}
