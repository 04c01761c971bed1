//! The program dies while it stops an array, at any operation, and the next one while it assembles
//! the array. What they wrote has reached the caches of the disks. Then the power goes, and one
//! disk loses what its cache held: no member is taken for one that was set back.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{Array, AssembleOptions, MemberState, SlotStatus, create};
use weft_rt::Rt;

const CODES: [(&str, usize); 3] = [("raid0", 3), ("raid1", 2), ("raid6", 5)];

const SIZE: u64 = (2 << 20) + 8 * UNIT;

/// What the disks hold at each operation of an array's last moments.
type Moments = Rc<RefCell<Vec<Vec<Medium>>>>;

fn watch(power: &Power, disks: &[Rc<TestDisk>], moments: &Moments) {
    let (seen, kept) = (disks.to_vec(), moments.clone());
    power.watch(move || {
        kept.borrow_mut().push(seen.iter().map(|disk| disk.medium.borrow().clone()).collect());
    });
}

/// What a program that dies while it stops an array leaves.
fn stopping(code: &'static str, slots: usize) -> Vec<Vec<Medium>> {
    let moments = Moments::default();
    let kept = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); slots]);
        create(&members(&disks), &options(code)).await.expect("created");
        let array = assemble(&rt, &members(&disks)).await;
        let size = array.size_bytes() as usize;
        write(&array, 0, &pattern(0, size, 1)).await;
        watch(&power, &disks, &kept);
        array.stop().await.expect("stopped");
        power.watch(|| {});
    });
    moments.take()
}

async fn assembled(rt: &Rt, disks: &[Rc<TestDisk>], what: &str) -> Array {
    let options = AssembleOptions { nonce: 7, ..Default::default() };
    match Array::assemble(rt, members(disks), options).await {
        Ok(array) => array,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// What a program that dies while it assembles the array leaves.
fn assembling(media: Vec<Medium>, what: String) -> Vec<Vec<Medium>> {
    let moments = Moments::default();
    let kept = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &media);
        watch(&power, &disks, &kept);
        assembled(&rt, &disks, &what).await;
        power.watch(|| {});
    });
    moments.take()
}

#[test]
fn no_member_is_stale_after_deaths_and_a_power_cut() {
    for (code, slots) in CODES {
        let stops = stopping(code, slots);
        assert!(stops.len() > 2 * slots, "{code}: {} steps", stops.len());
        let arrived = |media: &[Medium]| -> Vec<Medium> {
            media.iter().map(|medium| Leave::Cached.of(medium)).collect()
        };
        for (stop, media) in stops.iter().enumerate() {
            let what = format!("{code}, dies at step {stop}");
            for (step, media) in assembling(arrived(media), what.clone()).iter().enumerate() {
                let loser = (stop + step) % slots;
                let leave = |disk| if disk == loser { Leave::Nothing } else { Leave::All };
                let left = |(disk, medium): (usize, &Medium)| leave(disk).of(medium);
                let media: Vec<Medium> = media.iter().enumerate().map(left).collect();
                let what = format!("{what}, then at {step}, and disk {loser} loses its cache");
                run(move |rt| async move {
                    let disks = holding(&rt, &Power::new(), SIZE, &media);
                    let array = assembled(&rt, &disks, &what).await;
                    let is_active = |slot: SlotStatus| slot.state == MemberState::Active;
                    assert!(array.status().slots.into_iter().all(is_active), "{what}");
                });
            }
        }
    }
}
