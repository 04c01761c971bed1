//! The queue: depth, classes, fairness, and places that are never lost.

mod common;

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use common::run;
use weft_disk::{
    Class, Disk, DiskInfo, Fault, FaultDisk, QueueConfig, QueueLoad, QueuedDisk, RamDisk, WriteOpts,
};
use weft_rt::{Buf, Frozen, MICROSECOND, Nanos, Rt, Task};

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

const CONFIG: QueueConfig = QueueConfig {
    depth: 4,
    maintenance_depth: 2,
    maintenance_beside_users: 2,
    maintenance_every: 4,
    long_bytes: u64::MAX,
};

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
        let one = QueueConfig { depth: 1, maintenance_depth: 1, ..CONFIG };
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

#[test]
fn maintenance_keeps_few_requests_with_a_disk_that_a_user_has_just_used() {
    run(async |rt| {
        let disk = slow_disk(&rt, QueueConfig { maintenance_beside_users: 1, ..CONFIG });
        let log = Log::default();
        let maintenance = |count| -> Vec<_> {
            (0..count).map(|_| read(&rt, &disk, Class::Maintenance, &log)).collect()
        };
        let active = |rt: Rt, disk: Rc<QueuedDisk>| async move {
            rt.sleep(MICROSECOND).await;
            disk.load().active_maintenance
        };
        let alone = maintenance(3);
        assert_eq!(active(rt.clone(), disk.clone()).await, 2);
        for task in alone {
            task.await;
        }
        read(&rt, &disk, Class::User, &log).await;
        let beside = maintenance(18);
        assert_eq!(active(rt.clone(), disk.clone()).await, 1);
        // The sixteenth is the last that expects a user, so another one goes beside it.
        while log.borrow().len() < 4 + 15 {
            assert_eq!(disk.load().active_maintenance, 1);
            rt.sleep(100 * MICROSECOND).await;
        }
        assert_eq!(disk.load().active_maintenance, 2);
        for task in beside {
            task.await;
        }
    });
}

/// So many tasks with 100 reads each, which begin one after the other.
fn flood(
    rt: &Rt,
    disk: &Rc<QueuedDisk>,
    class: Class,
    (count, apart): (u64, Nanos),
    log: &Log,
) -> Vec<Task<()>> {
    let task = |n| {
        let (inner, disk, log) = (rt.clone(), disk.clone(), log.clone());
        rt.spawn(async move {
            inner.sleep(n * apart).await;
            for _ in 0..100 {
                read(&inner, &disk, class, &log).await;
            }
        })
    };
    (0..count).map(task).collect()
}

