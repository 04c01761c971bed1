//! A member fails while the others cannot continue without it yet, because the change that lets
//! them is not durable. The array survives that: a command waits or is refused, a failing request
//! waits. If the others can continue, nothing waits.
//!
//! The disks delay the superblock that makes a rebuilt member of a mirror active. Until it is
//! durable, the other member is the only one that can be assembled alone.

use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, run};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::{Array, ArrayError, ArrayState, AssembleOptions, MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_disk::{BoundedDisk, Disk, Fault, FaultDisk, QueueConfig, QueuedDisk, RamDisk};
use weft_rt::{Frozen, MILLISECOND, Nanos, Rt, SECOND, Task};

const LEN: usize = 12 * UNIT as usize;

/// A mirror of two: slot 0 is active, and slot 1 was rebuilt onto disk 8, which only the program
/// knows so far.
struct Promoting {
    rt: Rt,
    bench: Bench,
    disks: [Rc<TestDisk>; 2],
}

impl Promoting {
    async fn new(rt: &Rt) -> Self {
        let bench = Bench::new(rt, "raid1", 2).await;
        write(&bench.array, 0, &pattern(0, LEN, 1)).await;
        bench.array.fail(SlotNo(1)).await.expect("failed");
        let new = disk(rt, 8, 512);
        bench.array.set_throttle(0, Some(10_000));
        bench.array.add_spare(new.clone()).await.expect("added");
        bench.until(ArrayState::Rebuilding).await;
        let disks = [bench.disks[0].clone(), new];
        let superblocks = 0..bench.superblock.area.map_offset;
        disks.iter().for_each(|disk| disk.faults.hold(superblocks.clone(), 0));
        bench.array.set_throttle(0, None);
        while !bench.array.member_in_memory(SlotNo(1)).is_some_and(|(_, is_whole)| is_whole) {
            rt.sleep(MILLISECOND).await;
        }
        rt.sleep(5 * MILLISECOND).await;
        Self { rt: rt.clone(), bench, disks }
    }

    fn release(&self) {
        self.disks.iter().for_each(|disk| disk.faults.release());
    }

    fn state(&self) -> ArrayState {
        self.bench.array.status().state
    }

    fn missing(&self) -> Vec<usize> {
        missing(&self.bench.array)
    }

    /// Starts a FUA write of new data, and does not wait for it.
    fn begin_write(&self) -> Task<Result<(), ArrayError>> {
        let (array, data) = (self.bench.array.clone(), Frozen::copy_from(&pattern(0, LEN, 2)));
        self.rt.spawn(async move { array.write(0, data, true).await })
    }

    /// The disks after a kill, without those in `without`.
    fn killed(&self, without: Option<usize>) -> Vec<Rc<TestDisk>> {
        let left = self.disks.iter().enumerate().filter(|(n, _)| Some(*n) != without);
        left.map(|(_, disk)| {
            let info = disk.info();
            let number = info.name.trim_start_matches("test").parse().expect("a number");
            let medium = Leave::Completed.of(&disk.medium.borrow());
            let power = Power::new();
            TestDisk::new(&self.rt, &power, number, info.size_bytes, info.sector_bytes, medium)
        })
        .collect()
    }
}

fn missing(array: &Array) -> Vec<usize> {
    let slots = array.status().slots.into_iter();
    slots.filter(|slot| slot.state == MemberState::Missing).map(|slot| slot.slot.0).collect()
}

async fn pause(rt: &Rt) {
    rt.sleep(5 * MILLISECOND).await;
}

#[test]
fn a_command_waits_until_it_is_durable_that_the_other_is_active() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        let array = story.bench.array.clone();
        let fail = rt.spawn(async move { array.fail(SlotNo(0)).await });
        rt.sleep(SECOND).await;
        assert!(!fail.is_finished() && story.missing().is_empty());
        // Users do not notice.
        assert_eq!(read(&story.bench.array, 0, LEN).await, pattern(0, LEN, 1));
        story.release();
        fail.await.expect("failed");
        assert_eq!((story.state(), story.missing()), (ArrayState::Degraded, vec![0]));
        story.begin_write().await.expect("written");
        // The failed member cannot be started alone, the other one can.
        let old = members(&story.killed(Some(1)));
        Array::assemble(&rt, old, AssembleOptions::default()).await.expect_err("the old one");
        let array = assemble(&rt, &members(&story.killed(Some(0)))).await;
        assert_eq!(read(&array, 0, LEN).await, pattern(0, LEN, 2));
    });
}

