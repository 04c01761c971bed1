//! Every order with every executor rebuilds every stripe exactly once and loses nothing: on all
//! codes, with several members lost, under user load, when the policy changes on the way, and
//! across crashes and further failures.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::bench::{Bench, members, run, sized_disk};
use crate::common::disk::TestDisk;
use crate::common::parts::InParts;
use crate::common::*;
use weft_array::experiment::Experiment;
use weft_array::{
    Array, ArrayState, Piggyback, RebuildOrder, RebuildPace, RebuildPolicy, ScrubMode,
};
use weft_code::SlotNo;
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_testkit::Rng;

const UNIT: u64 = 8192;

/// Code, slots, lost members.
const CODES: [(&str, usize, usize); 10] = [
    ("raid1", 3, 2),
    ("raid4", 4, 1),
    ("raid5", 4, 1),
    ("raid6", 5, 2),
    ("raid10", 4, 2),
    ("raid10", 5, 1),
    ("lrc:4,2,1", 7, 2),
    ("drc:4,2,1", 7, 2),
    ("drc-g:4,2,1", 7, 2),
    ("rs:4+3", 7, 3),
];
const ORDERS: [RebuildOrder; 4] = [
    RebuildOrder::Auto,
    RebuildOrder::Ascending,
    RebuildOrder::Popularity,
    RebuildOrder::Redundancy,
];
const PACES: [RebuildPace; 2] = [RebuildPace::UsersFirst, RebuildPace::Greedy];
const PIGGYBACKS: [Piggyback; 3] = [Piggyback::Off, Piggyback::Covered, Piggyback::Widen];

/// A policy, and whether the executor is an experiment's, in parts of units.
type Way = (RebuildPolicy, bool);

fn ways() -> impl Iterator<Item = Way> {
    let both = ORDERS.into_iter().flat_map(|order| [false, true].map(|parts| (order, parts)));
    both.map(|(order, in_parts)| {
        let policy = RebuildPolicy {
            order,
            slice_stripes: 2,
            zone_stripes: 4,
            zones: 3,
            ..RebuildPolicy::default()
        };
        (policy, in_parts)
    })
}

async fn set(array: &Array, (policy, in_parts): Way) {
    array.set_rebuild_policy(policy).await.expect("within its limits");
    let experiment: Option<Rc<dyn Experiment>> =
        in_parts.then(|| Rc::new(InParts { heads: 5 }) as _);
    array.set_rebuild_experiment(experiment);
}

fn draw(rng: &mut Rng) -> Way {
    let policy = RebuildPolicy {
        order: ORDERS[rng.index(4)],
        pace: PACES[rng.index(2)],
        piggyback: PIGGYBACKS[rng.index(3)],
        slice_stripes: rng.below(6) + 1,
        zone_stripes: rng.below(6) + 1,
        zones: rng.index(4) + 1,
        half_life_ms: 1 + rng.below(100),
        preemptive: rng.chance(1, 2),
        ..RebuildPolicy::default()
    };
    (policy, rng.chance(1, 3))
}

fn new_disk(rt: &Rt, number: usize) -> Rc<TestDisk> {
    sized_disk(rt, number, 512, (2 << 20) + 16 * UNIT)
}

/// An array filled with a pattern, with `lost` members lost.
async fn damaged(rt: &Rt, (code, slots, lost): (&str, usize, usize)) -> (Bench, Vec<u8>) {
    let mut options = options(code);
    options.unit_bytes = UNIT as u32;
    options.region_bytes = Some(64 << 10);
    let disks = (0..slots).map(|n| new_disk(rt, n)).collect();
    let bench = Bench::on(rt, &options, disks).await;
    let bytes = pattern(0, bench.array.size_bytes() as usize, 1);
    write(&bench.array, 0, &bytes).await;
    bench.array.flush().await.expect("flushed");
    for n in 0..lost {
        // In a RAID-10, one member of each pair.
        bench.array.fail(SlotNo(2 * n)).await.expect("can lose it");
    }
    (bench, bytes)
}

async fn add_spares(rt: &Rt, bench: &Bench, numbers: std::ops::Range<usize>) -> Vec<Rc<TestDisk>> {
    let mut spares = Vec::new();
    for n in numbers {
        let spare = new_disk(rt, 90 + n);
        bench.array.add_spare(spare.clone()).await.expect("added");
        spares.push(spare);
    }
    spares
}

