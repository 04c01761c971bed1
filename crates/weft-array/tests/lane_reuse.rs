//! A lane of the region map goes to the next disk only when no superblock on disk gives it to the
//! last one. A replacement dies, a spare takes the slot of a former member, a former member is
//! forgotten; before the superblock that says so is durable, another disk fails, and then the
//! power. All disks return: the marks must still say what the disk of the old superblock lacks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{SUPERBLOCKS, UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{Array, ArrayState, AssembleOptions, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Frozen, MILLISECOND, Rt, SECOND};

const SIZE: u64 = (3 << 20) + 64 * UNIT;
const STRIPES: usize = 24;
/// Bytes at the start that are being written when the power goes: either version is right.
const IN_PROGRESS: usize = 512;

/// What fails while the superblock without the lane's disk is being written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Nothing,
    Fails(usize),
}

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64) -> Rc<Array> {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Rc::new(Array::assemble(rt, disks.to_vec(), options).await.expect("assembled"))
}

async fn all_clean(rt: &Rt, array: &Array) {
    rt.sleep(20 * SECOND).await;
    assert_eq!(array.status().regions.dirty, 0);
}

/// An array whose member 1 is being copied to the last disk.
async fn replacing(rt: &Rt, all: &[Rc<dyn Disk>]) -> (Rc<Array>, Vec<u8>) {
    let (last, members) = all.split_last().expect("disks");
    create(members, &options("raid5")).await.expect("created");
    let array = assembled(rt, members, 1).await;
    let bytes = pattern(0, STRIPES * array.stripe_bytes() as usize, 1);
    write(&array, 0, &bytes).await;
    array.flush().await.expect("flushed");
    all_clean(rt, &array).await;
    array.set_paused(true);
    array.replace(SlotNo(1), last.clone()).await.expect("started");
    array.flush().await.expect("flushed");
    (array, bytes)
}

/// An array without its member 1, which missed all that was written last. The last disk is a spare.
async fn degraded(rt: &Rt, all: &[Rc<dyn Disk>]) -> (Rc<Array>, Vec<u8>) {
    let (last, members) = all.split_last().expect("disks");
    create(members, &options("raid6")).await.expect("created");
    let array = assembled(rt, members, 1).await;
    let len = STRIPES * array.stripe_bytes() as usize;
    write(&array, 0, &pattern(0, len, 1)).await;
    array.stop().await.expect("stopped");
    let without: Vec<_> = [&members[..1], &members[2..]].concat();
    let array = assembled(rt, &without, 2).await;
    let bytes = pattern(0, len / 2, 7);
    write(&array, 0, &bytes).await;
    array.flush().await.expect("flushed");
    all_clean(rt, &array).await;
    array.set_paused(true);
    array.add_spare(last.clone()).await.expect("added");
    rt.sleep(100 * MILLISECOND).await;
    (array, [bytes, pattern(len as u64 / 2, len - len / 2, 1)].concat())
}

/// How the lane is freed in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Frees {
    ReplacementFails,
    SpareTakesSlot,
    Forgotten,
}

/// What the disks hold after a power cut while the superblocks of the change are being written.
fn cut(frees: Frees, next: Next) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let count = if frees == Frees::ReplacementFails { 5 } else { 6 };
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count]);
        let all = members(&disks);
        let (array, mut expected) = match frees {
            Frees::ReplacementFails => replacing(&rt, &all).await,
            _ => degraded(&rt, &all).await,
        };
        disks.iter().for_each(|disk| disk.faults.hold(SUPERBLOCKS, 0));
        let changed = array.clone();
        match frees {
            Frees::ReplacementFails => drop(rt.spawn(async move {
                let _ = changed.fail_replacement(SlotNo(1)).await;
            })),
            Frees::SpareTakesSlot => array.set_paused(false),
            Frees::Forgotten => drop(rt.spawn(async move {
                let _ = changed.forget(SlotNo(1)).await;
            })),
        }
        rt.sleep(5 * MILLISECOND).await;
        if frees == Frees::Forgotten && next == Next::Nothing {
            // Nobody needs to wait for the superblock: this is acknowledged, and clean on disk.
            let part = pattern(0, expected.len(), 9);
            write(&array, 0, &part).await;
            array.flush().await.expect("flushed");
            all_clean(&rt, &array).await;
            expected = part;
        }
        if let Next::Fails(slot) = next {
            let array = array.clone();
            drop(rt.spawn(async move {
                let _ = array.fail(SlotNo(slot)).await;
            }));
            rt.sleep(MILLISECOND).await;
        }
        // It makes its region dirty: a page of the map is written.
        let acknowledged = Rc::new(Cell::new(false));
        let (writer, done) = (array.clone(), acknowledged.clone());
        drop(rt.spawn(async move {
            let part = Frozen::copy_from(&pattern(0, IN_PROGRESS, 2));
            done.set(writer.write(0, part, false).await.is_ok());
        }));
        rt.sleep(50 * MILLISECOND).await;
        let needs_no_change = frees == Frees::Forgotten && next == Next::Nothing;
        assert_eq!(acknowledged.get(), needs_no_change, "{frees:?} {next:?}");
        let media = |disk: &Rc<TestDisk>| Leave::Nothing.of(&disk.medium.borrow());
        *out.borrow_mut() = (disks.iter().map(media).collect(), expected);
    });
    left.take()
}

