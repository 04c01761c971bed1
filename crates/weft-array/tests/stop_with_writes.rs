//! An array is stopped while writes are in progress and a slot is being rebuilt. A write whose
//! record is on disk is carried out: the rebuild, which finishes what it can before the array
//! stops, relies on that. The program is killed at any disk operation of the stop, and another disk
//! is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding, mix};
use crate::common::*;
use futures_util::future::join;
use weft_array::{Array, ArrayState, AssembleOptions, create};
use weft_disk::Disk;
use weft_layout::{code_for, for_code};
use weft_rt::{Frozen, MICROSECOND, MILLISECOND, Rt};

/// These survive two lost members.
const CODES: [(&str, usize); 3] = [("raid6", 6), ("drc-g:4,2,1", 7), ("rs:4+3", 7)];

const SIZE: u64 = (2 << 20) + 16 * UNIT;

/// A write begins at the first of these operations of a rebuild, and the stop at the second.
#[derive(Debug, Clone, Copy)]
struct When {
    write: u64,
    stop: u64,
}

struct Run {
    /// The contents of the disks at each operation from the stop on; the last one is after the
    /// stop.
    moments: Vec<Vec<Medium>>,
    /// The slot that is being rebuilt, whose unit the write changes.
    slot: usize,
    written: bool,
    /// The rebuild had not ended before the stop.
    in_time: bool,
}

async fn until(rt: &Rt, step: &Cell<u64>, array: &Array, wanted: u64) {
    while step.get() < wanted && array.status().state != ArrayState::Healthy {
        rt.sleep(MICROSECOND).await;
    }
}

fn stop_while_writing(code: &'static str, slots: usize, when: When) -> Run {
    let found: Rc<RefCell<Option<Run>>> = Rc::default();
    let result = found.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); slots + 1]);
        let mut options = options(code);
        let k = code_for(options.code, Default::default(), slots).expect("a code").k() as u64;
        options.region_bytes = Some(4 * k * UNIT);
        let superblock = create(&members(&disks[..slots]), &options).await.expect("created");
        let array = assemble(&rt, &members(&disks[..slots])).await;
        let size = array.size_bytes() as usize;
        write(&array, 0, &pattern(0, size, 1)).await;
        array.flush().await.expect("flushed");
        let layout = for_code(superblock.code, superblock.algorithm, slots, superblock.rows);
        let slot = layout.expect("laid").place(0, 0).slot;
        array.fail(slot).await.expect("can lose it");
        array.add_spare(disks[slots].clone()).await.expect("added");
        let (step, stopping) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
        let kept = moments.clone();
        let (seen, counter, noting) = (disks.clone(), step.clone(), stopping.clone());
        power.watch(move || {
            counter.set(counter.get() + 1);
            if noting.get() {
                kept.borrow_mut().push(media(&seen));
            }
        });
        let writing = async {
            until(&rt, &step, &array, when.write).await;
            let data = weft_rt::Frozen::copy_from(&pattern(0, UNIT as usize, 2));
            array.write(0, data, false).await.is_ok()
        };
        let ending = async {
            until(&rt, &step, &array, when.stop).await;
            let in_time = array.status().state != ArrayState::Healthy;
            stopping.set(true);
            array.stop().await.expect("stopped");
            in_time
        };
        let (written, in_time) = join(writing, ending).await;
        power.watch(|| {});
        let mut moments = moments.take();
        moments.push(media(&disks));
        *result.borrow_mut() = Some(Run { moments, slot: slot.0, written, in_time });
    });
    found.take().expect("it came to its end")
}

fn media(disks: &[Rc<TestDisk>]) -> Vec<Medium> {
    disks.iter().map(|disk| disk.medium.borrow().clone()).collect()
}

fn after(media: Vec<Medium>, failed: usize, lost: usize, written: bool, what: String) {
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let left = disks.iter().enumerate().filter(|(n, _)| ![failed, lost].contains(n));
        let left: Vec<Rc<dyn Disk>> = left.map(|(_, disk)| disk.clone() as Rc<dyn Disk>).collect();
        let options = AssembleOptions { nonce: 9, force_degraded: true, ..Default::default() };
        let array = match Array::assemble(&rt, left, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let size = array.size_bytes() as usize;
        let found = read(&array, 0, size).await;
        let (unit, rest) = found.split_at(UNIT as usize);
        assert!(rest == &pattern(0, size, 1)[UNIT as usize..], "{what}");
        let is = |version| *unit == pattern(0, UNIT as usize, version);
        assert!(is(2) || !written && is(1), "{what}");
    });
}

#[test]
fn a_stop_does_not_tear_a_write_from_its_record() {
    for (code, slots) in CODES {
        let (mut tried, mut written) = (0, 0);
        for write in (0..).step_by(3) {
            let mut in_time = false;
            for later in (write % 2..8).step_by(2) {
                let when = When { write, stop: write + later };
                let run = stop_while_writing(code, slots, when);
                in_time |= run.in_time;
                written += u64::from(run.written);
                let last = run.moments.len() - 1;
                let moments = run.moments.into_iter().enumerate();
                for (number, media) in
                    moments.filter(|(n, _)| n % 3 == later as usize % 3 || *n == last)
                {
                    let leave = [Leave::All, Leave::Completed][number % 2];
                    let media = media.iter().map(|medium| leave.of(medium)).collect();
                    let lost = (mix(number as u64 + later) as usize) % slots;
                    let what = format!("{code}, {when:?}, step {number}, {leave:?}, lost {lost}");
                    let written = run.written && number == last;
                    after(media, run.slot, lost, written, what);
                    tried += 1;
                }
            }
            if !in_time {
                break;
            }
        }
        assert!(tried > 400 && written > 10, "{code}: {tried} cuts, {written} written");
    }
}

#[test]
fn a_write_that_waited_for_room_ends_at_the_stop_if_there_is_room_now() {
    run(|rt| async move {
        for has_room in [true, false] {
            let bench = Bench::new(&rt, "raid5", 4).await;
            let (_, offset) = bench.place(0, 0);
            let data = offset..offset + UNIT;
            let full = Rc::new(Cell::new(true));
            for disk in &bench.disks {
                let (full, data) = (full.clone(), data.clone());
                let room =
                    move |at: u64, _: u64, _: bool| (full.get() && data.contains(&at)).then_some(0);
                *disk.faults.room.borrow_mut() = Some(Box::new(room));
            }
            let (array, bytes) = (bench.array.clone(), pattern(0, UNIT as usize, 1));
            let data = Frozen::copy_from(&bytes);
            let written = rt.spawn(async move { array.write(0, data, false).await });
            rt.sleep(10 * MILLISECOND).await;
            assert!(!written.is_finished());
            full.set(!has_room);
            assert_eq!(bench.array.stop().await.is_ok(), has_room);
            drop(written);
            full.set(false);
            let array = assemble(&rt, &members(&bench.disks)).await;
            assert!(!has_room || read(&array, 0, bytes.len()).await == bytes);
        }
    });
}