/// How often each sector of the data area was written.
fn writes_of(spare: &TestDisk, data_offset: u64) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for (offset, len) in spare.writes.borrow().iter() {
        for sector in (*offset..offset + len).step_by(512) {
            if sector >= data_offset {
                *counts.entry(sector).or_insert(0) += 1;
            }
        }
    }
    counts
}

async fn check_whole(bench: &Bench, bytes: &[u8], what: &str) {
    assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{what}");
    let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
}

#[test]
fn every_order_and_executor_writes_every_unit_exactly_once() {
    run(|rt| async move {
        for code in CODES {
            for way in ways() {
                let what = format!("{code:?} {way:?}");
                let (bench, bytes) = damaged(&rt, code).await;
                set(&bench.array, way).await;
                let spares = add_spares(&rt, &bench, 0..code.2).await;
                bench.until(ArrayState::Healthy).await;
                let data_offset = bench.superblock.area.data_offset;
                let stripes = bench.array.size_bytes() / bench.stripe_bytes();
                for spare in spares {
                    let counts = writes_of(&spare, data_offset);
                    assert!(counts.values().all(|count| *count == 1), "{what}");
                    let units = counts.len() as u64 * 512 / UNIT;
                    assert!(units > 0 && units <= 2 * stripes, "{what}: {units}");
                }
                let counts = bench.array.rebuild_counts();
                assert_eq!(counts.stripes_piggybacked, 0, "{what}");
                assert!(counts.ended_ns > counts.started_ns, "{what}");
                check_whole(&bench, &bytes, &what).await;
                bench.array.stop().await.expect("stopped");
            }
        }
    });
}

#[test]
fn units_that_lie_one_behind_the_other_are_read_together() {
    run(|rt| async move {
        // Of raid6 one unit in five is not read, so that no more than four lie behind each other.
        for (code, bad, most) in [(("raid5", 4, 1), false, 8), (("raid6", 5, 1), true, 4)] {
            let (bench, bytes) = damaged(&rt, code).await;
            let data_offset = bench.superblock.area.data_offset;
            bench.disks.iter().for_each(|disk| disk.reads.borrow_mut().clear());
            if bad {
                // In the middle of a long read.
                let sector = (data_offset + 3 * UNIT + 512) / 512;
                bench.disks[1].faults.unreadable.borrow_mut().insert(sector);
            }
            add_spares(&rt, &bench, 0..1).await;
            bench.until(ArrayState::Healthy).await;
            let reads: Vec<(u64, u64)> = bench.disks[1..]
                .iter()
                .flat_map(|disk| disk.reads.borrow().clone())
                .filter(|(offset, _)| *offset >= data_offset)
                .collect();
            let longest = reads.iter().map(|(_, len)| *len).max();
            assert_eq!(longest, Some(most * UNIT), "{code:?}");
            if !bad {
                let stripes = bench.array.size_bytes() / bench.stripe_bytes();
                let sum: u64 = reads.iter().map(|(_, len)| len).sum();
                assert_eq!(sum, 3 * stripes * UNIT, "each unit of the three survivors once");
            }
            check_whole(&bench, &bytes, &format!("{code:?}")).await;
            bench.array.stop().await.expect("stopped");
        }
    });
}

/// Stripes left to rebuild according to the job; `None` before it has begun.
fn left(bench: &Bench) -> Option<u64> {
    bench.array.status().jobs.first().map(|job| job.stripes_total - job.stripes_done)
}