#[test]
fn marks_stay_until_no_superblock_needs_them() {
    for (frees, fails) in [
        (Frees::ReplacementFails, vec![1, 3]),
        (Frees::SpareTakesSlot, vec![3]),
        (Frees::Forgotten, vec![3]),
    ] {
        let next = fails.into_iter().map(Next::Fails).chain([Next::Nothing]);
        for next in next {
            let what = format!("{frees:?}, then {next:?}");
            let (media, expected) = cut(frees, next);
            run(move |rt| async move {
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let all = members(&disks);
                let given = if frees == Frees::ReplacementFails { all.len() } else { 5 };
                let array = assembled(&rt, &all[..given], 3).await;
                for _ in 0..60_000 {
                    if array.status().state == ArrayState::Healthy {
                        break;
                    }
                    rt.sleep(MILLISECOND).await;
                }
                assert_eq!(array.status().state, ArrayState::Healthy, "{what}");
                let found = read(&array, 0, expected.len()).await;
                let pairs = found.iter().zip(&expected).skip(IN_PROGRESS);
                assert_eq!(pairs.filter(|(one, other)| one != other).count(), 0, "{what}");
                let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!(report.mismatches, 0, "{what}");
            });
        }
    }
}

/// Nine mirrors of two: eight members leave, and each gets a lane.
const PAIRS: usize = 9;

/// An array whose lanes all belong to former members.
async fn without_lanes(rt: &Rt, all: &[Rc<dyn Disk>]) -> (Rc<Array>, Vec<u8>) {
    create(all, &options("raid10")).await.expect("created");
    let array = assembled(rt, all, 1).await;
    let bytes = pattern(0, 4 * array.stripe_bytes() as usize, 1);
    write(&array, 0, &bytes).await;
    for pair in 0..PAIRS - 1 {
        array.fail(SlotNo(2 * pair)).await.expect("failed");
    }
    write(&array, 0, &bytes).await;
    array.flush().await.expect("flushed");
    (array, bytes)
}

/// With all lanes in use, a joining disk takes the lane of a former member, which must not come
/// back by its marks any more.
#[test]
fn a_former_member_whose_lane_was_taken_does_not_come_back_by_its_marks() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 2 * PAIRS + 1]);
        let all = members(&disks);
        let (array, bytes) = without_lanes(&rt, &all[..2 * PAIRS]).await;
        array.replace(SlotNo(2 * PAIRS - 1), all[2 * PAIRS].clone()).await.expect("started");
        let returning = array.take_back(all[0].clone()).await.expect("read");
        assert_eq!(returning, None, "another disk has its lane");
        let other = array.take_back(all[2].clone()).await.expect("read");
        assert_eq!(other, Some(SlotNo(2)), "it kept its lane");
        assert!(read(&array, 0, bytes.len()).await == bytes);
    });
}

/// The power goes before the superblock that takes the lane is durable. What is written first
/// meanwhile goes to the joining disk, and must still be marked for the former member.
#[test]
fn a_lane_taken_from_a_former_member_is_durably_taken_first() {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 2 * PAIRS + 1]);
        let all = members(&disks);
        let (array, mut bytes) = without_lanes(&rt, &all[..2 * PAIRS]).await;
        all_clean(&rt, &array).await;
        // All but the joining disk, which gets its first one before it is a member.
        disks[..2 * PAIRS].iter().for_each(|disk| disk.faults.hold(SUPERBLOCKS, 0));
        let (joining, disk) = (array.clone(), all[2 * PAIRS].clone());
        drop(rt.spawn(async move {
            let _ = joining.replace(SlotNo(2 * PAIRS - 1), disk).await;
        }));
        rt.sleep(100 * MILLISECOND).await;
        let fresh = pattern(bytes.len() as u64, bytes.len(), 5);
        write(&array, bytes.len() as u64, &fresh).await;
        array.flush().await.expect("flushed");
        all_clean(&rt, &array).await;
        bytes.extend(fresh);
        let media = disks.iter().map(|disk| Leave::Nothing.of(&disk.medium.borrow()));
        *out.borrow_mut() = (media.collect(), bytes);
    });
    let (media, expected) = left.take();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let all = members(&disks);
        let array = assembled(&rt, &all[..2 * PAIRS], 2).await;
        for pair in 0..PAIRS - 1 {
            let back = array.take_back(all[2 * pair].clone()).await.expect("read");
            assert_eq!(back, Some(SlotNo(2 * pair)), "it kept its lane");
        }
        for _ in 0..60_000 {
            if array.status().state == ArrayState::Healthy {
                break;
            }
            rt.sleep(MILLISECOND).await;
        }
        assert_eq!(array.status().state, ArrayState::Healthy, "all former members are back");
        assert!(read(&array, 0, expected.len()).await == expected);
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(report.mismatches, 0);
    });
}
