//! A discard while an array is reshaped lets the disks make the zeros, as at any other time, and holds
//! up no stop.

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use futures_util::future::{Either, join, select};
use weft_array::reshape::ReshapeOptions;
use weft_array::{CreateOptions, ScrubMode, create};
use weft_rt::{MILLISECOND, SECOND};

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

/// Discards all that is being moved, and stops the array so many microseconds later.
fn discards_and_stops(code: &'static str, after: u64) {
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
        write(&array, 0, &pattern(0, 120 * UNIT as usize, 1)).await;
        let wanted =
            ReshapeOptions { add: 1, head_room_bytes: Some(4 * UNIT), ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        rt.sleep(after * 7 % 5000 * 1000).await;
        let discard = array.discard(0, 120 * UNIT);
        let stop = async {
            rt.sleep(after * 1000).await;
            array.stop().await
        };
        let both = std::pin::pin!(join(discard, stop));
        let end = std::pin::pin!(rt.sleep(600 * SECOND));
        match select(both, end).await {
            Either::Left(((_, stopped), _)) => stopped.expect("stopped"),
            Either::Right(_) => panic!("{code}: a stop after {after} us does not end"),
        }
    });
}

#[test]
fn a_stop_ends_that_comes_during_a_discard_of_what_is_moved() {
    for after in (0..2000).step_by(7) {
        discards_and_stops("raid5", after);
    }
}
