//! A reshape to fewer disks that turns back keeps what was written, to the last stripe: the regions
//! of the two geometries begin at the same addresses, and their stripes do not.

use crate::common::bench::{UNIT, members, options, run, sized_disk};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{Array, CreateOptions, ScrubMode, create};
use weft_rt::{MILLISECOND, Rt};

const MIB: u64 = 1 << 20;

/// Waits until the reshape has moved `stripes`, or has ended.
async fn moved(rt: &Rt, array: &Array, stripes: u64) {
    let done = || array.status().jobs.iter().map(|job| job.stripes_done).max().unwrap_or(0);
    while array.is_reshaping() && done() < stripes {
        rt.sleep(MILLISECOND).await;
    }
}

/// Returns whether it turned back.
async fn turned_back(rt: Rt, code: &str, slots: usize, rows: u64, stripes: u64) -> bool {
    let what = format!("{code} on {slots} disks with {rows} rows, {stripes} stripes moved");
    let size = 3 * MIB + rows * UNIT;
    let disks: Vec<_> = (0..slots).map(|n| sized_disk(&rt, n, 512, size)).collect();
    let options =
        CreateOptions { head_room_bytes: Some(MIB), region_bytes: Some(32 << 10), ..options(code) };
    create(&members(&disks), &options).await.expect("created");
    let array = assemble(&rt, &members(&disks)).await;
    let wanted = || ReshapeOptions {
        remove: 1,
        used_bytes: Some(1),
        head_room_bytes: Some(4 * UNIT),
        ..ReshapeOptions::default()
    };
    let plan = array.plan_reshape(&wanted()).expect("possible");
    let size = usize::try_from(plan.new_size_bytes).expect("small");
    let bytes = pattern(0, size, 1);
    write(&array, 0, &bytes).await;
    array.set_throttle(0, Some(256 << 10));
    array.reshape(wanted()).await.expect("begun");
    moved(&rt, &array, stripes).await;
    let turned = array.turn_reshape().await.is_ok();
    array.set_throttle(0, None);
    moved(&rt, &array, u64::MAX).await;
    assert!(read(&array, 0, size).await == bytes, "{what}");
    if turned && array.size_bytes() > plan.new_size_bytes {
        let given_up = usize::try_from(array.size_bytes() - plan.new_size_bytes).expect("small");
        let rest = read(&array, plan.new_size_bytes, given_up).await;
        assert!(rest.iter().all(|byte| *byte == 0), "{what}: given up");
    }
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!(report.mismatches, 0, "{what}");
    turned
}

#[test]
fn a_turned_shrink_keeps_the_data_of_the_last_stripes() {
    run(|rt| async move {
        let mut turned = 0;
        for (code, slots) in [("raid5", 4), ("raid6", 6), ("raid0", 3)] {
            for rows in 30..46 {
                let rt = rt.clone();
                turned += u32::from(turned_back(rt, code, slots, rows, 4).await);
            }
        }
        assert!(turned > 40, "{turned}");
    });
}
