//! The label is the smallest part of a member, and the first that is overwritten by accident. The
//! superblocks make up for it; a start and a scrub write it again, and damaged superblock copies
//! too. What is erased on purpose stays erased.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::examine::{CopyReport, LabelReport, examine};
use weft_array::superblock::read_superblock;
use weft_array::{ArrayState, Event, ScrubMode, create, wipe};
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

const SIZE: u64 = (2 << 20) + 16 * UNIT;
const COPIES: [u64; 2] = [128 << 10, 256 << 10];

/// An array that was stopped, and what it holds.
async fn stopped(rt: &Rt, all: &[Rc<dyn Disk>]) -> Vec<u8> {
    create(all, &options("raid5")).await.expect("created");
    let array = assemble(rt, all).await;
    let bytes = pattern(0, 8 * array.stripe_bytes() as usize, 1);
    write(&array, 0, &bytes).await;
    array.stop().await.expect("stopped");
    bytes
}

fn overwrite(disk: &TestDisk, offset: u64, bytes: &[u8]) {
    disk.medium.borrow_mut().poke(offset, bytes);
}

async fn is_sound(disk: &Rc<dyn Disk>) -> bool {
    let report = examine(&**disk).await.expect("read");
    let copies = report.copies.iter().all(|copy| matches!(copy, CopyReport::Whole { .. }));
    matches!(report.label, LabelReport::Whole { .. }) && copies
}

/// What happens to the first 4 KiB.
#[derive(Debug, Clone, Copy)]
enum Label {
    Zeroed,
    Damaged,
    Unreadable,
}

#[test]
fn an_array_without_any_label_starts_and_has_its_labels_again() {
    for lost in [Label::Zeroed, Label::Damaged, Label::Unreadable] {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
            let all = members(&disks);
            let bytes = stopped(&rt, &all).await;
            for disk in &disks {
                match lost {
                    Label::Zeroed => overwrite(disk, 0, &[0; 4096]),
                    Label::Damaged => overwrite(disk, 1024, b"by accident"),
                    Label::Unreadable => disk.faults.unreadable.borrow_mut().extend([0]),
                }
            }
            let report = examine(&*all[0]).await.expect("read");
            assert!(matches!(report.label, LabelReport::Lost { .. }), "{lost:?}: {report:?}");
            let array = assemble(&rt, &all).await;
            assert_eq!(array.status().state, ArrayState::Healthy, "{lost:?}");
            // The first subscriber also gets the events of the start.
            let events = array.subscribe_from_start();
            let told: Vec<Event> = std::iter::from_fn(|| events.try_next()).collect();
            let repairs =
                told.iter().filter(|event| matches!(event, Event::MetadataRepaired { .. }));
            assert_eq!(repairs.count(), all.len(), "{lost:?}: {told:?}");
            assert!(read(&array, 0, bytes.len()).await == bytes, "{lost:?}");
            for disk in &all {
                assert!(is_sound(disk).await, "{lost:?}");
            }
        });
    }
}

#[test]
fn a_scrub_finds_and_repairs_damaged_labels_and_superblocks() {
    for (label, copies) in [(true, 0..0), (false, 0..1), (false, 0..2), (true, 0..2)] {
        run(move |rt| async move {
            let what = format!("label {label}, copies {copies:?}");
            let bench = Bench::new(&rt, "raid5", 4).await;
            let bytes = pattern(0, 50_000, 1);
            write(&bench.array, 0, &bytes).await;
            bench.array.flush().await.expect("flushed");
            let disk = &bench.disks[2];
            if label {
                overwrite(disk, 0, &[0; 4096]);
            }
            for copy in &COPIES[copies.clone()] {
                overwrite(disk, *copy, &[0x5a; 4096]);
            }
            let events = bench.array.subscribe();
            bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
            let told: Vec<Event> = std::iter::from_fn(|| events.try_next()).collect();
            let repaired = |event: &Event| matches!(event, Event::MetadataRepaired { disk, .. } if disk == "test2");
            assert!(told.iter().any(repaired), "{what}: {told:?}");
            for disk in members(&bench.disks) {
                assert!(is_sound(&disk).await, "{what}");
            }
            // A sound array gives no such events, and its disks no writes.
            let written =
                || bench.disks.iter().map(|disk| disk.writes.borrow().len()).sum::<usize>();
            bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
            rt.sleep(20_000 * MILLISECOND).await;
            let before = written();
            bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
            let told: Vec<Event> = std::iter::from_fn(|| events.try_next()).collect();
            assert!(!told.iter().any(repaired), "{what}: {told:?}");
            // The scrub's own result: one superblock each.
            assert!(written() - before <= 2 * bench.disks.len(), "{what}");
        });
    }
}

/// A disk that another program uses now is no member, even if old superblocks are left on it.
#[test]
fn superblocks_under_another_programs_data_do_not_count() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        stopped(&rt, &all).await;
        // Something in the first block that is not known; btrfs, which leaves that block empty.
        overwrite(&disks[0], 0, &[0; 4096]);
        overwrite(&disks[0], 1024, b"in use");
        overwrite(&disks[1], 0, &[0; 4096]);
        overwrite(&disks[1], (64 << 10) + 64, b"_BHRfS_M");
        for disk in &all[..2] {
            assert!(matches!(read_superblock(&**disk).await, Ok(None)));
        }
    });
}

#[test]
fn a_member_that_is_erased_is_none_from_the_first_write_on() {
    let moments: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        stopped(&rt, &all).await;
        let disk = disks[1].clone();
        power.watch(move || {
            for leave in [Leave::All, Leave::Nothing] {
                out.borrow_mut().push(leave.of(&disk.medium.borrow()));
            }
        });
        wipe(&*all[1], false).await.expect("wiped");
        power.watch(|| ());
        assert!(matches!(read_superblock(&*all[1]).await, Ok(None)));
    });
    let mut is_gone = false;
    for medium in moments.take() {
        let gone = Rc::new(RefCell::new(false));
        let seen = gone.clone();
        run(move |rt| async move {
            let disk = holding(&rt, &Power::new(), SIZE, &[medium]).remove(0);
            let found = read_superblock(&*disk).await;
            *seen.borrow_mut() = found.expect("not damaged").is_none();
        });
        // Only the first write may be there or not.
        is_gone |= gone.take();
    }
    assert!(is_gone);
}

/// A label is wiped from an array that could not be created, whatever a disk took before it failed.
#[test]
fn a_failed_creation_leaves_no_member() {
    run(|rt| async move {
        for writes in 0.. {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
            let all = members(&disks);
            disks[3].faults.gone_after_writes.set(Some(writes));
            if create(&all, &options("raid5")).await.is_ok() {
                assert!(writes > 5, "labels are written last");
                return;
            }
            disks[3].faults.gone.set(false);
            for disk in &all {
                assert!(matches!(read_superblock(&**disk).await, Ok(None)), "{writes} writes");
            }
        }
    });
}
