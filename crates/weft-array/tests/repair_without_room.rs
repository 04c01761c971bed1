//! An unreadable sector on a member that has no space for its repair: it does not count as
//! repaired. After a crash its region keeps the mark until the sector was written, or read,
//! whatever it then holds.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, options, run};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::{Array, ArrayError, AssembleOptions, Consistency, MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Frozen, Rt, SECOND};

const SECTOR: usize = 512;
const STRIPES: usize = 3;
/// The stripe that is being written at the crash, and the sector of its units that is hit.
const STRIPE: u64 = 1;
const HIT: u64 = 3;

/// What happens first.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// There is space: the sector is repaired.
    Room,
    /// The sector becomes readable, as it was before the crash.
    Readable,
    /// Another member is lost.
    Loss,
}

struct Story {
    bench: Bench,
    disks: Vec<Rc<TestDisk>>,
    /// The slot of the unit that was hit.
    slot: usize,
    open: Rc<Cell<bool>>,
    /// Number of writes that found no space.
    refused: Rc<Cell<u64>>,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// A power cut comes while a stripe is being written. One of its units is old in a sector that
/// cannot be read, and its disk has space for metadata only.
async fn crashed(
    rt: &Rt,
    code: &str,
    slots: usize,
    unit: usize,
    consistency: Consistency,
) -> Story {
    let mut options = options(code);
    options.consistency = consistency;
    let disks: Vec<_> = (0..slots).map(|n| disk(rt, n, 512)).collect();
    let bench = Bench::on(rt, &options, disks).await;
    let stripe = bench.stripe_bytes() as usize;
    let old = pattern(0, STRIPES * stripe, 1);
    write(&bench.array, 0, &old).await;
    bench.array.flush().await.expect("flushed");
    let mut new = old.clone();
    // One sector of the first two units, if there are two.
    let at = STRIPE as usize * stripe;
    for start in (at..at + stripe).step_by(UNIT as usize).take(2) {
        let range = start + HIT as usize * SECTOR..start + (HIT as usize + 1) * SECTOR;
        new[range.clone()].copy_from_slice(&pattern(start as u64, SECTOR, 2));
        write(&bench.array, range.start as u64, &new[range]).await;
    }
    let (slot, offset) = bench.place(STRIPE, unit);
    let power = Power::new();
    let reopen = |(n, disk): (usize, &Rc<TestDisk>)| {
        let leave = if n == slot { Leave::Nothing } else { Leave::All };
        let medium = leave.of(&disk.medium.borrow());
        TestDisk::new(rt, &power, n, disk.info().size_bytes, 512, medium)
    };
    let disks: Vec<_> = bench.disks.iter().enumerate().map(reopen).collect();
    let (open, refused) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let data = bench.superblock.area.data_offset;
    let (room, count) = (open.clone(), refused.clone());
    *disks[slot].faults.room.borrow_mut() = Some(Box::new(move |at, _, _| {
        let refuses = at >= data && !room.get();
        count.set(count.get() + u64::from(refuses));
        refuses.then_some(0)
    }));
    disks[slot].faults.unreadable.borrow_mut().insert(offset / 512 + HIT);
    Story { bench, disks, slot, open, refused, old, new }
}

impl Story {
    /// Each sector is old or new.
    async fn check(&self, array: &Array, what: &str) {
        let found = read(array, 0, self.old.len()).await;
        for (at, found) in (0..).step_by(SECTOR).zip(found.chunks(SECTOR)) {
            let range = at..at + SECTOR;
            let fits = *found == self.old[range.clone()] || *found == self.new[range];
            assert!(fits, "{what}: wrong at {at}");
        }
    }
}

async fn resynced_at_last(rt: Rt, code: &'static str, slots: usize, unit: usize, then: Then) {
    let what = format!("{code}, unit {unit}, {then:?}");
    let story = crashed(&rt, code, slots, unit, Consistency::Bitmap).await;
    let array = assemble(&rt, &members(&story.disks)).await;
    rt.sleep(25 * SECOND).await;
    let status = array.status();
    assert_eq!(status.regions.resync, 1, "{what}: {status:?}");
    assert!(
        status.slots[story.slot].wants_room_bytes > 0 && status.jobs.is_empty(),
        "{what}: {status:?}"
    );
    assert!(
        status.slots.iter().all(|slot| slot.state == MemberState::Active),
        "{what}: {status:?}"
    );
    // It is retried, but not all the time.
    let tries = story.refused.get();
    assert!((2..20).contains(&tries), "{what}: {tries} tries");
    story.check(&array, &what).await;
    let bad = story.disks[story.slot].faults.unreadable.borrow().len();
    assert_eq!(bad, 1, "{what}");
    match then {
        Then::Room => story.open.set(true),
        Then::Readable => {
            story.disks[story.slot].faults.unreadable.borrow_mut().clear();
            rt.sleep(25 * SECOND).await;
            story.check(&array, &what).await;
            story.open.set(true);
        }
        Then::Loss => {
            let other = (story.slot + 1) % slots;
            match status.redundancy_remaining {
                // The member without space does not count until the resync has ended.
                Some(0) => drop(array.fail(SlotNo(other)).await.expect_err("it would lose data")),
                _ => {
                    array.fail(SlotNo(other)).await.expect("can lose one");
                    story.check(&array, &what).await;
                }
            }
            array.stop().await.expect("stopped");
            return;
        }
    }
    rt.sleep(25 * SECOND).await;
    let status = array.status();
    assert_eq!(status.regions.resync, 0, "{what}: {status:?}");
    assert!(status.slots.iter().all(|slot| slot.wants_room_bytes == 0), "{what}");
    assert!(story.disks[story.slot].faults.unreadable.borrow().is_empty(), "{what}");
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    story.check(&array, &what).await;
    array.stop().await.expect("stopped");
}

#[test]
fn a_region_keeps_its_mark_until_the_sector_was_written_or_read() {
    for (code, slots) in [("raid1", 2), ("raid1", 3), ("raid5", 4), ("raid6", 5), ("lrc:4,2,1", 7)]
    {
        for unit in 0..slots {
            for then in [Then::Room, Then::Readable, Then::Loss] {
                run(move |rt| resynced_at_last(rt, code, slots, unit, then));
            }
        }
    }
}

/// Such a stripe takes writes to its other units, also at the sector's offset.
#[test]
fn writes_next_to_the_sector_do_not_wait_for_its_repair() {
    run(|rt| async move {
        let mut story = crashed(&rt, "raid6", 5, 0, Consistency::Bitmap).await;
        let array = assemble(&rt, &members(&story.disks)).await;
        rt.sleep(SECOND).await;
        let at = (STRIPE * story.bench.stripe_bytes() + UNIT) as usize + HIT as usize * SECTOR;
        let bytes = pattern(at as u64, SECTOR, 3);
        array.write(at as u64, Frozen::copy_from(&bytes), true).await.expect("has room");
        story.old[at..at + SECTOR].copy_from_slice(&bytes);
        story.new[at..at + SECTOR].copy_from_slice(&bytes);
        story.disks[story.slot].faults.unreadable.borrow_mut().clear();
        rt.sleep(25 * SECOND).await;
        assert_eq!(array.status().regions.resync, 0);
        story.check(&array, "written").await;
        assert_eq!(array.scrub(ScrubMode::Check).await.expect("scrubbed").mismatches, 0);
        array.fail(SlotNo(1)).await.expect("can lose one");
        array.fail(SlotNo(2)).await.expect("can lose another");
        story.check(&array, "degraded").await;
        array.stop().await.expect("stopped");
    });
}

/// What the log says must be written before the log is void.
#[test]
fn an_array_with_a_log_starts_once_its_records_have_space() {
    run(|rt| async move {
        for (code, slots) in [("raid5", 4), ("raid6", 5), ("lrc:4,2,1", 7)] {
            for unit in 0..slots {
                let what = format!("{code}, unit {unit}");
                let story = crashed(&rt, code, slots, unit, Consistency::Ppl).await;
                let start = async || {
                    let options = AssembleOptions { nonce: rt.now() + 1, ..Default::default() };
                    Array::assemble(&rt, members(&story.disks), options).await
                };
                if let Err(error) = start().await {
                    assert!(matches!(error, ArrayError::NoSpace { .. }), "{what}: {error}");
                    story.open.set(true);
                }
                let array = start().await.expect("there is room");
                story.open.set(true);
                rt.sleep(25 * SECOND).await;
                assert_eq!(array.status().regions.resync, 0, "{what}");
                array.fail(SlotNo((story.slot + 1) % slots)).await.expect("can lose one");
                story.check(&array, &what).await;
                array.stop().await.expect("stopped");
            }
        }
    });
}

#[test]
fn a_scrub_counts_a_sector_that_it_cannot_repair() {
    run(|rt| async move {
        for (code, slots) in [("raid1", 2), ("raid5", 4), ("raid6", 5)] {
            for mode in [ScrubMode::Check, ScrubMode::Repair] {
                let bench = Bench::new(&rt, code, slots).await;
                let bytes = pattern(0, STRIPES * bench.stripe_bytes() as usize, 1);
                write(&bench.array, 0, &bytes).await;
                bench.spoil(STRIPE, 0, HIT..HIT + 1);
                let (slot, _) = bench.place(STRIPE, 0);
                let room = &bench.disks[slot].faults.room;
                let data = bench.superblock.area.data_offset;
                *room.borrow_mut() = Some(Box::new(move |at, _, _| (at >= data).then_some(0)));
                let scrub = async || {
                    let found = bench.array.scrub(mode).await.expect("scrubbed");
                    (found.mismatches, found.repaired, found.unreadable)
                };
                assert_eq!(scrub().await, (0, 0, 1), "{code} {mode:?}");
                let status = bench.array.status();
                // All existing data was kept: there is nothing to resync.
                assert_eq!((status.slots[slot].repaired, status.regions.resync), (0, 0), "{code}");
                assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{code} {mode:?}");
                *room.borrow_mut() = None;
                assert_eq!(scrub().await, (0, 0, 0), "{code} {mode:?}");
                assert_eq!(bench.array.status().slots[slot].repaired, 1, "{code} {mode:?}");
                bench.array.stop().await.expect("stopped");
            }
        }
    });
}
