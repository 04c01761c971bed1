//! A spare that may hold old bytes is zeroed before it takes a slot. Meanwhile it remains a spare:
//! the status and the superblocks list it, it cannot be added once more, and it can be removed.

use std::rc::Rc;

use crate::common::bench::{Bench, members, options, run, sized_disk};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{ArrayState, Event, MemberState, RebuildPolicy, ScrubMode};
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Rt};

const SLOTS: usize = 5;
const SIZE: u64 = 4 << 20;
const SPARE: &str = "test5";

/// An array that has lost the member of slot 0, and is zeroing its spare. Nothing that is written
/// to the data of the spare completes until it is released.
async fn zeroing(rt: &Rt) -> (Bench, Rc<TestDisk>) {
    let disks: Vec<_> = (0..=SLOTS).map(|n| sized_disk(rt, n, 512, SIZE)).collect();
    let spare = disks[SLOTS].clone();
    let mut options = options("raid6");
    options.spares = 1;
    let bench = Bench::on(rt, &options, disks).await;
    let data = bench.superblock.area.data_offset;
    spare.medium.borrow_mut().poke(data + 4096, &[0xa5; 64 * 4096]);
    write(&bench.array, 0, &pattern(0, 65536, 1)).await;
    spare.faults.hold(data..SIZE, 0);
    bench.array.fail(SlotNo(0)).await.expect("can lose one");
    rt.sleep(10 * MILLISECOND).await;
    let last = spare.writes.borrow().last().copied();
    assert!(last.is_some_and(|(offset, _)| offset == data), "{last:?}");
    (bench, spare)
}

async fn check_rebuilt(bench: &Bench) {
    bench.until(ArrayState::Healthy).await;
    let status = bench.array.status();
    assert_eq!((&*status.slots[0].disk, status.spares.len()), (SPARE, 0));
    assert!(read(&bench.array, 0, 65536).await == pattern(0, 65536, 1));
    let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!(report.mismatches, 0);
}

#[test]
fn a_spare_that_is_being_zeroed_is_in_use() {
    run(|rt| async move {
        let (bench, spare) = zeroing(&rt).await;
        let (array, disk) = (bench.array.clone(), spare.clone());
        assert_eq!(array.status().spares, [SPARE]);
        assert_eq!(array.identities().1.len(), SLOTS);
        // If it were added, it would wait as well.
        let added = rt.spawn(async move { array.add_spare(disk).await });
        rt.sleep(10 * MILLISECOND).await;
        spare.faults.release();
        let refused = added.await.expect_err("it is a spare already").to_string();
        assert!(refused.contains("already a member"), "{refused}");
        check_rebuilt(&bench).await;
        // The next failure finds no disk.
        bench.array.fail(SlotNo(1)).await.expect("can lose one");
        rt.sleep(100 * MILLISECOND).await;
        assert_eq!(bench.array.status().slots[1].state, MemberState::Missing);
    });
}

#[test]
fn it_gets_the_superblocks_that_took_effect_meanwhile() {
    run(|rt| async move {
        let (bench, spare) = zeroing(&rt).await;
        bench.array.set_rebuild_policy(RebuildPolicy::default()).await.expect("stored");
        let media: Vec<Medium> = bench.disks.iter().map(|d| d.medium.borrow().clone()).collect();
        spare.faults.release();
        check_rebuilt(&bench).await;

        // If the program dies meanwhile, it is still a spare.
        let media: Vec<_> = media.iter().map(|medium| Leave::Completed.of(medium)).collect();
        let disks = holding(&rt, &Power::new(), SIZE, &media[1..]);
        let array = assemble(&rt, &members(&disks)).await;
        for _ in 0..1000 {
            rt.sleep(MILLISECOND).await;
        }
        assert_eq!(array.status().slots[0].state, MemberState::Active, "{:#?}", array.status());
    });
}

/// The power is cut as soon as the spare has the slot, and nothing survives that is not durable.
#[test]
fn its_zeros_are_durable_before_it_has_the_slot() {
    run(|rt| async move {
        let (bench, spare) = zeroing(&rt).await;
        bench.array.flush().await.expect("flushed");
        let events = bench.array.subscribe();
        spare.faults.release();
        while !matches!(events.next().await, Event::RebuildStarted { .. }) {}
        let left = |disk: &Rc<TestDisk>| Leave::Nothing.of(&disk.medium.borrow());
        let media: Vec<Medium> = bench.disks.iter().map(left).collect();
        bench.array.stop().await.expect("stopped");

        let disks = holding(&rt, &Power::new(), SIZE, &media[1..]);
        let array = assemble(&rt, &members(&disks)).await;
        let is_active = || array.status().slots[0].state == MemberState::Active;
        for _ in 0..1000 {
            rt.sleep(MILLISECOND).await;
        }
        assert!(is_active(), "{:#?}", array.status());
        // A region that was never written is read only once some of it is.
        let (size, stripe) = (array.size_bytes() as usize, array.stripe_bytes() as usize);
        let mut expected = vec![0; size];
        expected[..65536].copy_from_slice(&pattern(0, 65536, 1));
        for at in (0..size).step_by(stripe).filter(|at| *at >= 65536) {
            let bytes = pattern(at as u64, 512, 2);
            write(&array, at as u64, &bytes).await;
            expected[at..at + 512].copy_from_slice(&bytes);
        }
        let found = read(&array, 0, size).await;
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "of {size} bytes in stripes of {stripe}");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(report.mismatches, 0);
    });
}

#[test]
fn once_removed_it_gets_no_slot_and_nothing_is_written_to_it() {
    run(|rt| async move {
        let (bench, spare) = zeroing(&rt).await;
        let array = bench.array.clone();
        let removed = rt.spawn(async move { array.remove_spare(SPARE).await });
        rt.sleep(10 * MILLISECOND).await;
        assert!(bench.array.status().spares.is_empty());
        assert!(!removed.is_finished(), "zeros could still be written to it");
        spare.faults.release();
        removed.await.expect("removed");
        let writes = spare.writes.borrow().len();
        rt.sleep(100 * MILLISECOND).await;
        assert_eq!(spare.writes.borrow().len(), writes);
        assert_eq!(bench.array.status().slots[0].state, MemberState::Missing);
    });
}