#[test]
fn a_command_is_refused_where_that_takes_long_and_can_be_given_again() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        let began = rt.now();
        let refused = story.bench.array.fail(SlotNo(0)).await.expect_err("not durable");
        assert!(refused.to_string().contains("try again"), "{refused}");
        assert!(rt.now() - began < 10 * SECOND);
        assert_eq!((story.state(), story.missing()), (ArrayState::Rebuilding, vec![]));
        story.release();
        pause(&rt).await;
        story.bench.array.fail(SlotNo(0)).await.expect("failed");
        assert_eq!((story.state(), story.missing()), (ArrayState::Degraded, vec![0]));
    });
}

#[test]
fn the_member_that_is_not_durably_active_is_failed_at_once() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        let array = story.bench.array.clone();
        let fail = rt.spawn(async move { array.fail(SlotNo(1)).await });
        pause(&rt).await;
        assert_eq!((story.state(), story.missing()), (ArrayState::Degraded, vec![1]));
        story.release();
        fail.await.expect("failed");
    });
}

#[test]
fn a_disk_that_cannot_be_written_to_stays_until_the_other_can_go_on_without_it() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        let data = story.bench.superblock.area.data_offset;
        *story.disks[0].faults.unwritable.borrow_mut() = data..u64::MAX;
        let write = story.begin_write();
        rt.sleep(SECOND).await;
        assert!(!write.is_finished(), "it met the failure");
        assert_eq!((story.state(), story.missing()), (ArrayState::Rebuilding, vec![]));
        // After a kill now, each is there, with everything acknowledged and perhaps what was being
        // written.
        let killed = assemble(&rt, &members(&story.killed(None))).await;
        let found = read(&killed, 0, LEN).await;
        for (at, sector) in found.chunks(512).enumerate() {
            let is = |version| sector == &pattern(0, LEN, version)[at * 512..][..512];
            assert!(is(1) || is(2), "sector {at}");
        }
        story.release();
        write.await.expect("written");
        assert_eq!((story.state(), story.missing()), (ArrayState::Degraded, vec![0]));
        let array = assemble(&rt, &members(&story.killed(None))).await;
        assert_eq!(missing(&array), [0]);
        assert_eq!(read(&array, 0, LEN).await, pattern(0, LEN, 2));
    });
}

#[test]
fn the_array_stops_where_the_disk_cannot_take_the_superblock_either() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        story.disks[0].faults.gone.set(true);
        let write = story.begin_write();
        pause(&rt).await;
        story.release();
        let error = write.await.expect_err("nothing was made durable");
        assert!(matches!(error.root(), ArrayError::Broken { .. }), "{error}");
        assert_eq!(story.state(), ArrayState::Broken);
        // Together they are the array, with everything that was acknowledged.
        story.disks[0].faults.gone.set(false);
        let array = assemble(&rt, &members(&story.killed(None))).await;
        array.scrub(ScrubMode::Check).await.expect("scrubbed");
    });
}

