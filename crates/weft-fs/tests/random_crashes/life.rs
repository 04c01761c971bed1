//! A life of the file system: from a mount to a crash.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::copies::{assert_copies, assert_each_alone, mend_slices};
use super::disks::{Left, Media, fail_block, fail_slice, given, hold_copies_back, open};
use super::history::{History, Moment, Snapshot};
use crate::common::contender::Contender;
use crate::common::disk::{Medium, Power, TestDisk};
use crate::common::model::Pair;
use crate::common::*;
use weft_fs::{Fs, FsError, Job, JobReport, Label, MountOptions};
use weft_random::Rng;
use weft_rt::Rt;

const SIZE: u64 = 24 << 20;

/// Bytes of a disk that joins: it has much more room than the others, so a balance has much to
/// move.
const LARGE: u64 = 48 << 20;
const DISKS: usize = 6;
const DISKS_MIN: usize = 4;
const DISKS_MAX: usize = 8;
const REDUNDANCIES: [&str; 4] = ["auto", "raid1", "raid6", "raid5"];

/// Batches of new lines that were computed while others were written, in all lives.
pub(super) static OVERLAPPED: AtomicU64 = AtomicU64::new(0);

/// Blocks that balances moved, in all lives.
pub(super) static BALANCED: AtomicU64 = AtomicU64::new(0);

/// Disks that came back, in all lives.
pub(super) static RETURNED: AtomicU64 = AtomicU64::new(0);

fn assert_ended(job: Job, ended: weft_fs::Result<JobReport>) {
    assert!(matches!(ended, Ok(_) | Err(FsError::Cancelled)), "{job:?}: {ended:?}");
    if let Ok(JobReport::Balanced(report)) = ended {
        BALANCED.fetch_add(report.blocks, Ordering::Relaxed);
    }
}

/// Begins a job or cancels it, or lets a disk join.
async fn use_jobs(
    rt: &Rt,
    pair: &mut Pair,
    power: &Rc<Power>,
    disks: &RefCell<BTreeMap<usize, Rc<TestDisk>>>,
) {
    if pair.rng.chance(20) {
        // The disks may have no room, a copy may be missing, or a slice fail.
        drop(pair.fs.grow_metadata().await);
        return;
    }
    match pair.rng.below(4) {
        0 => drop(pair.fs.cancel().await),
        1 if disks.borrow().len() < DISKS_MAX => {
            let numbers = pair.fs.status().await.expect("known").disks;
            // Its number may be higher, if disks have left.
            let next = 1 + numbers.last().map_or(0, |disk| usize::from(disk.number));
            let highest = disks.borrow().keys().last().map_or(0, |number| number + 1);
            let place = next.max(highest);
            let disk = TestDisk::new(rt, power, 100 + place, LARGE, 512, Medium::new(512));
            disks.borrow_mut().insert(place, disk.clone());
            let number = pair.fs.add_disk(disk.clone(), false).await.expect("added");
            disks.borrow_mut().remove(&place);
            disks.borrow_mut().insert(usize::from(number), disk);
            begin(rt, &pair.fs, Job::Balance);
        }
        2 => begin(rt, &pair.fs, Job::Scrub),
        _ => begin(rt, &pair.fs, Job::Balance),
    }
}

/// A disk that was missing at the mount comes back.
async fn come_back(
    pair: &Pair,
    (number, disk): (usize, Rc<TestDisk>),
    disks: &RefCell<BTreeMap<usize, Rc<TestDisk>>>,
) {
    disks.borrow_mut().insert(number, disk.clone());
    let added = pair.fs.add_disk(disk.clone(), false).await;
    disks.borrow_mut().remove(&number);
    if matches!(added, Err(FsError::Array(_))) && !disk.faults.dead_writes.borrow().is_empty() {
        // The metadata has grown, and a block that cannot be written is in its slice now.
        return;
    }
    disks.borrow_mut().insert(usize::from(added.expect("added")), disk);
    RETURNED.fetch_add(1, Ordering::Relaxed);
}

/// Begins a job, unless one runs.
fn begin(rt: &Rt, fs: &Fs, job: Job) {
    if let Ok(running) = fs.begin_job(job) {
        drop(rt.spawn(async move { assert_ended(job, running.await) }));
    }
}

