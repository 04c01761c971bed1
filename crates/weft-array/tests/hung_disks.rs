//! A disk that stops answering costs its time limit once, and `fail` ends even that: no request
//! waits for it any more, whatever locks, log space and memory it holds.

use std::rc::Rc;

use crate::common::{assemble, make, options, pattern, read, rt, write};
use weft_array::{Array, AssembleOptions, MemberState, create};
use weft_code::SlotNo;
use weft_disk::{
    BoundedDisk, Disk, Fault, FaultDisk, Faults, QueueConfig, QueuedDisk, RamDisk, TICKS,
};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, SECOND, Task};

const LIMIT: Nanos = 30 * SECOND;

/// The latest time at which a request is abandoned.
const LATEST: Nanos = LIMIT + LIMIT / TICKS as Nanos;

const HUNG: Fault = Fault::Delay(3600 * SECOND);

const CODES: [&str; 4] = ["raid5", "raid6", "raid1", "rs:3+2"];

/// Disks as the daemon opens them, and the means to make them hang.
fn disks(rt: &Rt, count: usize) -> (Vec<Rc<dyn Disk>>, Vec<Faults>) {
    (0..count).map(|n| disk(rt, n)).unzip()
}

fn disk(rt: &Rt, number: usize) -> (Rc<dyn Disk>, Faults) {
    let ram = Rc::new(RamDisk::new(&format!("disk{number}"), 16 << 20, 512));
    let (disk, faults) = FaultDisk::new(rt, ram);
    // Each operation takes some time, so that requests overlap.
    faults.inject(Fault::Delay(50_000));
    let disk = Rc::new(BoundedDisk::new(rt, Rc::new(disk), LIMIT));
    (Rc::new(QueuedDisk::new(disk, QueueConfig::default())), faults)
}

fn width(code: &str) -> usize {
    if code == "raid1" { 3 } else { 5 }
}

/// Writes all over the array, many more than fit in memory at a time.
fn load(rt: &Rt, array: &Array, count: u64) -> Vec<Task<()>> {
    let size = array.size_bytes();
    let task = |n: u64| {
        let (array, len) = (array.clone(), if n.is_multiple_of(3) { 256 << 10 } else { 4096 });
        let offset = (n * 37 * 4096) % (size - len as u64) / 4096 * 4096;
        rt.spawn(async move {
            let data = Frozen::copy_from(&pattern(offset, len, 2));
            array.write(offset, data, n.is_multiple_of(7)).await.expect("written");
            if n.is_multiple_of(50) {
                array.flush().await.expect("flushed");
            }
        })
    };
    (0..count).map(task).collect()
}

fn missing(array: &Array) -> Vec<usize> {
    let slots = array.status().slots.into_iter();
    slots.filter(|slot| slot.state == MemberState::Missing).map(|slot| slot.slot.0).collect()
}

#[test]
fn a_hung_member_is_failed_after_the_time_limit_and_all_requests_end() {
    for code in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (disks, faults) = disks(&rt, width(code));
            let array = make(&rt, code, &disks).await;
            let size = array.size_bytes() as usize;
            write(&array, 0, &pattern(0, size, 2)).await;
            faults[1].inject(HUNG);
            let began = rt.now();
            for task in load(&rt, &array, 800) {
                task.await;
            }
            assert!(
                rt.now() - began < LATEST + SECOND,
                "{code}: {} s",
                (rt.now() - began) / SECOND
            );
            assert_eq!(missing(&array), [1], "{code}");
            assert_eq!(read(&array, 0, size).await, pattern(0, size, 2), "{code}");
            array.stop().await.expect("stopped");
        });
    }
}

#[test]
fn reads_that_get_no_answer_fail_the_member_and_give_the_right_bytes() {
    for code in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (disks, faults) = disks(&rt, width(code));
            let array = make(&rt, code, &disks).await;
            let size = array.size_bytes() as usize;
            write(&array, 0, &pattern(0, size, 1)).await;
            faults[0].inject(HUNG);
            let began = rt.now();
            // A request over many units: some of its pieces come back in other buffers.
            assert_eq!(read(&array, 0, size).await, pattern(0, size, 1), "{code}");
            assert!(rt.now() - began < LATEST + SECOND, "{code}");
            assert_eq!(missing(&array), [0], "{code}");
            let slot = &array.status().slots[0];
            assert_eq!(slot.read_errors, 0, "{code}: a hung disk is no bad sector");
        });
    }
}

