//! The status promises nothing that a crash now would take away. While the superblock is being
//! written that makes a rebuilt member active, or a copy the member, the status still describes
//! what the superblocks on disk say.

use std::rc::Rc;

use crate::common::bench::{Bench, SUPERBLOCKS, UNIT, disk, run};
use crate::common::disk::{Leave, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{ArrayState, MemberState, SlotStatus};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::SECOND;

/// Slot, which gets a new disk, and what the status tells of it.
const SLOT: usize = 1;

fn told(bench: &Bench) -> (MemberState, String, Option<String>) {
    let SlotStatus { state, disk, replacement, .. } = bench.array.status().slots.remove(SLOT);
    (state, disk, replacement)
}

/// The state of the slot after a crash now, by the disks that the array had before it.
async fn after_a_crash(bench: &Bench, new: &Rc<TestDisk>) -> MemberState {
    let media = bench.disks.iter().chain([new]);
    let media: Vec<_> = media.map(|disk| Leave::Nothing.of(&disk.medium.borrow())).collect();
    let size = new.info().size_bytes;
    let disks = holding(&bench.rt, &Power::new(), size, &media);
    let without = disks.into_iter().enumerate().filter(|(n, _)| *n != SLOT);
    let disks: Vec<_> = without.map(|(_, disk)| disk as Rc<dyn Disk>).collect();
    let array = assemble(&bench.rt, &disks).await;
    array.status().slots[SLOT].state
}

/// An array with data whose slot gets the disk `new`, in a rebuild that is slow until the
/// superblocks are held.
async fn almost_done(bench: &Bench, new: &Rc<TestDisk>, replace: bool) {
    let bytes = pattern(0, 6 * bench.stripe_bytes() as usize, 1);
    write(&bench.array, 0, &bytes).await;
    bench.array.flush().await.expect("flushed");
    bench.rt.sleep(20 * SECOND).await;
    // A stripe a second.
    bench.array.set_throttle(0, Some(UNIT));
    if replace {
        bench.array.replace(SlotNo(SLOT), new.clone()).await.expect("begun");
    } else {
        bench.array.fail(SlotNo(SLOT)).await.expect("failed");
        bench.array.add_spare(new.clone()).await.expect("added");
    }
    bench.rt.sleep(SECOND).await;
    let all = bench.disks.iter().chain([new]);
    all.for_each(|disk| disk.faults.hold(SUPERBLOCKS, 0));
    bench.array.set_throttle(0, None);
    bench.rt.sleep(30 * SECOND).await;
}

#[test]
fn a_rebuilt_member_is_active_once_the_superblocks_say_so() {
    for (code, slots, before) in [("raid1", 2, 0), ("raid5", 4, 0), ("raid6", 5, 1)] {
        run(move |rt| async move {
            let (bench, new) = (Bench::new(&rt, code, slots).await, disk(&rt, slots, 512));
            let whole = bench.array.status().redundancy_remaining;
            almost_done(&bench, &new, false).await;
            let status = bench.array.status();
            let new_name = format!("test{slots}");
            assert_eq!(status.slots[SLOT].stale_regions, 0, "{code}: all of it is there");
            assert_eq!(told(&bench), (MemberState::Rebuilding, new_name.clone(), None), "{code}");
            assert_eq!(status.state, ArrayState::Rebuilding, "{code}");
            assert_eq!(status.redundancy_remaining, Some(before), "{code}");
            assert_eq!(after_a_crash(&bench, &new).await, MemberState::Rebuilding, "{code}");
            bench.disks.iter().chain([&new]).for_each(|disk| disk.faults.release());
            bench.rt.sleep(SECOND).await;
            assert_eq!(told(&bench), (MemberState::Active, new_name, None), "{code}");
            assert_eq!(bench.array.status().state, ArrayState::Healthy, "{code}");
            assert_eq!(bench.array.status().redundancy_remaining, whole, "{code}");
        });
    }
}

#[test]
fn a_copy_is_the_member_once_the_superblocks_say_so() {
    for (code, slots) in [("raid1", 2), ("raid5", 4)] {
        run(move |rt| async move {
            let (bench, new) = (Bench::new(&rt, code, slots).await, disk(&rt, slots, 512));
            let whole = bench.array.status().redundancy_remaining;
            almost_done(&bench, &new, true).await;
            let (old, new_name) = (format!("test{SLOT}"), format!("test{slots}"));
            let copying = (MemberState::Active, old, Some(new_name.clone()));
            assert_eq!(told(&bench), copying, "{code}");
            assert_eq!(bench.array.status().state, ArrayState::Replacing, "{code}");
            assert_eq!(bench.array.status().redundancy_remaining, whole, "{code}");
            bench.disks.iter().chain([&new]).for_each(|disk| disk.faults.release());
            bench.rt.sleep(SECOND).await;
            assert_eq!(told(&bench), (MemberState::Active, new_name, None), "{code}");
            assert_eq!(bench.array.status().state, ArrayState::Healthy, "{code}");
        });
    }
}
