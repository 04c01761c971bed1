//! What an array says of itself while it is reshaped: block status calls no data a hole, and the
//! redundancy promised is what both codes survive.

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{Array, CreateOptions, create};
use weft_rt::MILLISECOND;

const SIZE: u64 = (3 << 20) + 96 * UNIT;
const REGION: u64 = 32 << 10;

fn create_options(code: &str) -> CreateOptions {
    CreateOptions {
        head_room_bytes: Some(1 << 20),
        region_bytes: Some(REGION),
        ..bench_options(code)
    }
}

/// Compares block status with `expected` and with reads. Returns the number of holes.
async fn compare(array: &Array, expected: &[u8], what: &str) -> usize {
    let size = array.size_bytes();
    let expected = &expected[..expected.len().min(size as usize)];
    assert!(read(array, 0, expected.len()).await == expected, "{what}: a read is wrong");
    let mut holes = 0;
    // From many places: each range is cut where the pieces end.
    for from in (0..size).step_by(7 * UNIT as usize) {
        let mut at = from;
        for extent in array.allocation(from, size - from).expect("inside") {
            let end = at + extent.len;
            let bytes = &expected[(at as usize).min(expected.len())..];
            let bytes = &bytes[..bytes.len().min(extent.len as usize)];
            let is_zero = bytes.iter().all(|byte| *byte == 0);
            assert!(!extent.hole || is_zero, "{what}: {at}..{end} is called a hole");
            holes += usize::from(extent.hole);
            at = end;
        }
        assert_eq!(at, size, "{what}: what is said does not end where it should");
        let around = array.region_at(from);
        assert!(around.contains(&from), "{what}: {around:?} does not contain {from}");
    }
    holes
}

fn holes_are_holes(code: &'static str, slots: usize, wanted: ReshapeOptions) {
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots + wanted.add]);
        let all = members(&disks);
        create(&all[..slots], &create_options(code)).await.expect("created");
        let array = assemble(&rt, &all[..slots]).await;
        for disk in &all[slots..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let wanted = ReshapeOptions { head_room_bytes: Some(4 * UNIT), ..wanted };
        let kept = array.plan_reshape(&wanted).expect("possible");
        let kept = kept.size_bytes.min(kept.new_size_bytes);
        // Every third region has a little data, next to its edges.
        let mut expected = vec![0; array.size_bytes() as usize];
        for region in (1..(kept - REGION) / REGION).step_by(3) {
            let at = array.region_at(region * REGION).end;
            for at in [at - 512, at] {
                let bytes = pattern(at, 512, 1);
                write(&array, at, &bytes).await;
                expected[at as usize..][..512].copy_from_slice(&bytes);
            }
        }
        array.flush().await.expect("flushed");
        assert!(compare(&array, &expected, code).await > 0, "{code}: holes to begin with");
        array.set_throttle(0, Some(256 << 10));
        array.set_paused(true);
        array.reshape(wanted).await.expect("begun");
        compare(&array, &expected, &format!("{code}, paused")).await;
        array.set_paused(false);
        let mut moments = 0;
        while array.is_reshaping() {
            rt.sleep(20 * MILLISECOND).await;
            compare(&array, &expected, &format!("{code}, moment {moments}")).await;
            moments += 1;
        }
        assert!(moments > 20, "{code}: only {moments}");
        assert!(compare(&array, &expected, code).await > 0, "{code}: holes at the end");
    });
}

#[test]
fn block_status_calls_no_data_a_hole_while_a_disk_is_added() {
    let add = ReshapeOptions { add: 1, ..ReshapeOptions::default() };
    holes_are_holes("raid6", 5, add);
    holes_are_holes("raid5", 3, add);
}

#[test]
fn block_status_calls_no_data_a_hole_while_a_disk_is_removed() {
    let remove = ReshapeOptions { remove: 1, used_bytes: Some(0), ..ReshapeOptions::default() };
    holes_are_holes("raid5", 5, remove);
}

#[test]
fn block_status_calls_no_data_a_hole_while_units_grow() {
    let unit_bytes = Some(2 * UNIT);
    holes_are_holes("raid5", 4, ReshapeOptions { unit_bytes, ..ReshapeOptions::default() });
}

/// The margin is remembered; a reshape that began or turned back did not make it forgotten.
#[test]
fn while_a_code_is_changed_the_redundancy_is_what_both_survive() {
    for (from, slots, to, before, during) in
        [("raid6", 5, "raid5", 2, 1), ("rs:3+2", 5, "raid5", 2, 1), ("raid5", 5, "raid6", 1, 1)]
    {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
            let all = members(&disks);
            create(&all, &create_options(from)).await.expect("created");
            let array = assemble(&rt, &all).await;
            let remaining = || array.status().redundancy_remaining.expect("nothing is lost");
            write(&array, 0, &pattern(0, 256 << 10, 1)).await;
            assert_eq!(remaining(), before, "{from}");
            let code = Some(to.parse().expect("a code"));
            let wanted = ReshapeOptions { code, used_bytes: Some(0), ..ReshapeOptions::default() };
            array.set_throttle(0, Some(64 << 10));
            array.reshape(wanted).await.expect("begun");
            assert_eq!(remaining(), during, "{from} to {to}: begun");
            if before > during {
                while array.status().jobs.iter().all(|job| job.stripes_done < 6) {
                    assert!(array.is_reshaping(), "{from} to {to}: too fast");
                    rt.sleep(MILLISECOND).await;
                }
                array.turn_reshape().await.expect("turned");
                assert_eq!(remaining(), during, "{from} to {to}: turned back");
                array.set_throttle(0, None);
                while array.is_reshaping() {
                    rt.sleep(MILLISECOND).await;
                }
                assert_eq!(remaining(), before, "{from} to {to} and back");
                array.reshape(wanted).await.expect("begun again");
                assert_eq!(remaining(), during, "{from} to {to}: begun again");
            }
            while array.is_reshaping() {
                rt.sleep(MILLISECOND).await;
            }
            let after = if to == "raid6" { 2 } else { 1 };
            assert_eq!(remaining(), after, "{from} to {to}");
        });
    }
}
