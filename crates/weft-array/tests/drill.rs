//! A drill: it foretells what the loss of a disk brings, and changes nothing.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::run;
use crate::common::{assemble, options, pattern, read, rt, write, written};
use weft_array::drill::{self, DrillOptions, DrillReport};
use weft_array::{Array, ArrayError, ArrayState, create};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, QueueConfig, QueuedDisk, RamDisk};
use weft_model::{Contents, Model, ModelDisk, ModelOptions};
use weft_rt::{Buf, Nanos, Rng, Rt, SECOND};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn asked(slot: usize) -> DrillOptions {
    DrillOptions {
        slot: SlotNo(slot),
        before: 10 * SECOND,
        during: 20 * SECOND,
        memory_bytes: 64 * MIB,
        nonce: 9,
    }
}

/// A drill in a domain of its own, which is ended afterwards.
async fn drill(rt: &Rt, array: &Array, asked: &DrillOptions) -> Result<DrillReport, ArrayError> {
    let domain = rt.domain(|| {});
    let report = drill::run(&domain, array, asked).await;
    domain.fail_domain();
    report
}

fn hard_disk(rt: &Rt, number: usize) -> Rc<dyn Disk> {
    let options = ModelOptions {
        name: Some(format!("d{number}")),
        size_bytes: Some(3072 * MIB),
        contents: Contents::KeptBelow(64 * MIB),
        seed: number as u64,
        ..ModelOptions::default()
    };
    let disk = ModelDisk::open(rt, Model::find("st3146807fc").expect("a model"), options);
    Rc::new(QueuedDisk::new(disk, QueueConfig::of_depth(16)))
}

/// Random reads until `ended` says so. Returns mean and median of the times of those of the first
/// seconds, as many as the drill looks at.
async fn use_array(rt: &Rt, array: &Array, ended: impl Fn() -> bool) -> (Nanos, Nanos) {
    let times = Rc::new(RefCell::new(Vec::new()));
    let (mut rng, begun) = (Rng::new(7), rt.now());
    while !ended() {
        rt.sleep(rng.below(SECOND / 20)).await;
        let at = rng.below(array.size_bytes() / BLOCK as u64) * BLOCK as u64;
        let (rt2, array, times) = (rt.clone(), array.clone(), times.clone());
        drop(rt.spawn(async move {
            let begun = rt2.now();
            array.read(at, Buf::new(BLOCK)).await.0.expect("read");
            times.borrow_mut().push((begun, rt2.now() - begun));
        }));
    }
    let times = times.take();
    let until = begun + asked(1).during;
    let of = times.iter().filter(|(at, _)| *at < until).map(|(_, took)| *took);
    let mut of: Vec<Nanos> = of.collect();
    of.sort_unstable();
    (of.iter().sum::<Nanos>() / of.len() as u64, of[of.len() / 2])
}

#[derive(Debug)]
struct Foretold {
    report: DrillReport,
    rebuild: Nanos,
    users: (Nanos, Nanos),
}

/// A drill, and then the loss of the disk.
fn compare(code: &'static str, slots: usize) -> Foretold {
    let rt = rt();
    let inner = rt.clone();
    let found = rt.block_on(async move {
        let rt = inner;
        let disks: Vec<_> = (0..slots).map(|number| hard_disk(&rt, number)).collect();
        let array = written(&rt, code, &disks).await;
        let done: Rc<RefCell<Option<DrillReport>>> = Rc::default();
        let (rt2, array2, done2) = (rt.clone(), array.clone(), done.clone());
        drop(rt.spawn(async move {
            let report = drill(&rt2, &array2, &asked(1)).await.expect("a drill");
            *done2.borrow_mut() = Some(report);
        }));
        use_array(&rt, &array, || done.borrow().is_some()).await;
        let report = done.take().expect("ended");
        assert_eq!(array.status().state, ArrayState::Healthy);
        array.add_spare(hard_disk(&rt, slots)).await.expect("added");
        array.fail(SlotNo(1)).await.expect("one may fail");
        let begun = rt.now();
        let users = use_array(&rt, &array, || array.status().state == ArrayState::Healthy).await;
        Foretold { report, rebuild: rt.now() - begun, users }
    });
    rt.kill_all();
    found
}

