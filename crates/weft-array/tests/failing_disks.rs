//! Disks that fail while the array runs: nothing that was acknowledged is lost, and nothing is
//! written where it must not be.

use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, run};
use crate::common::disk::{Leave, Power, TestDisk, holding};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{
    Array, ArrayError, ArrayState, AssembleOptions, MemberState, RebuildPolicy, ScrubMode,
};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, MILLISECOND};

const SOME: AssembleOptions = AssembleOptions {
    force_degraded: false,
    read_only: false,
    consistency: None,
    now_unix_s: 0,
    nonce: 77,
};

async fn fill(bench: &Bench, stripes: u64) -> Vec<u8> {
    let bytes = pattern(0, usize::try_from(stripes * bench.stripe_bytes()).unwrap(), 1);
    write(&bench.array, 0, &bytes).await;
    bench.array.flush().await.expect("flushed");
    bytes
}

#[test]
fn sectors_that_cannot_be_read_are_reconstructed_and_written_back() {
    run(|rt| async move {
        for code in ["raid1", "raid5", "raid6", "lrc:4,2,1"] {
            let slots = if code.starts_with("lrc") { 7 } else { 4 };
            let bench = Bench::new(&rt, code, slots).await;
            let bytes = fill(&bench, 3).await;
            bench.spoil(1, 0, 2..4);
            let len = bytes.len();
            assert!(read(&bench.array, 0, len).await == bytes, "{code}");
            let (slot, _) = bench.place(1, 0);
            // A mirror may have read another copy.
            if code != "raid1" {
                assert!(bench.disks[slot].faults.unreadable.borrow().is_empty(), "{code}");
                assert_eq!(bench.array.status().slots[slot].repaired, 1, "{code}");
            }
            assert_eq!(bench.array.status().state, ArrayState::Healthy, "{code}");
        }
    });
}

#[test]
fn two_members_may_have_bad_sectors_in_one_stripe_if_not_in_one_column() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        let bytes = fill(&bench, 2).await;
        bench.spoil(0, 0, 1..2);
        bench.spoil(0, 1, 2..3);
        bench.spoil(0, 3, 7..8);
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
        let left = |disk: &Rc<TestDisk>| disk.faults.unreadable.borrow().len();
        assert_eq!(bench.disks.iter().map(left).sum::<usize>(), 0);
        // At one offset nothing helps; the neighbouring sectors can be read.
        bench.spoil(1, 0, 5..6);
        bench.spoil(1, 2, 5..6);
        let start = bench.stripe_bytes();
        let (result, _) = bench.array.read(start, Buf::new(UNIT as usize)).await;
        assert!(matches!(result, Err(ArrayError::Unreadable { .. })), "{result:?}");
        let end = start as usize + 5 * 512;
        assert!(read(&bench.array, start, 5 * 512).await == bytes[start as usize..end]);
        assert_eq!(bench.array.status().state, ArrayState::Healthy);
    });
}

#[test]
fn a_disk_that_is_gone_unnoticed_does_not_leave_together_with_one_that_is_failed() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid1", 3).await;
        let bytes = fill(&bench, 2).await;
        bench.disks[2].faults.gone.set(true);
        bench.array.fail(SlotNo(0)).await.expect("one copy is left");
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        write(&bench.array, 0, &bytes).await;
        assert_eq!(bench.array.status().slots[2].state, MemberState::Missing);
        // Where the code cannot do without both, the command is refused.
        let bench = Bench::new(&rt, "raid5", 3).await;
        let bytes = fill(&bench, 2).await;
        bench.disks[2].faults.gone.set(true);
        assert!(matches!(bench.array.fail(SlotNo(0)).await, Err(ArrayError::Refused(_))));
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
    });
}

