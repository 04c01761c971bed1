//! An array whose members have become larger uses them: nothing is lost, what is new reads as zeros
//! whatever the disks hold there, and all of it is redundant. What cannot grow is refused, and says
//! why.

use std::rc::Rc;

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{
    Array, ArrayError, ArrayState, AssembleOptions, CreateOptions, Event, ScrubMode, create,
};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Disk, DiskInfo, Layer};
use weft_rt::{MILLISECOND, Rt};

/// Rows before; with them the last region of most arrays is not full.
const ROWS: u64 = 45;
const MORE_ROWS: u64 = 30;
const SIZE: u64 = (3 << 20) + ROWS * UNIT;
const LARGER: u64 = SIZE + MORE_ROWS * UNIT;
const REGION: u64 = 64 << 10;

fn create_options(code: &str) -> CreateOptions {
    CreateOptions {
        head_room_bytes: Some(1 << 20),
        region_bytes: Some(REGION),
        ..bench_options(code)
    }
}

/// Disks with old bytes behind the end that they have at first.
fn used_disks(rt: &Rt, count: usize) -> Vec<Rc<TestDisk>> {
    let mut medium = Medium::new(512);
    medium.poke(SIZE, &vec![0xa5; (LARGER - SIZE) as usize]);
    holding(rt, &Power::new(), SIZE, &vec![medium; count])
}

/// A disk that does not zero cheaply.
struct SlowZeroes {
    disk: Rc<TestDisk>,
    info: DiskInfo,
}

impl Layer for SlowZeroes {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn info(&self) -> &DiskInfo {
        &self.info
    }
}

fn slow(disks: &[Rc<TestDisk>]) -> Vec<Rc<dyn Disk>> {
    let slow = |disk: &Rc<TestDisk>| {
        let info = DiskInfo { fast_zeroes: false, ..Disk::info(&**disk).clone() };
        Rc::new(SlowZeroes { disk: disk.clone(), info }) as Rc<dyn Disk>
    };
    disks.iter().map(slow).collect()
}

fn enlarge(disks: &[Rc<TestDisk>], size: u64) {
    disks.iter().for_each(|disk| disk.enlarge(size));
}

async fn check_whole(array: &Array, expected: &[u8], what: &str) {
    let found = read(array, 0, expected.len()).await;
    let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{what}: the first wrong byte of {}", expected.len());
}

