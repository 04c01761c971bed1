//! Replacing a working member: redundancy never decreases, whatever fails meanwhile and whenever
//! the power goes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, mix};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{
    Array, ArrayState, AssembleOptions, Consistency, Event, MemberState, ScrubMode, Status,
    Superblock,
};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, SECOND};

const NEW: usize = 9;

/// An array with data, and a disk that is to become a member.
async fn prepared(rt: &Rt, code: &str, slots: usize) -> (Bench, Rc<TestDisk>, Vec<u8>) {
    let bench = Bench::new(rt, code, slots).await;
    let bytes = pattern(0, 6 * bench.stripe_bytes() as usize, 1);
    write(&bench.array, 0, &bytes).await;
    bench.array.flush().await.expect("flushed");
    (bench, disk(rt, NEW, 512), bytes)
}

async fn ended(array: &Array, rt: &Rt) {
    for _ in 0..5000 {
        if array.status().state == ArrayState::Healthy {
            return;
        }
        rt.sleep(MILLISECOND).await;
    }
    panic!("not healthy but {:#?}", array.status());
}

async fn check(array: &Array, bytes: &[u8], what: &str) {
    assert!(read(array, 0, bytes.len()).await == bytes, "{what}");
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
}

#[test]
fn the_new_disk_takes_over_and_nothing_is_missing_meanwhile() {
    run(|rt| async move {
        for (code, slots) in [("raid0", 3), ("raid1", 2), ("raid5", 4), ("drc-g:4,2,1", 7)] {
            let (bench, new, mut bytes) = prepared(&rt, code, slots).await;
            let redundancy = bench.array.status().redundancy_remaining;
            let events = bench.array.subscribe();
            bench.array.replace(SlotNo(1), new.clone()).await.expect("begun");
            let mut n = 0;
            while bench.array.status().state != ArrayState::Healthy {
                let status = bench.array.status();
                assert_eq!(status.state, ArrayState::Replacing, "{code}");
                assert_eq!(status.redundancy_remaining, redundancy, "{code}");
                assert_eq!(status.slots[1].state, MemberState::Active, "{code}");
                // Users continue everywhere.
                let at = (mix(n) % (bytes.len() as u64 - 3000)) as usize;
                let part = pattern(n, 3000, 7);
                write(&bench.array, at as u64, &part).await;
                bytes[at..at + 3000].copy_from_slice(&part);
                n += 1;
            }
            assert!(n > 2, "{code}: {n} writes");
            let started = std::iter::from_fn(|| events.try_next()).filter(|event| {
                matches!(event, Event::ReplaceStarted { .. } | Event::ReplaceFinished { .. })
            });
            assert_eq!(started.count(), 2, "{code}");
            assert_eq!(bench.array.status().slots[1].disk, "test9", "{code}");
            // The old disk is neither needed nor written.
            bench.disks[1].faults.gone.set(true);
            check(&bench.array, &bytes, code).await;
            bench.array.stop().await.expect("stopped");
            let mut disks = members(&bench.disks);
            disks[1] = new;
            let array = assemble(&rt, &disks).await;
            check(&array, &bytes, code).await;
            array.stop().await.expect("stopped");
            // It is stale if it comes back.
            bench.disks[1].faults.gone.set(false);
            disks.push(bench.disks[1].clone());
            let array = assemble(&rt, &disks).await;
            assert_eq!(array.status().slots[1].disk, "test9", "{code}");
            array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn sectors_that_the_member_cannot_read_come_from_the_others() {
    run(|rt| async move {
        let (bench, new, bytes) = prepared(&rt, "raid5", 4).await;
        for stripe in 0..6 {
            bench.spoil(stripe, stripe as usize % 4, 1..3);
        }
        bench.array.replace(SlotNo(2), new).await.expect("begun");
        ended(&bench.array, &rt).await;
        check(&bench.array, &bytes, "spoiled").await;
        bench.array.fail(SlotNo(0)).await.expect("can lose one");
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        bench.array.stop().await.expect("stopped");
    });
}

/// The disk that is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Goes {
    Member,
    Replacement,
    Other,
}

#[test]
fn any_disk_may_go_at_any_write() {
    run(|rt| async move {
        for (code, slots) in [("raid5", 3), ("raid6", 5), ("raid1", 3)] {
            for goes in [Goes::Member, Goes::Replacement, Goes::Other] {
                for after in (0..).step_by(2) {
                    let what = format!("{code}, {goes:?} after {after}");
                    let (bench, new, mut bytes) = prepared(&rt, code, slots).await;
                    let victim = match goes {
                        Goes::Member => bench.disks[1].clone(),
                        Goes::Replacement => new.clone(),
                        Goes::Other => bench.disks[0].clone(),
                    };
                    victim.faults.gone_after_writes.set(Some(after));
                    bench.array.set_throttle(0, Some(UNIT * 2000));
                    let begun = bench.array.replace(SlotNo(1), new.clone()).await;
                    for n in 0..6u64 {
                        let at = n as usize * 4000 + 700;
                        let part = pattern(n, 2500, 7);
                        write(&bench.array, at as u64, &part).await;
                        bytes[at..at + 2500].copy_from_slice(&part);
                        rt.sleep(MILLISECOND / 10).await;
                    }
                    bench.array.flush().await.expect("flushed");
                    let is_busy = || {
                        let state = bench.array.status().state;
                        matches!(state, ArrayState::Replacing | ArrayState::Rebuilding)
                    };
                    while is_busy() {
                        rt.sleep(MILLISECOND).await;
                    }
                    check(&bench.array, &bytes, &what).await;
                    let status = bench.array.status();
                    let gone = victim.faults.gone.get();
                    match goes {
                        _ if !gone => {}
                        Goes::Other => {
                            assert_eq!(status.slots[0].state, MemberState::Missing, "{what}")
                        }
                        // It may have been the member already.
                        Goes::Replacement if status.slots[1].state == MemberState::Missing => {
                            assert_eq!(status.slots[1].disk, "test9", "{what}");
                            assert_eq!(status.state, ArrayState::Degraded, "{what}");
                        }
                        Goes::Replacement => {
                            assert_eq!(status.state, ArrayState::Healthy, "{what}");
                            assert_eq!(status.slots[1].disk, "test1", "{what}");
                        }
                        Goes::Member if begun.is_ok() => {
                            assert_eq!(status.slots[1].disk, "test9", "{what}");
                            assert_eq!(status.state, ArrayState::Healthy, "{what}");
                        }
                        Goes::Member => assert!(status.broken.is_none(), "{what}"),
                    }
                    bench.array.stop().await.expect("stopped");
                    // The rest is the array, also when the lost disk is back.
                    victim.faults.gone_after_writes.set(None);
                    victim.faults.gone.set(false);
                    let mut disks = members(&bench.disks);
                    disks.push(new.clone());
                    disks.retain(|disk| begun.is_ok() || disk.info().name != "test9");
                    let array = assemble(&rt, &disks).await;
                    check(&array, &bytes, &format!("{what}, again")).await;
                    array.stop().await.expect("stopped");
                    if !gone {
                        assert!(after >= 4, "{what}: only so few writes");
                        break;
                    }
                }
            }
        }
    });
}

#[test]
fn a_spare_that_is_taken_meanwhile_and_the_replacement_keep_out_of_each_others_way() {
    run(|rt| async move {
        for delay in 0..60u64 {
            let (bench, new, bytes) = prepared(&rt, "raid6", 5).await;
            bench.array.fail(SlotNo(3)).await.expect("can lose one");
            // Gives the log something to retire.
            write(&bench.array, 512, &bytes[512..2048]).await;
            bench.array.set_throttle(0, Some(UNIT * 5000));
            let spare = disk(&rt, 10, 512);
            let add = bench.array.add_spare(spare.clone());
            let replace = async {
                rt.sleep(delay * 2000).await;
                bench.array.replace(SlotNo(1), new.clone()).await
            };
            let (added, replaced) = futures_util::future::join(add, replace).await;
            added.expect("added");
            replaced.expect("begun");
            for disk in bench.disks.iter().chain([&new, &spare]) {
                read_superblock(&**disk).await.expect("whole").expect("a member's");
            }
            bench.array.set_throttle(0, None);
            ended(&bench.array, &rt).await;
            bench.array.fail(SlotNo(4)).await.expect("can lose one");
            bench.array.fail(SlotNo(2)).await.expect("can lose two");
            check(&bench.array, &bytes, &format!("replaced after {delay}")).await;
            bench.array.stop().await.expect("stopped");
        }
    });
}

/// Both members of a mirror are being replaced when one of them fails: its replacement becomes a
/// rebuild target. The copy of the other is complete first, and has to wait for that rebuild.
#[test]
fn a_copy_that_waits_for_a_rebuild_does_not_hold_it_up() {
    run(|rt| async move {
        let (bench, first, _) = prepared(&rt, "raid1", 2).await;
        let (array, second) = (&bench.array, disk(&rt, NEW + 1, 512));
        // A single stripe remains to be copied, and that copy takes a while.
        let bytes = pattern(0, UNIT as usize, 2);
        array.discard(0, array.size_bytes()).await.expect("discarded");
        write(array, 0, &bytes).await;
        first.faults.hold(bench.superblock.area.data_offset..u64::MAX, 0);
        array.replace(SlotNo(0), first.clone()).await.expect("begun");
        rt.sleep(10 * MILLISECOND).await;
        array.replace(SlotNo(1), second).await.expect("begun");
        array.fail(SlotNo(1)).await.expect("slot 0 has a member");
        first.faults.release();
        ended(array, &rt).await;
        let status = array.status();
        assert_eq!((&*status.slots[0].disk, &*status.slots[1].disk), ("test9", "test10"));
        check(array, &bytes, "both replaced").await;
    });
}

#[test]
fn a_replacement_can_be_cancelled_and_impossible_ones_are_refused() {
    run(|rt| async move {
        let (bench, new, bytes) = prepared(&rt, "raid5", 3).await;
        bench.array.set_throttle(0, Some(UNIT));
        bench.array.replace(SlotNo(1), new).await.expect("begun");
        let again = bench.array.replace(SlotNo(1), disk(&rt, 10, 512)).await;
        assert!(again.is_err_and(|error| error.to_string().contains("already")));
        bench.array.fail_replacement(SlotNo(1)).await.expect("given up");
        bench.array.set_throttle(0, None);
        assert_eq!(bench.array.status().state, ArrayState::Healthy);
        assert_eq!(bench.array.status().slots[1].disk, "test1");
        check(&bench.array, &bytes, "given up").await;
        // A mirror with one member left: no other member could tell that it was replaced.
        let (bench, new, _) = prepared(&rt, "raid1", 2).await;
        bench.array.fail(SlotNo(0)).await.expect("can lose one");
        let refused = bench.array.replace(SlotNo(1), new).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("only active")));
    });
}

#[test]
fn a_member_without_room_is_copied_to_one_that_has() {
    run(|rt| async move {
        for after in 0..12 {
            let (bench, new, mut bytes) = prepared(&rt, "raid5", 3).await;
            let old = bench.disks[1].clone();
            bench.array.set_throttle(0, Some(UNIT * 500));
            bench.array.replace(SlotNo(1), new).await.expect("begun");
            rt.sleep(after * MILLISECOND).await;
            let data = bench.superblock.area.data_offset;
            let short = Cell::new(0);
            *old.faults.room.borrow_mut() = Some(Box::new(move |offset, _, _| {
                if offset < data {
                    return None;
                }
                short.set(short.get() + 1);
                (short.get() % 2 == 0).then_some(0)
            }));
            for n in 0..12u64 {
                let at = n as usize * 3000 + 512;
                let part = pattern(n, 3000, 7);
                let written = bench.array.write(at as u64, Frozen::copy_from(&part), false).await;
                let range = at..at + 3000;
                if written.is_ok() {
                    bytes[range].copy_from_slice(&part);
                } else {
                    let now = read(&bench.array, at as u64, 3000).await;
                    bytes[range].copy_from_slice(&now);
                }
            }
            bench.array.set_throttle(0, None);
            *old.faults.room.borrow_mut() = None;
            ended(&bench.array, &rt).await;
            assert_eq!(bench.array.status().slots[1].disk, "test9", "{after}");
            check(&bench.array, &bytes, &format!("{after}")).await;
            bench.array.stop().await.expect("stopped");
        }
    });
}

/// The contents of the disks at one step, what was flushed by then, and what may be there instead.
struct Moment {
    media: Vec<Medium>,
    flushed: Vec<u8>,
    newer: Vec<Vec<u8>>,
}

/// Space for six units.
fn size_of_members(consistency: Consistency) -> u64 {
    let metadata = if consistency == Consistency::Ppl { 2 << 20 } else { 1 << 20 };
    metadata + 6 * UNIT
}

/// Copies a member while users write, and records every moment.
fn record(code: &'static str, slots: usize, consistency: Consistency) -> Vec<Moment> {
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let moments2 = moments.clone();
    let rt = rt();
    let rt2 = rt.clone();
    rt.block_on(async move {
        let rt = rt2;
        let power = Power::new();
        let size = size_of_members(consistency);
        let open = |n| TestDisk::new(&rt, &power, n, size, 512, Medium::new(512));
        let disks: Vec<_> = (0..slots).chain([NEW]).map(open).collect();
        let mut options = options(code);
        options.consistency = consistency;
        options.region_bytes = Some(8 * UNIT);
        let members = members(&disks);
        weft_array::create(&members[..slots], &options).await.expect("created");
        let array = assemble(&rt, &members[..slots]).await;
        let len = array.size_bytes() as usize / 2;
        let flushed = Rc::new(RefCell::new(pattern(0, len, 1)));
        let newer: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let first = flushed.borrow().clone();
        write(&array, 0, &first).await;
        array.flush().await.expect("flushed");
        let (flushed2, newer2) = (flushed.clone(), newer.clone());
        power.watch(move || {
            let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            let (flushed, newer) = (flushed2.borrow().clone(), newer2.borrow().clone());
            moments2.borrow_mut().push(Moment { media, flushed, newer });
        });
        array.replace(SlotNo(1), members[slots].clone()).await.expect("begun");
        let mut n = 0u64;
        while array.status().state != ArrayState::Healthy || n < 4 {
            let at = (mix(n) % (len as u64 / 512 - 6)) as usize * 512;
            let part = pattern(n, 6 * 512, 3 + n as u8);
            let last = newer.borrow().last().cloned();
            let mut next = last.unwrap_or_else(|| flushed.borrow().clone());
            next[at..at + part.len()].copy_from_slice(&part);
            newer.borrow_mut().push(next);
            write(&array, at as u64, &part).await;
            if n % 2 == 1 {
                array.flush().await.expect("flushed");
                *flushed.borrow_mut() = newer.borrow_mut().pop().expect("written");
                newer.borrow_mut().clear();
            }
            n += 1;
        }
        array.stop().await.expect("stopped");
    });
    rt.kill_all();
    moments.take()
}

/// Assembles what a cut left without the disks `lost`, and checks everything.
fn after_cut(moment: &Moment, size: u64, leave: Leave, lost: &[usize], survives: bool, what: &str) {
    let media: Vec<Medium> = moment.media.iter().map(|medium| leave.of(medium)).collect();
    let flushed = moment.flushed.clone();
    let newer = moment.newer.clone();
    let (what, lost) = (what.to_owned(), lost.to_vec());
    run(move |rt| async move {
        let power = Power::new();
        let last = media.len() - 1;
        let open = |(n, medium): (usize, Medium)| {
            let number = if n == last { NEW } else { n };
            TestDisk::new(&rt, &power, number, size, 512, medium) as Rc<dyn Disk>
        };
        let disks: Vec<Rc<dyn Disk>> = media.into_iter().enumerate().map(open).collect();
        // Before it became the member the new disk does not count.
        let (mut kept, mut gone, mut newest): (Vec<_>, Vec<_>, Option<Superblock>) =
            Default::default();
        for (n, disk) in disks.into_iter().enumerate() {
            let Ok(Some(own)) = read_superblock(&*disk).await else { continue };
            if lost.contains(&n) {
                gone.push(own.self_id);
            } else {
                kept.push(disk);
            }
            if newest.as_ref().is_none_or(|newest| newest.seq < own.seq) {
                newest = Some(own);
            }
        }
        let active = newest.expect("some members").active_members();
        let losses = gone.iter().filter(|id| active.contains(id)).count();
        if losses > 0 && !survives {
            return;
        }
        let options =
            AssembleOptions { nonce: 99, force_degraded: !lost.is_empty(), ..Default::default() };
        let array = match Array::assemble(&rt, kept, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let first = read(&array, 0, flushed.len()).await;
        for (number, sector) in first.chunks(512).enumerate() {
            let range = number * 512..(number + 1) * 512;
            let old = *sector == flushed[range.clone()];
            let being_written =
                newer.iter().any(|new| new[range.clone()] != flushed[range.clone()]);
            let new = newer.iter().any(|new| *sector == new[range.clone()]);
            let fits = old || new || being_written && losses > 0;
            assert!(fits, "{what}: sector {number}");
        }
        let is_busy = |status: &Status| {
            status
                .slots
                .iter()
                .any(|slot| slot.state == MemberState::Rebuilding || slot.replacement.is_some())
                || status.regions.resync > 0
        };
        for _ in 0..5000 {
            if !is_busy(&array.status()) {
                break;
            }
            rt.sleep(MILLISECOND).await;
        }
        let status = array.status();
        assert!(!is_busy(&status) && status.broken.is_none(), "{what}: {status:?}");
        assert!(read(&array, 0, flushed.len()).await == first, "{what}: changed by maintenance");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        // Only the new disk holds its slot's data.
        if status.state == ArrayState::Healthy && status.redundancy_remaining != Some(0) {
            array.fail(SlotNo(0)).await.expect("can lose one");
            assert!(read(&array, 0, flushed.len()).await == first, "{what}: with another lost");
        }
        let (result, _) = array.read(0, Buf::new(512)).await;
        result.expect("read");
        array.stop().await.expect("stopped");
    });
}

fn cut_everywhere(code: &'static str, slots: usize, consistency: Consistency, survives: bool) {
    let moments = record(code, slots, consistency);
    let size = size_of_members(consistency);
    assert!(moments.len() > 60, "only {} steps", moments.len());
    for (number, moment) in moments.iter().enumerate() {
        let way = number % 3;
        let leave = [Leave::All, Leave::Nothing, Leave::Some(mix(number as u64))][way];
        let what = format!("{code} {consistency}, cut {number} of {}, {leave:?}", moments.len());
        after_cut(moment, size, leave, &[], survives, &what);
        // Without the replacement; without the member; without another disk. The last active member
        // of a mirror cannot be replaced: there the member is lost in two of the three cases.
        let other = usize::from(slots == 2);
        let lost = [vec![slots], vec![1], vec![other]][number / 3 % 3].clone();
        let what = format!("{what}, without {lost:?}");
        after_cut(moment, size, leave, &lost, survives, &what);
    }
}

#[test]
fn power_cuts_raid5() {
    cut_everywhere("raid5", 3, Consistency::Ppl, true);
}

#[test]
fn power_cuts_mirror() {
    cut_everywhere("raid1", 2, Consistency::Bitmap, true);
}

#[test]
fn power_cuts_without_redundancy() {
    cut_everywhere("raid0", 3, Consistency::None, false);
}

#[test]
fn power_cuts_drc() {
    cut_everywhere("drc-g:4,2,1", 7, Consistency::Ppl, true);
}

/// Begins to replace the first member while the new disk keeps a write to its log, after the next
/// `passes`, from ending, and stops the array. No member is written once it has stopped. Returns
/// how many writes to its log the new disk got in all.
async fn stopped_while_a_replacement_begins(rt: &Rt, passes: u64) -> usize {
    let bench = Bench::new(rt, "raid5", 4).await;
    let new = disk(rt, 8, 512);
    let area = &bench.superblock.area;
    let log = area.log_offset..area.log_offset + area.log_bytes;
    new.faults.hold(log.clone(), passes);
    let (array, second) = (bench.array.clone(), new.clone());
    let replaced = rt.spawn(async move { array.replace(SlotNo(0), second).await });
    rt.sleep(MILLISECOND).await;
    let array = bench.array.clone();
    let stopped = rt.spawn(async move { array.stop().await });
    rt.sleep(MILLISECOND).await;
    new.faults.release();
    stopped.await.expect("stopped");
    let writes = || bench.disks.iter().map(|disk| disk.writes.borrow().len()).sum::<usize>();
    let before = writes();
    rt.sleep(SECOND).await;
    assert_eq!(writes(), before, "writes after the stop");
    let _ = replaced.await;
    let writes = new.writes.borrow();
    writes.iter().filter(|(offset, _)| log.contains(offset)).count()
}

#[test]
fn a_stop_waits_for_a_replacement_that_begins() {
    run(|rt| async move {
        let writes = stopped_while_a_replacement_begins(&rt, u64::MAX).await;
        assert!(writes > 0, "the ring begins with an empty batch");
        for passes in 0..writes as u64 {
            stopped_while_a_replacement_begins(&rt, passes).await;
        }
    });
}