/// Uses the file system until a random step. If a disk is lost, it is rebuilt meanwhile.
async fn live(
    rt: &Rt,
    pair: &mut Pair,
    disks: BTreeMap<usize, Rc<TestDisk>>,
    power: &Rc<Power>,
    (mut away, may_be_degraded): (Option<(usize, Rc<TestDisk>)>, bool),
) -> Moment {
    let disks = Rc::new(RefCell::new(disks));
    let seen = Rc::new(RefCell::new(None));
    let left = Cell::new(pair.rng.below(600));
    let media = {
        let disks = disks.clone();
        move || disks.borrow().iter().map(|(n, disk)| (*n, Left::of(disk))).collect::<Media>()
    };
    let (cut, at_cut) = (seen.clone(), media.clone());
    power.watch(move || {
        left.set(left.get().wrapping_sub(1));
        if left.get() == 0 {
            *cut.borrow_mut() = Some(at_cut());
        }
    });
    if may_be_degraded || pair.rng.chance(30) {
        pair.fs.keep(assert_ended);
    }
    if pair.rng.chance(50) {
        let (fs, seed) = (pair.fs.clone(), pair.rng.next_u64());
        drop(rt.spawn(Contender::contend(rt.clone(), fs, 1, seed)));
    }
    let mut history = History::new(pair);
    let mut may_lack = false;
    // The disk whose slice of the metadata is not as it should be.
    let mut failing = None;
    for _ in 0..60 {
        if pair.rng.chance(4) && !may_be_degraded {
            match failing.take() {
                None => {
                    let disks = disks.borrow();
                    let numbers: Vec<usize> = disks.keys().copied().collect();
                    let number = *pair.rng.pick(&numbers);
                    fail_slice(&mut pair.rng, &disks[&number]);
                    failing = Some(number);
                }
                Some(number) => {
                    let disk = disks.borrow().get(&number).cloned();
                    disk.iter().for_each(|disk| *disk.faults.unwritable.borrow_mut() = 0..0);
                    let disks = disks.borrow().clone();
                    mend_slices(rt, &pair.fs, "after a fault of a slice").await;
                    assert_each_alone(rt, &pair.fs, &disks, "after a fault of a slice").await;
                }
            }
            if seen.borrow().is_some() {
                break;
            }
        }
        if pair.rng.chance(7) {
            let disks = disks.borrow().clone();
            may_lack |= fail_block(pair, &disks, !may_lack && !may_be_degraded).await;
        }
        if pair.rng.chance(10) {
            use_jobs(rt, pair, power, &disks).await;
        }
        if let Some(disk) = away.take_if(|_| pair.rng.chance(7)) {
            come_back(pair, disk, &disks).await;
        }
        if !pair.step_or_wait(rt).await {
            continue;
        }
        history.note(pair);
        if seen.borrow().is_some() {
            break;
        }
        if let Some(durable) = pair.durable.take() {
            history.durable(durable);
        }
    }
    power.watch(|| {});
    let overlapped = pair.fs.status().await.expect("known").overlapped_batches;
    OVERLAPPED.fetch_add(overlapped, Ordering::Relaxed);
    let media = seen.take().unwrap_or_else(media);
    let afresh = pair.fs.status().await.map_or(0, |status| status.counts.out_of_place_blocks);
    let may_lack_copy = failing.is_some();
    Moment { media, history, may_lack, may_be_degraded, may_lack_copy, afresh }
}

