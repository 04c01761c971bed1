//! Discarded stripes had log records once. After a power cut, with any disk lost, recovery does not
//! compute parity from these: what was discarded reads as zeros, and what was written since is
//! there.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt, SECOND};

const SIZE: u64 = (3 << 20) + 64 * UNIT;
/// Stripes of a region.
const REGION: usize = 4;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

/// What happens to the first region, which holds data, and a small write of which has just been
/// flushed: its record is retired, and no ring says so yet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// All of it is discarded, and it becomes unwritten.
    Discard,
    /// As before, and then some of it is written again.
    DiscardAndWrite,
    /// Part of it is discarded.
    DiscardPart,
    /// It becomes zero without being deallocated.
    Zero,
    /// A member is missing when all of it is discarded.
    DiscardDegraded,
}

/// The disks at a crash, and the array's contents.
fn before(code: &'static str, count: usize, then: Then) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count]);
        let all = members(&disks);
        let k = options(code).code.shape(count).expect("a code").k;
        let options = CreateOptions {
            consistency: Consistency::Ppl,
            region_bytes: Some((REGION * k) as u64 * UNIT),
            ..options(code)
        };
        create(&all, &options).await.expect("created");
        let array = assembled(&rt, &all, 1).await;
        let stripe = array.stripe_bytes() as usize;
        let region = REGION * stripe;
        let mut bytes = pattern(0, 2 * region, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        if then == Then::DiscardDegraded {
            array.fail(SlotNo(count - 1)).await.expect("failed");
        }
        for at in [0, stripe] {
            let part = pattern(9, 512, 2);
            write(&array, at as u64, &part).await;
            bytes[at..at + 512].copy_from_slice(&part);
        }
        array.flush().await.expect("flushed");
        let len = if then == Then::DiscardPart { stripe } else { region };
        match then {
            Then::Zero => array.write_zeroes(0, len as u64, false, false).await.expect("zeroed"),
            _ => array.discard(0, len as u64).await.expect("discarded"),
        }
        bytes[..len].fill(0);
        if then == Then::DiscardAndWrite {
            // Whole stripes need no records.
            let whole = pattern(3, stripe, 3);
            write(&array, 0, &whole).await;
            bytes[..stripe].copy_from_slice(&whole);
        }
        array.flush().await.expect("flushed");
        assert!(read(&array, 0, bytes.len()).await == bytes, "{then:?}: before the crash");
        let media = disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow()));
        *out.borrow_mut() = (media.collect(), bytes);
    });
    left.take()
}

fn survives(code: &'static str, count: usize, then: Then) {
    let (media, expected) = before(code, count, then);
    let gone = (then == Then::DiscardDegraded).then_some(count - 1);
    let tolerated = 1 + usize::from(code == "raid6");
    let lost = (0..count).map(Some).chain([None]);
    for lost in lost.filter(|_| gone.is_none() || tolerated > 1) {
        let (media, expected) = (media.clone(), expected.clone());
        run(move |rt| async move {
            let what = format!("{code}, {then:?}, lost {lost:?}");
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let all = members(&disks).into_iter().enumerate();
            let is_there = |n: usize| Some(n) != lost && Some(n) != gone;
            let found: Vec<_> = all.filter(|(n, _)| is_there(*n)).map(|(_, disk)| disk).collect();
            let array = assembled(&rt, &found, 2).await;
            assert!(read(&array, 0, expected.len()).await == expected, "{what}");
            while !array.status().jobs.is_empty() {
                rt.sleep(MILLISECOND).await;
            }
            rt.sleep(SECOND).await;
            assert!(read(&array, 0, expected.len()).await == expected, "{what}, later");
            if lost.is_none() {
                let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!(report.mismatches, 0, "{what}");
            }
        });
    }
}

#[test]
fn records_of_before_do_not_count_after_a_discard() {
    for then in [Then::Discard, Then::DiscardAndWrite, Then::DiscardPart, Then::Zero] {
        survives("raid5", 3, then);
        survives("raid6", 5, then);
    }
    survives("raid6", 5, Then::DiscardDegraded);
}
