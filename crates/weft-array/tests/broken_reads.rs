//! An array that breaks in the middle of a write: of what was not being written, reads give what
//! was there, or an error, and never anything else; of what was, whatever the first read gave, or
//! an error.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use weft_array::{ArrayState, Consistency, create};
use weft_code::SlotNo;
use weft_disk::Volume;
use weft_rt::{Buf, Frozen, MILLISECOND, SECOND};

const SIZE: u64 = (3 << 20) + 64 * UNIT;
const STRIPES: u64 = 8;

const SECTOR: u64 = 512;

/// What is written to the first stripe when the disk that is one too many fails the write.
#[derive(Debug, Clone, Copy)]
enum Request {
    /// So many bytes from here.
    Write(u64, u64),
    /// The whole stripe becomes zero.
    Zero,
}

impl Request {
    /// The offsets in the units that are written.
    fn offsets(self) -> Range<u64> {
        match self {
            Self::Write(from, len) if from + len <= UNIT => from..from + len,
            Self::Write(..) | Self::Zero => 0..UNIT,
        }
    }
}

/// Loses the units `lost` of the first stripe, and then the writes to unit `bad`.
fn breaks(code: &'static str, policy: Consistency, lost: &[usize], bad: usize, request: Request) {
    breaks_in(code, policy, lost, bad, request, false);
}

/// As [`breaks`]. If `rebuilding`, it is about the last stripe, and a rebuild of that waits until
/// the request has ended.
fn breaks_in(
    code: &'static str,
    policy: Consistency,
    lost: &[usize],
    bad: usize,
    request: Request,
    rebuilding: bool,
) {
    let what = format!("{code}, {policy}, {lost:?} lost, then {bad} with {request:?}");
    let lost = lost.to_vec();
    run(move |rt| async move {
        let count = CODES.iter().find(|(name, _)| *name == code).expect("one of them").1;
        let mut disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count + 1]);
        let spare = disks.pop().expect("one more");
        let all = members(&disks);
        let options = weft_array::CreateOptions { consistency: policy, ..bench_options(code) };
        let superblock = create(&all, &options).await.expect("created");
        let array = assemble(&rt, &all).await;
        let stripe = array.stripe_bytes();
        let number = if rebuilding { STRIPES - 1 } else { 0 };
        let start = number * stripe;
        let old = pattern(0, (STRIPES * stripe) as usize, 1);
        write(&array, 0, &old).await;
        array.flush().await.expect("flushed");
        let layout =
            weft_layout::for_code(superblock.code, superblock.algorithm, count, superblock.rows)
                .expect("laid");
        for unit in &lost {
            array.fail(layout.place(number, *unit).slot).await.expect("failed");
        }
        if rebuilding {
            // A stripe a second.
            array.set_throttle(0, Some(UNIT));
            array.add_spare(spare).await.expect("added");
            rt.sleep(SECOND).await;
        }
        let SlotNo(bad_slot) = layout.place(number, bad).slot;
        *disks[bad_slot].faults.unwritable.borrow_mut() = superblock.area.data_offset..SIZE;
        let mut new = old.clone();
        match request {
            Request::Write(from, len) => {
                let bytes = pattern(from, len as usize, 9);
                new[(start + from) as usize..][..len as usize].copy_from_slice(&bytes);
            }
            Request::Zero => new[start as usize..][..stripe as usize].fill(0),
        }
        let offsets = request.offsets();
        let request = async {
            match request {
                Request::Write(from, len) => {
                    let bytes = &new[(start + from) as usize..][..len as usize];
                    array.write(start + from, Frozen::copy_from(bytes), false).await
                }
                Request::Zero => array.write_zeroes(start, stripe, false, true).await,
            }
        };
        let done = if rebuilding {
            disks[bad_slot].faults.hold(superblock.area.data_offset..SIZE, 0);
            let rebuild = async {
                // By now the request has written what it can.
                rt.sleep(10 * MILLISECOND).await;
                array.set_throttle(0, None);
                rt.sleep(10 * SECOND).await;
                assert!(!array.status().jobs.is_empty(), "{what}: no rebuild waits");
                disks[bad_slot].faults.release();
            };
            let (done, ()) = futures_util::future::join(request, rebuild).await;
            rt.sleep(SECOND).await;
            done
        } else {
            request.await
        };
        assert!(done.is_err(), "{what}: acknowledged");
        assert_eq!(array.status().state, ArrayState::Broken, "{what}");
        for at in (0..old.len() as u64).step_by(SECTOR as usize) {
            let (result, buf) = array.read(at, Buf::new(SECTOR as usize)).await;
            let range = at as usize..(at + SECTOR) as usize;
            let right = *buf == old[range.clone()] || *buf == new[range];
            assert!(result.is_err() || right, "{what}: the sector at {at} is garbage");
            let elsewhere =
                !(start..start + stripe).contains(&at) || !offsets.contains(&(at % UNIT));
            assert!(result.is_ok() || !elsewhere, "{what}: the sector at {at} is readable");
        }
    });
}

