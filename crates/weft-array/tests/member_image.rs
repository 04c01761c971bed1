//! An image of one member, taken while the array was in use and put back after a clean stop, is a
//! member that missed writes: it is left out and named, and nothing of it is read. So is one taken
//! before a start, and put back after a crash.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{Array, ArrayState, AssembleOptions, MemberState, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

const SIZE: u64 = (2 << 20) + 16 * UNIT;
/// The member of which there is an image.
const SET_BACK: usize = 1;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

/// What the disks hold after a clean stop, one of them set back to an image taken before the last
/// writes, and what was written. `runs`: how often the array was started before the image was
/// taken.
fn stopped(code: &'static str, slots: usize, runs: u64) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
        let all = members(&disks);
        create(&all, &options(code)).await.expect("created");
        for nonce in 1..runs {
            assembled(&rt, &all, nonce).await.stop().await.expect("stopped");
        }
        let array = assembled(&rt, &all, runs).await;
        let len = 8 * array.stripe_bytes() as usize;
        write(&array, 0, &pattern(0, len, 1)).await;
        array.flush().await.expect("flushed");
        let media = |disk: &Rc<TestDisk>| Leave::All.of(&disk.medium.borrow());
        let image = media(&disks[SET_BACK]);
        let bytes = pattern(0, len, 2);
        write(&array, 0, &bytes).await;
        array.stop().await.expect("stopped");
        let mut held: Vec<Medium> = disks.iter().map(media).collect();
        held[SET_BACK] = image;
        *out.borrow_mut() = (held, bytes);
    });
    left.take()
}

#[test]
fn a_member_that_was_set_back_before_a_clean_stop_is_left_out() {
    for (code, slots) in CODES {
        for runs in [1, 2] {
            let (media, expected) = stopped(code, slots, runs);
            run(move |rt| async move {
                let what = format!("{code}, run {runs}");
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let all = members(&disks);
                let array = assembled(&rt, &all, 9).await;
                assert_eq!(array.status().slots[SET_BACK].state, MemberState::Missing, "{what}");
                assert!(read(&array, 0, expected.len()).await == expected, "{what}");
                // Nor does it come back as one that lacks only what was written since it left.
                let returned = array.take_back(all[SET_BACK].clone()).await.expect("read");
                assert_eq!(returned, None, "{what}");
                array.add_spare(all[SET_BACK].clone()).await.expect("added");
                for _ in 0..20_000 {
                    if array.status().state == ArrayState::Healthy {
                        break;
                    }
                    rt.sleep(MILLISECOND).await;
                }
                let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
                array.fail(SlotNo(0)).await.expect("can lose it");
                assert!(read(&array, 0, expected.len()).await == expected, "{what}");
            });
        }
    }
}

/// When the image is taken of the member that is set back after a crash.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Taken {
    /// While the array was stopped cleanly.
    Stopped,
    /// In the run before, which ended with a crash.
    RunBefore,
}

/// What the disks hold after a crash, one of them set back to an image that was taken before the
/// array was started last, and what was written since.
fn crashed(code: &'static str, slots: usize, taken: Taken) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let media = |disk: &Rc<TestDisk>| Leave::All.of(&disk.medium.borrow());
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
        let all = members(&disks);
        create(&all, &options(code)).await.expect("created");
        let array = assembled(&rt, &all, 1).await;
        let len = 8 * array.stripe_bytes() as usize;
        write(&array, 0, &pattern(0, len, 1)).await;
        match taken {
            Taken::Stopped => array.stop().await.expect("stopped"),
            Taken::RunBefore => array.flush().await.expect("flushed"),
        }
        let held: Vec<Medium> = disks.iter().map(media).collect();
        let image = held[SET_BACK].clone();
        let disks = holding(&rt, &Power::new(), SIZE, &held);
        let array = assembled(&rt, &members(&disks), 2).await;
        let bytes = pattern(0, len, 2);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        let mut held: Vec<Medium> = disks.iter().map(media).collect();
        held[SET_BACK] = image;
        *out.borrow_mut() = (held, bytes);
    });
    left.take()
}

#[test]
fn a_member_that_was_set_back_to_before_the_start_is_left_out_after_a_crash() {
    for (code, slots) in CODES {
        for taken in [Taken::Stopped, Taken::RunBefore] {
            let (media, expected) = crashed(code, slots, taken);
            run(move |rt| async move {
                let what = format!("{code}, {taken:?}");
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let all = members(&disks);
                let array = assembled(&rt, &all, 9).await;
                assert_eq!(array.status().slots[SET_BACK].state, MemberState::Missing, "{what}");
                assert!(read(&array, 0, expected.len()).await == expected, "{what}");
                let returned = array.take_back(all[SET_BACK].clone()).await.expect("read");
                assert_eq!(returned, None, "{what}");
            });
        }
    }
}

/// A crash during the stop is no such image: wherever it falls, every member counts.
#[test]
fn a_crash_during_a_stop_leaves_no_member_out() {
    let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let out = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        create(&all, &options("raid5")).await.expect("created");
        let array = assembled(&rt, &all, 1).await;
        write(&array, 0, &pattern(0, 50_000, 1)).await;
        let watched = disks.clone();
        power.watch(move || {
            for leave in [Leave::All, Leave::Nothing] {
                let media = watched.iter().map(|disk| leave.of(&disk.medium.borrow()));
                out.borrow_mut().push(media.collect());
            }
        });
        array.stop().await.expect("stopped");
        power.watch(|| ());
    });
    for media in moments.take() {
        run(move |rt| async move {
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let array = assembled(&rt, &members(&disks), 2).await;
            let states = array.status().slots.into_iter().map(|slot| slot.state);
            assert!(states.into_iter().all(|state| state == MemberState::Active));
        });
    }
}
