//! A write finds no room for parity in a region that awaits its resync after a crash: parity that
//! never matched tells nothing of the data. What is refused is old or new, and what lies beside it
//! stays as it was read, in the same sector, too.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes and counts of a test are small"
)]

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::bench::{Bench, UNIT, disk, members, options, run};
use common::disk::{Leave, Power, TestDisk};
use common::*;
use weft_array::{ArrayError, Consistency, ScrubMode};
use weft_disk::Disk;
use weft_rt::{Frozen, Rt, SECOND};

const SECTOR: usize = 512;
const STRIPES: usize = 4;

#[derive(Debug, Clone, Copy)]
struct Case {
    code: &'static str,
    slots: usize,
    consistency: Consistency,
    /// Slots lost after the crash.
    failed: &'static [usize],
    /// The slot without room for more than metadata.
    full: usize,
    /// Its writes end half-way instead of at once.
    half: bool,
}

/// One range in each stripe: parts of sectors, of two units, a unit, a whole stripe.
fn ranges(stripe: usize) -> [(usize, usize); STRIPES] {
    let unit = UNIT as usize;
    let second = unit % stripe;
    [
        (300, 700),
        (stripe + second + unit - 2 * SECTOR, 3 * SECTOR),
        (3 * stripe - unit, unit),
        (3 * stripe, stripe),
    ]
}

/// An array whose power went in the middle of a write: every sector of every disk is old or new.
async fn crashed(rt: &Rt, case: Case) -> (Bench, Vec<Rc<TestDisk>>) {
    let mut options = options(case.code);
    options.consistency = case.consistency;
    let disks: Vec<_> = (0..case.slots).map(|n| disk(rt, n, 512)).collect();
    let bench = Bench::on(rt, &options, disks).await;
    let len = STRIPES * bench.stripe_bytes() as usize;
    write(&bench.array, 0, &pattern(0, len, 1)).await;
    bench.array.flush().await.expect("flushed");
    write(&bench.array, 0, &pattern(0, len, 2)).await;
    let power = Power::new();
    let reopen = |(n, disk): (usize, &Rc<TestDisk>)| {
        let cells = disk.cells.borrow().after_cut(Leave::Some(n as u64));
        TestDisk::new(rt, &power, n, disk.info().size_bytes, 512, cells)
    };
    let disks = bench.disks.iter().enumerate().map(reopen).collect();
    (bench, disks)
}

async fn refused(rt: Rt, case: Case) {
    let what = format!("{case:?}");
    let (bench, disks) = crashed(&rt, case).await;
    let stripe = bench.stripe_bytes() as usize;
    let array = assemble(&rt, &members(&disks)).await;
    array.set_paused(true);
    for slot in case.failed {
        array.fail(&slot.to_string()).await.expect("can lose it");
    }
    assert_eq!(array.status().regions.resync, STRIPES as u64, "{what}");
    let mut known = read(&array, 0, STRIPES * stripe).await;

    let open = Rc::new(Cell::new(false));
    let (data, room) = (bench.superblock.area.data_offset, open.clone());
    *disks[case.full].faults.room.borrow_mut() = Some(Box::new(move |at, len, _| {
        let stored = if case.half { len / 2 / SECTOR as u64 * SECTOR as u64 } else { 0 };
        (at >= data && !room.get()).then_some(stored)
    }));
    for (number, (offset, len)) in ranges(stripe).into_iter().enumerate() {
        let mut new = known.clone();
        let zeroes = number == STRIPES - 1;
        let bytes = if zeroes { vec![0; len] } else { pattern(offset as u64, len, 3) };
        new[offset..offset + len].copy_from_slice(&bytes);
        let result = match zeroes {
            true => array.write_zeroes(offset as u64, len as u64, false, false).await,
            false => array.write(offset as u64, Frozen::copy_from(&bytes), false).await,
        };
        if let Err(error) = &result {
            let full = matches!(error.root(), ArrayError::NoSpace { .. });
            assert!(full, "{what}: {error}");
        }
        let found = read(&array, 0, STRIPES * stripe).await;
        for (at, sector) in (0..).step_by(SECTOR).zip(found.chunks(SECTOR)) {
            let (old, new) = (&known[at..at + SECTOR], &new[at..at + SECTOR]);
            let written = at + SECTOR > offset && at < offset + len;
            // With a member missing what was being written may be given up for what was not.
            let given_up = written && result.is_err() && !case.failed.is_empty();
            // What lay on a missing member has met the write hole.
            let unit = (at % stripe) as u64 / UNIT;
            let (slot, _) = bench.place((at / stripe) as u64, unit as usize);
            let hole = bench.k() > 1 && case.failed.contains(&slot);
            let fits = sector == new || written && result.is_err() && sector == old;
            assert!(fits || given_up || hole, "{what}: write {number}, sector at {at}");
        }
        known = found;
    }
    open.set(true);
    array.set_paused(false);
    rt.sleep(25 * SECOND).await;
    assert_eq!(array.status().regions.resync, 0, "{what}");
    assert!(read(&array, 0, STRIPES * stripe).await == known, "{what}: changed by the resync");
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    array.stop().await.expect("stopped");
}

fn everywhere(code: &'static str, slots: usize, failed: &'static [usize]) {
    for consistency in [Consistency::Bitmap, Consistency::None] {
        for full in (0..slots).filter(|slot| !failed.contains(slot)) {
            for half in [false, true] {
                let case = Case { code, slots, consistency, failed, full, half };
                run(move |rt| refused(rt, case));
            }
        }
    }
}

#[test]
fn mirrors() {
    everywhere("raid1", 2, &[]);
    everywhere("raid1", 3, &[]);
    everywhere("raid1", 3, &[0]);
    everywhere("raid1", 4, &[0, 1]);
}

#[test]
fn parity_with_all_members() {
    for (code, slots) in [("raid5", 4), ("raid6", 5), ("rs:4+3", 7), ("lrc:4,2,1", 7)] {
        everywhere(code, slots, &[]);
    }
}

#[test]
fn parity_with_some_missing() {
    everywhere("raid5", 4, &[2]);
    everywhere("raid6", 5, &[1]);
    everywhere("raid6", 5, &[0, 3]);
    everywhere("rs:4+3", 7, &[1, 4]);
    everywhere("rs:4+3", 7, &[0, 2, 5]);
    everywhere("lrc:4,2,1", 7, &[3]);
}
