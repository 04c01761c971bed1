//! A discard while an array is reshaped lets the disks make the zeros, as at any other time, and
//! holds up no stop.

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{CreateOptions, ScrubMode, create};
use weft_rt::{Frozen, MILLISECOND, SECOND};

const SIZE: u64 = (3 << 20) + 96 * UNIT;

fn discards(code: &'static str, moved: u64) {
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 5]);
        let all = members(&disks);
        let options = CreateOptions {
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..bench_options(code)
        };
        create(&all[..4], &options).await.expect("created");
        let array = assemble(&rt, &all[..4]).await;
        array.add_spare(all[4].clone()).await.expect("added");
        let mut expected = pattern(0, 120 * UNIT as usize, 1);
        write(&array, 0, &expected).await;
        array.flush().await.expect("flushed");
        array.set_throttle(0, Some(64 << 10));
        array.set_paused(moved == 0);
        let wanted =
            ReshapeOptions { add: 1, head_room_bytes: Some(4 * UNIT), ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        while array.status().jobs.iter().all(|job| job.stripes_done < moved) && moved > 0 {
            assert!(array.is_reshaping(), "too fast");
            rt.sleep(MILLISECOND).await;
        }
        // Nothing else writes.
        array.set_paused(true);
        rt.sleep(500 * MILLISECOND).await;
        let written = || disks.iter().map(|disk| disk.data_bytes.get()).sum::<u64>();
        let before = written();
        let (from, len) = (4 * UNIT, 100 * UNIT);
        array.discard(from, len).await.expect("discarded");
        let data = written() - before;
        assert!(data < len / 4, "{code}, {moved} moved: {data} bytes were written for {len}");
        let found = read(&array, 0, expected.len()).await;
        let mut zeroed = 0;
        let units = found.chunks(UNIT as usize).zip(expected.chunks_mut(UNIT as usize));
        for (n, (found, before)) in units.enumerate() {
            let inside = (from..from + len).contains(&(n as u64 * UNIT));
            if inside && found.iter().all(|byte| *byte == 0) {
                before.fill(0);
                zeroed += 1;
            }
            assert!(found == before, "{code}, {moved} moved: unit {n} has changed");
        }
        assert!(zeroed > 80, "{code}, {moved} moved: only {zeroed} units were discarded");
        array.set_throttle(0, None);
        array.set_paused(false);
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        assert!(read(&array, 0, expected.len()).await == expected, "{code}: in the end");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{code}");
    });
}

#[test]
fn a_discard_during_a_reshape_transfers_no_zeros() {
    for code in ["raid5", "raid6"] {
        for moved in [0, 10] {
            discards(code, moved);
        }
    }
}

/// The discard writes what is being moved like data, for which other writes leave no memory, until
/// the stop waits for all of it.
#[test]
fn a_stop_ends_that_comes_during_a_discard_of_what_is_moved() {
    const BIG: u64 = 256 << 10;
    const STRIPES: u64 = 60;
    run(move |rt| async move {
        let size = (8 << 20) + STRIPES * BIG;
        let disks = holding(&rt, &Power::new(), size, &vec![Medium::new(512); 5]);
        let all = members(&disks);
        let options = CreateOptions {
            unit_bytes: BIG as u32,
            head_room_bytes: Some(4 << 20),
            ..bench_options("raid5")
        };
        let superblock = create(&all[..4], &options).await.expect("created");
        let array = assemble(&rt, &all[..4]).await;
        array.add_spare(all[4].clone()).await.expect("added");
        let stripe = array.stripe_bytes();
        write(&array, 0, &vec![1; (STRIPES / 2 * stripe) as usize]).await;
        array.flush().await.expect("flushed");
        // Writes of the last stripes take all memory of writes, and do not end.
        let behind = superblock.area.data_offset + (STRIPES - 24) * BIG;
        disks[..4].iter().for_each(|disk| disk.faults.hold(behind..size, 0));
        let task = |n: u64| {
            let array = array.clone();
            let offset = (STRIPES - 1 - n) * stripe;
            let data = Frozen::copy_from(&vec![2; BIG as usize]);
            rt.spawn(async move { array.write(offset, data, false).await.is_ok() })
        };
        let writes: Vec<_> = (0..20).map(task).collect();
        rt.sleep(MILLISECOND).await;
        // Nor does what is moved reach the new disk.
        disks[4].faults.hold(0..size, 0);
        let wanted =
            ReshapeOptions { add: 1, head_room_bytes: Some(4 * BIG), ..ReshapeOptions::default() };
        let begins = {
            let array = array.clone();
            rt.spawn(async move { array.reshape(wanted).await })
        };
        rt.sleep(MILLISECOND).await;
        disks[4].faults.release();
        disks[4].faults.hold(superblock.area.data_offset - 4 * BIG..size, 0);
        begins.await.expect("begun");
        rt.sleep(100 * MILLISECOND).await;
        let discard = {
            let array = array.clone();
            rt.spawn(async move { array.discard(0, STRIPES / 2 * stripe).await })
        };
        rt.sleep(MILLISECOND).await;
        let stop = {
            let array = array.clone();
            rt.spawn(async move { array.stop().await })
        };
        rt.sleep(MILLISECOND).await;
        disks[4].faults.release();
        rt.sleep(MILLISECOND).await;
        disks.iter().for_each(|disk| disk.faults.release());
        rt.sleep(600 * SECOND).await;
        assert!(stop.is_finished(), "the stop waits for the discard");
        stop.await.expect("stopped");
        assert!(discard.is_finished() && writes.iter().all(weft_rt::Task::is_finished));
    });
}