#[test]
fn of_three_copies_two_may_fail_in_one_moment_if_the_second_still_takes_the_superblock() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid1", 3).await;
        write(&bench.array, 0, &pattern(0, LEN, 1)).await;
        let superblocks = 0..bench.superblock.area.map_offset;
        bench.disks.iter().for_each(|disk| disk.faults.hold(superblocks.clone(), 0));
        bench.disks[0].faults.gone.set(true);
        let array = bench.array.clone();
        let fail = rt.spawn(async move { array.fail(SlotNo(0)).await });
        pause(&rt).await;
        assert_eq!(missing(&bench.array), [0]);
        // Two of three are active on disk, so both are needed to exclude the first.
        *bench.disks[1].faults.unwritable.borrow_mut() =
            bench.superblock.area.data_offset..u64::MAX;
        let (array, data) = (bench.array.clone(), Frozen::copy_from(&pattern(0, LEN, 2)));
        let write = rt.spawn(async move { array.write(0, data, true).await });
        pause(&rt).await;
        assert_eq!(missing(&bench.array), [0]);
        bench.disks.iter().for_each(|disk| disk.faults.release());
        fail.await.expect("failed");
        write.await.expect("written");
        assert_eq!(missing(&bench.array), [0, 1]);
        assert_eq!(read(&bench.array, 0, LEN).await, pattern(0, LEN, 2));
    });
}

#[test]
fn replacing_waits_until_it_is_durable_that_another_is_active() {
    run(|rt| async move {
        let story = Promoting::new(&rt).await;
        let (array, new) = (story.bench.array.clone(), disk(&rt, 9, 512));
        let replace = rt.spawn(async move { array.replace(SlotNo(0), new).await });
        rt.sleep(SECOND).await;
        assert!(!replace.is_finished());
        story.release();
        replace.await.expect("begun");
        story.bench.until(ArrayState::Healthy).await;
        assert_eq!(story.bench.array.status().slots[0].disk, "test9");
        assert_eq!(read(&story.bench.array, 0, LEN).await, pattern(0, LEN, 1));
    });
}

const LIMIT: Nanos = 30 * SECOND;

#[test]
fn a_member_hanging_in_a_superblock_write_is_failed_at_once_and_the_array_continues() {
    for (code, width) in [("raid5", 4), ("raid6", 5), ("raid1", 3), ("rs:3+2", 5)] {
        run(move |rt| async move {
            let (disks, faults): (Vec<_>, Vec<_>) = (0..=width)
                .map(|n| {
                    let ram = Rc::new(RamDisk::new(&format!("disk{n}"), 16 << 20, 512));
                    let (disk, faults) = FaultDisk::new(&rt, ram);
                    let disk = Rc::new(BoundedDisk::new(&rt, Rc::new(disk), LIMIT));
                    let disk = QueuedDisk::new(disk, QueueConfig::default());
                    (Rc::new(disk) as Rc<dyn Disk>, faults)
                })
                .unzip();
            let array = make(&rt, code, &disks[..width]).await;
            let len = 1 << 20;
            write(&array, 0, &pattern(0, len, 1)).await;
            faults[1].inject(Fault::Delay(3600 * SECOND));
            // A change of the metadata whose superblock hangs on one member.
            let (changing, spare) = (array.clone(), disks[width].clone());
            let add = rt.spawn(async move { changing.add_spare(spare).await });
            pause(&rt).await;
            assert!(!add.is_finished() && missing(&array).is_empty(), "{code}");
            let began = rt.now();
            array.fail(SlotNo(1)).await.expect("failed");
            assert!(rt.now() - began < 100 * MILLISECOND, "{code}: the command had to wait");
            add.await.expect("added");
            write(&array, 0, &pattern(0, len, 2)).await;
            array.flush().await.expect("flushed");
            assert!(rt.now() - began < SECOND, "{code}: users had to wait");
            while array.status().state != ArrayState::Healthy {
                rt.sleep(MILLISECOND).await;
            }
            assert_eq!(array.status().slots[1].disk, format!("disk{width}"), "{code}");
            assert_eq!(read(&array, 0, len).await, pattern(0, len, 2), "{code}");
            array.stop().await.expect("stopped");
        });
    }
}