pub(super) async fn one_life(rt: &Rt, seed: u64, n: usize, before: Option<Moment>) -> Moment {
    let power = Power::new();
    let mut rng = Rng::new(seed);
    let blank = || Left {
        bytes: SIZE,
        medium: Medium::new(512),
        unreadable: BTreeSet::new(),
        dead_reads: BTreeSet::new(),
        dead_writes: BTreeSet::new(),
    };
    let blank = || (0..DISKS).map(|n| (n, blank())).collect();
    let (media, history, may_lack, may_be_degraded, may_lack_copy) = match before {
        Some(Moment { media, history, may_lack, may_be_degraded, may_lack_copy, .. }) => {
            (media, Some(history), may_lack, may_be_degraded, may_lack_copy)
        }
        None => (blank(), None, false, false, false),
    };
    let history_is_new = history.is_none();
    let mut disks = BTreeMap::new();
    for (place, disk) in open(rt, &power, &media, rng.below(3) as usize) {
        // One that was joining has a label, with its number, or is none of the file system.
        match Label::read(&*disk).await.expect("readable") {
            Some(label) => drop(disks.insert(usize::from(label.number), disk)),
            None if history_is_new => drop(disks.insert(place, disk)),
            None => {}
        }
    }
    let Some(history) = history else {
        let fs = made_by(rt, &given(&disks), seed).await;
        hold_copies_back(&mut rng, &disks);
        let mut pair = Pair::new(fs, seed, &REDUNDANCIES);
        return live(rt, &mut pair, disks, &power, (None, false)).await;
    };
    // With the last one of these, requests to disks are so long that metadata passes them.
    let cache_bytes = [1 << 20, 2 << 20, 16 << 20][rng.below(3) as usize];
    let mut options =
        MountOptions { degraded: true, stale: true, cache_bytes, nonce: seed, ..mounting_by(seed) };
    let (mut missing, mut away) = (None, None);
    let may_lose = !may_lack && !may_be_degraded && !may_lack_copy;
    if disks.len() > DISKS_MIN && rng.chance(40) && may_lose {
        let numbers: Vec<usize> = disks.keys().copied().collect();
        let number = *rng.pick(&numbers);
        away = disks.remove(&number).map(|disk| (number, disk));
        missing = Some(number);
    } else {
        options.degraded = false;
    }
    hold_copies_back(&mut rng, &disks);
    let what = format!("life {n} on {:?}", disks.keys());
    if std::env::var_os("WEFT_SEED").is_some() {
        eprintln!("{what}");
    }
    let fs = Fs::mount(rt, &given(&disks), options).await;
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut report = fs.check(true).await.expect("checked");
    if may_lack {
        // Reading has moved what could not be read.
        report = fs.check(true).await.expect("checked");
    }
    assert_eq!(report.findings, [], "{what}");
    match may_lack_copy {
        true => mend_slices(rt, &fs, &what).await,
        false => assert_eq!(fs.status().await.expect("known").meta_pages.wrong, 0, "{what}"),
    }
    let lost = fs.status().await.expect("known").disks.iter().filter(|disk| disk.lost).count();
    let may_be_lost = usize::from(options.degraded || may_be_degraded);
    // One that was joining may not have been a disk yet, or one that came back had left before.
    let members = fs.status().await.expect("known").disks;
    let is_member = |number: &usize| members.iter().any(|disk| usize::from(disk.number) == *number);
    let must_be_lost = missing.filter(is_member);
    let is_expected = (usize::from(must_be_lost.is_some())..=may_be_lost).contains(&lost);
    assert!(
        is_expected,
        "{what}: {lost} lost of {members:?}, missing {missing:?}: blocks failed, and no disk"
    );
    if rng.chance(20) {
        assert_copies(rt, &fs, &what).await;
        assert_each_alone(rt, &fs, &disks, &what).await;
    }
    let Snapshot { model, inos } = history.found(&fs, &what).await;
    let mut pair = Pair::new(fs, seed, &REDUNDANCIES);
    (pair.model, pair.inos) = (model, inos);
    pair.compare().await;
    let is_left_to_keeper = lost > 0 && rng.chance(50);
    if lost > 0 && !is_left_to_keeper {
        for _ in 0..rng.below(30) {
            pair.step().await;
        }
        pair.compare().await;
        if let Some(disk) = away.take_if(|_| rng.chance(50)) {
            let there = RefCell::new(disks);
            come_back(&pair, disk, &there).await;
            disks = there.into_inner();
            for _ in 0..rng.below(10) {
                pair.step().await;
            }
        }
        let report = pair.fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{what}: {report:?}");
        let left = pair.fs.status().await.expect("known").disks;
        assert!(!left.iter().any(|disk| disk.lost), "{what}: {report:?}, then {left:?}");
        assert_sound(&pair.fs).await;
    }
    pair.compare().await;
    away = away.filter(|_| rng.chance(50));
    live(rt, &mut pair, disks, &power, (away, is_left_to_keeper)).await
}
