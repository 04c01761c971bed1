//! The array as a volume: a read costs the disk reads that it is said to cost, whatever is lost,
//! and a number tells when that may have changed.

use std::rc::Rc;

use crate::common::*;
use weft_array::{Array, ArrayState};
use weft_code::SlotNo;
use weft_disk::{Disk, Fault, FaultDisk, Faults, RamDisk, Volume, VolumeErrorKind};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt};

const MIB: u64 = 1 << 20;
const UNIT: u64 = 16 << 10;

struct Bench {
    rt: Rt,
    array: Array,
    faults: Vec<Faults>,
}

fn faulty(rt: &Rt, number: usize) -> (Rc<dyn Disk>, Faults) {
    let ram = Rc::new(RamDisk::new(&format!("disk{number}"), 16 * MIB, 512));
    let (disk, faults) = FaultDisk::new(rt, ram);
    (Rc::new(disk), faults)
}

impl Bench {
    /// An array with some stripes written, and the rest in regions of holes.
    async fn new(rt: &Rt, code: &str, slots: usize) -> Self {
        let (disks, faults): (Vec<_>, _) = (0..slots).map(|n| faulty(rt, n)).unzip();
        let array = make(rt, code, &disks).await;
        write(&array, 0, &pattern(0, 5 * array.stripe_bytes() as usize, 1)).await;
        Self { rt: rt.clone(), array, faults }
    }

    fn reads(&self) -> u64 {
        self.faults.iter().map(|faults| faults.counts().reads).sum()
    }

    /// Reads ranges of many shapes and compares what each costs.
    async fn costs_are_true(&self, what: &str) {
        let volume: Rc<dyn Volume> = Rc::new(self.array.clone());
        let (stripe, size) = (self.array.stripe_bytes(), volume.size_bytes());
        let starts = [0, 512, 1, UNIT - 512, UNIT, stripe - 700, stripe + UNIT / 2, 4 * stripe];
        let holes = [size - stripe, size - 1];
        let lens = [1, 512, 700, UNIT, UNIT + 512, 2 * UNIT, stripe - UNIT / 2, 2 * stripe + 512];
        for (start, len) in starts.iter().chain(&holes).flat_map(|s| lens.map(|len| (*s, len))) {
            let len = len.min(size - start);
            let cost = volume.read_cost(start, len);
            let before = self.reads();
            let (result, _) = volume.read(start, Buf::new(len as usize)).await;
            let place = format!("{what}: {len} at {start}");
            match result {
                Ok(()) => assert_eq!(Some(self.reads() - before), cost, "{place}"),
                Err(error) => {
                    assert_eq!(error.kind, VolumeErrorKind::Unreadable, "{place}: {error}");
                    assert_eq!(cost, None, "{place}");
                }
            }
        }
    }

    async fn healthy_again(&self) {
        for _ in 0..10_000 {
            if self.array.status().state == ArrayState::Healthy {
                return;
            }
            self.rt.sleep(MILLISECOND).await;
        }
        panic!("{:#?}", self.array.status());
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt) -> F + 'static) {
    let rt = rt();
    let inner = rt.clone();
    rt.block_on(async move { test(inner).await });
    rt.kill_all();
}

#[test]
fn a_healthy_read_costs_one_for_each_unit_and_a_hole_nothing() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid6", 6).await;
        let volume: &dyn Volume = &bench.array;
        let size = volume.size_bytes();
        assert_eq!(volume.read_cost(0, 0), Some(0));
        assert_eq!(volume.read_cost(0, 1), Some(1));
        assert_eq!(volume.read_cost(UNIT - 1, 2), Some(2));
        assert_eq!(volume.read_cost(0, 2 * bench.array.stripe_bytes()), Some(8));
        assert_eq!(volume.read_cost(size - UNIT, UNIT), Some(0), "never written");
        assert_eq!(volume.read_cost(size, 1), None, "beyond the end");
        bench.costs_are_true("healthy").await;
        bench.array.stop().await.expect("stopped");
        assert_eq!(volume.read_cost(0, 1), None, "stopped");
    });
}