/// Maintenance under a flood of users: it gets exactly its share, and no user waits longer
/// for it than the share says.
#[test]
fn a_flood_of_users_does_not_starve_maintenance() {
    run(async |rt| {
        let disk = slow_disk(&rt, CONFIG);
        let log = Log::default();
        let flood = flood(&rt, &disk, Class::User, (8, 0), &log);
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

/// A disk that is known to rotate.
struct Rotating(Rc<dyn Disk>, DiskInfo);

impl weft_disk::Layer for Rotating {
    fn below(&self) -> &dyn Disk {
        &*self.0
    }

    fn info(&self) -> &DiskInfo {
        &self.1
    }
}

/// A slow disk with room for two long requests behind an urgent one.
fn with_long(rt: &Rt, rotational: bool) -> Rc<QueuedDisk> {
    let config = QueueConfig { depth: 64, long_bytes: 2 * LONG as u64, ..CONFIG };
    let (disk, faults) = FaultDisk::new(rt, Rc::new(RamDisk::new("ram", 1 << 20, 512)));
    faults.inject(Fault::Delay(100 * MICROSECOND));
    let info = DiskInfo { rotational, ..Disk::info(&disk).clone() };
    Rc::new(QueuedDisk::new(Rc::new(Rotating(Rc::new(disk), info)), config))
}

const LONG: usize = 128 << 10;

fn write(rt: &Rt, disk: &Rc<QueuedDisk>, class: Class, bytes: usize, log: &Log) -> Task<()> {
    let (disk, log) = (disk.clone(), log.clone());
    rt.spawn(async move {
        let opts = WriteOpts { class, fua: false };
        disk.write(0, Buf::zeroed(bytes).freeze(), opts).await.expect("written");
        log.borrow_mut().push(class);
    })
}

#[test]
fn urgent_requests_hold_long_ones_back_on_a_rotating_disk() {
    for rotational in [true, false] {
        run(async move |rt| {
            let (disk, log) = (with_long(&rt, rotational), Log::default());
            let long = |n| (0..n).map(|_| write(&rt, &disk, Class::User, LONG, &log));
            // Alone they fill the queue.
            let mut tasks: Vec<_> = long(6).collect();
            rt.sleep(MICROSECOND).await;
            assert_eq!(disk.load().active, 6);
            // While an urgent one is with the disk, only short ones get a place.
            tasks.push(write(&rt, &disk, Class::Urgent, LONG, &log));
            rt.sleep(MICROSECOND).await;
            tasks.extend(long(4));
            tasks.push(write(&rt, &disk, Class::User, 4096, &log));
            rt.sleep(MICROSECOND).await;
            let held = if rotational { 4 } else { 0 };
            assert_eq!((disk.load().active, disk.load().waiting_users), (12 - held, held));
            // Behind it, two of them at a time.
            rt.sleep(101 * MICROSECOND).await;
            let (active, waiting) = if rotational { (2, 2) } else { (0, 0) };
            assert_eq!((disk.load().active, disk.load().waiting_users), (active, waiting));
            for task in tasks {
                task.await;
            }
            assert_eq!(disk.load(), QueueLoad::default());
            // Long after it, they fill the queue again.
            for task in long(80).collect::<Vec<_>>() {
                task.await;
            }
            let tasks: Vec<_> = long(6).collect();
            rt.sleep(MICROSECOND).await;
            assert_eq!(disk.load().active, 6);
            for task in tasks {
                task.await;
            }
        });
    }
}

#[test]
fn a_flood_of_urgent_requests_does_not_starve_long_ones() {
    run(async |rt| {
        let (disk, log) = (with_long(&rt, true), Log::default());
        // At any time one of them is with the disk.
        let flood = flood(&rt, &disk, Class::Urgent, (4, 25 * MICROSECOND), &log);
        rt.sleep(MICROSECOND).await;
        let long: Vec<_> = (0..200).map(|_| write(&rt, &disk, Class::User, LONG, &log)).collect();
        for task in flood {
            task.await;
        }
        let served = log.borrow().iter().filter(|class| **class == Class::User).count();
        assert!((400 / 4 - 8..=400 / 3 + 8).contains(&served), "{served}");
        for task in long {
            task.await;
        }
    });
}

/// Who is held back and goes away lets nobody wait, and urgent ones that go away hold nobody back.
#[test]
fn requests_dropped_behind_urgent_ones_leave_no_trace() {
    run(async |rt| {
        let (disk, log) = (with_long(&rt, true), Log::default());
        let mut cx = Context::from_waker(Waker::noop());
        let urgent = WriteOpts { class: Class::Urgent, fua: false };
        let mut first = disk.write(0, Frozen::copy_from(&[1; 512]), urgent);
        assert!(pin!(&mut first).poll(&mut cx).is_pending());
        let mut held = disk.write(0, Buf::zeroed(LONG).freeze(), WriteOpts::USER);
        assert!(pin!(&mut held).poll(&mut cx).is_pending());
        let other = write(&rt, &disk, Class::User, LONG, &log);
        rt.sleep(MICROSECOND).await;
        assert_eq!((disk.load().active, disk.load().waiting_users), (1, 2));
        drop(held);
        drop(first);
        other.await;
        assert_eq!(disk.load(), QueueLoad::default());
    });
}

#[test]
fn urgent_requests_go_before_users() {
    run(async |rt| {
        let disk = slow_disk(&rt, QueueConfig { depth: 1, ..CONFIG });
        let log = Log::default();
        let mut tasks: Vec<_> = (0..3).map(|_| read(&rt, &disk, Class::User, &log)).collect();
        rt.sleep(MICROSECOND).await;
        tasks.push(read(&rt, &disk, Class::Urgent, &log));
        for task in tasks {
            task.await;
        }
        assert_eq!(*log.borrow(), [Class::User, Class::Urgent, Class::User, Class::User]);
    });
}
