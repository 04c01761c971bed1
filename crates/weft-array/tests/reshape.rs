//! Changing the geometry of an array while it is used.

use std::rc::Rc;

use crate::common::{assemble, disks, options, pattern, read, rt, write};
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::read_superblock;
use weft_array::{Array, ArrayState, AssembleOptions, Event, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

/// An array with head room.
async fn make(rt: &Rt, code: &str, disks: &[Rc<dyn Disk>]) -> Array {
    let options = weft_array::CreateOptions { head_room_bytes: Some(2 << 20), ..options(code) };
    create(disks, &options).await.expect("created");
    assemble(rt, disks).await
}

async fn reshaped(rt: &Rt, array: &Array) {
    while array.status().jobs.iter().any(|job| job.kind == weft_array::JobKind::Reshape)
        || array.is_reshaping()
    {
        rt.sleep(MILLISECOND).await;
    }
}

async fn is_clean(array: &Array) {
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert!(report.complete && report.mismatches == 0 && report.unreadable == 0, "{report:?}");
}

#[test]
fn a_grown_array_has_its_data_and_more_space() {
    for (code, count, add) in [
        ("raid5", 3, 1),
        ("raid5", 3, 2),
        ("raid5", 3, 5),
        ("raid6", 4, 1),
        ("raid0", 2, 2),
        ("raid10", 4, 2),
        ("raid4", 3, 1),
    ] {
        let rt = rt();
        rt.clone().block_on(async move {
            let all = disks(count + add, 16);
            let array = make(&rt, code, &all[..count]).await;
            let size = array.size_bytes();
            write(&array, 0, &pattern(0, 1 << 20, 1)).await;
            let far = size - (1 << 20);
            write(&array, far, &pattern(far, 1 << 20, 2)).await;
            for disk in &all[count..] {
                array.add_spare(disk.clone()).await.expect("added");
            }
            let plan = array.reshape(ReshapeOptions { add, ..ReshapeOptions::default() }).await;
            let plan = plan.expect("begun");
            assert_eq!(plan.size_bytes, size);
            reshaped(&rt, &array).await;
            assert_eq!(array.size_bytes(), plan.new_size_bytes);
            assert_eq!(read(&array, 0, 1 << 20).await, pattern(0, 1 << 20, 1), "{code}");
            assert_eq!(read(&array, far, 1 << 20).await, pattern(far, 1 << 20, 2), "{code}");
            assert!(read(&array, 2 << 20, 1 << 20).await.iter().all(|byte| *byte == 0));
            let end = array.size_bytes() - (1 << 20);
            assert!(read(&array, end, 1 << 20).await.iter().all(|byte| *byte == 0));
            write(&array, end, &pattern(end, 1 << 20, 3)).await;
            is_clean(&array).await;
            array.stop().await.expect("stopped");
            let array = assemble(&rt, &all).await;
            assert_eq!(array.size_bytes(), plan.new_size_bytes);
            assert_eq!(read(&array, far, 1 << 20).await, pattern(far, 1 << 20, 2), "{code}");
            assert_eq!(read(&array, end, 1 << 20).await, pattern(end, 1 << 20, 3), "{code}");
        });
    }
}

/// The new code survives the loss of all old members, so the new ones must have the region map.
/// Where nothing was ever written, nothing else writes it to them.
#[test]
fn an_array_that_grew_to_more_than_twice_its_disks_can_start_without_the_old_ones() {
    let rt = rt();
    rt.clone().block_on(async move {
        let all = disks(5, 16);
        let array = make(&rt, "raid1", &all[..2]).await;
        for disk in &all[2..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let code = Some("raid6".parse().expect("a code"));
        let wanted = ReshapeOptions { code, add: 3, ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        reshaped(&rt, &array).await;
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &all[2..]).await;
        let regions = array.status().regions;
        assert_eq!((regions.written, regions.resync), (0, 0), "{regions:?}");
        let len = usize::try_from(array.size_bytes()).expect("fits memory");
        assert!(read(&array, 0, len).await.iter().all(|byte| *byte == 0));
    });
}

/// They count as members from the beginning, though nothing has moved to them.
#[test]
fn an_array_that_loses_all_its_many_new_disks_at_once_can_be_read() {
    let rt = rt();
    rt.clone().block_on(async move {
        let all = disks(7, 16);
        let array = make(&rt, "raid5", &all[..3]).await;
        write(&array, 0, &pattern(0, 1 << 20, 1)).await;
        for disk in &all[3..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        array.set_paused(true);
        let wanted = ReshapeOptions { add: 4, ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        array.stop().await.expect("stopped");
        let start = |force_degraded| {
            let options = AssembleOptions { force_degraded, nonce: 9, ..Default::default() };
            Array::assemble(&rt, all[..3].to_vec(), options)
        };
        let refused = start(false).await.err().map(|error| error.to_string());
        assert!(
            refused.as_ref().is_some_and(|why| why.contains("does not survive")),
            "{refused:?}"
        );
        let array = start(true).await.expect("started");
        assert_eq!(read(&array, 0, 1 << 20).await, pattern(0, 1 << 20, 1));
    });
}

/// The superblock has fields then that programs from before reshapes would call damaged.
#[test]
fn an_array_that_was_ever_reshaped_says_that_it_needs_a_program_that_knows_reshapes() {
    let rt = rt();
    rt.clone().block_on(async move {
        let all = disks(4, 16);
        let features = async |disk: &Rc<dyn Disk>| {
            read_superblock(&**disk).await.expect("intact").expect("a member").features
        };
        let array = make(&rt, "raid5", &all[..3]).await;
        array.add_spare(all[3].clone()).await.expect("added");
        assert_eq!(features(&all[0]).await, [""; 0]);
        let wanted = ReshapeOptions { add: 1, ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        assert_eq!(features(&all[0]).await, ["reshape"]);
        reshaped(&rt, &array).await;
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &all).await;
        assert_eq!(features(&all[3]).await, ["reshape"]);
        array.stop().await.expect("stopped");
    });
}

/// Whether parity has a log, and whether anything is recorded, is settled when an array is created.
#[test]
fn codes_become_others_if_their_way_to_be_consistent_fits() {
    for (code, count, to, add, becomes) in [
        ("raid6", 4, "raid5", 0, true),
        ("raid5", 3, "raid6", 1, true),
        ("raid5", 5, "drc-g:4,2,1", 2, true),
        ("drc-g:4,2,1", 7, "raid6", 0, true),
        ("raid0", 2, "raid5", 1, true),
        ("raid0", 2, "raid10", 2, true),
        ("raid1", 2, "raid5", 1, true),
        ("raid1", 2, "raid10", 2, true),
        ("raid10", 4, "raid6", 1, true),
        ("raid5", 3, "raid0", 0, false),
        ("raid5", 3, "raid10", 1, false),
        ("raid10", 4, "raid0", 0, false),
    ] {
        let rt = rt();
        rt.clone().block_on(async move {
            let all = disks(count + add, 16);
            let array = make(&rt, code, &all[..count]).await;
            for disk in &all[count..] {
                array.add_spare(disk.clone()).await.expect("added");
            }
            let to = Some(to.parse().expect("a code"));
            let plan = array.plan_reshape(&ReshapeOptions { code: to, add, ..Default::default() });
            let refused = plan.err().map(|error| error.to_string());
            let names = refused.as_ref().is_none_or(|why| why.contains("kept consistent by"));
            assert!(refused.is_none() == becomes && names, "{code} to {to:?}: {refused:?}");
        });
    }
}

#[test]
fn a_lost_member_is_replaced_before_a_reshape_goes_on_and_a_working_one_after_it() {
    let rt = rt();
    rt.clone().block_on(async move {
        let all = disks(6, 16);
        let array = make(&rt, "raid5", &all[..3]).await;
        let size = array.size_bytes();
        write(&array, 0, &pattern(0, 1 << 20, 1)).await;
        array.add_spare(all[3].clone()).await.expect("added");
        array.reshape(ReshapeOptions { add: 1, ..ReshapeOptions::default() }).await.expect("begun");
        array.set_paused(true);
        array.fail(SlotNo(1)).await.expect("can lose one");
        let working = array.replace(SlotNo(0), all[4].clone()).await;
        let why = working.expect_err("it is copied after the reshape").to_string();
        assert!(why.contains("being reshaped"), "{why}");
        array.replace(SlotNo(1), all[5].clone()).await.expect("a spare");
        let events = array.subscribe();
        array.set_paused(false);
        reshaped(&rt, &array).await;
        let mut events = std::iter::from_fn(|| events.try_next());
        assert!(
            events.any(|event| matches!(event, Event::RebuildFinished { slot: SlotNo(1) }))
                && events.any(|event| matches!(event, Event::ReshapeFinished { .. })),
            "first the rebuild ends, then the reshape"
        );
        assert!(array.size_bytes() > size && array.status().state == ArrayState::Healthy);
        assert_eq!(read(&array, 0, 1 << 20).await, pattern(0, 1 << 20, 1));
        is_clean(&array).await;
        array.stop().await.expect("stopped");
    });
}
