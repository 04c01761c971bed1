//! A former member that comes back is rebuilt only where it lacks something: what was written since
//! it left, and what was not flushed when it left. A power cut at any operation loses nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding, mix};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{
    Array, ArrayState, AssembleOptions, Event, MemberState, ScrubMode, Superblock, create,
};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

const SIZE: u64 = (2 << 20) + 16 * UNIT;
/// The member that leaves.
const LEAVES: usize = 1;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64, what: &str) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    match Array::assemble(rt, disks.to_vec(), options).await {
        Ok(array) => array,
        Err(error) => panic!("{what}: {error}"),
    }
}

async fn healthy(rt: &Rt, array: &Array, what: &str) {
    for _ in 0..20_000 {
        if array.status().state == ArrayState::Healthy {
            return;
        }
        rt.sleep(MILLISECOND).await;
    }
    panic!("{what}: {:#?}", array.status());
}

fn without(all: &[Rc<dyn Disk>], slot: usize) -> Vec<Rc<dyn Disk>> {
    all.iter().enumerate().filter(|(n, _)| *n != slot).map(|(_, disk)| disk.clone()).collect()
}

/// All data is there, also without another member, so that the rebuilt data is needed.
async fn is_whole(array: &Array, expected: &[u8], what: &str) {
    assert!(read(array, 0, expected.len()).await == expected, "{what}");
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    array.fail(SlotNo(0)).await.expect("can lose it");
    assert!(read(array, 0, expected.len()).await == expected, "{what}: without another");
}

/// Bytes written to the data area of a disk since `from` writes.
fn data_written(disk: &TestDisk, superblock: &Superblock, from: usize) -> u64 {
    let writes = disk.writes.borrow();
    let data = writes[from..].iter().filter(|(offset, _)| *offset >= superblock.area.data_offset);
    data.map(|(_, len)| len).sum()
}

/// How the member leaves and comes back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leaves {
    ByCommand,
    DiskGone,
    AbsentAtAssembly,
}

#[test]
fn only_missed_regions_are_rebuilt() {
    for (code, slots) in CODES {
        for leaves in [Leaves::ByCommand, Leaves::DiskGone, Leaves::AbsentAtAssembly] {
            run(move |rt| async move {
                let what = format!("{code}, {leaves:?}");
                let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
                let all = members(&disks);
                let superblock = create(&all, &options(code)).await.expect("created");
                let mut array = assembled(&rt, &all, 1, &what).await;
                let stripe = array.stripe_bytes() as usize;
                let stripes = array.size_bytes() as usize / stripe;
                let mut expected = pattern(0, stripes * stripe, 1);
                write(&array, 0, &expected).await;
                array.flush().await.expect("flushed");
                // Nothing is dirty any more.
                rt.sleep(10_000 * MILLISECOND).await;
                match leaves {
                    Leaves::ByCommand => array.fail(SlotNo(1)).await.expect("failed"),
                    Leaves::DiskGone => disks[LEAVES].faults.gone.set(true),
                    Leaves::AbsentAtAssembly => {
                        array.stop().await.expect("stopped");
                        array = assembled(&rt, &without(&all, LEAVES), 2, &what).await;
                    }
                }
                // Two stripes, the second one partly.
                let (at, len) = (2 * stripe, stripe + 512);
                expected[at..at + len].copy_from_slice(&pattern(at as u64, len, 2));
                write(&array, at as u64, &expected[at..at + len]).await;
                array.flush().await.expect("flushed");
                disks[LEAVES].faults.gone.set(false);
                let before = disks[LEAVES].writes.borrow().len();
                if leaves == Leaves::AbsentAtAssembly {
                    array.stop().await.expect("stopped");
                    array = assembled(&rt, &all, 3, &what).await;
                } else {
                    let events = array.subscribe();
                    let slot = array.take_back(all[LEAVES].clone()).await.expect("taken back");
                    assert_eq!(slot, Some(SlotNo(LEAVES)), "{what}");
                    let told = std::iter::from_fn(|| events.try_next());
                    let returned =
                        |e: &Event| matches!(e, Event::MemberReturned { stale_regions: 1 | 2, .. });
                    assert!(told.into_iter().any(|e| returned(&e)), "{what}");
                }
                healthy(&rt, &array, &what).await;
                let written = data_written(&disks[LEAVES], &superblock, before);
                assert!(written > 0 && written <= 2 * UNIT, "{what}: {written} bytes rebuilt");
                is_whole(&array, &expected, &what).await;
                array.stop().await.expect("stopped");
            });
        }
    }
}

