//! Disks that fail while a stripe is being read or written.

mod common;

use std::rc::Rc;

use common::{Disks, UNIT, now};
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Disk, Fault, FaultDisk, Faults, RamDisk, WriteOpts};
use weft_rt::{Buf, Frozen, Schedule, virtual_rt};
use weft_stripe::{Access, DeviceEvent, Gathered, UnitWrite, Units, gather, gather_exactly, store};

fn faulty(code: &str, slots: usize) -> (Disks, Vec<Faults>) {
    let rt = virtual_rt(Schedule::Fifo);
    let disk = |n| {
        let ram: Rc<dyn Disk> = Rc::new(RamDisk::new(&format!("ram{n}"), 64 << 10, 512));
        let (disk, faults) = FaultDisk::new(&rt, ram);
        (Rc::new(disk) as Rc<dyn Disk>, faults)
    };
    let (disks, faults): (Vec<_>, Vec<_>) = (0..slots).map(disk).unzip();
    (Disks::with(code, disks), faults)
}

fn read_all(disks: &Disks) -> Gathered {
    let data = disks.coding.data_units();
    let wanted: Units = data.iter().map(|unit| (unit, Buf::new(UNIT))).collect();
    now(gather(disks, disks.stripe(0), Access::user(0), &[], wanted))
}

fn assert_all(gathered: &Gathered, units: &[Vec<u8>]) {
    assert_eq!(gathered.result, Ok(()));
    for (unit, buf) in &gathered.units {
        assert_eq!(**buf, *units[*unit], "unit {unit}");
    }
}

#[test]
fn a_dead_disk_is_given_up_and_reconstructed() {
    let (disks, faults) = faulty("raid6", 6);
    let units = disks.fill(0);
    faults[1].inject(Fault::Gone);
    faults[3].inject(Fault::Gone);
    assert_all(&read_all(&disks), &units);
    assert_eq!(disks.lost.get(), UnitSet::one(1).with(3));
    faults[4].inject(Fault::Gone);
    let error = read_all(&disks).result.expect_err("three are lost");
    assert_eq!((error.lost, error.len), (3, UNIT));
}

#[test]
fn a_unit_that_came_back_stands_in_for_one_that_fails() {
    let (disks, faults) = faulty("raid6", 6);
    let units = disks.fill(0);
    disks.lost.set(UnitSet::one(1).with(3));
    let resolved = disks.stripe(0);
    disks.lost.set(UnitSet::one(3));
    faults[4].inject(Fault::Gone);
    let wanted = || vec![(1, Buf::new(UNIT)), (3, Buf::new(UNIT))];
    let at = Access::user(0);
    assert_all(&now(gather(&disks, resolved, at, &[], wanted())), &units);
    // But not where certain units are asked for, and no others.
    let (mirror, faults) = faulty("raid1", 3);
    mirror.fill(0);
    mirror.lost.set(UnitSet::one(2));
    let resolved = mirror.stripe(0);
    mirror.lost.set(UnitSet::new());
    faults[1].inject(Fault::Gone);
    assert!(now(gather_exactly(&mirror, resolved, at, UNIT, UnitSet::one(1))).is_err());
}

#[test]
fn bad_sectors_are_rewritten() {
    let (disks, faults) = faulty("raid5", 4);
    let units = disks.fill(0);
    faults[2].inject(Fault::Medium(1024..1025));
    let gathered = read_all(&disks);
    assert_all(&gathered, &units);
    assert!(gathered.unrepaired.is_empty() && disks.failed.borrow().is_empty());
    let repaired = DeviceEvent::Repaired { offset: 0, len: UNIT as u64 };
    assert_eq!(*disks.met.borrow(), [(2, DeviceEvent::ReadError), (2, repaired)]);
    assert_eq!(disks.on_disk(0, 2), units[2], "readable again");
}

#[test]
fn bad_sectors_stay_while_nothing_may_be_written() {
    let (disks, faults) = faulty("raid5", 4);
    let units = disks.fill(0);
    disks.repairs.set(false);
    faults[2].inject(Fault::Medium(1024..1025));
    let gathered = read_all(&disks);
    assert_all(&gathered, &units);
    assert_eq!(gathered.unrepaired, UnitSet::one(2));
}

#[test]
fn bad_sectors_of_two_disks_at_different_offsets_are_no_loss() {
    let (disks, faults) = faulty("raid5", 4);
    let units = disks.fill(0);
    faults[0].inject(Fault::Medium(0..512));
    faults[2].inject(Fault::Medium(4096..4608));
    assert_all(&read_all(&disks), &units);
    assert!(disks.failed.borrow().is_empty());
    // At the same offset they are one.
    faults[0].inject(Fault::Medium(512..1024));
    faults[2].inject(Fault::Medium(512..1024));
    let gathered = read_all(&disks);
    assert!(gathered.result.is_err());
}

#[test]
fn wrong_parity_reconstructs_bad_sectors_only() {
    let (disks, faults) = faulty("raid5", 4);
    let mut units = disks.fill(0);
    // Parity that disagrees everywhere, as a crash may leave it.
    units[3].iter_mut().for_each(|byte| *byte ^= 0x5a);
    disks.put(0, &units);
    disks.unsure.set(true);
    faults[1].inject(Fault::Medium(2048..2560));
    let gathered = read_all(&disks);
    assert_eq!(gathered.result, Ok(()));
    for (unit, buf) in &gathered.units {
        let same = buf.iter().zip(&units[*unit]).filter(|(a, b)| a == b).count();
        assert_eq!(UNIT - same, if *unit == 1 { 512 } else { 0 }, "unit {unit}");
    }
}

#[test]
fn exactly_means_without_reconstruction() {
    let (disks, faults) = faulty("raid6", 6);
    let units = disks.fill(0);
    let both = UnitSet::one(0).with(1);
    let at = Access::maintenance(0);
    let read = now(gather_exactly(&disks, disks.stripe(0), at, UNIT, both)).expect("readable");
    assert!(read.iter().all(|(unit, buf)| **buf == *units[*unit]));
    faults[1].inject(Fault::Medium(0..512));
    assert!(now(gather_exactly(&disks, disks.stripe(0), at, UNIT, both)).is_err());
}

#[test]
fn a_failed_write_is_reported_and_the_others_are_done() {
    let (disks, faults) = faulty("raid1", 3);
    disks.fill(0);
    faults[1].inject(Fault::FailWrites(0..u64::MAX));
    let data = Frozen::copy_from(&[7; 512]);
    let writes: Vec<_> =
        (0..3).map(|unit| UnitWrite { unit, from: 0, data: data.clone() }).collect();
    let failed = now(store(&disks, disks.stripe(0), &writes, WriteOpts::USER)).failed;
    assert_eq!(failed.iter().map(|failed| failed.slot).collect::<Vec<_>>(), [SlotNo(1)]);
    for unit in [0, 2] {
        assert_eq!(disks.on_disk(0, unit)[..512], [7; 512]);
    }
}
