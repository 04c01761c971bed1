//! Rebuild, resync and scrub: what they find, what they leave, and how fast they run.

use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, run};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::{ArrayState, ScrubMode};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt, SECOND};

#[test]
fn scrub_locates_the_wrong_unit_where_the_code_can_tell_and_only_there() {
    run(|rt| async move {
        for (code, slots, tells) in [
            ("raid1", 2, false),
            ("raid1", 3, true),
            ("raid5", 4, false),
            ("raid6", 5, true),
            ("rs:3+3", 6, true),
        ] {
            let bench = Bench::new(&rt, code, slots).await;
            let bytes = pattern(0, (3 * bench.stripe_bytes()) as usize, 1);
            write(&bench.array, 0, &bytes).await;
            for unit in 0..slots {
                bench.rot(1, unit);
                let found = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!((found.mismatches, found.repaired), (1, 0), "{code}");
                let place = found.places[0];
                let expected = tells.then_some(unit);
                assert_eq!((place.stripe, place.unit), (1, expected), "{code}, unit {unit}");
                assert_eq!(place.slot, expected.map(|unit| SlotNo(bench.place(1, unit).0)));
                let repaired = bench.array.scrub(ScrubMode::Repair).await.expect("scrubbed");
                assert_eq!((repaired.mismatches, repaired.repaired), (1, 1), "{code}");
                let clean = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!(clean.mismatches, 0, "{code}, unit {unit}");
                if tells || unit >= bench.k() {
                    assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{code}");
                } else {
                    write(&bench.array, 0, &bytes).await;
                }
            }
        }
    });
}

#[test]
fn jobs_keep_to_the_throttle() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 3).await;
        let stripes = bench.array.size_bytes() / bench.stripe_bytes();
        write(&bench.array, 0, &vec![1; bench.array.size_bytes() as usize]).await;
        let scrub = async |min: u64, max: Option<u64>, busy: bool| {
            bench.array.set_throttle(min, max);
            let start = rt.now();
            let array = bench.array.clone();
            let job = rt.spawn(async move { array.scrub(ScrubMode::Check).await });
            while !job.is_finished() {
                if busy {
                    read(&bench.array, 0, 512).await;
                }
                rt.sleep(MILLISECOND / 10).await;
            }
            rt.now() - start
        };
        // One unit per 100 ms, as first and last.
        let slow = scrub(0, Some(UNIT * 10), false).await;
        assert!(slow >= (stripes - 1) * SECOND / 10, "{slow}");
        assert!(slow < (stripes + 1) * SECOND / 10, "{slow}");
        let free = scrub(0, None, false).await;
        let polite = scrub(0, None, true).await;
        let pressed = scrub(1 << 40, None, true).await;
        assert!(polite > 2 * free, "{polite} with users, {free} alone");
        assert!(pressed < polite / 2, "{pressed} with a minimum, {polite} without");
    });
}

/// A stripe of a slow scrub is scheduled for a time far away. What changes meanwhile counts at
/// once.
#[test]
fn a_raised_throttle_and_a_cancelled_scrub_do_not_wait_for_a_stripe_that_is_scheduled() {
    for cancels in [false, true] {
        run(move |rt| async move {
            let bench = Bench::new(&rt, "raid5", 3).await;
            write(&bench.array, 0, &vec![1; bench.array.size_bytes() as usize]).await;
            // A stripe takes a minute.
            bench.array.set_throttle(0, Some(UNIT / 60));
            let array = bench.array.clone();
            let scrub = rt.spawn(async move { array.scrub(ScrubMode::Check).await });
            rt.sleep(10 * SECOND).await;
            let start = rt.now();
            if cancels {
                bench.array.cancel_scrub().await;
            } else {
                bench.array.set_throttle(0, None);
            }
            let report = scrub.await.expect("scrubbed");
            assert_eq!(report.complete, !cancels);
            assert!(rt.now() - start < SECOND, "cancels {cancels}: {} ns", rt.now() - start);
        });
    }
}