/// The contents of a disk's cache are gone when the disk leaves and comes back.
#[test]
fn unflushed_regions_are_rebuilt() {
    for (code, slots) in CODES {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
            let all = members(&disks);
            create(&all, &options(code)).await.expect("created");
            let array = assembled(&rt, &all, 1, code).await;
            let len = 6 * array.stripe_bytes() as usize;
            write(&array, 0, &pattern(0, len, 1)).await;
            array.flush().await.expect("flushed");
            let expected = pattern(0, len, 2);
            write(&array, 0, &expected).await;
            array.fail(SlotNo(1)).await.expect("failed");
            let left = Leave::Nothing.of(&disks[LEAVES].medium.borrow());
            *disks[LEAVES].medium.borrow_mut() = left;
            let slot = array.take_back(all[LEAVES].clone()).await.expect("taken back");
            assert_eq!(slot, Some(SlotNo(LEAVES)), "{code}");
            healthy(&rt, &array, code).await;
            is_whole(&array, &expected, code).await;
            array.stop().await.expect("stopped");
        });
    }
}

/// Nothing of it has to be rebuilt, while jobs look for work all the time.
#[test]
fn a_member_that_lacks_nothing_is_whole_only_once_it_belongs_to_the_array() {
    for (code, slots) in CODES {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
            let all = members(&disks);
            create(&all, &options(code)).await.expect("created");
            let array = assembled(&rt, &all, 1, code).await;
            let expected = pattern(0, array.stripe_bytes() as usize, 1);
            write(&array, 0, &expected).await;
            array.flush().await.expect("flushed");
            rt.sleep(10_000 * MILLISECOND).await;
            array.fail(SlotNo(1)).await.expect("failed");
            let events = array.subscribe();
            let waking = async {
                for _ in 0..2000 {
                    array.set_paused(false);
                    rt.sleep(MILLISECOND / 100).await;
                }
            };
            let back = array.take_back(all[LEAVES].clone());
            let (slot, ()) = futures_util::future::join(back, waking).await;
            assert_eq!(slot.expect("taken back"), Some(SlotNo(LEAVES)), "{code}");
            healthy(&rt, &array, code).await;
            let ends = std::iter::from_fn(|| events.try_next());
            let order: Vec<Event> = ends
                .filter(|e| {
                    matches!(e, Event::RebuildStarted { .. } | Event::RebuildFinished { .. })
                })
                .collect();
            let in_order = [
                Event::RebuildStarted { slot: SlotNo(LEAVES), disk: "test1".into() },
                Event::RebuildFinished { slot: SlotNo(LEAVES) },
            ];
            assert!(order == in_order, "{code}: {order:?}");
            is_whole(&array, &expected, code).await;
            array.stop().await.expect("stopped");
        });
    }
}