async fn scrub(array: &Array, what: &str) {
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ArrayError>) -> String {
    match result {
        Err(ArrayError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// Grows an array in which `written` says what of it was written before, and checks everything.
fn grows(code: &'static str, slots: usize, fast: bool, full: bool) {
    run(move |rt| async move {
        let what = format!("{code} on {slots}, fast zeroes: {fast}, full: {full}");
        let disks = used_disks(&rt, slots);
        let all = if fast { members(&disks) } else { slow(&disks) };
        create(&all, &create_options(code)).await.expect("created");
        let array = assemble(&rt, &all).await;
        let size = array.size_bytes();
        let mut expected = vec![0; size as usize];
        // All of it, or a little in the last region only.
        let from = if full { 0 } else { size as usize - 5000 };
        let bytes = pattern(from as u64, expected.len() - from, 1);
        write(&array, from as u64, &bytes).await;
        expected[from..].copy_from_slice(&bytes);
        assert_eq!(array.status().unused_member_bytes, 0);
        let nothing = refusal(array.grow(None).await);
        assert!(nothing.contains("nothing to gain"), "{nothing}");

        enlarge(&disks, LARGER);
        let status = array.status();
        assert_eq!(status.unused_member_bytes, MORE_ROWS * UNIT, "{what}");
        assert_eq!(status.member_bytes, SIZE, "{what}");
        let (events, before) = (array.subscribe(), array.size_bytes());
        let planned = array.plan_growth(None).expect("possible");
        assert_eq!(array.size_bytes(), before, "a plan changes nothing");
        let plan = array.grow(None).await.expect("grown");
        assert_eq!(plan, planned);
        assert_eq!(array.size_bytes(), plan.new_size_bytes, "{what}");
        assert!(plan.new_size_bytes > size, "{what}");
        let grown = Event::Grown { size_bytes: plan.new_size_bytes, member_bytes: LARGER };
        assert!(std::iter::from_fn(|| events.try_next()).any(|event| event == grown));
        expected.resize(plan.new_size_bytes as usize, 0);
        check_whole(&array, &expected, &what).await;
        scrub(&array, &what).await;
        assert_eq!(array.status().unused_member_bytes, 0, "{what}");

        // The new room is like the old one, also degraded, and after a rebuild.
        let at = size - 3000;
        let bytes = pattern(at, 9000, 2);
        write(&array, at, &bytes).await;
        expected[at as usize..at as usize + 9000].copy_from_slice(&bytes);
        let end = plan.new_size_bytes as usize - 20_000;
        let bytes = pattern(end as u64, 20_000, 3);
        write(&array, end as u64, &bytes).await;
        expected[end..].copy_from_slice(&bytes);
        check_whole(&array, &expected, &what).await;
        scrub(&array, &what).await;
        array.fail(SlotNo(1)).await.expect("failed");
        check_whole(&array, &expected, &what).await;
        let new = TestDisk::new(&rt, &Power::new(), 90, LARGER, 512, {
            let mut medium = Medium::new(512);
            medium.poke(SIZE, &vec![0x5a; (LARGER - SIZE) as usize]);
            medium
        });
        array.add_spare(new.clone()).await.expect("added");
        while array.status().state != ArrayState::Healthy {
            rt.sleep(MILLISECOND).await;
        }
        check_whole(&array, &expected, &what).await;
        scrub(&array, &what).await;
        array.stop().await.expect("stopped");

        let mut again = all.clone();
        again[1] = new;
        let array = assemble(&rt, &again).await;
        assert_eq!(array.size_bytes(), plan.new_size_bytes, "{what}");
        check_whole(&array, &expected, &what).await;
        array.stop().await.expect("stopped");
    });
}

#[test]
fn larger_members_make_a_larger_array() {
    let odd = [("raid10", 3), ("rs:2+1", 5), ("raid10:o2", 3), ("raid4", 3)];
    for (code, slots) in CODES.into_iter().chain(odd) {
        for fast in [true, false] {
            grows(code, slots, fast, true);
            grows(code, slots, fast, false);
        }
    }
}

#[test]
fn an_array_without_redundancy_grows_too() {
    run(|rt| async move {
        let disks = used_disks(&rt, 2);
        let all = members(&disks);
        create(&all, &create_options("raid0")).await.expect("created");
        let array = assemble(&rt, &all).await;
        let mut expected = pattern(0, array.size_bytes() as usize, 1);
        write(&array, 0, &expected).await;
        enlarge(&disks, LARGER);
        let plan = array.grow(None).await.expect("grown");
        expected.resize(plan.new_size_bytes as usize, 0);
        check_whole(&array, &expected, "raid0").await;
        array.stop().await.expect("stopped");
    });
}

/// Disks that were replaced by larger ones, one after the other: the usual way.
#[test]
fn the_smallest_member_decides() {
    run(|rt| async move {
        let disks = used_disks(&rt, 3);
        let all = members(&disks);
        create(&all, &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all).await;
        let size = array.size_bytes();
        disks[0].enlarge(LARGER);
        disks[2].enlarge(LARGER);
        assert_eq!(array.status().unused_member_bytes, 0, "one member is as small as before");
        let why = refusal(array.grow(None).await);
        assert!(why.contains("test1"), "{why}");
        disks[1].enlarge(SIZE + 4 * UNIT);
        assert_eq!(array.status().unused_member_bytes, 4 * UNIT);
        let plan = array.plan_growth(None).expect("possible");
        assert_eq!((plan.smallest.as_str(), plan.new_member_bytes), ("test1", SIZE + 4 * UNIT));
        // Less than there is, as asked; a part of a unit is of no use.
        let plan = array.grow(Some(SIZE + 2 * UNIT + 512)).await.expect("grown");
        assert_eq!((plan.member_bytes, plan.new_member_bytes), (SIZE, SIZE + 2 * UNIT));
        assert_eq!(array.size_bytes(), size + 2 * 2 * UNIT);
        assert_eq!(array.status().unused_member_bytes, 2 * UNIT);
        array.grow(None).await.expect("grown again");
        assert_eq!(array.size_bytes(), size + 4 * 2 * UNIT);
        array.stop().await.expect("stopped");
    });
}

#[test]
fn what_cannot_grow_is_refused_and_says_why() {
    run(|rt| async move {
        let disks = used_disks(&rt, 4);
        let all = members(&disks);
        create(&all, &create_options("raid6")).await.expect("created");
        let array = assemble(&rt, &all).await;
        enlarge(&disks, LARGER);
        let seq = array.status().seq;
        let too_much = refusal(array.grow(Some(LARGER + 4096)).await);
        assert!(too_much.contains("the smallest, test0, has"), "{too_much}");
        let less = refusal(array.grow(Some(SIZE - 4096)).await);
        assert!(less.contains("weft shrink"), "{less}");
        let same = refusal(array.grow(Some(SIZE)).await);
        assert!(same.contains("nothing to gain"), "{same}");
        assert_eq!(array.status().seq, seq, "something was changed");
        array.fail(SlotNo(0)).await.expect("failed");
        let degraded = refusal(array.grow(None).await);
        assert!(degraded.contains("wait until all are active"), "{degraded}");
        assert_eq!(array.status().unused_member_bytes, 0, "nothing can be used now");
        array.stop().await.expect("stopped");
    });
}

/// The second copies of `far` begin in the middle of the members.
#[test]
fn copies_placed_by_the_size_of_the_members_do_not_grow() {
    run(|rt| async move {
        let disks = used_disks(&rt, 4);
        let all = members(&disks);
        create(&all, &create_options("raid10:f2")).await.expect("created");
        let array = assemble(&rt, &all).await;
        let data = pattern(0, array.size_bytes() as usize, 1);
        write(&array, 0, &data).await;
        enlarge(&disks, LARGER);
        assert_eq!(array.status().unused_member_bytes, 0);
        let why = refusal(array.grow(None).await);
        assert!(why.contains("raid10:f2 places its further copies by the size"), "{why}");
        check_whole(&array, &data, "raid10:f2").await;
        array.stop().await.expect("stopped");
    });
}

/// The region map has a bound: growth uses what it has room for, says so, and then has an end.
#[test]
fn a_full_region_map_ends_the_growth() {
    run(|rt| async move {
        let unit = 4096;
        let small = (4 << 20) + 300 * unit;
        let disks = holding(&rt, &Power::new(), small, &vec![Medium::new(512); 3]);
        let all = members(&disks);
        let options = CreateOptions {
            unit_bytes: unit as u32,
            region_bytes: Some(0),
            log_bytes: Some(1 << 20),
            ..create_options("raid5")
        };
        let superblock = create(&all, &options).await.expect("created");
        let (map_bytes, offset) = (superblock.area.map_bytes, superblock.area.data_offset);
        let array = assemble(&rt, &all).await;
        let data = pattern(0, array.size_bytes() as usize, 1);
        write(&array, 0, &data).await;
        // A region for each stripe, and 2016 of them in two places of 4 KiB each.
        let most = map_bytes / 8192 * 2016;
        enlarge(&disks, offset + (most + 100) * unit);
        let plan = array.plan_growth(None).expect("possible");
        assert_eq!(plan.new_member_bytes, offset + most * unit);
        assert_eq!(plan.beyond_map_bytes, 100 * unit);
        let asked = refusal(array.grow(Some(offset + (most + 1) * unit)).await);
        assert!(asked.contains("region map has room for"), "{asked}");
        array.grow(None).await.expect("grown");
        assert_eq!(array.size_bytes(), most * 2 * unit);
        let why = refusal(array.grow(None).await);
        assert!(why.contains("region map has no room for more"), "{why}");
        assert_eq!(array.status().unused_member_bytes, 0);
        let end = array.size_bytes() - 30_000;
        let tail = pattern(end, 30_000, 2);
        write(&array, end, &tail).await;
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &all).await;
        check_whole(&array, &data, "the beginning").await;
        assert!(read(&array, end, 30_000).await == tail);
        array.stop().await.expect("stopped");
    });
}

/// A spare that was large enough is too small afterwards. It is named, and never taken.
#[test]
fn a_spare_that_became_too_small_is_named_and_not_taken() {
    run(|rt| async move {
        let disks = used_disks(&rt, 5);
        let all = members(&disks);
        create(&all[..3], &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all[..3]).await;
        array.add_spare(all[3].clone()).await.expect("added");
        enlarge(&disks[..3], LARGER);
        let plan = array.grow(None).await.expect("grown");
        assert_eq!(plan.spares_too_small, ["test3"]);
        let status = array.status();
        assert_eq!(
            (status.spares, status.spares_too_small),
            (vec!["test3".into()], vec!["test3".into()])
        );
        let data = pattern(0, array.size_bytes() as usize, 1);
        write(&array, 0, &data).await;
        array.fail(SlotNo(2)).await.expect("failed");
        rt.sleep(5000 * MILLISECOND).await;
        assert_eq!(array.status().state, ArrayState::Degraded, "the small spare was taken");
        let small = refusal(array.add_spare(all[4].clone()).await);
        assert!(small.contains("too small"), "{small}");
        // It becomes large enough, and helps at once.
        disks[3].enlarge(LARGER);
        disks[4].enlarge(LARGER);
        assert!(array.status().spares_too_small.is_empty());
        array.add_spare(all[4].clone()).await.expect("added");
        while array.status().state != ArrayState::Healthy {
            rt.sleep(MILLISECOND).await;
        }
        check_whole(&array, &data, "rebuilt").await;
        scrub(&array, "rebuilt").await;
        array.stop().await.expect("stopped");
    });
}

#[test]
fn a_spare_that_is_too_small_at_a_start_is_left_out() {
    run(|rt| async move {
        let disks = used_disks(&rt, 4);
        let all = members(&disks);
        create(&all[..3], &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all[..3]).await;
        array.add_spare(all[3].clone()).await.expect("added");
        enlarge(&disks[..3], LARGER);
        array.grow(None).await.expect("grown");
        array.stop().await.expect("stopped");
        let reopened: Vec<Rc<TestDisk>> = (disks.iter().enumerate())
            .map(|(n, disk)| {
                let size = if n == 3 { SIZE } else { LARGER };
                let medium = disk.medium.borrow().clone();
                TestDisk::new(&rt, &Power::new(), n, size, 512, medium)
            })
            .collect();
        let array = assemble(&rt, &members(&reopened)).await;
        assert!(array.status().spares.is_empty(), "{:?}", array.status().spares);
        array.stop().await.expect("stopped");
    });
}

/// A member that was away while its slot was filled again, and the array then grew, is too small.
#[test]
fn a_former_member_that_is_too_small_does_not_come_back() {
    run(|rt| async move {
        let disks = used_disks(&rt, 3);
        let all = members(&disks);
        create(&all, &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all).await;
        enlarge(&disks, LARGER);
        array.grow(None).await.expect("grown");
        array.fail(SlotNo(1)).await.expect("failed");
        let medium = disks[1].medium.borrow().clone();
        let cut_off = TestDisk::new(&rt, &Power::new(), 1, SIZE, 512, medium);
        let why = refusal(array.take_back(cut_off).await);
        assert!(why.contains("too small"), "{why}");
        array.stop().await.expect("stopped");
    });
}

/// A disk that does not have what it says is found out before anything relies on it.
#[test]
fn a_disk_without_the_room_that_it_claims_is_found_out() {
    run(|rt| async move {
        let disks = used_disks(&rt, 3);
        let all = members(&disks);
        create(&all, &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all).await;
        let size = array.size_bytes();
        enlarge(&disks, LARGER);
        *disks[2].faults.unwritable.borrow_mut() = LARGER - 4096..LARGER;
        let why = refusal(array.grow(None).await);
        assert!(why.contains("test2"), "{why}");
        assert_eq!(array.size_bytes(), size);
        assert_eq!(array.status().state, ArrayState::Healthy, "it works as far as it is used");
        *disks[2].faults.unwritable.borrow_mut() = 0..0;
        array.grow(None).await.expect("grown");
        array.stop().await.expect("stopped");
    });
}

/// A member fails while the array grows: it grows without it, or not at all, and nothing is lost.
#[test]
fn a_member_that_fails_meanwhile_costs_nothing() {
    for after in 0..24 {
        run(move |rt| async move {
            let disks = used_disks(&rt, 4);
            let all = members(&disks);
            create(&all[..3], &create_options("raid5")).await.expect("created");
            let array = assemble(&rt, &all[..3]).await;
            let size = array.size_bytes() as usize;
            let mut expected = pattern(0, size, 1);
            write(&array, 0, &expected).await;
            enlarge(&disks, LARGER);
            array.add_spare(all[3].clone()).await.expect("added");
            disks[0].faults.gone_after_writes.set(Some(after));
            let grown = array.grow(None).await;
            let _ = array.flush().await;
            let now = array.size_bytes() as usize;
            assert!(grown.is_err() || now > size, "after {after}: {grown:?}");
            disks[0].faults.gone.set(true);
            while array.status().state != ArrayState::Healthy {
                array.flush().await.expect("flushed");
                rt.sleep(100 * MILLISECOND).await;
            }
            expected.resize(now, 0);
            check_whole(&array, &expected, "after the failure").await;
            if array.grow(None).await.is_ok() {
                expected.resize(array.size_bytes() as usize, 0);
            }
            assert!(array.size_bytes() as usize > size, "after {after}: it does not grow any more");
            check_whole(&array, &expected, "grown").await;
            let end = array.size_bytes() - 5000;
            let tail = pattern(end, 5000, 4);
            write(&array, end, &tail).await;
            scrub(&array, "grown").await;
            array.stop().await.expect("stopped");
            let array = assemble(&rt, &all[1..]).await;
            assert!(read(&array, end, 5000).await == tail);
            array.stop().await.expect("stopped");
        });
    }
}

/// A reshape after growth, and growth after a reshape: each takes over what the other left.
#[test]
fn growth_and_reshapes_follow_each_other() {
    run(|rt| async move {
        let disks = used_disks(&rt, 5);
        let all = members(&disks);
        create(&all[..3], &create_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all[..3]).await;
        let mut expected = pattern(0, array.size_bytes() as usize, 1);
        write(&array, 0, &expected).await;
        enlarge(&disks, LARGER);
        array.grow(Some(SIZE + 10 * UNIT)).await.expect("grown");
        expected.resize(array.size_bytes() as usize, 0);
        for n in [3, 4] {
            array.add_spare(all[n].clone()).await.expect("added");
            let add = weft_array::reshape::ReshapeOptions { add: 1, ..Default::default() };
            array.reshape(add).await.expect("begun");
            let busy = refusal(array.grow(None).await);
            assert!(busy.contains("reshaped"), "{busy}");
            while array.is_reshaping() {
                rt.sleep(MILLISECOND).await;
            }
            expected.resize(array.size_bytes() as usize, 0);
            check_whole(&array, &expected, "reshaped").await;
            let at = array.size_bytes() as usize - 4000;
            let bytes = pattern(at as u64, 4000, 2);
            write(&array, at as u64, &bytes).await;
            expected[at..].copy_from_slice(&bytes);
            if n == 3 {
                array.grow(Some(SIZE + 20 * UNIT)).await.expect("grown");
                expected.resize(array.size_bytes() as usize, 0);
                check_whole(&array, &expected, "grown").await;
            }
        }
        array.grow(None).await.expect("grown");
        expected.resize(array.size_bytes() as usize, 0);
        check_whole(&array, &expected, "grown at last").await;
        scrub(&array, "at last").await;
        array.stop().await.expect("stopped");
        let options = AssembleOptions { nonce: 77, ..AssembleOptions::default() };
        let array = Array::assemble(&rt, all, options).await.expect("assembled");
        check_whole(&array, &expected, "the next start").await;
        array.stop().await.expect("stopped");
    });
}

/// Stripes stay where they are, on every layout that says so, and new ones follow on each slot:
/// there one of the first has the lowest row.
#[test]
fn layouts_that_can_be_extended_keep_their_stripes() {
    let codes =
        ["raid0", "raid1", "raid10", "raid10:o2", "raid10:f2", "raid10:n3", "raid4", "raid5"];
    let more =
        ["raid6", "rs:2+1", "rs:3+2", "lrc:4,2,1", "drc:4,2,1", "drc-g:4,2,1", "drc-oa:6,2,1"];
    let mut tried = 0;
    for code in codes.into_iter().chain(more) {
        let code: CodeSpec = code.parse().expect("a code");
        for slots in 2..12 {
            let layout = |rows| weft_layout::for_code(code, Default::default(), slots, rows);
            let (Ok(small), Ok(large)) = (layout(45), layout(300)) else { continue };
            if !small.can_be_extended() {
                assert_eq!(code.to_string(), "raid10:f2");
                continue;
            }
            tried += 1;
            let (width, end) = (small.width(), large.stripes(300));
            for rows in [45, 46, 47, 50] {
                let first = small.stripes(rows);
                let (mut used, mut lowest) = (vec![0; slots], vec![u64::MAX; slots]);
                for (stripe, unit) in (0..end).flat_map(|s| (0..width).map(move |unit| (s, unit))) {
                    let place = large.place(stripe, unit);
                    let (slot, row) = (place.slot.0, place.row);
                    assert_eq!(small.place(stripe, unit), place, "{code} on {slots}");
                    if stripe < first {
                        used[slot] = used[slot].max(row + 1);
                    } else if stripe < first + slots as u64 || lowest.contains(&u64::MAX) {
                        lowest[slot] = lowest[slot].min(row);
                    } else {
                        assert!(row > lowest[slot], "{code} on {slots}, {rows} rows");
                    }
                }
                let follow = used.iter().zip(&lowest).all(|(used, lowest)| lowest >= used);
                assert!(follow, "{code} on {slots}, {rows} rows: {used:?} {lowest:?}");
            }
        }
    }
    assert!(tried > 40, "{tried} layouts");
}