#[test]
fn a_member_that_goes_at_any_write_costs_nothing() {
    run(|rt| async move {
        for code in ["raid1", "raid5", "raid6", "lrc:4,2,1", "drc-g:4,2,1"] {
            let slots = if code.contains("rc") { 7 } else { 4 };
            for after in 0..14 {
                let bench = Bench::new(&rt, code, slots).await;
                let mut bytes = fill(&bench, 6).await;
                let victim = usize::try_from(after).unwrap() % slots;
                bench.disks[victim].faults.gone_after_writes.set(Some(after));
                for (n, (offset, len)) in
                    [(0, 512), (1000, 5000), (3 * UNIT - 100, 9000), (0, 8192), (512, 512)]
                        .into_iter()
                        .enumerate()
                {
                    let (offset, len) = (offset as usize, (len as usize).min(bytes.len() / 2));
                    let new = pattern(n as u64, len, 9);
                    write(&bench.array, offset as u64, &new).await;
                    bytes[offset..offset + len].copy_from_slice(&new);
                    bench.array.flush().await.expect("flushed");
                }
                assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{code}, {after}");
                let gone = bench.array.status().slots[victim].state == MemberState::Missing;
                assert_eq!(gone, bench.disks[victim].faults.gone.get(), "{code}, {after}");
                // The others record it: the member does not come back with its old data.
                bench.disks[victim].faults.gone_after_writes.set(None);
                bench.disks[victim].faults.gone.set(false);
                bench.array.stop().await.expect("stopped");
                let array = Array::assemble(&rt, members(&bench.disks), SOME).await.expect("again");
                assert!(read(&array, 0, bytes.len()).await == bytes, "{code}, {after}, again");
                assert_eq!(array.status().slots[victim].state == MemberState::Missing, gone);
                array.stop().await.expect("stopped");
            }
        }
    });
}

#[test]
fn one_failure_too_many_stops_writes_and_leaves_the_metadata_alone() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid10", 4).await;
        let bytes = fill(&bench, 6).await;
        bench.array.fail(SlotNo(0)).await.expect("can lose one");
        let seq = bench.array.status().seq;
        // Its mirror goes: what the two held is lost. A third failure changes nothing further.
        for victim in [1, 2] {
            bench.disks[victim].faults.gone.set(true);
            let _ = bench.array.write(0, Frozen::copy_from(&bytes), false).await;
            let _ = bench.array.flush().await;
        }
        let status = bench.array.status();
        assert_eq!((status.state, status.seq), (ArrayState::Broken, seq));
        assert_eq!(status.redundancy_remaining, None);
        assert!(!status.unreadable.is_empty());
        let lost = |offset: u64| status.unreadable.iter().any(|range| range.contains(offset));
        bench.disks[2].faults.gone.set(false);
        let status = bench.array.status();
        for unit in 0..bytes.len() as u64 / UNIT {
            let (result, buf) = bench.array.read(unit * UNIT, Buf::new(UNIT as usize)).await;
            let range = (unit * UNIT) as usize..((unit + 1) * UNIT) as usize;
            match result {
                Ok(()) => assert!(buf[..] == bytes[range], "unit {unit}"),
                Err(_) => assert!(lost(unit * UNIT), "unit {unit}: {:?}", status.unreadable),
            }
        }
        let refused = bench.array.write(0, Frozen::copy_from(&bytes[..512]), false).await;
        assert!(matches!(refused, Err(ref e) if matches!(e.root(), ArrayError::Broken { .. })));
        let _ = bench.array.stop().await;
        // All disks answer again: the array is as it was before the failure that was too many.
        bench.disks[1].faults.gone.set(false);
        let array = Array::assemble(&rt, members(&bench.disks), SOME).await.expect("assembled");
        assert!(read(&array, 0, bytes.len()).await == bytes);
        array.stop().await.expect("stopped");
    });
}