/// A member that was set back to an earlier state, or used alone, is not in the state in which it
/// left.
#[test]
fn a_member_that_is_not_as_it_left_is_no_returning_one() {
    for used_elsewhere in [false, true] {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 3]);
            let all = members(&disks);
            create(&all, &options("raid1")).await.expect("created");
            let array = assembled(&rt, &all, 1, "raid1").await;
            let earlier = disks[LEAVES].medium.borrow().clone();
            write(&array, 0, &pattern(0, 4096, 1)).await;
            array.stop().await.expect("stopped");
            let array = assembled(&rt, &all, 2, "raid1").await;
            array.fail(SlotNo(1)).await.expect("failed");
            write(&array, 0, &pattern(0, 4096, 2)).await;
            if used_elsewhere {
                let medium = disks[LEAVES].medium.borrow().clone();
                let alone = holding(&rt, &Power::new(), SIZE, &[medium]);
                let options =
                    AssembleOptions { nonce: 9, force_degraded: true, ..Default::default() };
                let other = Array::assemble(&rt, members(&alone), options).await.expect("forced");
                write(&other, 8192, &pattern(8192, 4096, 3)).await;
                other.stop().await.expect("stopped");
                let medium = alone[0].medium.borrow().clone();
                *disks[LEAVES].medium.borrow_mut() = medium;
            } else {
                *disks[LEAVES].medium.borrow_mut() = earlier;
            }
            let slot = array.take_back(all[LEAVES].clone()).await.expect("looked at");
            assert_eq!(slot, None, "used elsewhere: {used_elsewhere}");
            array.stop().await.expect("stopped");
        });
    }
}

/// Writes to a unit that no member but `held` has, and whose write does not end before that disk is
/// released.
fn write_held(
    rt: &Rt,
    array: &Array,
    held: &Rc<TestDisk>,
    (stripe, unit): (u64, usize),
    at: u64,
) -> weft_rt::Task<()> {
    held.faults.hold(at..at + UNIT, 0);
    let offset = stripe * array.stripe_bytes() + unit as u64 * UNIT;
    let array = array.clone();
    rt.spawn(async move { write(&array, offset, &pattern(offset, UNIT as usize, 3)).await })
}

/// While a former member waits to be taken back, its slot gets another disk, which leaves in turn.
/// What the slot's lane says then is what that disk lacks.
#[test]
fn a_member_whose_slot_another_disk_had_meanwhile_is_not_taken_back() {
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let all = members(&disks);
        let superblock = create(&all[..4], &options("raid5")).await.expect("created");
        let array = assembled(&rt, &all[..4], 1, "raid5").await;
        let stripe = array.stripe_bytes();
        let stripes = array.size_bytes() / stripe;
        let mut expected = pattern(0, (stripes * stripe) as usize, 1);
        write(&array, 0, &expected).await;
        array.flush().await.expect("flushed");
        rt.sleep(10_000 * MILLISECOND).await;
        array.fail(SlotNo(LEAVES)).await.expect("failed");
        // What the former member lacks.
        let missed = pattern(0, 2 * stripe as usize, 2);
        write(&array, 0, &missed).await;
        expected[..missed.len()].copy_from_slice(&missed);
        array.flush().await.expect("flushed");
        let layout =
            weft_layout::for_code(superblock.code, superblock.algorithm, 4, superblock.rows)
                .expect("laid");
        // The last data unit of a slot, and where it is.
        let last_on = |slot: usize| {
            let units = (0..stripes).rev().flat_map(|stripe| [0, 1, 2].map(|unit| (stripe, unit)));
            let mut on = units.filter(|(stripe, unit)| layout.place(*stripe, *unit).slot.0 == slot);
            let (stripe, unit) = on.next().expect("it has some");
            let at = superblock.area.data_offset + layout.place(stripe, unit).row * UNIT;
            ((stripe, unit), at)
        };
        let (first, at) = last_on(0);
        let one = write_held(&rt, &array, &disks[0], first, at);
        rt.sleep(MILLISECOND).await;
        // The spare waits for the record of this write, and the former member for the next one's.
        array.add_spare(all[4].clone()).await.expect("added");
        rt.sleep(MILLISECOND).await;
        let (second, at) = last_on(2);
        assert_ne!(first.0, second.0, "the writes must not queue");
        let other = write_held(&rt, &array, &disks[2], second, at);
        rt.sleep(MILLISECOND).await;
        let back = {
            let (array, disk) = (array.clone(), all[LEAVES].clone());
            rt.spawn(async move { array.take_back(disk).await })
        };
        rt.sleep(MILLISECOND).await;
        disks[0].faults.release();
        one.await;
        rt.sleep(1000 * MILLISECOND).await;
        let state = || array.status().slots[LEAVES].state;
        assert_eq!(state(), MemberState::Rebuilding, "another disk has the slot");
        array.fail(SlotNo(LEAVES)).await.expect("failed");
        assert!(!back.is_finished(), "it still waits");
        disks[2].faults.release();
        other.await;
        for (stripe, unit) in [first, second] {
            let at = (stripe * 3 + unit as u64) * UNIT;
            expected[at as usize..][..UNIT as usize].copy_from_slice(&pattern(
                at,
                UNIT as usize,
                3,
            ));
        }
        assert_eq!(back.await.expect("looked at"), None, "another disk was there meanwhile");
        assert!(read(&array, 0, expected.len()).await == expected);
        let slot = array.take_back(all[LEAVES].clone()).await.expect("looked at");
        assert_eq!(slot, None, "the slot remembers the other disk");
        array.add_spare(all[LEAVES].clone()).await.expect("added as a new one");
        healthy(&rt, &array, "raid5").await;
        is_whole(&array, &expected, "raid5").await;
        array.stop().await.expect("stopped");
    });
}

