//! The queue: depth, classes, fairness, and places that are never lost.

mod common;

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use common::run;
use weft_disk::{
    Class, Disk, Fault, FaultDisk, QueueConfig, QueueLoad, QueuedDisk, RamDisk, WriteOpts,
};
use weft_rt::{Buf, Frozen, MICROSECOND, Rt, Task};

/// A disk on which every operation takes 100 µs, behind a queue.
fn slow_disk(rt: &Rt, config: QueueConfig) -> Rc<QueuedDisk> {
    let (disk, faults) = FaultDisk::new(rt, Rc::new(RamDisk::new("ram", 1 << 20, 512)));
    faults.inject(Fault::Delay(100 * MICROSECOND));
    Rc::new(QueuedDisk::new(Rc::new(disk), config))
}

type Log = Rc<RefCell<Vec<Class>>>;

fn read(rt: &Rt, disk: &Rc<QueuedDisk>, class: Class, log: &Log) -> Task<()> {
    let (disk, log) = (disk.clone(), log.clone());
    rt.spawn(async move {
        disk.read(0, Buf::new(512), class).await.0.expect("read");
        log.borrow_mut().push(class);
    })
}

const CONFIG: QueueConfig = QueueConfig { depth: 4, maintenance_depth: 2, maintenance_every: 4 };

#[test]
fn never_more_than_the_depth_and_a_place_for_users_is_always_kept() {
    run(async |rt| {
        let disk = slow_disk(&rt, CONFIG);
        let log = Log::default();
        let mut tasks: Vec<_> =
            (0..10).map(|_| read(&rt, &disk, Class::Maintenance, &log)).collect();
        rt.sleep(MICROSECOND).await;
        let load = QueueLoad {
            active: 2,
            active_maintenance: 2,
            waiting_maintenance: 8,
            waiting_users: 0,
        };
        assert_eq!(disk.load(), load);
        tasks.push(read(&rt, &disk, Class::User, &log));
        tasks.push(read(&rt, &disk, Class::User, &log));
        tasks.push(read(&rt, &disk, Class::User, &log));
        rt.sleep(MICROSECOND).await;
        assert_eq!(disk.load(), QueueLoad { active: 4, waiting_users: 1, ..load });
        for task in tasks {
            task.await;
        }
        assert_eq!(disk.load(), QueueLoad::default());
    });
}

#[test]
fn users_go_first_and_maintenance_gets_its_share() {
    run(async |rt| {
        let one = QueueConfig { depth: 1, maintenance_depth: 1, maintenance_every: 4 };
        let disk = slow_disk(&rt, one);
        let log = Log::default();
        let mut tasks = vec![read(&rt, &disk, Class::User, &log)];
        tasks.extend((0..4).map(|_| read(&rt, &disk, Class::Maintenance, &log)));
        tasks.extend((0..12).map(|_| read(&rt, &disk, Class::User, &log)));
        for task in tasks {
            task.await;
        }
        let log = log.borrow();
        let turns: String =
            log.iter().map(|class| if *class == Class::User { 'u' } else { 'm' }).collect();
        assert_eq!(turns, "uuuumuuumuuumuuum");
    });
}

/// Maintenance under a flood of users: it gets exactly its share, and no user waits longer
/// for it than the share says.
#[test]
fn a_flood_of_users_does_not_starve_maintenance() {
    run(async |rt| {
        let disk = slow_disk(&rt, CONFIG);
        let log = Log::default();
        let flood: Vec<_> = (0..8)
            .map(|_| {
                let (rt2, disk, log) = (rt.clone(), disk.clone(), log.clone());
                rt.spawn(async move {
                    for _ in 0..100 {
                        read(&rt2, &disk, Class::User, &log).await;
                    }
                })
            })
            .collect();
        let maintenance: Vec<_> =
            (0..200).map(|_| read(&rt, &disk, Class::Maintenance, &log)).collect();
        for task in flood {
            task.await;
        }
        let served = log.borrow().iter().filter(|class| **class == Class::Maintenance).count();
        assert!((800 / 4..=800 / 3 + 2).contains(&served) || served == 200, "{served}");
        for task in maintenance {
            task.await;
        }
    });
}

#[test]
fn requests_dropped_in_line_or_with_a_place_give_it_up() {
    run(async |rt| {
        let disk = slow_disk(&rt, QueueConfig { depth: 1, ..CONFIG });
        for class in [Class::User, Class::Maintenance] {
            let mut cx = Context::from_waker(Waker::noop());
            let mut holder = disk.read(0, Buf::new(512), class);
            assert!(pin!(&mut holder).poll(&mut cx).is_pending());
            let mut first = disk.read(0, Buf::new(512), class);
            assert!(pin!(&mut first).poll(&mut cx).is_pending());
            let mut second = disk.write(0, Frozen::copy_from(&[1; 512]), WriteOpts::USER);
            assert!(pin!(&mut second).poll(&mut cx).is_pending());
            // The first in line is dropped while it waits, the holder with its place; the
            // second is admitted, and dropped before it notices.
            drop(first);
            drop(holder);
            assert_eq!(disk.load().active, 1);
            drop(second);
            assert_eq!(disk.load(), QueueLoad::default());
            disk.read(0, Buf::new(512), class).await.0.expect("there is a place");
        }
    });
}
