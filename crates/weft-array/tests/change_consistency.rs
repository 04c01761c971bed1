//! Another consistency policy at the start of an array that was stopped cleanly.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::cuts::{disks_of, members};
use crate::common::disk::{Leave, Medium, Power};
use crate::common::{disks, options, pattern, read, rt, write};
use weft_array::reshape::ReshapeOptions;
use weft_array::{
    Array, ArrayError, AssembleOptions, Consistency, CreateOptions, ScrubMode, create,
};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

const BYTES: usize = 100_000;
const SIZE: u64 = 8 << 20;

async fn start(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    consistency: Option<Consistency>,
) -> Result<Array, ArrayError> {
    let options = AssembleOptions { nonce: rt.now() + 1, consistency, ..Default::default() };
    Array::assemble(rt, disks.to_vec(), options).await
}

fn made(code: &str, consistency: Consistency) -> CreateOptions {
    let head_room_bytes = Some(4 << 20);
    CreateOptions { consistency, head_room_bytes, ..options(code) }
}

async fn settle(rt: &Rt, array: &Array) {
    while !array.status().jobs.is_empty() || array.is_reshaping() {
        rt.sleep(MILLISECOND).await;
    }
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0));
}

/// A power cut at every step of such a start and the first writes of its run.
#[test]
fn a_crash_leaves_the_old_policy_or_the_new_one() {
    use Consistency::{Bitmap, None, Ppl};
    for (from, to) in [(Ppl, Bitmap), (Bitmap, Ppl), (None, Ppl), (Ppl, None), (None, Bitmap)] {
        let moments = cut(from, to);
        let mut seen = std::collections::BTreeSet::new();
        for (number, media) in moments.iter().enumerate() {
            for leave in [Leave::All, Leave::Nothing, Leave::Some(number as u64)] {
                let media = media.iter().map(|medium| leave.of(medium)).collect();
                let found = check(media, &format!("{from} to {to}, cut {number}, {leave:?}"));
                seen.insert(found.to_string());
            }
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
    }
}

/// What the disks hold at each step.
fn cut(from: Consistency, to: Consistency) -> Vec<Vec<Medium>> {
    let rt = rt();
    let power = Power::new();
    let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let (rt2, moments2) = (rt.clone(), moments.clone());
    rt.block_on(async move {
        let rt = rt2;
        let disks = disks_of(&rt, &power, SIZE, vec![Medium::new(512); 4]);
        let members = members(&disks);
        create(&members, &made("raid5", from)).await.expect("created");
        let array = start(&rt, &members, None).await.expect("started");
        write(&array, 0, &pattern(0, BYTES, 1)).await;
        array.stop().await.expect("stopped");
        power.watch(move || {
            let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            moments2.borrow_mut().push(media);
        });
        let array = start(&rt, &members, Some(to)).await.expect("started");
        assert_eq!(array.status().consistency, to);
        write(&array, BYTES as u64, &pattern(BYTES as u64, 3000, 2)).await;
    });
    rt.kill_all();
    moments.take()
}

/// Assembles what a cut left. Returns its policy.
fn check(media: Vec<Medium>, what: &str) -> Consistency {
    let rt = rt();
    let (rt2, what) = (rt.clone(), what.to_owned());
    let found = rt.block_on(async move {
        let rt = rt2;
        let disks = disks_of(&rt, &Power::new(), SIZE, media);
        let array = start(&rt, &members(&disks), None).await.expect("started");
        assert!(read(&array, 0, BYTES).await == pattern(0, BYTES, 1), "{what}");
        settle(&rt, &array).await;
        assert!(read(&array, 0, BYTES).await == pattern(0, BYTES, 1), "{what}");
        write(&array, 700, &pattern(700, 3000, 3)).await;
        array.fail(SlotNo(1)).await.expect("one may fail");
        assert!(read(&array, 700, 3000).await == pattern(700, 3000, 3), "{what}");
        array.stop().await.expect("stopped");
        array.status().consistency
    });
    rt.kill_all();
    found
}

/// With a log a write of a degraded array that a crash interrupts costs nothing else. The log lies
/// where the head room was.
#[test]
fn an_array_that_got_a_log_has_no_write_hole() {
    let mut exposed = 0;
    for to in [None, Some(Consistency::Ppl)] {
        let rt = rt();
        let power = Power::new();
        let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
        let (rt2, moments2) = (rt.clone(), moments.clone());
        rt.block_on(async move {
            let rt = rt2;
            let disks = disks_of(&rt, &power, SIZE, vec![Medium::new(512); 4]);
            let members = members(&disks);
            create(&members, &made("raid5", Consistency::Bitmap)).await.expect("created");
            let array = start(&rt, &members, None).await.expect("started");
            write(&array, 0, &pattern(0, BYTES, 1)).await;
            array.stop().await.expect("stopped");
            let array = start(&rt, &members, to).await.expect("started");
            array.fail(SlotNo(1)).await.expect("one may fail");
            power.watch(move || {
                let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
                moments2.borrow_mut().push(media);
            });
            write(&array, 0, &pattern(0, 512, 2)).await;
            array.flush().await.expect("flushed");
        });
        rt.kill_all();
        let mut wrong = 0;
        for (number, media) in moments.take().iter().enumerate() {
            for seed in 0..8 {
                let leave = Leave::Some(seed * 100 + number as u64);
                let media = media.iter().map(|medium| leave.of(medium)).collect();
                let rt = crate::common::rt();
                let rt2 = rt.clone();
                let rest = rt.block_on(async move {
                    let disks = disks_of(&rt2, &Power::new(), SIZE, media);
                    let array = start(&rt2, &members(&disks), None).await.expect("started");
                    read(&array, 512, BYTES - 512).await
                });
                rt.kill_all();
                wrong += usize::from(rest != pattern(512, BYTES - 512, 1));
            }
        }
        match to {
            None => exposed = wrong,
            Some(_) => assert_eq!(wrong, 0, "with a log"),
        }
    }
    assert!(exposed > 0, "the cuts do not show the write hole");
}

#[test]
fn it_is_refused_where_something_is_to_be_recovered_or_there_is_no_room() {
    let rt = rt();
    rt.clone().block_on(async move {
        let disks = disks(4, 8);
        let options =
            CreateOptions { head_room_bytes: Some(0), ..made("raid5", Consistency::Bitmap) };
        create(&disks, &options).await.expect("created");
        let refused = async |disks: &[Rc<dyn Disk>], to: Consistency, why: &str| {
            let error = start(&rt, disks, Some(to)).await.err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|text| text.contains(why)), "{error:?}");
        };
        refused(&disks, Consistency::Ppl, "before their data").await;
        refused(&disks[1..], Consistency::None, "all of its members").await;
        let array = start(&rt, &disks, None).await.expect("started");
        drop(array);
        refused(&disks, Consistency::None, "stopped cleanly").await;
        let array = start(&rt, &disks, None).await.expect("started");
        array.stop().await.expect("stopped");
        start(&rt, &disks, Some(Consistency::None)).await.expect("started");
    });
}