#[test]
fn stop_does_not_wait_for_a_slow_job_and_nothing_is_written_after_it() {
    run(|rt| async move {
        for after in 0..40u64 {
            let bench = Bench::new(&rt, "raid5", 3).await;
            write(&bench.array, 0, &vec![1; bench.array.size_bytes() as usize]).await;
            bench.array.set_throttle(0, (after % 2 == 0).then_some(1));
            bench.array.fail(SlotNo(1)).await.expect("can lose one");
            let array = bench.array.clone();
            let spare = disk(&rt, 9, 512);
            drop(rt.spawn(async move { array.add_spare(spare).await }));
            for n in 0..4 {
                let array = bench.array.clone();
                let data = weft_rt::Frozen::copy_from(&[3; 3000]);
                let offset = n * bench.stripe_bytes() + 77;
                drop(rt.spawn(async move {
                    let _ = array.write(offset, data, false).await;
                    let _ = array.write_zeroes(0, 1 << 16, false, true).await;
                }));
            }
            rt.sleep(after * 37_000).await;
            let start = rt.now();
            bench.array.stop().await.expect("stopped");
            assert!(rt.now() - start < SECOND);
            // Adding a spare may still be preparing the new disk, which is not a member yet.
            let members = || bench.disks.iter().map(|d| d.writes.borrow().len()).sum::<usize>();
            let before = members();
            rt.sleep(10 * SECOND).await;
            assert_eq!(members(), before, "written after the stop, {after}");
        }
    });
}

#[test]
fn a_rebuild_resumes_where_a_power_cut_left_it() {
    run(|rt| async move {
        for (code, slots) in [("raid5", 4), ("raid1", 2), ("drc-g:4,2,1", 7)] {
            for cut in 0..30u64 {
                let bench = Bench::new(&rt, code, slots).await;
                let mut bytes = pattern(0, (6 * bench.stripe_bytes()) as usize, 1);
                write(&bench.array, 0, &bytes).await;
                bench.array.fail(SlotNo(1)).await.expect("can lose one");
                let spare = disk(&rt, 9, 512);
                bench.array.add_spare(spare.clone()).await.expect("added");
                rt.sleep(cut * 60_000).await;
                let new = pattern(7, 5000, 3);
                write(&bench.array, 600, &new).await;
                bytes[600..5600].copy_from_slice(&new);
                bench.array.flush().await.expect("flushed");
                let leave = [Leave::All, Leave::Nothing, Leave::Some(cut)][(cut % 3) as usize];
                let array = assemble(&rt, &after_cut(&rt, &bench, &spare, leave)).await;
                assert!(read(&array, 0, bytes.len()).await == bytes, "{code}, cut {cut}");
                let again = Bench { array, ..bench };
                again.until(ArrayState::Healthy).await;
                let report = again.array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!(report.mismatches, 0, "{code}, cut {cut}");
                again.array.fail(SlotNo(0)).await.expect("can lose one");
                assert!(read(&again.array, 0, bytes.len()).await == bytes, "{code}, cut {cut}");
                again.array.stop().await.expect("stopped");
            }
        }
    });
}

/// The disks as a power cut now would leave them, with the spare in slot 1.
fn after_cut(rt: &Rt, bench: &Bench, spare: &Rc<TestDisk>, leave: Leave) -> Vec<Rc<dyn Disk>> {
    let mut old = bench.disks.clone();
    old[1] = spare.clone();
    let power = Power::new();
    let reopen = |(n, disk): (usize, Rc<TestDisk>)| {
        let medium = leave.of(&disk.medium.borrow());
        let size = disk.info().size_bytes;
        TestDisk::new(rt, &power, n, size, 512, medium) as Rc<dyn Disk>
    };
    old.into_iter().enumerate().map(reopen).collect()
}

#[test]
fn a_crash_in_the_middle_of_a_rebuild_then_a_discard_brings_nothing_back() {
    run(|rt| async move {
        for cut in 0..30u64 {
            let bench = Bench::new(&rt, "raid5", 3).await;
            let stripe = bench.stripe_bytes();
            let bytes = pattern(0, (6 * stripe) as usize, 1);
            write(&bench.array, 0, &bytes).await;
            bench.array.fail(SlotNo(1)).await.expect("can lose one");
            let spare = disk(&rt, 9, 512);
            bench.array.add_spare(spare.clone()).await.expect("added");
            rt.sleep(cut * 20_000).await;
            let array = assemble(&rt, &after_cut(&rt, &bench, &spare, Leave::All)).await;
            array.set_paused(true);
            array.discard(0, 6 * stripe).await.expect("discarded");
            array.set_paused(false);
            // The first write to each stripe; the rest of the stripe is zero.
            for n in 0..6 {
                write(&array, n * stripe, &[7; 512]).await;
            }
            for n in 0..6 {
                let now = read(&array, n * stripe, stripe as usize).await;
                assert!(now[..512] == [7; 512] && now[512..].iter().all(|b| *b == 0), "cut {cut}");
            }
            for _ in 0..1000 {
                if array.status().state == ArrayState::Healthy {
                    break;
                }
                rt.sleep(MILLISECOND).await;
            }
            assert_eq!(array.status().state, ArrayState::Healthy);
            let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!(report.mismatches, 0, "cut {cut}");
            array.fail(SlotNo(0)).await.expect("can lose one");
            for n in 0..6 {
                let now = read(&array, n * stripe, stripe as usize).await;
                assert!(now[..512] == [7; 512] && now[512..].iter().all(|b| *b == 0), "cut {cut}");
            }
            array.stop().await.expect("stopped");
        }
    });
}

