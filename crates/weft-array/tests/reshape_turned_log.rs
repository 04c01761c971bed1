//! A reshape that turns back writes stripes again that were written before they moved. Log records
//! of that time do not count any more: after a power cut, with any disk lost, parity agrees.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{Array, AssembleOptions, CreateOptions, ScrubMode, create};
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt, SECOND};

const SIZE: u64 = (3 << 20) + 64 * UNIT;
const SLOTS: usize = 3;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

/// Waits until the reshape has moved `stripes` more, in either direction.
async fn moved(rt: &Rt, array: &Array, stripes: u64) {
    let done = || array.status().jobs.iter().map(|job| job.stripes_done).max().unwrap_or(0);
    let from = done();
    while done() < from + stripes {
        assert!(array.is_reshaping(), "too fast");
        rt.sleep(MILLISECOND).await;
    }
}

/// What the disks hold some time after a reshape turned, and the array's contents. `turns`: once,
/// or back and forth again.
fn turned(turns: usize) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); SLOTS]);
        let all = members(&disks);
        let options = CreateOptions {
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..options("raid5")
        };
        create(&all, &options).await.expect("created");
        let array = assembled(&rt, &all, 1).await;
        let stripe = array.stripe_bytes() as usize;
        let mut bytes = pattern(0, 30 * stripe, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        // A small write: its record is the last one in the log.
        let part = pattern(9, 512, 2);
        write(&array, 0, &part).await;
        bytes[..512].copy_from_slice(&part);
        array.flush().await.expect("flushed");
        array.set_throttle(0, Some(256 << 10));
        let wanted = ReshapeOptions {
            unit_bytes: Some(2 * UNIT),
            head_room_bytes: Some(4 * UNIT),
            ..ReshapeOptions::default()
        };
        array.reshape(wanted).await.expect("started");
        moved(&rt, &array, 6).await;
        for turn in 0..turns {
            // Whole stripes of the geometry that is left next: they need no records.
            let whole = pattern(77 + turn as u64, 4 * UNIT as usize, 3);
            write(&array, 0, &whole).await;
            bytes[..whole.len()].copy_from_slice(&whole);
            if turns > 1 {
                let part = pattern(5, 512, 4);
                write(&array, 0, &part).await;
                bytes[..512].copy_from_slice(&part);
            }
            array.flush().await.expect("flushed");
            array.turn_reshape().await.expect("turned");
            if turn + 1 < turns {
                moved(&rt, &array, 1).await;
            }
        }
        array.set_throttle(0, None);
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        rt.sleep(30 * SECOND).await;
        assert_eq!(array.status().regions.dirty, 0);
        array.flush().await.expect("flushed");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(report.mismatches, 0, "before the crash");
        assert!(read(&array, 0, bytes.len()).await == bytes, "before the crash");
        let media = disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow()));
        *out.borrow_mut() = (media.collect(), bytes);
    });
    left.take()
}

#[test]
fn records_of_before_do_not_count_after_a_turn() {
    for turns in [1, 2] {
        let (media, expected) = turned(turns);
        for lost in [None, Some(0), Some(1), Some(2)] {
            let (media, expected) = (media.clone(), expected.clone());
            run(move |rt| async move {
                let what = format!("{turns} turns, lost {lost:?}");
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let all = members(&disks).into_iter().enumerate();
                let found: Vec<_> =
                    all.filter(|(n, _)| Some(*n) != lost).map(|(_, disk)| disk).collect();
                let array = assembled(&rt, &found, 2).await;
                rt.sleep(SECOND).await;
                assert!(read(&array, 0, expected.len()).await == expected, "{what}");
                if lost.is_none() {
                    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                    assert_eq!(report.mismatches, 0, "{what}");
                }
            });
        }
    }
}
