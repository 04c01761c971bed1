//! A spare takes a slot, gets the first writes of regions there, and the program dies before the
//! superblock names it. The next program gives the spare another slot: what it got for the first
//! does not show through where nothing was ever written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use futures_util::future::join_all;
use weft_array::{Array, AssembleOptions, MemberState, ScrubMode, create};
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Rt};

const SLOTS: usize = 5;
const SIZE: u64 = (1 << 20) + 276 * UNIT;

/// The regions that are written: every other one. Regions share rows of the disks with the next.
fn written(array: &Array) -> impl Iterator<Item = u64> {
    let region = REGION as u64;
    (region..array.size_bytes() - region).step_by(2 * REGION)
}

const REGION: usize = 4 * UNIT as usize;

#[derive(Clone)]
struct Moment {
    media: Vec<Medium>,
    /// Where writes had begun.
    begun: BTreeSet<u64>,
}

/// What the disks hold at each operation while slot 4 fails, a spare takes it, and users write for
/// the first time.
fn record() -> Vec<Moment> {
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let kept = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); SLOTS + 1]);
        let mut options = options("raid10:o2");
        options.region_bytes = Some(REGION as u64);
        let superblock = create(&members(&disks[..SLOTS]), &options).await.expect("created");
        let array = assemble(&rt, &members(&disks[..SLOTS])).await;
        array.add_spare(disks[SLOTS].clone()).await.expect("added");
        rt.sleep(MILLISECOND).await;
        // Slot 4 fails, and that takes long to be durable; first writes of regions wait for it.
        let superblocks = 0..superblock.area.map_offset;
        disks.iter().for_each(|disk| disk.faults.hold(superblocks.clone(), 0));
        let failing = array.clone();
        let failed = rt.spawn(async move { failing.fail(SlotNo(4)).await });
        let begun: Rc<RefCell<BTreeSet<u64>>> = Rc::default();
        let writes = written(&array).map(|at| {
            begun.borrow_mut().insert(at);
            let array = array.clone();
            rt.spawn(async move { write(&array, at, &pattern(at, REGION, 1)).await })
        });
        let writes: Vec<_> = writes.collect();
        rt.sleep(MILLISECOND).await;
        let (seen, known) = (disks.clone(), begun.clone());
        power.watch(move || {
            let media = seen.iter().map(|disk| disk.medium.borrow().clone()).collect();
            kept.borrow_mut().push(Moment { media, begun: known.borrow().clone() });
        });
        disks.iter().for_each(|disk| disk.faults.release());
        failed.await.expect("can lose one");
        join_all(writes).await;
        power.watch(|| {});
    });
    moments.take()
}

async fn rebuilt(rt: &Rt, array: &Array, what: &str) {
    for _ in 0..5000 {
        let status = array.status();
        if status.slots[2].state == MemberState::Active && status.regions.resync == 0 {
            return;
        }
        rt.sleep(MILLISECOND).await;
    }
    panic!("{what}: {:#?}", array.status());
}

#[test]
fn what_a_spare_got_for_one_slot_does_not_show_through_in_another() {
    let moments = record();
    assert!(moments.len() > 60, "only {} steps", moments.len());
    for (number, Moment { media, begun }) in moments.into_iter().enumerate().step_by(5) {
        let taken = Rc::new(Cell::new(false));
        let noted = taken.clone();
        run(move |rt| async move {
            let what = format!("killed at step {number}");
            let media: Vec<_> = media.iter().map(|medium| Leave::Completed.of(medium)).collect();
            let disks = members(&holding(&rt, &Power::new(), SIZE, &media));
            let left = disks.into_iter().enumerate().filter(|(n, _)| ![2, 4].contains(n));
            let left = left.map(|(_, disk)| disk).collect();
            let options = AssembleOptions { nonce: 9, ..Default::default() };
            let array = Array::assemble(&rt, left, options).await.expect("assembled");
            if array.status().slots[4].state != MemberState::Missing {
                // The spare has got that slot.
                noted.set(true);
                return;
            }
            rebuilt(&rt, &array, &what).await;
            // A region that was never written is read only once some of it is.
            let size = array.size_bytes();
            for at in (0..size).step_by(REGION).filter(|at| !begun.contains(at)) {
                write(&array, at, &pattern(at, 512, 1)).await;
            }
            let found = read(&array, 0, size as usize).await;
            for (at, region) in (0..).step_by(REGION).zip(found.chunks(REGION)) {
                let new = pattern(at, REGION, 1);
                let new_bytes = if begun.contains(&at) { REGION } else { 512 };
                let is_right = |n| region[n] == 0 || n < new_bytes && region[n] == new[n];
                assert!((0..region.len()).all(is_right), "{what}: region at {at}");
            }
            let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!(report.mismatches, 0, "{what}");
        });
        if taken.get() {
            return;
        }
    }
}
