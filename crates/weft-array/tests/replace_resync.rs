//! What a crash in the middle of a resync leaves on a member and its replacement may differ, even
//! where the region was copied before. The replacement must not become the member in that state.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, options, run};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::{Array, AssembleOptions, Consistency, ScrubMode};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt, SECOND};

/// The disk after a kill of the program, opened again.
fn killed(rt: &Rt, disk: &TestDisk) -> Rc<TestDisk> {
    let info = disk.info();
    let number = info.name.trim_start_matches("test").parse().expect("a number");
    let medium = Leave::Completed.of(&disk.medium.borrow());
    TestDisk::new(rt, &Power::new(), number, info.size_bytes, info.sector_bytes, medium)
}

async fn start(rt: &Rt, disks: &[Rc<TestDisk>]) -> Array {
    let options = AssembleOptions { nonce: rt.now() + 1, ..AssembleOptions::default() };
    Array::assemble(rt, members(disks), options).await.expect("assembled")
}

/// The parity of stripe 0 is wrong after a crash, and its resync finds no space at first; meanwhile
/// its region is copied to the member's replacement. Then there is space, the resync writes to both
/// disks, and the program is killed when only the member has the write.
#[test]
fn a_region_that_awaits_its_resync_is_stale_on_the_replacement_after_a_crash() {
    run(|rt| async move {
        let options =
            weft_array::CreateOptions { consistency: Consistency::Bitmap, ..options("raid5") };
        let disks = (0..4).map(|n| disk(&rt, n, 512)).collect();
        let bench = Bench::on(&rt, &options, disks).await;
        let bytes = pattern(0, 8 * bench.stripe_bytes() as usize, 1);
        write(&bench.array, 0, &bytes).await;
        bench.array.flush().await.expect("flushed");
        // Killed with stripe 0 dirty; its parity is wrong.
        let (slot, parity) = bench.place(0, bench.k());
        bench.disks[slot].medium.borrow_mut().poke(parity, &[0x5a; UNIT as usize]);
        let disks: Vec<_> = bench.disks.iter().map(|disk| killed(&rt, disk)).collect();
        let full = Rc::new(Cell::new(true));
        let is_full = full.clone();
        *disks[slot].faults.room.borrow_mut() = Some(Box::new(move |offset, len, _| {
            let meets = offset < parity + UNIT && parity < offset + len;
            (is_full.get() && meets).then_some(0)
        }));
        let array = start(&rt, &disks).await;
        rt.sleep(100 * MILLISECOND).await;
        assert_eq!(array.status().regions.resync, 1, "no room");
        // Some regions are copied, including the one that awaits its resync.
        let new = disk(&rt, 8, 512);
        array.set_throttle(0, Some(8192));
        array.replace(SlotNo(slot), new.clone()).await.expect("begun");
        rt.sleep(2 * SECOND).await;
        array.set_paused(true);
        rt.sleep(100 * MILLISECOND).await;
        assert_eq!(array.status().regions.resync, 1, "still no room");
        let mut copied = vec![0; UNIT as usize];
        new.medium.borrow().read(parity, &mut copied);
        assert_eq!(copied, [0x5a; UNIT as usize], "copied as it is");
        full.set(false);
        new.faults.hold(parity..parity + UNIT, 0);
        array.set_paused(false);
        rt.sleep(SECOND).await;
        disks[slot].medium.borrow().read(parity, &mut copied);
        assert_ne!(copied, [0x5a; UNIT as usize], "resynced on the member");
        let all: Vec<_> = disks.iter().chain([&new]).map(|disk| killed(&rt, disk)).collect();
        let again = start(&rt, &all).await;
        while again.status().slots[slot].disk != "test8" || again.status().regions.resync > 0 {
            rt.sleep(MILLISECOND).await;
        }
        let report = again.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0));
        assert_eq!(read(&again, 0, bytes.len()).await, bytes);
        new.faults.release();
    });
}
