//! Disks as a crash leaves them, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::common::disk::{Medium, Power, TestDisk};
use crate::common::model::Pair;
use crate::common::*;
use weft_disk::Disk;
use weft_fs::Label;
use weft_random::Rng;
use weft_rt::{MILLISECOND, Rt};

/// Where the data blocks of a disk begin.
pub(super) const DATA_AT: u64 = (64 << 10) + (8 << 20);

/// The database lies in the second half of a slice, and there are other things before it.
pub(super) const SLICE: Range<u64> = (64 << 10)..DATA_AT;

/// What is in the slice of a disk that no checksum covers: the superblocks and the map of the
/// metadata array, and its log.
pub(super) const CHECKED_FROM: u64 = (64 << 10) + (1 << 20) + (64 << 10) + (896 << 10);

/// A disk as it is after a crash: its contents, sectors that cannot be read until they are written,
/// and some that cannot be read or written any more.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) bytes: u64,
    pub(super) medium: Medium,
    pub(super) unreadable: BTreeSet<u64>,
    pub(super) dead_reads: BTreeSet<u64>,
    pub(super) dead_writes: BTreeSet<u64>,
}

impl Left {
    pub(super) fn of(disk: &TestDisk) -> Self {
        Self {
            bytes: disk.info().size_bytes,
            medium: disk.medium.borrow().clone(),
            unreadable: disk.faults.unreadable.borrow().clone(),
            dead_reads: disk.faults.dead_reads.borrow().clone(),
            dead_writes: disk.faults.dead_writes.borrow().clone(),
        }
    }
}

/// Disks by number, as they are after a crash.
pub(super) type Media = BTreeMap<usize, Left>;

/// Opens disks. What each is called moves by `shift`: names of disks differ from boot to boot.
pub(super) fn open(
    rt: &Rt,
    power: &Rc<Power>,
    media: &Media,
    shift: usize,
) -> BTreeMap<usize, Rc<TestDisk>> {
    let open = |(n, left): (&usize, &Left)| {
        let disk = TestDisk::new(rt, power, *n + shift, left.bytes, 512, left.medium.clone());
        *disk.faults.unreadable.borrow_mut() = left.unreadable.clone();
        *disk.faults.dead_reads.borrow_mut() = left.dead_reads.clone();
        *disk.faults.dead_writes.borrow_mut() = left.dead_writes.clone();
        (*n, disk)
    };
    media.iter().map(open).collect()
}

pub(super) fn given(disks: &BTreeMap<usize, Rc<TestDisk>>) -> Vec<Rc<dyn Disk>> {
    disks.values().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
}

/// Lets a block fail: mostly one that a file uses, otherwise one that may be used next. With
/// `may_lose` it cannot be read either. Returns whether a block with contents cannot be read.
pub(super) async fn fail_block(
    pair: &mut Pair,
    disks: &BTreeMap<usize, Rc<TestDisk>>,
    may_lose: bool,
) -> bool {
    let mut used = Vec::new();
    for id in pair.model.files.keys() {
        for (_, record) in pair.fs.places(pair.inos[id]).await.expect("known") {
            used.extend(record.columns.into_iter().flatten());
        }
    }
    if used.is_empty() {
        return false;
    }
    let column = pair.rng.pick(&used).clone();
    let (lines, is_used) = (column.sums.len() as u64, pair.rng.chance(60));
    let block = column.start + pair.rng.below(lines) + if is_used { 0 } else { lines };
    let Some(disk) = disks.get(&usize::from(column.disk)) else { return false };
    // All of the block, or a sector of it.
    // One that joined later may have a larger slice.
    let label = Label::read(&**disk).await.expect("readable").expect("a label");
    let first = (label.data().start + block * BLOCK) / 512;
    let one = pair.rng.below(8);
    let sectors = if pair.rng.chance(50) { first..first + 8 } else { first + one..first + one + 1 };
    let faults = &disk.faults;
    let lose = may_lose && is_used && pair.rng.chance(60);
    match lose && pair.rng.chance(50) {
        true => faults.unreadable.borrow_mut().extend(sectors),
        false => {
            faults.dead_writes.borrow_mut().extend(sectors.clone());
            if lose {
                faults.dead_reads.borrow_mut().extend(sectors);
            }
        }
    }
    lose
}

/// Something is wrong with one slice of the metadata.
pub(super) fn fail_slice(rng: &mut Rng, disk: &TestDisk) {
    let sector = (CHECKED_FROM + rng.below(SLICE.end - CHECKED_FROM)) / 512;
    match rng.below(3) {
        0 => *disk.faults.unwritable.borrow_mut() = SLICE,
        1 => drop(disk.faults.unreadable.borrow_mut().insert(sector)),
        _ => {
            let mut medium = disk.medium.borrow_mut();
            let mut bytes = [0; 512];
            medium.read(sector * 512, &mut bytes);
            bytes[rng.index(512)] ^= 1 << rng.below(8);
            medium.poke(sector * 512, &bytes);
        }
    }
}

/// Writes to some slices of the metadata take long: what makes copies alike after a crash does not
/// get far before the next one.
pub(super) fn hold_copies_back(rng: &mut Rng, disks: &BTreeMap<usize, Rc<TestDisk>>) {
    if rng.chance(50) {
        return;
    }
    for disk in disks.values() {
        if rng.chance(40) {
            *disk.faults.slow.borrow_mut() = SLICE;
            disk.faults.slow_ns.set((1 + rng.below(300)) * MILLISECOND);
        }
    }
}