/// The same disks after a crash.
fn crashed(rt: &Rt, bench: &Bench, leave: Leave) -> Vec<Rc<TestDisk>> {
    let power = Power::new();
    let reopen = |(n, disk): (usize, &Rc<TestDisk>)| {
        let medium = leave.of(&disk.medium.borrow());
        TestDisk::new(rt, &power, n, disk.info().size_bytes, 512, medium)
    };
    bench.disks.iter().enumerate().map(reopen).collect()
}

#[test]
fn what_a_scrub_corrected_is_durable_before_its_result() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 3).await;
        write(&bench.array, 0, &vec![1; bench.array.size_bytes() as usize]).await;
        // Nothing is dirty any more, so that no resync corrects it.
        bench.array.stop().await.expect("stopped");
        let array = assemble(&rt, &members(&bench.disks)).await;
        bench.rot(1, 0);
        let report = array.scrub(ScrubMode::Repair).await.expect("scrubbed");
        assert_eq!(report.repaired, 1);
        let disks = crashed(&rt, &bench, Leave::Nothing);
        let array = assemble(&rt, &members(&disks)).await;
        assert_eq!(array.status().scrub.expect("the result stays").repaired, 1);
        assert_eq!(array.status().regions.resync, 0);
        let again = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(again.mismatches, 0);
        array.stop().await.expect("stopped");
    });
}

#[test]
fn a_scrub_resumes_near_where_a_stop_or_a_crash_left_it() {
    run(|rt| async move {
        for crash in [false, true] {
            let bench = Bench::new(&rt, "raid5", 3).await;
            let stripes = bench.array.size_bytes() / bench.stripe_bytes();
            write(&bench.array, 0, &vec![1; bench.array.size_bytes() as usize]).await;
            bench.array.flush().await.expect("flushed");
            // One mismatching stripe near the start, one near the end; one stripe per 10 seconds.
            bench.rot(1, 0);
            bench.rot(stripes - 2, 1);
            bench.array.set_throttle(0, Some(UNIT / 10));
            let array = bench.array.clone();
            drop(rt.spawn(async move { array.scrub(ScrubMode::Repair).await }));
            rt.sleep(stripes / 2 * 10 * SECOND).await;
            let before = bench.array.status().scrub.expect("a scrub runs");
            assert!(before.running && before.mismatches == 1, "{before:?}");
            let disks = if crash {
                crashed(&rt, &bench, Leave::All)
            } else {
                bench.array.stop().await.expect("stopped");
                bench.disks.clone()
            };
            let array = assemble(&rt, &members(&disks)).await;
            let after = array.status().scrub.expect("it continues");
            assert!(after.running && after.mode == ScrubMode::Repair, "{after:?}");
            // Half a minute's work, and what was in flight.
            assert!(after.stripes <= before.stripes + 1, "{after:?}, {before:?}");
            let least = if crash { before.stripes - 6 } else { before.stripes };
            assert!(after.stripes >= least && after.mismatches == 1, "{after:?}, {before:?}");
            while array.status().scrub.is_some_and(|scrub| scrub.running) {
                rt.sleep(SECOND).await;
            }
            let end = array.status().scrub.expect("a scrub ran");
            assert!(end.complete, "{end:?}");
            assert_eq!((end.stripes, end.mismatches, end.repaired), (stripes, 2, 2), "{end:?}");
            // A scrub that has ended or was cancelled is not continued.
            let again = array.clone();
            drop(rt.spawn(async move { again.scrub(ScrubMode::Check).await }));
            rt.sleep(MILLISECOND / 100).await;
            array.cancel_scrub().await;
            assert!(!array.status().scrub.expect("a scrub ran").complete);
            array.stop().await.expect("stopped");
            let array = assemble(&rt, &members(&disks)).await;
            let last = array.status().scrub.expect("the result stays");
            assert!(!last.running && !last.complete, "{last:?}");
            array.stop().await.expect("stopped");
        }
    });
}
