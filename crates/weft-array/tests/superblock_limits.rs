//! A change that superblocks cannot hold is refused, and a member that takes no superblock is left
//! out: neither keeps an array from working.

use crate::common::bench::{SUPERBLOCKS, UNIT, members, options as bench_options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use std::cell::RefCell;
use std::rc::Rc;
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::{SPARES_MAX, read_superblock, write_superblock};
use weft_array::{
    Array, ArrayError, ArrayState, AssembleOptions, CreateOptions, MemberState, RebuildPolicy,
    create,
};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::MILLISECOND;

const SIZE: u64 = (3 << 20) + 64 * UNIT;

fn is_refused(result: Result<(), ArrayError>) -> bool {
    matches!(result, Err(ArrayError::Refused(_)))
}

/// A member that a crash kept from getting the newest superblock, and that takes none now: three of
/// four disks were enough to start, and all four were not.
#[test]
fn a_lagging_member_that_takes_no_superblock_is_left_out() {
    for reads_fail in [false, true] {
        lagging(reads_fail);
    }
}

fn lagging(reads_fail: bool) {
    let media: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = media.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        create(&all, &bench_options("raid5")).await.expect("created");
        let array = assemble(&rt, &all).await;
        write(&array, 0, &pattern(0, 50_000, 1)).await;
        array.flush().await.expect("flushed");
        // A change that one member misses as the power goes.
        disks[2].faults.hold(SUPERBLOCKS, 0);
        let policy = RebuildPolicy { slice_stripes: 3, ..RebuildPolicy::default() };
        drop(rt.spawn(async move { array.set_rebuild_policy(policy).await }));
        rt.sleep(MILLISECOND).await;
        let left = disks.iter().map(|disk| Leave::Nothing.of(&disk.medium.borrow()));
        *out.borrow_mut() = left.collect();
    });
    let media = media.take();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let all = members(&disks);
        let seq =
            async |n: usize| read_superblock(&*all[n]).await.expect("read").expect("a member").seq;
        assert_eq!(seq(2).await + 1, seq(0).await, "it lags behind");
        *disks[2].faults.unwritable.borrow_mut() = SUPERBLOCKS;
        if reads_fail {
            disks[2].faults.gone_after_writes.set(Some(0));
        }
        let array = assemble(&rt, &all).await;
        let status = array.status();
        assert_eq!(status.state, ArrayState::Degraded);
        assert_eq!(status.slots[2].state, MemberState::Missing);
        assert_eq!(read(&array, 0, 50_000).await, pattern(0, 50_000, 1));
        write(&array, 0, &pattern(0, 50_000, 2)).await;
        array.stop().await.expect("stopped");
        // It is well again, and lacks what was written without it.
        *disks[2].faults.unwritable.borrow_mut() = 0..0;
        disks[2].faults.gone.set(false);
        disks[2].faults.gone_after_writes.set(None);
        let array = assemble(&rt, &all).await;
        for _ in 0..10_000 {
            rt.sleep(MILLISECOND).await;
        }
        assert_eq!(read(&array, 0, 50_000).await, pattern(0, 50_000, 2));
    });
}

/// The spare was taken, no superblock could list it, and the array took no more writes.
#[test]
fn one_spare_too_many_is_refused() {
    run(|rt| async move {
        let count = 3 + SPARES_MAX;
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count + 1]);
        let all = members(&disks);
        let options = CreateOptions { spares: SPARES_MAX, ..bench_options("raid5") };
        create(&all[..count], &options).await.expect("created");
        let array = assemble(&rt, &all[..count]).await;
        let added = array.add_spare(all[count].clone()).await;
        assert!(is_refused(added), "it is one too many");
        assert!(read_superblock(&*all[count]).await.expect("read").is_none(), "it is untouched");
        assert_eq!(array.status().state, ArrayState::Healthy);
        write(&array, 0, &pattern(0, 5000, 1)).await;
        // Its place in a slot is another matter, also while all spares are still there.
        array.set_paused(true);
        array.fail(SlotNo(1)).await.expect("failed");
        array.replace(SlotNo(1), all[count].clone()).await.expect("it gets the slot");
        write(&array, 0, &pattern(0, 5000, 2)).await;
        array.set_paused(false);
        while array.status().state != ArrayState::Healthy {
            assert_eq!(array.status().broken, None);
            rt.sleep(MILLISECOND).await;
        }
        let status = array.status();
        assert_eq!(status.slots[1].disk, all[count].info().name);
        assert_eq!(status.spares.len(), SPARES_MAX);
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &all).await;
        assert_eq!(array.status().state, ArrayState::Healthy);
        assert_eq!(read(&array, 0, 5000).await, pattern(0, 5000, 2));
    });
}