#[test]
fn a_reader_that_is_dropped_while_it_repairs_does_not_undo_a_later_write() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 3).await;
        fill(&bench, 1).await;
        bench.spoil(0, 0, 0..1);
        let (slot, offset) = bench.place(0, 0);
        let faults = &bench.disks[slot].faults;
        faults.stuck.set(true);
        let before = bench.disks[slot].writes.borrow().len();
        let array = bench.array.clone();
        let mut reader = Box::pin(async move { array.read(0, Buf::new(512)).await });
        // Until the repair is written, which takes long.
        while bench.disks[slot].writes.borrow().len() == before {
            let pause = std::pin::pin!(rt.sleep(1000));
            let _ = futures_util::future::select(&mut reader, pause).await;
        }
        assert_eq!(bench.disks[slot].writes.borrow()[before].0, offset);
        drop(reader);
        let array = bench.array.clone();
        let new = pattern(0, 512, 5);
        let data = Frozen::copy_from(&new);
        let writer = rt.spawn(async move { array.write(0, data, false).await });
        rt.sleep(MILLISECOND).await;
        faults.stuck.set(false);
        writer.await.expect("written");
        rt.sleep(MILLISECOND).await;
        assert!(read(&bench.array, 0, 512).await == new);
    });
}

#[test]
fn a_read_only_array_changes_nothing_whatever_it_meets() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 3).await;
        let bytes = fill(&bench, 3).await;
        bench.array.stop().await.expect("stopped");
        let options = AssembleOptions { read_only: true, ..SOME };
        let array = Array::assemble(&rt, members(&bench.disks), options).await.expect("assembled");
        bench.disks.iter().for_each(|disk| disk.writes.borrow_mut().clear());
        bench.spoil(0, 0, 0..1);
        assert!(read(&array, 0, bytes.len()).await == bytes);
        bench.disks.iter().for_each(|disk| disk.faults.unreadable.borrow_mut().clear());
        bench.disks[2].faults.gone.set(true);
        assert!(read(&array, 0, bytes.len()).await == bytes);
        assert!(array.fail(SlotNo(1)).await.is_err());
        assert!(array.write(0, Frozen::copy_from(&[0; 512]), false).await.is_err());
        assert!(array.write_zeroes(0, UNIT, false, true).await.is_err());
        let _ = array.flush().await;
        array.stop().await.expect("stopped");
        assert!(bench.disks.iter().all(|disk| disk.writes.borrow().is_empty()));
    });
}

#[test]
fn missing_members_decide_how_an_array_starts() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        let bytes = fill(&bench, 4).await;
        bench.array.fail(SlotNo(3)).await.expect("can lose one");
        let new = pattern(5, 3000, 3);
        write(&bench.array, 100, &new).await;
        bench.array.stop().await.expect("stopped");
        // The excluded member is stale, and reported; the array starts without it.
        let array = Array::assemble(&rt, members(&bench.disks), SOME).await.expect("assembled");
        assert!(read(&array, 100, 3000).await == new);
        assert_eq!(array.status().slots[3].state, MemberState::Missing);
        array.stop().await.expect("stopped");
        // Two missing are too many; when forced, the rest can be read.
        let some: Vec<Rc<dyn Disk>> = members(&bench.disks[..2]);
        assert!(Array::assemble(&rt, some.clone(), SOME).await.is_err());
        let options = AssembleOptions { force_degraded: true, ..SOME };
        let array = Array::assemble(&rt, some, options).await.expect("forced");
        let status = array.status();
        assert_eq!(status.redundancy_remaining, None);
        assert!(!status.unreadable.is_empty());
        for unit in 1..4 * 3u64 {
            let (result, buf) = array.read(unit * UNIT, Buf::new(UNIT as usize)).await;
            let listed = status.unreadable.iter().any(|range| range.contains(unit * UNIT));
            assert_eq!(result.is_err(), listed, "unit {unit}: {result:?}");
            if result.is_ok() {
                let range = (unit * UNIT) as usize..((unit + 1) * UNIT) as usize;
                assert!(buf[..] == bytes[range], "unit {unit}");
            }
        }
        assert!(array.write(0, Frozen::copy_from(&[0; 512]), false).await.is_err());
    });
}

#[test]
fn a_spare_takes_the_place_of_a_failed_member_and_a_dying_spare_that_of_none() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid6", 5).await;
        let bytes = fill(&bench, 5).await;
        let spares = [disk(&rt, 10, 512), disk(&rt, 11, 512)];
        for spare in &spares {
            bench.array.add_spare(spare.clone()).await.expect("added");
        }
        // The last one added is taken first, and fails while it is rebuilt.
        spares[1].faults.gone_after_writes.set(Some(9));
        bench.disks[1].faults.gone.set(true);
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        bench.until(ArrayState::Healthy).await;
        assert_eq!(bench.array.status().slots[1].disk, "test10");
        assert!(bench.array.status().spares.is_empty());
        let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(report.mismatches, 0);
        bench.array.fail(SlotNo(0)).await.expect("can lose one");
        bench.array.fail(SlotNo(2)).await.expect("can lose two");
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        bench.array.stop().await.expect("stopped");
    });
}

