//! A member that is being rebuilt counts with what it holds: the array continues without a further
//! member if no data is lost, and an array that could continue can be assembled again.

use crate::common::bench::{Bench, members, options, run, sized_disk};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use weft_array::{Array, ArrayError, ArrayState, AssembleOptions, MemberState};
use weft_code::SlotNo;
use weft_rt::{Buf, Frozen, MILLISECOND, Rt};

const SLOTS: usize = 4;
const SIZE: u64 = 4 << 20;

/// A RAID-5 whose member of slot 0 is being rebuilt on disk 4, and hardly anything is: the target
/// lacks its part of stripe 6 if `lacks_some`, and nothing otherwise. Stripe 2 has data.
async fn being_rebuilt(rt: &Rt, lacks_some: bool) -> Bench {
    let disks: Vec<_> = (0..=SLOTS).map(|n| sized_disk(rt, n, 512, SIZE)).collect();
    let mut options = options("raid5");
    options.spares = 1;
    let bench = Bench::on(rt, &options, disks).await;
    let array = &bench.array;
    let stripe = bench.stripe_bytes();
    for number in 0..8 {
        write(array, number * stripe, &contents(&bench, number, 1)).await;
    }
    array.set_throttle(0, Some(1));
    array.fail(SlotNo(0)).await.expect("can lose one");
    bench.until(ArrayState::Rebuilding).await;
    rt.sleep(10 * MILLISECOND).await;
    array.set_paused(true);
    // An unwritten region lacks nothing, and what is then written reaches the target.
    let (end, next) = if lacks_some { (6, 7) } else { (8, 8) };
    for part in [0..end, next..8] {
        array.discard(part.start * stripe, (part.end - part.start) * stripe).await.expect("done");
    }
    write(array, 2 * stripe, &contents(&bench, 2, 2)).await;
    array.flush().await.expect("flushed");
    bench
}

fn contents(bench: &Bench, stripe: u64, version: u8) -> Vec<u8> {
    let bytes = bench.stripe_bytes();
    pattern(stripe * bytes, to_len(bytes), version)
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("small")
}

/// Kills the program, and assembles what is on these disks.
async fn after_kill(
    bench: &Bench,
    disks: std::ops::Range<usize>,
    options: AssembleOptions,
) -> Result<Array, ArrayError> {
    let media: Vec<Medium> =
        bench.disks[disks].iter().map(|d| Leave::Completed.of(&d.medium.borrow())).collect();
    let disks = holding(&bench.rt, &Power::new(), SIZE, &media);
    Array::assemble(&bench.rt, members(&disks), options).await
}

async fn check_usable(bench: &Bench, array: &Array) {
    let offset = 2 * bench.stripe_bytes();
    let len = to_len(bench.stripe_bytes());
    assert!(read(array, offset, len).await == contents(bench, 2, 2));
    write(array, offset, &contents(bench, 2, 3)).await;
    assert!(read(array, offset, len).await == contents(bench, 2, 3));
}

#[test]
fn an_array_that_continued_with_a_target_that_holds_all_data_is_assembled_again() {
    run(|rt| async move {
        let bench = being_rebuilt(&rt, false).await;
        bench.disks[1].faults.gone.set(true);
        let offset = 2 * bench.stripe_bytes();
        write(&bench.array, offset, &contents(&bench, 2, 2)).await;
        let states: Vec<_> = bench.array.status().slots.iter().map(|slot| slot.state).collect();
        assert_eq!(states[..2], [MemberState::Rebuilding, MemberState::Missing]);
        let array = after_kill(&bench, 2..5, AssembleOptions::default()).await;
        check_usable(&bench, &array.expect("it could continue")).await;
    });
}

#[test]
fn a_member_that_is_not_found_is_missed_only_by_the_data_that_the_target_lacks() {
    for lacks_some in [false, true] {
        run(move |rt| async move {
            let bench = being_rebuilt(&rt, lacks_some).await;
            let array = after_kill(&bench, 2..5, AssembleOptions::default()).await;
            if !lacks_some {
                return check_usable(&bench, &array.expect("all data is there")).await;
            }
            let refused = array.map(drop).expect_err("stripe 6 is lost").to_string();
            assert!(refused.contains("does not survive the loss of"), "{refused}");
            // What is left can be read.
            let force = AssembleOptions { force_degraded: true, ..AssembleOptions::default() };
            let array = after_kill(&bench, 2..5, force).await.expect("forced");
            let bytes = bench.stripe_bytes();
            assert!(read(&array, 2 * bytes, to_len(bytes)).await == contents(&bench, 2, 2));
            assert!(array.read(6 * bytes, Buf::new(to_len(bytes))).await.0.is_err());
            let late = array.write(0, Frozen::copy_from(&contents(&bench, 0, 4)), false).await;
            assert!(late.is_err());
            // With the member it starts as usual.
            let array = after_kill(&bench, 1..5, AssembleOptions::default()).await;
            check_usable(&bench, &array.expect("all members but one")).await;
        });
    }
}
