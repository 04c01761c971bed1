//! A member is missing in a recovery that a crash interrupts, and is present in the next one. Its
//! parity is as the first crash left it; that of the others is not. So it must not count as if it
//! had taken part: if one more member were lost before the resync, units that were not being
//! written would come out as garbage.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{Array, AssembleOptions};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Rt, SECOND};

/// Survives the loss of a unit, of the missing member, and of one more.
const CODE: &str = "rs:2+3";
const SLOTS: usize = 5;
const SIZE: u64 = (2 << 20) + 16 * UNIT;
const STRIPES: u64 = 3;

/// What a crash leaves on the disks at each step that changes one, from now on.
type Moments = Rc<RefCell<Vec<Vec<Medium>>>>;

fn watch(power: &Power, disks: &[Rc<TestDisk>], leave: Leave) -> Moments {
    let moments = Moments::default();
    let all: Vec<_> = disks.iter().map(|disk| disk.medium.clone()).collect();
    let seen = moments.clone();
    power.watch(move || {
        let left = all.iter().map(|medium| leave.of(&medium.borrow()));
        seen.borrow_mut().push(left.collect());
    });
    moments
}

async fn started(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64, what: &str) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    let array = Array::assemble(rt, disks.to_vec(), options).await;
    array.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// The first unit is written while its member is lost, and a crash comes at any step of that.
struct Story {
    /// The contents that the crashes leave.
    crashes: Vec<Vec<Medium>>,
    before: Vec<u8>,
    new: Vec<u8>,
    /// The slots of the first stripe's units.
    slots: Vec<usize>,
}

fn story() -> Story {
    let told = Rc::new(RefCell::new(None));
    let result = told.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); SLOTS]);
        let bench = Bench::on(&rt, &options(CODE), disks).await;
        let before = pattern(0, (STRIPES * bench.stripe_bytes()) as usize, 1);
        write(&bench.array, 0, &before).await;
        bench.array.flush().await.expect("flushed");
        let slots: Vec<usize> = (0..SLOTS).map(|unit| bench.place(0, unit).0).collect();
        bench.array.fail(SlotNo(slots[0])).await.expect("failed");
        // Nothing is dirty any more.
        rt.sleep(10 * SECOND).await;
        let crashes = watch(&power, &bench.disks, Leave::Nothing);
        let new = pattern(0, UNIT as usize, 2);
        write(&bench.array, 0, &new).await;
        power.watch(|| {});
        let crashes = crashes.take();
        *result.borrow_mut() = Some(Story { crashes, before, new, slots });
    });
    told.take().expect("told")
}

/// Recovers without the member `away`, and returns what a crash at any step of that leaves.
fn recoveries(media: &[Medium], away: usize, what: &str) -> Vec<Vec<Medium>> {
    let told = Moments::default();
    let (result, media, what) = (told.clone(), media.to_vec(), what.to_owned());
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &media);
        let moments = watch(&power, &disks, Leave::Completed);
        let mut there = members(&disks);
        there.remove(away);
        started(&rt, &there, 2, &what).await;
        power.watch(|| {});
        *result.borrow_mut() = moments.take();
    });
    told.take()
}

/// All are present again, and one member is lost at once.
fn check(story: &Story, media: &[Medium], lost: usize, what: String) {
    let (before, new) = (story.before.clone(), story.new.clone());
    let media = media.to_vec();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let array = started(&rt, &members(&disks), 3, &what).await;
        array.set_paused(true);
        array.fail(SlotNo(lost)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = read(&array, 0, before.len()).await;
        let (written, others) = found.split_at(new.len());
        assert!(*others == before[new.len()..], "{what}: not being written");
        for (n, sector) in written.chunks(512).enumerate() {
            let at = n * 512..(n + 1) * 512;
            let known = sector == &before[at.clone()] || sector == &new[at];
            assert!(known, "{what}: sector {n} is neither old nor new");
        }
    });
}

#[test]
fn a_member_that_missed_a_recovery_does_not_count_as_if_it_had_taken_part() {
    let story = story();
    assert!(story.crashes.len() > 10, "{} steps", story.crashes.len());
    let (lost, parities) = (story.slots[1], &story.slots[2..]);
    for (n, media) in story.crashes.iter().enumerate() {
        for away in parities {
            let what = format!("cut at step {n}, {away} is missing");
            for (m, mut then) in recoveries(media, *away, &what).into_iter().enumerate() {
                then[*away] = media[*away].clone();
                check(&story, &then, lost, format!("{what}, cut again at step {m}"));
            }
        }
    }
}