#[test]
fn a_degraded_read_costs_what_its_repair_reads() {
    for (code, slots) in CODES {
        for first in 0..slots {
            run(move |rt| async move {
                let bench = Bench::new(&rt, code, slots).await;
                bench.array.fail(SlotNo(first)).await.expect("each code survives one");
                bench.costs_are_true(&format!("{code} without {first}")).await;
                let second = (first + 1) % slots;
                if bench.array.fail(SlotNo(second)).await.is_ok() {
                    bench.costs_are_true(&format!("{code} without {first}, {second}")).await;
                }
            });
        }
    }
}

#[test]
fn while_a_member_is_rebuilt_its_finished_part_costs_one_again() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        bench.array.set_paused(true);
        bench.array.fail(SlotNo(1)).await.expect("survives one");
        let (spare, faults) = faulty(&rt, 9);
        let bench =
            Bench { faults: bench.faults.iter().cloned().chain([faults]).collect(), ..bench };
        bench.array.add_spare(spare).await.expect("added");
        bench.costs_are_true("before the rebuild").await;
        let volume: &dyn Volume = &bench.array;
        let before = volume.rebuilt();
        bench.array.set_paused(false);
        bench.healthy_again().await;
        bench.costs_are_true("after the rebuild").await;
        assert!(volume.rebuilt() > before, "it advanced");
        assert_eq!(volume.read_cost(0, bench.array.stripe_bytes()), Some(3));
    });
}

#[test]
fn a_broken_array_tells_what_can_still_be_read() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        for slot in [0, 2] {
            bench.faults[slot].inject(Fault::Gone);
            let all = Frozen::copy_from(&vec![7; bench.array.stripe_bytes() as usize]);
            let written = Volume::write(&bench.array, 0, all, false).await;
            assert_eq!(written.is_ok(), slot == 0);
        }
        assert_eq!(bench.array.status().state, ArrayState::Broken);
        let volume: &dyn Volume = &bench.array;
        let units = (0..4 * 3).map(|unit| (unit * UNIT, volume.read_cost(unit * UNIT, UNIT)));
        let (there, lost): (Vec<_>, Vec<_>) = units.partition(|(_, cost)| cost.is_some());
        assert!(!there.is_empty() && !lost.is_empty(), "{there:?} {lost:?}");
        for (offset, cost) in there.into_iter().chain(lost) {
            let result = volume.read(offset, Buf::new(UNIT as usize)).await.0;
            assert_eq!(result.is_ok(), cost == Some(1), "{offset}: {result:?}");
        }
    });
}

#[test]
fn the_number_of_changes_rises_when_a_member_is_lost_and_when_it_is_whole_again() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid6", 5).await;
        let volume: &dyn Volume = &bench.array;
        let mut last = volume.changes();
        let mut rose = |what: &str, expected: bool| {
            let now = volume.changes();
            assert!(now >= last, "{what}: it fell");
            assert_eq!(now > last, expected, "{what}");
            last = now;
        };
        write(&bench.array, 0, &[3; 40_000]).await;
        read(&bench.array, 0, 40_000).await;
        bench.array.flush().await.expect("flushed");
        rose("requests", false);
        bench.array.fail(SlotNo(3)).await.expect("survives one");
        rose("a member is failed by command", true);
        bench.faults[0].inject(Fault::Gone);
        read(&bench.array, 0, 4 * UNIT as usize).await;
        rose("a disk is found gone by a read", true);
        read(&bench.array, 0, 4 * UNIT as usize).await;
        rose("degraded reads", false);
        for number in [8, 9] {
            bench.array.add_spare(faulty(&rt, number).0).await.expect("added");
        }
        bench.healthy_again().await;
        rose("both members are rebuilt", true);
        rt.sleep(1000 * MILLISECOND).await;
        rose("nothing", false);
        bench.array.replace(SlotNo(2), faulty(&rt, 10).0).await.expect("begun");
        while bench.array.status().slots[2].replacement.is_some() {
            rt.sleep(MILLISECOND).await;
        }
        rose("a member is replaced", true);
        rt.sleep(1000 * MILLISECOND).await;
        rose("nothing more", false);
        for slot in [1, 4] {
            bench.faults[slot].inject(Fault::Gone);
        }
        let _ = volume.read(0, Buf::new(40_000)).await;
        rose("two more are lost", true);
        assert_ne!(bench.array.status().state, ArrayState::Broken);
    });
}