#[test]
fn a_broken_array_leaves_no_superblock_of_a_minority() {
    run(|rt| async move {
        let mut broke = 0;
        for (one, other) in (0..6).flat_map(|one| (0..6).map(move |other| (one, other))) {
            for delay in 0..6u64 {
                let bench = Bench::new(&rt, "raid1", 3).await;
                write(&bench.array, 0, &pattern(0, 8192, 1)).await;
                bench.disks[1].faults.gone_after_writes.set(Some(one));
                bench.disks[2].faults.gone_after_writes.set(Some(other));
                // A change of the superblock for another reason, and a write at the same time.
                let policy = RebuildPolicy { zones: 7, ..RebuildPolicy::default() };
                let change = bench.array.set_rebuild_policy(policy);
                let write = async {
                    rt.sleep(delay * 4000).await;
                    bench.array.write(0, Frozen::copy_from(&[7; 4096]), false).await
                };
                let _ = futures_util::future::join(change, write).await;
                if bench.array.status().broken.is_none() {
                    continue;
                }
                broke += 1;
                let own = read_superblock(&*bench.disks[0]).await.expect("whole").expect("there");
                let active = own.active_slots().count();
                assert!(active > 1, "gone after {one}, {other}, {delay}: {active} active");
            }
        }
        assert!(broke > 10, "{broke}");
    });
}

/// Where a superblock begins, and how much is reserved for it (docs/on-disk-format.md).
const SUPERBLOCKS: [u64; 2] = [128 << 10, 256 << 10];
const SUPERBLOCK_BYTES: u64 = 128 << 10;

#[test]
fn sectors_that_a_superblock_does_not_use_may_be_unreadable() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        let disk = &bench.disks[1];
        let whole = read_superblock(&**disk).await.expect("whole").expect("a member's");
        for (spoiled, expected) in [(4096..SUPERBLOCK_BYTES, true), (0..512, false)] {
            let sectors = SUPERBLOCKS.into_iter().flat_map(|at| {
                (at + spoiled.start..at + spoiled.end).step_by(512).map(|byte| byte / 512)
            });
            *disk.faults.unreadable.borrow_mut() = sectors.collect();
            let found = read_superblock(&**disk).await;
            assert_eq!(found.is_ok_and(|own| own.as_ref() == Some(&whole)), expected);
        }
    });
}

/// After a power cut the copies of a mirror differ, and the preferred one cannot be read. What a
/// reader is given stays, even if another cut follows and the sectors can be read again.
#[test]
fn what_was_read_in_place_of_unreadable_sectors_stays() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid1", 2).await;
        fill(&bench, 1).await;
        let new = pattern(0, UNIT as usize, 2);
        write(&bench.array, 0, &new).await;
        let after = |disk: &TestDisk, leave: Leave| leave.of(&disk.medium.borrow());
        let media = [after(&bench.disks[0], Leave::Nothing), after(&bench.disks[1], Leave::All)];
        let size = bench.disks[0].info().size_bytes;
        let disks = holding(&rt, &Power::new(), size, &media);
        let (_, offset) = bench.place(0, 0);
        let sectors = offset / 512..(offset + UNIT) / 512;
        disks[0].faults.unreadable.borrow_mut().extend(sectors);
        let array = assemble(&rt, &members(&disks)).await;
        assert!(read(&array, 0, new.len()).await == new);

        let media: Vec<_> = disks.iter().map(|disk| after(disk, Leave::Nothing)).collect();
        let disks = holding(&rt, &Power::new(), size, &media);
        let array = assemble(&rt, &members(&disks)).await;
        assert!(read(&array, 0, new.len()).await == new);
    });
}
