//! Read-modify-write or reconstruct-write: which units a small write reads.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{Disks, UNIT, bytes, now, parity};
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Class, Disk, Layer, RamDisk, ReadFuture};
use weft_rt::{Buf, Frozen};
use weft_stripe::{Band, Coding, Owner, Segment, Updated, update};

/// A disk that notes in a set that it was read.
struct Watched {
    disk: RamDisk,
    unit: usize,
    read: Rc<Cell<UnitSet>>,
}

impl Layer for Watched {
    fn below(&self) -> &dyn Disk {
        &self.disk
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.read.set(self.read.get().with(self.unit));
        Disk::read(&self.disk, offset, buf, class)
    }
}

/// The disks of a code, and which of them were read.
fn watched(code: &str, slots: usize) -> (Disks, Rc<Cell<UnitSet>>) {
    let read = Rc::<Cell<UnitSet>>::default();
    let disk = |unit| {
        let disk = RamDisk::new(&format!("ram{unit}"), 64 << 10, 512);
        Rc::new(Watched { disk, unit, read: read.clone() }) as Rc<dyn Disk>
    };
    (Disks::with(code, (0..slots).map(disk).collect()), read)
}

/// Writes some of unit 0, checks the new parity, and returns which units were read.
fn reads_of_a_small_write(disks: &Disks, read: &Cell<UnitSet>) -> Vec<usize> {
    let (stripe, len) = (0, 1024);
    let mut units = disks.fill(stripe);
    read.set(UnitSet::new());
    let data = bytes(0, 1, len);
    let segment = Segment { unit: 0, from: 512, data: Frozen::copy_from(&data) };
    let segments = [segment];
    let bands: Vec<Band<'_>> = Band::of(&segments).collect();
    let [band] = &bands[..] else { panic!("one segment is one band") };
    let mut updated = Updated::default();
    let done = now(update(disks, disks.stripe(stripe), band, &[], None, &mut updated));
    done.expect("an update");
    units[0][512..512 + len].copy_from_slice(&data);
    let code = disks.coding.code();
    for write in updated.writes.iter().filter(|write| write.unit >= code.k()) {
        let whole = parity(code, stripe, write.unit - code.k(), &units[..code.k()]);
        assert_eq!(whole.len(), UNIT);
        assert!(write.data[..] == whole[512..512 + len], "parity unit {}", write.unit);
    }
    read.get().iter().collect()
}

#[test]
fn the_fewest_reads_win_and_rotation_decides_a_tie() {
    let cases: [(&str, usize, &[usize], &[usize]); 5] = [
        // Three reads each way.
        ("raid6", 6, &[0, 4, 5], &[1, 2, 3]),
        ("raid5", 4, &[0, 3], &[1, 2]),
        ("drc-g:4,2,1", 7, &[0, 4, 6], &[1, 2, 3]),
        // Two or four; two or one.
        ("raid5", 6, &[0, 5], &[0, 5]),
        ("raid5", 3, &[1], &[1]),
    ];
    for (code, slots, still, rotating) in cases {
        let (disks, read) = watched(code, slots);
        assert_eq!(reads_of_a_small_write(&disks, &read), still, "{code}");
        disks.rotational.set(true);
        assert_eq!(reads_of_a_small_write(&disks, &read), rotating, "{code}, rotating");
        // However long the queue of parity is here, it is as long elsewhere.
        disks.in_flight(SlotNo(slots - 1)).set(100);
        assert_eq!(reads_of_a_small_write(&disks, &read), rotating, "{code}, busy");
    }
}

#[test]
fn parity_with_a_disk_of_its_own_is_spared() {
    let apart = |code, slots| {
        let (mut disks, read) = watched(code, slots);
        disks.coding = Coding::new(disks.coding.code().clone(), true);
        (disks, read)
    };
    for (code, slots, others) in [("rs:3+1", 4, vec![1, 2]), ("lrc:4,2,1", 7, vec![1, 2, 3])] {
        let (disks, read) = apart(code, slots);
        assert_eq!(reads_of_a_small_write(&disks, &read), others, "{code}: a tie");
    }
    // Two reads or seven: the queues decide.
    let (disks, read) = apart("rs:8+1", 9);
    assert_eq!(reads_of_a_small_write(&disks, &read), [0, 8]);
    disks.in_flight(SlotNo(8)).set(20);
    assert_eq!(reads_of_a_small_write(&disks, &read), [1, 2, 3, 4, 5, 6, 7]);
    (1..8).for_each(|slot| disks.in_flight(SlotNo(slot)).set(20));
    assert_eq!(reads_of_a_small_write(&disks, &read), [0, 8], "all are busy");
    // What must be read to reconstruct counts, too.
    let (disks, read) = apart("lrc:4,2,1", 7);
    disks.lost.set(UnitSet::one(0));
    assert_eq!(reads_of_a_small_write(&disks, &read), [1, 2, 3]);
}
