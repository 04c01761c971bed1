//! A power cut at any operation of adding a disk leaves a disk that does no harm: other disks can
//! be added after it, and all of them together can be assembled.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{Array, AssembleOptions, MemberState};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::Rt;

const SLOTS: usize = 3;
const SIZE: u64 = (2 << 20) + 4 * UNIT;
const LEN: usize = 3 * UNIT as usize;

/// The contents of all disks at one moment, the new disk last.
type Moment = Vec<Medium>;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64, what: &str) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    match Array::assemble(rt, disks.to_vec(), options).await {
        Ok(array) => array,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Records every moment of adding a disk as a spare, or as the replacement of a member.
fn record(replaces: bool) -> Vec<Moment> {
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let noted = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let open = |n| TestDisk::new(&rt, &power, n, SIZE, 512, Medium::new(512));
        let disks: Vec<_> = (0..=SLOTS).map(open).collect();
        let all = members(&disks);
        weft_array::create(&all[..SLOTS], &options("raid5")).await.expect("created");
        let array = assembled(&rt, &all[..SLOTS], 1, "new").await;
        write(&array, 0, &pattern(0, LEN, 1)).await;
        array.flush().await.expect("flushed");
        let watched = disks.clone();
        let media = move || watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
        power.watch(move || noted.borrow_mut().push(media()));
        match replaces {
            true => array.replace(SlotNo(1), all[SLOTS].clone()).await.expect("begun"),
            false => array.add_spare(all[SLOTS].clone()).await.expect("added"),
        }
        power.watch(|| {});
    });
    moments.take()
}

/// After the cut, with or without the new disk, another disk is added; then all of them are
/// assembled.
fn after_cut(moment: &Moment, leave: Leave, is_there: bool, what: &str) {
    let media: Vec<Medium> = moment.iter().map(|medium| leave.of(medium)).collect();
    let what = what.to_owned();
    run(move |rt| async move {
        let power = Power::new();
        let open = |(n, medium)| TestDisk::new(&rt, &power, n, SIZE, 512, medium);
        let disks: Vec<_> = media.into_iter().enumerate().map(open).collect();
        let mut all = members(&disks);
        // Before its label is written it is not a member.
        if !matches!(read_superblock(&*all[SLOTS]).await, Ok(Some(_))) {
            all.pop();
        }
        let found = if is_there { &all[..] } else { &all[..SLOTS] };
        let array = assembled(&rt, found, 2, &what).await;
        let another: Rc<dyn Disk> = open((SLOTS + 1, Medium::new(512)));
        array.add_spare(another.clone()).await.expect("added");
        array.stop().await.expect("stopped");
        all.push(another);
        let array = assembled(&rt, &all, 3, &what).await;
        assert!(
            array.status().slots.iter().all(|slot| slot.state == MemberState::Active),
            "{what}"
        );
        assert!(read(&array, 0, LEN).await == pattern(0, LEN, 1), "{what}");
        array.stop().await.expect("stopped");
    });
}

#[test]
fn a_disk_whose_adding_was_interrupted_does_no_harm() {
    for replaces in [false, true] {
        let moments = record(replaces);
        assert!(moments.len() > 15, "only {} steps", moments.len());
        for (number, moment) in moments.iter().enumerate() {
            let some = Leave::Some(number as u64);
            for leave in [Leave::All, Leave::Nothing, some] {
                for is_there in [false, true] {
                    let what = format!("replaces {replaces}, step {number}, {leave:?}, {is_there}");
                    after_cut(moment, leave, is_there, &what);
                }
            }
        }
    }
}