#[test]
fn failing_a_hung_member_ends_its_waiting_requests_at_once() {
    for code in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (disks, faults) = disks(&rt, width(code));
            let array = make(&rt, code, &disks).await;
            let size = array.size_bytes() as usize;
            write(&array, 0, &pattern(0, size, 2)).await;
            faults[1].inject(HUNG);
            let mut tasks = load(&rt, &array, 800);
            let degraded = array.clone();
            tasks.push(rt.spawn(async move {
                let (result, _) = degraded.read(0, Buf::new(1 << 20)).await;
                result.expect("read");
            }));
            rt.sleep(5 * SECOND).await;
            assert!(tasks.iter().any(|task| !task.is_finished()), "{code}: nothing waits");
            assert!(missing(&array).is_empty(), "{code}");
            let began = rt.now();
            array.fail(SlotNo(1)).await.expect("failed");
            assert!(rt.now() - began < 100 * MILLISECOND, "{code}: the command had to wait");
            assert_eq!(missing(&array), [1], "{code}");
            for task in tasks {
                task.await;
            }
            assert!(rt.now() - began < SECOND, "{code}: {} ms", (rt.now() - began) / MILLISECOND);
            assert_eq!(read(&array, 0, size).await, pattern(0, size, 2), "{code}");
        });
    }
}

#[test]
fn a_stop_ends_although_a_member_hangs() {
    for code in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (disks, faults) = disks(&rt, width(code));
            let array = make(&rt, code, &disks).await;
            write(&array, 0, &pattern(0, 1 << 20, 1)).await;
            faults[2].inject(HUNG);
            let began = rt.now();
            array.stop().await.expect("stopped");
            assert!(rt.now() - began < LATEST + SECOND, "{code}");
            // It was excluded: what it missed is known.
            faults[2].clear();
            let (rest, _): (Vec<_>, Vec<_>) = disks.iter().enumerate().partition(|(n, _)| *n != 2);
            let rest: Vec<_> = rest.into_iter().map(|(_, disk)| disk.clone()).collect();
            let array = assemble(&rt, &rest).await;
            assert_eq!(missing(&array), [2], "{code}");
            assert_eq!(read(&array, 0, 1 << 20).await, pattern(0, 1 << 20, 1), "{code}");
        });
    }
}

#[test]
fn disks_that_hang_before_assembly_cost_one_time_limit_together() {
    let rt = rt();
    rt.clone().block_on(async move {
        let (disks, faults) = disks(&rt, 5);
        let array = make(&rt, "raid6", &disks).await;
        write(&array, 0, &pattern(0, 1 << 20, 1)).await;
        array.stop().await.expect("stopped");
        faults[1].inject(HUNG);
        faults[3].inject(HUNG);
        let began = rt.now();
        let array = assemble(&rt, &disks).await;
        assert!(rt.now() - began < LATEST + SECOND, "{} s", (rt.now() - began) / SECOND);
        assert_eq!(missing(&array), [1, 3]);
        assert_eq!(read(&array, 0, 1 << 20).await, pattern(0, 1 << 20, 1));
    });
}

#[test]
fn a_disk_that_hangs_while_it_is_added_or_made_a_member_is_refused_in_time() {
    let rt = rt();
    rt.clone().block_on(async move {
        let (mut all, faults) = disks(&rt, 5);
        let spare = all.pop().expect("a spare");
        faults[0].inject(HUNG);
        let began = rt.now();
        create(&all, &options("raid5")).await.expect_err("a disk hangs");
        assert!(rt.now() - began < LATEST + SECOND);
        let (all, _) = disks(&rt, 4);
        let array = make(&rt, "raid5", &all).await;
        faults[4].inject(HUNG);
        let began = rt.now();
        array.add_spare(spare).await.expect_err("it hangs");
        assert!(rt.now() - began < LATEST + SECOND);
        assert!(missing(&array).is_empty());
        write(&array, 0, &pattern(0, 1 << 20, 1)).await;
    });
}

#[test]
fn a_recovery_ends_although_a_member_hangs_in_it() {
    for after in [1, 5, 20, 60] {
        let rt = rt();
        rt.clone().block_on(async move {
            let (disks, faults) = disks(&rt, 5);
            let array = make(&rt, "raid6", &disks).await;
            write(&array, 0, &pattern(0, 1 << 20, 1)).await;
            array.flush().await.expect("flushed");
            // Not stopped cleanly: the next assembly recovers.
            let at = faults[1].counts().total() + after;
            faults[1].inject_at(at, HUNG);
            let began = rt.now();
            let options = AssembleOptions { nonce: 99, ..AssembleOptions::default() };
            let again = Array::assemble(&rt, disks, options).await.expect("assembled");
            assert_eq!(read(&again, 0, 1 << 20).await, pattern(0, 1 << 20, 1));
            again.flush().await.expect("flushed");
            assert!(rt.now() - began < LATEST + 10 * SECOND, "{after}");
            drop(array);
        });
    }
}