/// A member that left may come back with its data, as the map marks what it is missing. Without a
/// policy the map does not, and it is rebuilt as a whole.
#[test]
fn a_member_that_left_does_not_come_back_to_an_array_that_keeps_no_marks() {
    let rt = rt();
    rt.clone().block_on(async move {
        let disks = disks(4, 8);
        create(&disks, &made("raid5", Consistency::Bitmap)).await.expect("created");
        let array = start(&rt, &disks, None).await.expect("started");
        write(&array, 0, &pattern(0, BYTES, 1)).await;
        array.fail(SlotNo(1)).await.expect("one may fail");
        array.stop().await.expect("stopped");
        let others = [0, 2, 3].map(|number: usize| disks[number].clone());
        let array = start(&rt, &others, Some(Consistency::None)).await.expect("started");
        write(&array, 0, &pattern(0, BYTES, 2)).await;
        assert_eq!(array.take_back(disks[1].clone()).await.expect("looked at"), None);
        array.add_spare(disks[1].clone()).await.expect("added");
        rt.sleep(MILLISECOND).await;
        settle(&rt, &array).await;
        array.fail(SlotNo(2)).await.expect("the other one is whole");
        assert!(read(&array, 0, BYTES).await == pattern(0, BYTES, 2));
    });
}

/// An array with a log becomes one of mirrors, and one of mirrors gets a log when it is one of
/// parity.
#[test]
fn every_code_can_become_any_other() {
    let rt = rt();
    rt.clone().block_on(async move {
        let all = disks(4, 16);
        create(&all[..3], &made("raid5", Consistency::Ppl)).await.expect("created");
        let mut array = start(&rt, &all[..3], None).await.expect("started");
        write(&array, 0, &pattern(0, BYTES, 1)).await;
        array.add_spare(all[3].clone()).await.expect("added");
        for (code, add, before) in
            [("raid10", 1, Consistency::Bitmap), ("raid6", 0, Consistency::Ppl)]
        {
            let code = Some(code.parse().expect("a code"));
            let wanted = ReshapeOptions { code, add, ..ReshapeOptions::default() };
            if before == Consistency::Bitmap {
                let refused = array.plan_reshape(&wanted).expect_err("it has a log").to_string();
                assert!(refused.contains("--consistency bitmap"), "{refused}");
                array.stop().await.expect("stopped");
                array = start(&rt, &all, Some(before)).await.expect("started");
            }
            array.reshape(wanted).await.expect("begun");
            settle(&rt, &array).await;
            assert!(read(&array, 0, BYTES).await == pattern(0, BYTES, 1));
        }
        array.stop().await.expect("stopped");
        let array = start(&rt, &all, Some(Consistency::Ppl)).await.expect("started");
        assert_eq!(array.status().consistency, Consistency::Ppl);
        assert!(read(&array, 0, BYTES).await == pattern(0, BYTES, 1));
        array.stop().await.expect("stopped");
    });
}