/// Disks that a shrinking array gives up become spares at its end.
#[test]
fn places_of_spares_are_kept_for_the_end_of_a_reshape() {
    run(|rt| async move {
        let (slots, spares) = (5, SPARES_MAX - 2);
        let count = slots + spares;
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count + 1]);
        let all = members(&disks);
        let options = CreateOptions {
            spares,
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..bench_options("raid5")
        };
        create(&all[..count], &options).await.expect("created");
        let array = assemble(&rt, &all[..count]).await;
        let wanted = ReshapeOptions { remove: 2, used_bytes: Some(0), ..ReshapeOptions::default() };
        let len = array.plan_reshape(&wanted).expect("possible").new_size_bytes as usize;
        write(&array, 0, &pattern(0, len, 1)).await;
        array.set_paused(true);
        array.reshape(wanted).await.expect("begun");
        assert!(is_refused(array.add_spare(all[count].clone()).await), "two are to come");
        array.set_paused(false);
        while array.is_reshaping() {
            assert_eq!(array.status().broken, None);
            rt.sleep(MILLISECOND).await;
        }
        let status = array.status();
        assert_eq!((status.state, status.spares.len()), (ArrayState::Healthy, SPARES_MAX));
        assert_eq!(read(&array, 0, len).await, pattern(0, len, 1));
        array.stop().await.expect("stopped");
    });
}

/// With long names in letters of several bytes the superblock is larger than its space.
#[test]
fn names_of_disks_are_shortened_where_they_do_not_fit() {
    run(|rt| async move {
        let count = 240;
        let disks: Vec<Rc<dyn Disk>> =
            (0..count).map(|n| ram(&format!("{n}{}", "\u{1d11e}".repeat(200)), 4)).collect();
        let options = CreateOptions { region_bytes: None, ..bench_options("raid1") };
        create(&disks, &options).await.expect("created");
        let array = assemble(&rt, &disks).await;
        write(&array, 0, &pattern(0, 5000, 1)).await;
        array.fail(SlotNo(7)).await.expect("failed");
        write(&array, 0, &pattern(0, 5000, 2)).await;
        array.stop().await.expect("stopped");
    });
}

/// The checkpoint of a reshape that says that half a stripe has moved is refused, and nothing is
/// excluded or rewritten by it.
#[test]
fn a_checkpoint_within_a_stripe_is_impossible() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let all = members(&disks);
        let options = CreateOptions {
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..bench_options("raid5")
        };
        create(&all[..4], &options).await.expect("created");
        let array = assemble(&rt, &all[..4]).await;
        write(&array, 0, &pattern(0, 100_000, 1)).await;
        array.set_paused(true);
        array.add_spare(all[4].clone()).await.expect("added");
        array.reshape(ReshapeOptions { add: 1, ..ReshapeOptions::default() }).await.expect("begun");
        array.stop().await.expect("stopped");
        let own = read_superblock(&*all[0]).await.expect("read").expect("a member");
        let edge = 4 * UNIT;
        for (checkpoint, possible) in
            [(0, true), (1, false), (512, false), (UNIT, false), (edge, true), (edge + 512, false)]
        {
            let mut changed = own.clone();
            changed.seq += 2;
            changed.reshape.as_mut().expect("it is being reshaped").checkpoint_bytes = checkpoint;
            assert_eq!(changed.encode(own.self_id).is_ok(), possible, "{checkpoint}");
        }
        write_superblock(&*all[0], &own, own.self_id).await.expect("as it was");
    });
}

/// A request that was refused before it was sent says nothing about the disk: the next members
/// would be excluded for the same.
#[test]
fn no_member_is_excluded_for_a_malformed_request() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        let superblock = create(&all, &bench_options("raid5")).await.expect("created");
        let array: Array = assemble(&rt, &all).await;
        let bytes = pattern(0, 100_000, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        *disks[1].faults.malformed.borrow_mut() = superblock.area.data_offset..SIZE;
        let stripe = array.stripe_bytes();
        let new = pattern(0, stripe as usize, 2);
        let done = array.write(0, weft_rt::Frozen::copy_from(&new), false).await;
        assert!(done.is_err(), "not all of it was written");
        let status = array.status();
        assert_eq!(status.state, ArrayState::Broken);
        assert!(status.slots.iter().all(|slot| slot.state == MemberState::Active), "{status:#?}");
        array.stop().await.err();
        *disks[1].faults.malformed.borrow_mut() = 0..0;
        let options = AssembleOptions { nonce: 77, ..AssembleOptions::default() };
        let array = Array::assemble(&rt, all, options).await.expect("all members are there");
        let found = read(&array, stripe, 100_000 - stripe as usize).await;
        assert!(found == bytes[stripe as usize..], "bytes have changed");
    });
}