#[test]
fn nothing_is_lost_or_rebuilt_twice_under_load_and_changes_of_policy() {
    run(|rt| async move {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let code = CODES[rng.index(CODES.len())];
            let what = format!("seed {seed}, {code:?}");
            let (bench, mut bytes) = damaged(&rt, code).await;
            set(&bench.array, draw(&mut rng)).await;
            bench.array.set_throttle(0, Some([200_000, 2_000_000][rng.index(2)]));
            let spares = rng.index(code.2) + 1;
            add_spares(&rt, &bench, 0..spares).await;
            for version in 0..40 {
                if rng.chance(1, 6) {
                    set(&bench.array, draw(&mut rng)).await;
                }
                if rng.chance(1, 20) {
                    bench.array.set_paused(true);
                    rt.sleep(rng.below(MILLISECOND)).await;
                    bench.array.set_paused(false);
                }
                // A hot spot, or anywhere.
                let end = if rng.chance(1, 2) { bytes.len() } else { 100_000 };
                let offset = rng.index(end - 1);
                let len = [1, 512, 9000, 70_000][rng.index(4)].min(bytes.len() - offset);
                if rng.chance(1, 2) {
                    let new = pattern(offset as u64, len, version);
                    write(&bench.array, offset as u64, &new).await;
                    bytes[offset..offset + len].copy_from_slice(&new);
                } else {
                    let found = read(&bench.array, offset as u64, len).await;
                    assert!(found == bytes[offset..offset + len], "{what}");
                }
                rt.sleep(rng.below(3) * MILLISECOND).await;
            }
            bench.array.set_throttle(0, None);
            add_spares(&rt, &bench, spares..code.2).await;
            bench.until(ArrayState::Healthy).await;
            let counts = bench.array.rebuild_counts();
            if code.2 == 1 {
                let stripes = bench.array.size_bytes() / bench.stripe_bytes();
                let done = counts.stripes_rebuilt + counts.stripes_piggybacked;
                assert_eq!(done, stripes, "{what}: {counts:?}");
            }
            check_whole(&bench, &bytes, &what).await;
            // The replacements hold the right data: others can be lost instead.
            for n in 0..code.2 {
                let slot = (2 * n + 1) % code.1;
                bench.array.fail(SlotNo(slot)).await.expect("can lose it");
            }
            assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{what}");
            bench.array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn a_paused_rebuild_reports_its_progress_and_resumes_there() {
    run(|rt| async move {
        let (bench, bytes) = damaged(&rt, ("raid5", 4, 1)).await;
        // 16 stripes, one every 200 ms.
        bench.array.set_throttle(0, Some(UNIT * 5));
        add_spares(&rt, &bench, 0..1).await;
        rt.sleep(SECOND / 2).await;
        let (mut before, mut reads) = (0, 0);
        for paused in [true, false, true] {
            bench.array.set_paused(paused);
            rt.sleep(SECOND / 2).await;
            let status = bench.array.status();
            let job = status.jobs.first().unwrap_or_else(|| panic!("{paused}: {status:?}"));
            let done = job.stripes_done;
            assert_eq!((job.paused, job.eta_s.is_some()), (paused, !paused));
            assert!(done > 1 && done >= before && done < job.stripes_total, "{job:?}");
            (before, reads) = (done, bench.array.rebuild_counts().source_reads);
        }
        rt.sleep(SECOND).await;
        assert_eq!(bench.array.rebuild_counts().source_reads, reads, "it does not rest");
        bench.array.set_throttle(0, None);
        bench.array.set_paused(false);
        bench.until(ArrayState::Healthy).await;
        check_whole(&bench, &bytes, "after the rest").await;
        bench.array.stop().await.expect("stopped");
    });
}

#[test]
fn requested_stripes_are_rebuilt_first_and_the_rest_in_turn() {
    run(|rt| async move {
        for preemptive in [false, true] {
            let (bench, bytes) = damaged(&rt, ("raid5", 4, 1)).await;
            let policy = RebuildPolicy {
                order: RebuildOrder::Popularity,
                piggyback: Piggyback::Off,
                slice_stripes: 1,
                zone_stripes: 2,
                preemptive,
                ..RebuildPolicy::default()
            };
            bench.array.set_rebuild_policy(policy).await.expect("within its limits");
            // A stripe every 100 ms.
            bench.array.set_throttle(0, Some(UNIT * 10));
            let spares = add_spares(&rt, &bench, 0..1).await;
            let stripe = bench.stripe_bytes();
            // Only stripes 10 and 11 have a lost unit that users request.
            for _ in 0..20 {
                for offset in [10 * stripe, 11 * stripe] {
                    let found = read(&bench.array, offset, stripe as usize).await;
                    assert!(found == bytes[offset as usize..][..stripe as usize]);
                }
                rt.sleep(20 * MILLISECOND).await;
            }
            let status = bench.array.status().rebuild.expect("it is being rebuilt");
            assert_eq!(status.order, RebuildOrder::Popularity);
            assert_eq!(status.redirected_share.map(|share| share > 0.2), Some(true));
            let data_offset = bench.superblock.area.data_offset;
            let order: Vec<u64> = spares[0]
                .writes
                .borrow()
                .iter()
                .filter(|(offset, _)| *offset >= data_offset)
                .map(|(offset, _)| (offset - data_offset) / UNIT)
                .collect();
            assert!(order[..4].contains(&10) && order[..4].contains(&11), "{order:?}");
            bench.array.set_throttle(0, None);
            bench.until(ArrayState::Healthy).await;
            bench.array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn permanently_hot_zones_do_not_starve_cold_space() {
    run(|rt| async move {
        let (bench, _) = damaged(&rt, ("raid5", 3, 1)).await;
        let policy = RebuildPolicy {
            order: RebuildOrder::Popularity,
            piggyback: Piggyback::Off,
            slice_stripes: 1,
            zone_stripes: 1,
            preemptive: true,
            ..RebuildPolicy::default()
        };
        bench.array.set_rebuild_policy(policy).await.expect("within its limits");
        bench.array.set_throttle(0, Some(UNIT * 1000));
        let size = bench.array.size_bytes();
        let spares = add_spares(&rt, &bench, 0..1).await;
        // Users request everything but the first two stripes, more than can be rebuilt.
        let stripe = bench.stripe_bytes();
        while left(&bench).is_none_or(|left| left > 1) {
            read(&bench.array, 2 * stripe, (size - 2 * stripe) as usize).await;
        }
        let data_offset = bench.superblock.area.data_offset;
        let writes = spares[0].writes.borrow().clone();
        let data = writes.iter().filter(|(offset, _)| *offset >= data_offset);
        let place = data.into_iter().position(|(offset, _)| *offset == data_offset);
        assert!(place.is_some_and(|place| place <= 16), "{place:?} of {}", writes.len());
        bench.array.stop().await.expect("stopped");
    });
}

#[test]
fn reads_and_writes_rebuild_their_units() {
    run(|rt| async move {
        let codes = [
            ("raid1", 2),
            ("raid4", 4),
            ("raid5", 4),
            ("raid6", 5),
            ("raid10", 4),
            ("lrc:4,2,1", 7),
            ("drc:4,2,1", 7),
        ];
        for (code, slots) in codes {
            for piggyback in PIGGYBACKS {
                let what = format!("{code}, {piggyback:?}");
                let (bench, mut bytes) = damaged(&rt, (code, slots, 1)).await;
                let policy = RebuildPolicy { piggyback, ..RebuildPolicy::default() };
                bench.array.set_rebuild_policy(policy).await.expect("within its limits");
                // The rebuild job itself does only its first stripe for hours.
                bench.array.set_throttle(0, Some(1));
                add_spares(&rt, &bench, 0..1).await;
                rt.sleep(SECOND).await;
                let counts = || bench.array.rebuild_counts();
                assert_eq!(counts().stripes_rebuilt, 1, "{what}");
                // All bytes, each unit in halves: no request covers a unit.
                let all = async |bytes: &[u8]| {
                    for at in (0..bytes.len()).step_by(UNIT as usize / 2) {
                        let found = read(&bench.array, at as u64, UNIT as usize / 2).await;
                        assert!(found == bytes[at..at + UNIT as usize / 2], "{what}");
                    }
                };
                all(&bytes).await;
                rt.sleep(SECOND).await;
                let widened = counts().stripes_piggybacked;
                let mirrored = ["raid1", "raid10"].contains(&code);
                let widens = piggyback == Piggyback::Widen && !mirrored;
                assert_eq!(widened > 0, widens, "{what}: {:?}", counts());
                let reconstructed = counts().reads_reconstructed;
                all(&bytes).await;
                let again = counts().reads_reconstructed - reconstructed;
                assert_eq!(again == 0, widens, "{what}: {:?}", counts());
                // A write of everything reaches every replacement.
                bytes = pattern(0, bytes.len(), 2);
                write(&bench.array, 0, &bytes).await;
                // In a RAID-10 of four, half of the stripes have a unit on the slot.
                let all = bench.array.size_bytes() / bench.stripe_bytes();
                let stripes = if code == "raid10" { all / 2 } else { all };
                let done = counts().stripes_rebuilt + counts().stripes_piggybacked;
                assert_eq!(done == stripes, piggyback != Piggyback::Off, "{what}: {:?}", counts());
                // Work that a change of the throttle allows begins at once.
                bench.array.set_throttle(0, None);
                bench.until(ArrayState::Healthy).await;
                check_whole(&bench, &bytes, &what).await;
                bench.array.fail(SlotNo(1)).await.expect("can lose one");
                assert!(read(&bench.array, 0, bytes.len()).await == bytes, "{what}");
                bench.array.stop().await.expect("stopped");
            }
        }
    });
}

#[test]
fn a_policy_is_kept_over_a_stop_and_one_beyond_its_limits_is_refused() {
    run(|rt| async move {
        let disks = disks(3, 4);
        let array = make(&rt, "raid5", &disks).await;
        let mut policy = RebuildPolicy { slice_stripes: 7, ..RebuildPolicy::default() };
        array.set_rebuild_policy(policy.clone()).await.expect("within its limits");
        policy.zones = 0;
        let refused = array.set_rebuild_policy(policy).await.expect_err("no zones");
        assert!(refused.to_string().contains("the number of zones is 0"), "{refused}");
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &disks).await;
        assert_eq!(array.rebuild_policy().slice_stripes, 7);
        array.set_rebuild_policy(RebuildPolicy::default()).await.expect("within its limits");
        array.stop().await.expect("stopped");
        assert_eq!(assemble(&rt, &disks).await.rebuild_policy(), RebuildPolicy::default());
    });
}

#[test]
fn the_throttle_is_kept_over_a_stop_and_beside_the_policy() {
    run(|rt| async move {
        let disks = disks(3, 4);
        let array = make(&rt, "raid5", &disks).await;
        array.set_throttle(1000, Some(50_000));
        array.set_latency_target(Some(20 * MILLISECOND));
        array.store_throttle().await;
        let policy = RebuildPolicy { slice_stripes: 7, ..RebuildPolicy::default() };
        array.set_rebuild_policy(policy.clone()).await.expect("within its limits");
        let before = array.status().throttle;
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &disks).await;
        assert_eq!(array.status().throttle, before);
        assert_eq!((before.max_bytes_s, before.latency_us), (Some(50_000), Some(20_000)));
        assert_eq!(array.rebuild_policy(), policy);
        array.set_throttle(0, None);
        array.set_latency_target(None);
        array.store_throttle().await;
        array.set_rebuild_policy(RebuildPolicy::default()).await.expect("within its limits");
        array.stop().await.expect("stopped");
        let array = assemble(&rt, &disks).await;
        assert_eq!(array.status().throttle.max_bytes_s, None);
        assert_eq!(array.status().throttle.latency_us, None);
    });
}

/// What a stop keeps of a rebuild: all but a few stripes, also where requests rebuilt stripes here
/// and there.
#[test]
fn a_stop_keeps_the_progress_of_a_rebuild() {
    for users in [false, true] {
        run(move |rt| async move {
            let mut options = options("raid5");
            options.unit_bytes = UNIT as u32;
            options.region_bytes = Some(256 << 10);
            let disk = |n| sized_disk(&rt, n, 512, (2 << 20) + 640 * UNIT);
            let bench = Bench::on(&rt, &options, (0..4).map(disk).collect()).await;
            let bytes = pattern(0, bench.array.size_bytes() as usize, 1);
            write(&bench.array, 0, &bytes).await;
            bench.array.flush().await.expect("flushed");
            bench.array.fail(SlotNo(1)).await.expect("can lose it");
            // 200 stripes per second.
            bench.array.set_throttle(0, Some(UNIT * 200));
            bench.array.store_throttle().await;
            let spare = disk(90);
            bench.array.add_spare(spare.clone()).await.expect("added");
            let stripe = bench.stripe_bytes();
            let mut rng = Rng::new(1);
            for _ in 0..100 {
                if users {
                    let offset = rng.below(bytes.len() as u64 / stripe) * stripe;
                    let _ = read(&bench.array, offset, stripe as usize).await;
                }
                rt.sleep(10 * MILLISECOND).await;
            }
            let done = |array: &Array| {
                let status = array.status();
                let job = status.jobs.first().unwrap_or_else(|| panic!("no job: {status:?}"));
                assert!(job.stripes_done < job.stripes_total, "{job:?}");
                job.stripes_done
            };
            let before = done(&bench.array);
            bench.array.stop().await.expect("stopped");
            let mut all = members(&bench.disks);
            all[1] = spare;
            let array = assemble(&rt, &all).await;
            rt.sleep(MILLISECOND).await;
            let after = done(&array);
            assert!(after + 8 >= before, "users {users}: {before} stripes, then {after}");
            array.set_throttle(0, None);
            while array.status().state != ArrayState::Healthy {
                rt.sleep(MILLISECOND).await;
            }
            assert!(read(&array, 0, bytes.len()).await == bytes);
            array.stop().await.expect("stopped");
        });
    }
}