fn requests() -> [Request; 4] {
    [Request::Write(0, UNIT), Request::Write(512, 512), Request::Write(0, 2 * UNIT), Request::Zero]
}

#[test]
fn the_lost_unit_of_a_stripe_that_was_being_written_is_an_error() {
    for request in requests() {
        for policy in [Consistency::Ppl, Consistency::Bitmap] {
            breaks("raid5", policy, &[1], 0, request);
            breaks("raid5", policy, &[2], 0, request);
            breaks("raid6", policy, &[1, 2], 0, request);
            breaks("rs:3+2", policy, &[2, 1], 0, request);
        }
    }
}

#[test]
fn a_rebuild_that_waited_for_the_stripe_leaves_it_as_it_is() {
    for request in requests() {
        for policy in [Consistency::Ppl, Consistency::Bitmap] {
            breaks_in("raid5", policy, &[1], 0, request, true);
            breaks_in("raid5", policy, &[1], 3, request, true);
            breaks_in("raid6", policy, &[1, 2], 0, request, true);
            breaks_in("rs:3+2", policy, &[2, 1], 0, request, true);
        }
    }
}

#[test]
fn so_it_is_if_parity_is_what_could_not_be_written() {
    for request in requests() {
        breaks("raid5", Consistency::Bitmap, &[1], 3, request);
        breaks("raid6", Consistency::Bitmap, &[1, 2], 3, request);
    }
}

/// Loses the slots `lost` of a mirror, and then the writes to slot `bad`, which the others cannot
/// do without, while the offsets `written` of a unit are being written that has other copies too.
/// All reads of these give the same or fail, whichever disk fails next. All other offsets can be
/// read as long as there is a copy.
fn flips(
    code: &'static str,
    count: usize,
    lost: &'static [usize],
    bad: usize,
    written: Range<u64>,
) {
    let what = format!("{code}, {lost:?} lost, then {bad}");
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count]);
        let all = members(&disks);
        let superblock = create(&all, &bench_options(code)).await.expect("created");
        let array = assemble(&rt, &all).await;
        let old = pattern(0, (STRIPES * array.stripe_bytes()) as usize, 1);
        write(&array, 0, &old).await;
        array.flush().await.expect("flushed");
        for slot in lost {
            array.fail(SlotNo(*slot)).await.expect("failed");
        }
        *disks[bad].faults.unwritable.borrow_mut() = superblock.area.data_offset..SIZE;
        let layout =
            weft_layout::for_code(superblock.code, superblock.algorithm, count, superblock.rows)
                .expect("laid");
        let copies = superblock.code.shape(count).expect("a code").width();
        let layout = &layout;
        let slots = |stripe| (0..copies).map(move |unit| layout.place(stripe, unit).slot.0);
        let slots = |stripe| slots(stripe).filter(|slot| !lost.contains(slot)).collect::<Vec<_>>();
        let has_others = |stripe: &u64| {
            let slots = slots(*stripe);
            slots.contains(&bad) && slots.len() > 1
        };
        let torn = (0..STRIPES).find(has_others).expect("a stripe with other copies");
        let (unit, len) = (torn * UNIT, (written.end - written.start) as usize);
        let at = unit + written.start;
        let new = pattern(at, len, 9);
        assert!(array.write(at, Frozen::copy_from(&new), false).await.is_err(), "{what}: written");
        assert_eq!(array.status().state, ArrayState::Broken, "{what}");
        // Reads at the same time go to different disks.
        let reads = (0..2 * count).map(|_| read(&array, at, len));
        let found = futures_util::future::join_all(reads).await;
        for bytes in &found {
            assert!(*bytes == old[at as usize..][..len] || *bytes == new, "{what}: neither");
            assert!(*bytes == found[0], "{what}: once old, once new");
        }
        for slot in slots(torn) {
            let faults = &disks[slot].faults;
            for sectors_only in [true, false] {
                let sectors = superblock.area.data_offset / SECTOR..SIZE / SECTOR;
                match sectors_only {
                    true => faults.dead_reads.borrow_mut().extend(sectors),
                    false => faults.gone.set(true),
                }
                for from in (0..UNIT).step_by(SECTOR as usize) {
                    let at = unit + from;
                    let (result, buf) = array.read(at, Buf::new(SECTOR as usize)).await;
                    let index = from.wrapping_sub(written.start) as usize;
                    match written.contains(&from) {
                        true => {
                            let same = *buf == found[0][index..][..SECTOR as usize];
                            assert!(result.is_err() || same, "{what}, then {slot}: turned at {at}");
                            let listed = array.status().unreadable;
                            let listed = listed.iter().any(|range| range.contains(at));
                            assert!(result.is_ok() || listed || sectors_only, "{what}: {at}");
                        }
                        false => {
                            result.expect("there is another copy");
                            assert!(*buf == old[at as usize..][..SECTOR as usize], "{what}: {at}");
                        }
                    }
                }
                faults.dead_reads.borrow_mut().clear();
                faults.gone.set(false);
            }
        }
        assert!(read(&array, at, len).await == found[0], "{what}: all copies are back");
    });
}

