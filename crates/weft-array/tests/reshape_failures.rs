//! A member that fails at any one of its writes while the array is reshaped: the array loses
//! nothing but this member, and the reshape goes on to its end. One of these writes says that the
//! member of a slot that ends is released; that and the failure then count together.

use crate::common::cuts::{disks_of, members};
use crate::common::disk::{Medium, Power};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{ArrayState, ScrubMode, create};
use weft_rt::MILLISECOND;

const UNIT: u64 = 4096;
const ROWS: u64 = 12;

/// Reshapes a RAID-5; the disk `victim` is gone after this many of its writes. Returns whether it
/// had that many.
fn fails_after(slots: usize, wanted: &ReshapeOptions, victim: usize, writes: u64) -> bool {
    let rt = rt();
    let power = Power::new();
    let (rt2, wanted) = (rt.clone(), *wanted);
    let failed = rt.block_on(async move {
        let rt = rt2;
        let what = format!("{wanted:?}, disk {victim} gone after {writes} writes");
        let size = (3 << 20) + ROWS * UNIT;
        let disks = disks_of(&rt, &power, size, vec![Medium::new(512); slots + wanted.add]);
        let all = members(&disks);
        let options = weft_array::CreateOptions {
            unit_bytes: UNIT as u32,
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..options("raid5")
        };
        create(&all[..slots], &options).await.expect("created");
        let array = assemble(&rt, &all[..slots]).await;
        for disk in &all[slots..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let kept = array.plan_reshape(&wanted).expect("possible");
        let kept = kept.size_bytes.min(kept.new_size_bytes) as usize;
        let bytes = pattern(0, kept, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        array.reshape(wanted).await.expect("begun");
        let faults = &disks[victim].faults;
        faults.gone_after_writes.set(Some(writes));
        while array.is_reshaping() && array.status().state != ArrayState::Broken {
            rt.sleep(MILLISECOND).await;
        }
        let failed = faults.gone.get();
        faults.gone_after_writes.set(None);
        let state = array.status().state;
        assert!(state != ArrayState::Broken, "{what}: the array has stopped");
        assert!(read(&array, 0, kept).await == bytes, "{what}: bytes have changed");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        array.stop().await.expect("stopped");
        failed
    });
    rt.kill_all();
    failed
}

fn fails_at_every_write(slots: usize, wanted: &ReshapeOptions) {
    for victim in 0..slots + wanted.add {
        let mut writes = 0;
        while fails_after(slots, wanted, victim, writes) {
            writes += 1;
        }
        assert!(writes > 3, "disk {victim} had only {writes} writes");
    }
}

fn wanted() -> ReshapeOptions {
    ReshapeOptions { head_room_bytes: Some(2 * UNIT), ..ReshapeOptions::default() }
}

#[test]
fn while_a_disk_is_removed() {
    // Two of three active members at once are most of them: the release is undone, and made again.
    fails_at_every_write(3, &ReshapeOptions { remove: 1, used_bytes: Some(0), ..wanted() });
}

#[test]
fn while_a_disk_is_added() {
    fails_at_every_write(3, &ReshapeOptions { add: 1, ..wanted() });
}