/// The contents of all disks at one moment, and what must be there after a cut then.
struct Moment {
    media: Vec<Medium>,
    /// The last version of the sectors that was acknowledged and flushed; a write of the next one
    /// may be in progress.
    version: u8,
}

/// What the command requests that brings the disk back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Comes {
    /// Take it back.
    Back,
    /// Add it as a new disk.
    Anew,
}

/// Every moment from before the member leaves until it is complete again, with writes and flushes
/// all the time.
fn record(code: &'static str, slots: usize, comes: Comes) -> Vec<Moment> {
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let noted = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); slots]);
        let all = members(&disks);
        create(&all, &options(code)).await.expect("created");
        let array = assembled(&rt, &all, 1, "new").await;
        let len = 5 * array.stripe_bytes() as usize / 2;
        let version: Rc<Cell<u8>> = Rc::new(Cell::new(1));
        write(&array, 0, &pattern(0, len, 1)).await;
        array.flush().await.expect("flushed");
        let (watched, now) = (disks.clone(), version.clone());
        power.watch(move || {
            let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
            noted.borrow_mut().push(Moment { media, version: now.get() });
        });
        let next = async |of: u8| {
            write(&array, 0, &pattern(0, len, of)).await;
            array.flush().await.expect("flushed");
            version.set(of);
        };
        if comes == Comes::Anew {
            // It holds everything.
            rt.sleep(10_000 * MILLISECOND).await;
        }
        array.fail(SlotNo(1)).await.expect("failed");
        if comes == Comes::Back {
            next(2).await;
            // Some regions are clean, others are not.
            rt.sleep(10_000 * MILLISECOND).await;
        }
        let back = async {
            let disk = all[LEAVES].clone();
            match comes {
                Comes::Back => array.take_back(disk).await,
                Comes::Anew => array.add_spare(disk).await.map(|()| Some(SlotNo(LEAVES))),
            }
        };
        let writes = async {
            if comes == Comes::Back {
                next(3).await;
                next(4).await;
            }
        };
        let (slot, ()) = futures_util::future::join(back, writes).await;
        assert_eq!(slot.expect("taken back"), Some(SlotNo(LEAVES)));
        healthy(&rt, &array, code).await;
        next(version.get() + 1).await;
        power.watch(|| {});
    });
    moments.take()
}