#[test]
#[allow(clippy::cast_precision_loss, reason = "ratios")]
fn a_drill_foretells_how_long_the_rebuild_takes_and_what_users_feel() {
    for (code, slots) in [("raid5", 4), ("drc-g:4,2,1", 8)] {
        let Foretold { report, rebuild, users: (mean, median) } = compare(code, slots);
        let foretold = report.rebuild_s.expect("enough was rebuilt") as f64;
        let took = rebuild as f64 / SECOND as f64;
        // Where the new disk is the limit, it also serves users, and seeks.
        let times = foretold / took;
        assert!((0.7..1.3).contains(&times), "{code}: {foretold} s, {took} s: {report:?}");
        let reads = report.during.reads;
        let times = reads.p50_ns as f64 / median as f64;
        assert!((0.75..1.25).contains(&times), "{code}: median {median}: {report:?}");
        // A few long waits, when the rebuild begins, decide the mean.
        let times = reads.mean_ns as f64 / mean as f64;
        assert!((0.5..1.5).contains(&times), "{code}: mean {mean}: {report:?}");
        assert!(report.reconstructed.requests > 0, "{code}");
        assert!(report.before.reads.mean_ns < report.during.reads.mean_ns, "{code}: {report:?}");
        assert_eq!(report.exposed.len(), if code == "raid5" { slots - 1 } else { 0 }, "{code}");
    }
}

/// All bytes of the disks.
async fn bytes(disks: &[Rc<dyn Disk>]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for disk in disks {
        let len = usize::try_from(disk.info().size_bytes).expect("small");
        let (result, buf) = disk.read(0, Buf::new(len), Class::User).await;
        result.expect("read");
        all.push(buf.to_vec());
    }
    all
}

fn ram_disks(count: usize) -> Vec<Rc<dyn Disk>> {
    let disk = |n| {
        let ram = Rc::new(RamDisk::new(&format!("d{n}"), 32 * MIB, 512));
        Rc::new(QueuedDisk::new(ram, QueueConfig::of_depth(16))) as Rc<dyn Disk>
    };
    (0..count).map(disk).collect()
}

#[test]
fn a_drill_leaves_every_byte_and_every_disk_as_it_was() {
    for code in ["raid5", "raid1", "raid6", "lrc:2,1,1"] {
        run(move |rt| async move {
            let disks = ram_disks(if code == "raid1" { 3 } else { 4 });
            create(&disks, &options(code)).await.expect("created");
            let array = assemble(&rt, &disks).await;
            write(&array, 0, &pattern(0, 3 << 20, 1)).await;
            array.flush().await.expect("flushed");
            rt.sleep(30 * SECOND).await; // The regions become clean.
            let before = bytes(&disks).await;
            for slot in [0, 2] {
                let report = drill(&rt, &array, &asked(slot)).await.expect("a drill");
                assert!(report.complete && report.rebuilt_bytes > 0, "{code}: {report:?}");
            }
            assert!(before == bytes(&disks).await, "{code}: a disk has other bytes");
            assert_eq!(array.status().state, ArrayState::Healthy, "{code}");
            // All disks take requests, and the array rebuilds for real.
            write(&array, 1 << 20, &pattern(1 << 20, 3 << 20, 2)).await;
            array.fail(SlotNo(0)).await.expect("one may fail");
            assert_eq!(read(&array, 1 << 20, 3 << 20).await, pattern(1 << 20, 3 << 20, 2));
        });
    }
}

#[test]
fn what_a_drill_writes_to_memory_is_bounded() {
    run(|rt| async move {
        let disks = ram_disks(4);
        create(&disks, &options("raid5")).await.expect("created");
        let array = assemble(&rt, &disks).await;
        write(&array, 0, &pattern(0, 3 << 20, 1)).await;
        let asked = DrillOptions { memory_bytes: 4096, ..asked(1) };
        let error = drill(&rt, &array, &asked).await.expect_err("no room");
        assert!(error.to_string().contains("takes more than 4 KiB"), "{error}");
        assert_eq!(array.status().state, ArrayState::Healthy);
        assert_eq!(read(&array, 0, 3 << 20).await, pattern(0, 3 << 20, 1));
    });
}

#[test]
fn a_drill_is_refused_where_it_could_show_nothing() {
    run(|rt| async move {
        let disks = ram_disks(4);
        create(&disks, &options("raid5")).await.expect("created");
        let array = assemble(&rt, &disks).await;
        let refused = |result: Result<DrillReport, ArrayError>| {
            assert!(matches!(result, Err(ArrayError::Refused(_))), "{result:?}");
        };
        refused(drill(&rt, &array, &asked(4)).await);
        // Two at a time.
        let (rt2, array2) = (rt.clone(), array.clone());
        let first = rt.spawn(async move { drill(&rt2, &array2, &asked(0)).await });
        rt.sleep(SECOND).await;
        refused(drill(&rt, &array, &asked(1)).await);
        first.await.expect("the first is not disturbed");
        // A disk fails meanwhile.
        let (rt2, array2) = (rt.clone(), array.clone());
        let first = rt.spawn(async move { drill(&rt2, &array2, &asked(0)).await });
        rt.sleep(SECOND).await;
        array.fail(SlotNo(2)).await.expect("one may fail");
        refused(first.await);
        refused(drill(&rt, &array, &asked(1)).await);
    });
}
