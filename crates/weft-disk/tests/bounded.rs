//! The time limit: a disk that does not answer is given up, and all requests stop waiting for it.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::run;
use weft_disk::{
    BoundedDisk, Class, Disk, DiskErrorKind, DoneFuture, Fault, FaultDisk, Faults, IoCounts, Layer,
    QueueConfig, QueueLoad, QueuedDisk, RamDisk, TICKS, WriteOpts, ZEROES_BYTES_MAX,
};
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND};

const LIMIT: Nanos = 30 * SECOND;

/// The latest that a request is given up.
const LATEST: Nanos = LIMIT + LIMIT / TICKS as Nanos;

fn ram() -> Rc<dyn Disk> {
    Rc::new(RamDisk::new("ram", 1 << 20, 512))
}

fn bounded(rt: &Rt) -> (Rc<dyn Disk>, Faults) {
    let (disk, faults) = FaultDisk::new(rt, ram());
    (Rc::new(BoundedDisk::new(rt, Rc::new(disk), LIMIT)), faults)
}

fn block() -> Frozen {
    Buf::zeroed(512).freeze()
}

#[test]
fn a_request_without_an_answer_ends_after_the_limit_and_the_disk_is_asked_no_more() {
    run(async |rt| {
        let (disk, faults) = bounded(&rt);
        // Begun somewhere within a tick.
        for offset in [0, SECOND, 5 * SECOND] {
            let (disk, faults) = bounded(&rt);
            disk.write(0, block(), WriteOpts::USER).await.expect("it works");
            rt.sleep(offset).await;
            faults.inject(Fault::Delay(3600 * SECOND));
            let began = rt.now();
            let (result, buf) = disk.read(0, Buf::new(512), Class::User).await;
            let error = result.expect_err("no answer");
            assert_eq!((error.kind, buf.len()), (DiskErrorKind::TimedOut, 512));
            assert!(error.to_string().contains("no answer within 30 s"), "{error}");
            let took = rt.now() - began;
            assert!((LIMIT..=LATEST).contains(&took), "{took}");
        }
        faults.inject(Fault::Delay(3600 * SECOND));
        let requests = [
            disk.write(0, block(), WriteOpts::USER),
            disk.flush(),
            disk.write_zeroes(0, 4096, WriteOpts::USER),
            disk.discard(0, 4096),
        ];
        let began = rt.now();
        for result in futures_util::future::join_all(requests).await {
            assert_eq!(result.expect_err("no answer").kind, DiskErrorKind::TimedOut);
        }
        assert!(rt.now() - began <= LATEST);
        // Though it would answer again.
        faults.clear();
        let (asked, now) = (faults.counts().total(), rt.now());
        assert_eq!(disk.flush().await.expect_err("given up").kind, DiskErrorKind::TimedOut);
        let (result, _) = disk.read(0, Buf::new(512), Class::User).await;
        assert_eq!(result.expect_err("given up").kind, DiskErrorKind::TimedOut);
        assert_eq!((faults.counts().total(), rt.now()), (asked, now));
    });
}

#[test]
fn a_slow_disk_is_not_given_up_however_many_requests_it_has() {
    run(async |rt| {
        let (disk, faults) = bounded(&rt);
        faults.inject(Fault::Delay(LIMIT - SECOND));
        for _ in 0..3 {
            let writes = (0..100).map(|n| disk.write(n * 512, block(), WriteOpts::USER));
            for result in futures_util::future::join_all(writes).await {
                result.expect("slow, not hung");
            }
        }
        // Nothing to watch: no timer is left, and time would stand still.
        let idle = rt.now();
        rt.sleep(10 * LIMIT).await;
        disk.flush().await.expect("an idle disk is no hung disk");
        assert_eq!(rt.now() - idle, 10 * LIMIT + LIMIT - SECOND);
    });
}

#[test]
fn a_severed_disk_ends_what_is_under_way_at_once() {
    run(async |rt| {
        let (disk, faults) = FaultDisk::new(&rt, ram());
        let bounded = Rc::new(BoundedDisk::new(&rt, Rc::new(disk), LIMIT));
        let disk: Rc<dyn Disk> = bounded.clone();
        faults.inject(Fault::Delay(3600 * SECOND));
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let disk = disk.clone();
                rt.spawn(async move { disk.write(n * 512, block(), WriteOpts::USER).await })
            })
            .collect();
        rt.sleep(SECOND).await;
        assert_eq!(bounded.under_way(), 10);
        let began = rt.now();
        disk.sever("failed by command");
        for task in tasks {
            let error = task.await.expect_err("severed");
            assert_eq!(error.kind, DiskErrorKind::Gone);
            assert!(error.to_string().contains("failed by command"), "{error}");
        }
        assert_eq!((rt.now(), bounded.under_way()), (began, 0));
    });
}