/// The slot that holds a data unit, given by its number in the array.
fn slot_of(superblock: &Superblock, unit: usize) -> usize {
    let Superblock { code, algorithm, slots, rows, .. } = superblock;
    let layout = weft_layout::for_code(*code, *algorithm, slots.len(), *rows).expect("laid");
    let k = weft_layout::code_for(*code, *algorithm, slots.len()).expect("a code").k();
    layout.place((unit / k) as u64, unit % k).slot.0
}

fn after_cut(moment: &Moment, leave: Leave, lost: Option<usize>, what: String) {
    let media: Vec<Medium> = moment.media.iter().map(|medium| leave.of(medium)).collect();
    let version = moment.version;
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let all = members(&disks);
        let found = match lost {
            Some(lost) => without(&all, lost),
            None => all.clone(),
        };
        let mut labelled = Vec::new();
        for disk in found {
            // A disk that is being added may have no label yet.
            if read_superblock(&*disk).await.is_ok_and(|own| own.is_some()) {
                labelled.push(disk);
            }
        }
        let found = labelled;
        let options = AssembleOptions { nonce: 99, force_degraded: true, ..Default::default() };
        let array = match Array::assemble(&rt, found, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let len = 5 * array.stripe_bytes() as usize / 2;
        let found = read(&array, 0, len).await;
        let (old, new) = (pattern(0, len, version), pattern(0, len, version + 1));
        let sectors = found.chunks(512).zip(old.chunks(512).zip(new.chunks(512)));
        let superblock = read_superblock(&*all[0]).await.expect("read").expect("a member");
        for (n, (found, (old, new))) in sectors.enumerate() {
            // What was being written to a disk that is lost with the crash may be anything.
            let excused = lost == Some(slot_of(&superblock, n * 512 / UNIT as usize));
            assert!(found == old || found == new || excused, "{what}: sector {n}");
        }
        // The member comes back, if it is out and the array knows what it lacks.
        if array.status().slots[LEAVES].state == MemberState::Missing && lost != Some(LEAVES) {
            let _ = array.take_back(all[LEAVES].clone()).await.expect("looked at");
        }
        let missing =
            array.status().slots.iter().filter(|slot| slot.state == MemberState::Missing).count();
        for n in 0..missing {
            let fresh = TestDisk::new(&rt, &Power::new(), 50 + n, SIZE, 512, Medium::new(512));
            array.add_spare(fresh as Rc<dyn Disk>).await.expect("added");
        }
        healthy(&rt, &array, &what).await;
        is_whole(&array, &found, &what).await;
        array.stop().await.expect("stopped");
    });
}

fn cut_everywhere(comes: Comes) {
    for (code, slots) in [("raid1", 3), ("raid5", 4), ("raid6", 5), ("drc-g:4,2,1", 7)] {
        let moments = record(code, slots, comes);
        assert!(moments.len() > 60, "{code}: only {} steps", moments.len());
        for (number, moment) in moments.iter().enumerate() {
            let n = number as u64;
            let leave = [Leave::All, Leave::Nothing, Leave::Some(mix(n))][number % 3];
            let what = |lost: Option<usize>, leave: Leave| {
                format!("{code}, {comes:?}, step {number}, {leave:?}, lost {lost:?}")
            };
            after_cut(moment, leave, None, what(None, leave));
            // These survive a further loss.
            if matches!(code, "raid6" | "drc-g:4,2,1") {
                let lost = Some(number % slots);
                after_cut(moment, leave, lost, what(lost, leave));
            }
            // Zeroing a new disk takes few operations.
            for leave in (0..16).map(|part| Leave::Some(mix(16 * n + part))) {
                if comes == Comes::Anew && number < 30 {
                    after_cut(moment, leave, None, what(None, leave));
                }
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing() {
    cut_everywhere(Comes::Back);
}

/// A disk that is being prepared as a new one holds nothing that could be taken back.
#[test]
fn a_power_cut_while_a_former_member_is_added_as_new_loses_nothing() {
    cut_everywhere(Comes::Anew);
}
