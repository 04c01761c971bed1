//! What a cache above the array knows serves to reconstruct what is lost: such reads ask the disks
//! for the rest only, and give the same bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{make, pattern, rt};
use weft_code::SlotNo;
use weft_disk::{CachedContents, Disk, FaultDisk, Faults, RamDisk, Volume};
use weft_rt::{Buf, Frozen, Rt};

const LEN: usize = 4096;

/// Blocks by their offsets.
#[derive(Default)]
struct Known {
    blocks: RefCell<BTreeMap<u64, Frozen>>,
    spared: Cell<u64>,
}

impl CachedContents for Known {
    fn holds(&self, offset: u64, len: usize) -> bool {
        len == LEN && self.blocks.borrow().contains_key(&offset)
    }

    fn contents(&self, offset: u64, _len: usize) -> Option<Frozen> {
        self.blocks.borrow().get(&offset).cloned()
    }

    fn note_spared(&self, _offset: u64, bytes: u64) {
        self.spared.set(self.spared.get() + bytes);
    }
}

struct Bench {
    rt: Rt,
    array: weft_array::Array,
    faults: Vec<Faults>,
    known: Rc<Known>,
}

impl Bench {
    /// A full array that has lost the slots of the first data units of stripe 0.
    fn new(code: &str, slots: usize, lost: usize) -> Self {
        let rt = rt();
        let new = |n| {
            let ram = Rc::new(RamDisk::new(&format!("disk{n}"), 4 << 20, 512));
            let (disk, faults) = FaultDisk::new(&rt, ram);
            (Rc::new(disk) as Rc<dyn Disk>, faults)
        };
        let (disks, faults): (Vec<_>, Vec<_>) = (0..slots).map(new).unzip();
        let known = Rc::new(Known::default());
        let (inner, code, offered) = (rt.clone(), code.to_owned(), known.clone());
        let array = rt.block_on(async move {
            let array = make(&inner, &code, &disks).await;
            let len = usize::try_from(array.size_bytes()).expect("fits memory");
            array.write(0, Frozen::copy_from(&pattern(0, len, 1)), false).await.expect("written");
            for unit in 0..lost {
                let slot = array.failure_domain(unit as u64 * unit_bytes(&array));
                array.fail(SlotNo(slot)).await.expect("failed");
            }
            let weak: Rc<dyn CachedContents> = offered;
            array.offer(Rc::downgrade(&weak));
            array
        });
        Self { rt, array, faults, known }
    }

    /// Makes a data unit of stripe 0 known.
    fn know(&self, unit: u64) {
        let offset = unit * unit_bytes(&self.array);
        let bytes = Frozen::copy_from(&pattern(offset, LEN, 1));
        self.known.blocks.borrow_mut().insert(offset, bytes);
    }

    /// Reads the first data unit; returns the number of disk reads, and of reads spared.
    fn read(&self) -> (u64, u64) {
        let reads = || -> u64 { self.faults.iter().map(|faults| faults.counts().reads).sum() };
        let before = (reads(), self.known.spared.get());
        let array = self.array.clone();
        let (result, buf) = self.rt.block_on(async move { array.read(0, Buf::new(LEN)).await });
        result.expect("read");
        assert_eq!(buf[..], pattern(0, LEN, 1)[..]);
        (reads() - before.0, (self.known.spared.get() - before.1) / LEN as u64)
    }
}

fn unit_bytes(array: &weft_array::Array) -> u64 {
    array.status().unit_bytes
}

#[test]
fn a_lost_unit_is_computed_from_what_is_known_and_the_rest_is_read() {
    let bench = Bench::new("raid5", 5, 1);
    assert_eq!(bench.read(), (4, 0));
    bench.know(2);
    assert_eq!(bench.read(), (3, 1));
    bench.know(1);
    bench.know(3);
    assert_eq!(bench.read(), (1, 3), "the parity");
}

#[test]
fn a_known_unit_counts_although_its_disk_is_lost() {
    let bench = Bench::new("raid6", 6, 2);
    assert_eq!(bench.read(), (4, 0));
    bench.know(1);
    assert_eq!(bench.read(), (3, 1), "one loss is left");
}

#[test]
fn a_local_group_needs_no_unit_of_another() {
    let bench = Bench::new("lrc:6,2,1", 9, 1);
    let (reads, _) = bench.read();
    assert_eq!(reads, 3);
    bench.know(3);
    bench.know(4);
    assert_eq!(bench.read(), (3, 0), "units of the other group help nothing");
    bench.know(1);
    assert_eq!(bench.read(), (2, 1));
}

#[test]
fn what_is_not_lost_is_read_from_its_disk() {
    let bench = Bench::new("raid5", 5, 0);
    (0..4).for_each(|unit| bench.know(unit));
    assert_eq!(bench.read(), (1, 0));
}