#[test]
fn a_mirror_that_broke_gives_the_same_copy_at_every_read() {
    for written in [0..UNIT, SECTOR..3 * SECTOR] {
        flips("raid10:n2", 5, &[0], 1, written.clone());
        flips("raid10:n2", 5, &[1], 0, written.clone());
        flips("raid10:f2", 4, &[0], 1, written.clone());
        flips("raid10:f2", 4, &[0], 3, written.clone());
        flips("raid10:o2", 5, &[2], 3, written.clone());
        flips("raid10:o2", 4, &[2], 3, written.clone());
        flips("raid10:n3", 5, &[0, 1], 2, written.clone());
        flips("raid10:f3", 5, &[0, 1], 2, written.clone());
        flips("raid10:o3", 6, &[0, 1], 2, written.clone());
    }
}

/// The copies of a crash's last writes differ, and the array breaks before they are resynced. A
/// disk of it that failed once, and works again, does not bring back what was read before, also
/// when the disk of the other copy fails.
#[test]
fn a_disk_that_fails_now_and_then_in_a_broken_mirror_is_left_out() {
    const MEMBERS: usize = 4;
    let left: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); MEMBERS]);
        let all = members(&disks);
        let superblock = create(&all, &bench_options("raid10:n2")).await.expect("created");
        let array = Rc::new(assemble(&rt, &all).await);
        let len = (STRIPES * array.stripe_bytes()) as usize;
        write(&array, 0, &pattern(0, len, 1)).await;
        array.flush().await.expect("flushed");
        disks[1].faults.hold(superblock.area.data_offset..SIZE, 0);
        drop(rt.spawn(async move {
            let new = Frozen::copy_from(&pattern(0, len, 9));
            let _ = array.write(0, new, false).await;
        }));
        rt.sleep(SECOND).await;
        let media = disks.iter().map(|disk| Leave::Completed.of(&disk.medium.borrow()));
        *out.borrow_mut() = media.collect();
    });
    let media = left.take();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let array = assemble(&rt, &members(&disks)).await;
        // A stripe a second.
        array.set_throttle(0, Some(UNIT));
        array.fail(SlotNo(2)).await.expect("failed");
        disks[3].faults.gone.set(true);
        assert!(array.write(UNIT, Frozen::zeros(UNIT as usize), false).await.is_err());
        assert_eq!(array.status().state, ArrayState::Broken);
        assert!(array.status().regions.resync > 0);
        // The last stripe of the first pair.
        let (at, len) = ((STRIPES - 2) * UNIT, UNIT as usize);
        let (new, old) = (pattern(at, len, 9), pattern(at, len, 1));
        assert!(read(&array, at, len).await == new, "the first copy");
        let corrections = Volume::corrections(&array);
        disks[0].faults.gone.set(true);
        assert!(read(&array, at, len).await == old, "the second copy");
        assert!(Volume::corrections(&array) > corrections, "a cache keeps the first");
        disks[0].faults.gone.set(false);
        assert!(read(&array, at, len).await == old, "the first copy again");
        disks[1].faults.gone.set(true);
        for _ in 0..2 {
            let (result, _) = array.read(at, Buf::new(len)).await;
            assert!(result.is_err(), "the second copy is the one that counts");
        }
        // A sector of it that was not asked for before.
        let (result, _) = array.read(at + SECTOR, Buf::new(SECTOR as usize)).await;
        assert!(result.is_err(), "all sectors are read from one copy");
        disks[1].faults.gone.set(false);
        assert!(read(&array, at, len).await == old, "the second copy works again");
        disks[0].faults.gone.set(true);
        assert!(read(&array, at, len).await == old, "without the first one");
    });
}