#[test]
fn what_ends_is_counted_and_what_the_owner_ends_is_not() {
    run(async |rt| {
        let (disk, faults) = bounded(&rt);
        // Counts are read through whatever stands before.
        let disk: Rc<dyn Disk> = Rc::new(QueuedDisk::new(disk, QueueConfig::default()));
        let counters = disk.counters().expect("it counts");
        disk.write(0, Buf::zeroed(4096).freeze(), WriteOpts::USER).await.expect("it works");
        disk.write(0, block(), WriteOpts::USER).await.expect("it works");
        disk.read(0, Buf::new(512), Class::User).await.0.expect("it works");
        disk.write_zeroes(0, 1 << 20, WriteOpts::USER).await.expect("it works");
        disk.discard(0, 512).await.expect("it works");
        disk.flush().await.expect("it works");
        let sound = IoCounts {
            reads: 1,
            read_bytes: 512,
            writes: 2,
            written_bytes: 4608,
            flushes: 1,
            zeroes: 2,
            zeroed_bytes: (1 << 20) + 512,
            ..IoCounts::default()
        };
        assert_eq!(counters.get(), sound);

        faults.inject(Fault::Medium(0..512));
        faults.inject(Fault::FailWrites(0..u64::MAX));
        faults.inject(Fault::FailFlushes(true));
        disk.read(0, Buf::new(512), Class::User).await.0.expect_err("fails");
        disk.write(0, block(), WriteOpts::USER).await.expect_err("fails");
        disk.write(512, block(), WriteOpts::USER).await.expect_err("fails");
        disk.flush().await.expect_err("fails");
        faults.clear();
        let failed = IoCounts { read_errors: 1, write_errors: 2, flush_errors: 1, ..sound };
        assert_eq!(counters.get(), failed);

        faults.inject(Fault::Delay(3600 * SECOND));
        let reading = disk.clone();
        let task = rt.spawn(async move { reading.read(0, Buf::new(512), Class::User).await.0 });
        rt.sleep(SECOND).await;
        assert_eq!(counters.get(), IoCounts { in_flight: 1, ..failed });
        task.await.expect_err("no answer");
        assert_eq!(counters.get(), IoCounts { timeouts: 1, ..failed });
        disk.flush().await.expect_err("given up");
        assert_eq!(counters.get(), IoCounts { timeouts: 1, ..failed }, "it was not asked");

        let (disk, faults) = bounded(&rt);
        let counters = disk.counters().expect("it counts");
        faults.inject(Fault::Delay(3600 * SECOND));
        let writing = disk.clone();
        let task = rt.spawn(async move { writing.write(0, block(), WriteOpts::USER).await });
        rt.sleep(SECOND).await;
        disk.sever("failed by command");
        task.await.expect_err("severed");
        drop(disk);
        assert_eq!(counters.get(), IoCounts::default(), "the disk has done nothing wrong");
    });
}

#[test]
fn the_queue_before_a_hung_disk_is_emptied_and_no_place_of_it_is_lost() {
    run(async |rt| {
        let (disk, faults) = bounded(&rt);
        let queue = Rc::new(QueuedDisk::new(disk, QueueConfig::of_depth(4)));
        let disk: Rc<dyn Disk> = queue.clone();
        faults.inject(Fault::Delay(3600 * SECOND));
        let began = rt.now();
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let disk = disk.clone();
                rt.spawn(async move { disk.write(n * 512, block(), WriteOpts::USER).await })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.expect_err("hung").kind, DiskErrorKind::TimedOut);
        }
        assert!(rt.now() - began <= LATEST, "those in line waited for the limit once more");
        assert_eq!(faults.counts().writes, 4, "the disk was asked on");
        assert_eq!(queue.load(), QueueLoad::default());
    });
}

#[test]
fn a_hung_disk_keeps_few_flushes() {
    run(async |rt| {
        let (disk, faults) = bounded(&rt);
        faults.inject(Fault::Delay(3600 * SECOND));
        let began = rt.now();
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let disk = disk.clone();
                rt.spawn(async move { disk.flush().await })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.expect_err("hung").kind, DiskErrorKind::TimedOut);
        }
        assert!(rt.now() - began <= LATEST && faults.counts().flushes == 8);
    });
}

/// A disk of which each zeroing takes a time.
struct Slow {
    rt: Rt,
    ram: Rc<dyn Disk>,
    lens: RefCell<Vec<u64>>,
    dropped: Cell<bool>,
}

impl Layer for Slow {
    fn below(&self) -> &dyn Disk {
        &*self.ram
    }

    fn write_zeroes(&self, _: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.lens.borrow_mut().push(len);
            self.rt.sleep(LIMIT - SECOND).await;
            Ok(())
        })
    }

    fn sever(&self, _: &str) {
        self.dropped.set(true);
    }
}

#[test]
fn zeroing_a_whole_disk_may_take_longer_than_the_limit() {
    run(async |rt| {
        let slow = Rc::new(Slow {
            rt: rt.clone(),
            ram: ram(),
            lens: RefCell::default(),
            dropped: Cell::new(false),
        });
        let disk: Rc<dyn Disk> = Rc::new(BoundedDisk::new(&rt, slow.clone(), LIMIT));
        disk.write_zeroes(0, 2 * ZEROES_BYTES_MAX + 512, WriteOpts::USER).await.expect("zeroed");
        assert_eq!(*slow.lens.borrow(), [ZEROES_BYTES_MAX, ZEROES_BYTES_MAX, 512]);
        disk.sever("enough");
        assert!(slow.dropped.get(), "the disk below is told");
    });
}
