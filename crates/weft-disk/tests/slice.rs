//! Slices of a device: each owner reaches its own range only, and all share one queue.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::run;
use weft_disk::{
    Class, Disk, DiskErrorKind, DoneFuture, Fault, FaultDisk, Faults, Layer, QueueConfig,
    QueueLoad, QueuedDisk, RamDisk, Ranges, SliceDisk, WriteOpts,
};
use weft_rt::{Buf, Frozen, MICROSECOND, Rt, Task};

const KIB: u64 = 1 << 10;
const CONFIG: QueueConfig = QueueConfig {
    depth: 4,
    maintenance_depth: 2,
    maintenance_beside_users: 2,
    maintenance_every: 4,
    long_bytes: u64::MAX,
};

struct Device {
    ram: Rc<RamDisk>,
    queue: Rc<QueuedDisk>,
    faults: Faults,
    a: Rc<SliceDisk>,
    b: Rc<SliceDisk>,
}

/// A device of 64 KiB on which every operation takes 100 µs, with a slice of 16 KiB at 8 KiB and
/// one of 32 KiB right behind it.
fn device(rt: &Rt, config: QueueConfig) -> Device {
    let ram = Rc::new(RamDisk::new("ram", 64 * KIB, 512));
    let (disk, faults) = FaultDisk::new(rt, ram.clone());
    faults.inject(Fault::Delay(100 * MICROSECOND));
    let queue = Rc::new(QueuedDisk::new(Rc::new(disk), config));
    let slice = |from, to, name| {
        Rc::new(SliceDisk::new(&queue, from * KIB..to * KIB, name).expect("a slice"))
    };
    let (a, b) = (slice(8, 24, "a"), slice(24, 56, "b"));
    Device { ram, queue, faults, a, b }
}

type Log = Rc<RefCell<Vec<(char, Class)>>>;

fn read(rt: &Rt, slice: &Rc<SliceDisk>, class: Class, log: &Log) -> Task<()> {
    let (slice, log) = (slice.clone(), log.clone());
    rt.spawn(async move {
        slice.read(0, Buf::new(512), class).await.0.expect("read");
        let name = slice.info().name.chars().next().expect("named");
        log.borrow_mut().push((name, class));
    })
}

#[test]
fn a_slice_is_a_disk_of_its_own_size_within_the_device() {
    run(async |rt| {
        let Device { ram, queue, a, b, .. } = device(&rt, CONFIG);
        assert_eq!((a.info().size_bytes, b.info().size_bytes), (16 * KIB, 32 * KIB));
        assert_eq!((a.info().sector_bytes, &*a.info().name), (512, "a"));
        for bad in [0..64 * KIB + 512, 64 * KIB..65 * KIB, 100..1124, 512..u64::MAX - 511] {
            let error = SliceDisk::new(&queue, bad, "bad").expect_err("not on the device");
            assert_eq!(error.kind, DiskErrorKind::Invalid);
        }
        let data = |byte| Frozen::copy_from(&[byte; 1024]);
        a.write(15 * KIB, data(1), WriteOpts::USER).await.expect("the end of a");
        b.write(0, data(2), WriteOpts::USER).await.expect("the beginning of b");
        let around = ram.read(23 * KIB, Buf::new(2048), Class::User).await.1;
        assert_eq!((around[0], around[1023], around[1024], around[2047]), (1, 1, 2, 2));
        let own = a.read(15 * KIB, Buf::new(1024), Class::User).await.1;
        assert_eq!(*own, [1; 1024]);
    });
}

#[test]
fn nothing_outside_the_slice_is_reached() {
    run(async |rt| {
        let Device { faults, a, .. } = device(&rt, CONFIG);
        let size = a.info().size_bytes;
        let ranges = [(size, 512), (size - 512, 1024), (u64::MAX - 511, 512), (256, 512), (0, 100)];
        for (offset, len) in ranges {
            let opts = WriteOpts::USER;
            let bytes = usize::try_from(len).expect("small");
            let (read, buf) = a.read(offset, Buf::new(bytes), Class::User).await;
            assert_eq!(buf.len(), bytes, "the buffer comes back");
            let results = [
                read,
                a.write(offset, Frozen::copy_from(&vec![0; bytes]), opts).await,
                a.write_zeroes(offset, len, opts).await,
                a.discard(offset, len).await,
            ];
            for error in results.map(|result| result.expect_err("outside")) {
                assert_eq!((error.kind, &*error.disk), (DiskErrorKind::Invalid, "a"));
                assert_eq!((error.offset, error.len), (offset, len));
            }
        }
        assert_eq!(faults.counts().total(), 0, "the device was asked for nothing");
    });
}

#[test]
fn slices_share_the_depth_of_one_queue() {
    run(async |rt| {
        let Device { queue, a, b, .. } = device(&rt, CONFIG);
        let log = Log::default();
        let mut tasks = Vec::new();
        for _ in 0..8 {
            tasks.push(read(&rt, &a, Class::User, &log));
            tasks.push(read(&rt, &b, Class::User, &log));
        }
        rt.sleep(MICROSECOND).await;
        let load = QueueLoad { active: 4, waiting_users: 12, ..QueueLoad::default() };
        assert_eq!(queue.load(), load);
        for task in tasks {
            task.await;
        }
        assert_eq!(queue.load(), QueueLoad::default());
        let turns: String = log.borrow().iter().map(|(name, _)| *name).collect();
        assert_eq!(turns, "abababababababab", "in the order in which they came");
    });
}

#[test]
fn users_of_an_urgent_slice_go_before_those_of_another() {
    run(async |rt| {
        let one = QueueConfig { depth: 1, ..CONFIG };
        let Device { queue, a, .. } = device(&rt, one);
        let urgent = SliceDisk::new(&queue, 24 * KIB..56 * KIB, "b").expect("a slice").urgent();
        let (b, log) = (Rc::new(urgent), Log::default());
        let mut tasks: Vec<_> = (0..4).map(|_| read(&rt, &a, Class::User, &log)).collect();
        rt.sleep(MICROSECOND).await;
        tasks.extend((0..4).map(|_| read(&rt, &b, Class::Maintenance, &log)));
        tasks.extend((0..2).map(|_| read(&rt, &b, Class::User, &log)));
        for task in tasks {
            task.await;
        }
        let turns: String = log.borrow().iter().map(|(name, _)| *name).collect();
        assert_eq!(turns, "abbabaabbb", "two urgent ones, a user, maintenance in its turn");
    });
}

#[test]
fn users_of_one_slice_go_before_maintenance_of_another() {
    run(async |rt| {
        let one = QueueConfig { depth: 1, maintenance_depth: 1, ..CONFIG };
        let Device { a, b, .. } = device(&rt, one);
        let log = Log::default();
        let mut tasks: Vec<_> = (0..4).map(|_| read(&rt, &a, Class::Maintenance, &log)).collect();
        rt.sleep(MICROSECOND).await;
        tasks.extend((0..9).map(|_| read(&rt, &b, Class::User, &log)));
        for task in tasks {
            task.await;
        }
        let turns: String = log.borrow().iter().map(|(name, _)| *name).collect();
        assert_eq!(turns, "abbbabbbabbba", "one of four places is maintenance's");
    });
}

/// A RAM disk that knows what would survive a power cut.
struct Cached {
    below: Rc<dyn Disk>,
    durable: Rc<RefCell<Vec<u8>>>,
}

impl Layer for Cached {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            self.below.flush().await?;
            let all = Buf::new(usize::try_from(self.below.info().size_bytes).expect("small"));
            *self.durable.borrow_mut() = self.below.read(0, all, Class::User).await.1.to_vec();
            Ok(())
        })
    }
}

#[test]
fn a_flush_of_a_slice_makes_its_writes_durable_on_the_device() {
    run(async |_| {
        let durable = Rc::new(RefCell::new(vec![0; 65536]));
        let below = Rc::new(RamDisk::new("ram", 64 * KIB, 512));
        let cached = Cached { below, durable: durable.clone() };
        let queue = Rc::new(QueuedDisk::new(Rc::new(cached), CONFIG));
        let a = SliceDisk::new(&queue, 0..8 * KIB, "a").expect("a slice");
        let b = SliceDisk::new(&queue, 8 * KIB..16 * KIB, "b").expect("a slice");
        a.write(512, Frozen::copy_from(&[1; 512]), WriteOpts::USER).await.expect("written");
        b.write(512, Frozen::copy_from(&[2; 512]), WriteOpts::USER).await.expect("written");
        assert_eq!(durable.borrow()[512], 0);
        a.flush().await.expect("flushed");
        assert_eq!((durable.borrow()[512], durable.borrow()[8192 + 512]), (1, 2));
    });
}

/// A disk that has data from 20 KiB to 28 KiB.
struct Sparse(RamDisk);

impl Layer for Sparse {
    fn below(&self) -> &dyn Disk {
        &self.0
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        (offset < 28 * KIB).then_some(offset.max(20 * KIB))
    }
}

#[test]
fn zeroes_and_holes_are_those_of_the_slice() {
    run(async |rt| {
        let Device { ram, a, b, .. } = device(&rt, CONFIG);
        let ones = Frozen::copy_from(&vec![1; 65536]);
        ram.write(0, ones, WriteOpts::USER).await.expect("written");
        a.write_zeroes(0, 16 * KIB, WriteOpts::USER).await.expect("all of it");
        b.write_zeroes(512, 512, WriteOpts::USER).await.expect("a part");
        let all = ram.read(0, Buf::new(65536), Class::User).await.1;
        let zeros: Vec<usize> = (0..65536).filter(|at| all[*at] == 0).collect();
        let expected = (8192..24576).chain(24576 + 512..24576 + 1024);
        assert!(zeros.into_iter().eq(expected));
        assert_eq!(a.next_data(700), Some(700), "a disk that cannot tell holds data everywhere");
        assert_eq!(a.next_data(16 * KIB), None);
        let sparse = Sparse(RamDisk::new("sparse", 64 * KIB, 512));
        let queue = Rc::new(QueuedDisk::new(Rc::new(sparse), CONFIG));
        let slice = |range| SliceDisk::new(&queue, range, "s").expect("a slice");
        assert_eq!(slice(0..16 * KIB).next_data(0), None, "the data is behind it");
        let across = slice(16 * KIB..24 * KIB);
        assert_eq!(
            (across.next_data(0), across.next_data(5 * KIB)),
            (Some(4 * KIB), Some(5 * KIB))
        );
        assert_eq!(slice(28 * KIB..32 * KIB).next_data(0), None, "the data is before it");
    });
}

#[test]
fn giving_up_a_slice_ends_its_requests_and_leaves_the_others_theirs() {
    run(async |rt| {
        let Device { queue, a, b, .. } = device(&rt, CONFIG);
        let ask = |slice: &Rc<SliceDisk>| {
            let slice = slice.clone();
            rt.spawn(async move { slice.read(0, Buf::new(512), Class::User).await })
        };
        let (of_a, of_b) = (ask(&a), ask(&b));
        rt.sleep(MICROSECOND).await;
        let begun = rt.now();
        a.sever("its array failed it");
        let (result, buf) = of_a.await;
        assert_eq!((rt.now(), buf.len()), (begun, 512), "at once, with a buffer");
        assert_eq!(result.expect_err("given up").kind, DiskErrorKind::Gone);
        let later = a.flush().await.expect_err("given up");
        assert!(later.to_string().contains("its array failed it"), "{later}");
        of_b.await.0.expect("the other slice works");
        b.write(0, Frozen::copy_from(&[1; 512]), WriteOpts::USER).await.expect("and goes on");
        assert_eq!(queue.load(), QueueLoad::default());
    });
}

#[test]
fn a_slice_of_several_ranges_is_one_disk_and_becomes_larger_while_it_is_used() {
    run(async |rt| {
        let Device { ram, queue, .. } = device(&rt, CONFIG);
        let ranges = Rc::new(Ranges::new(vec![40 * KIB..44 * KIB, 8 * KIB..10 * KIB]));
        let slice = SliceDisk::of(&queue, &ranges, "s").expect("a slice");
        let bytes: Vec<u8> =
            (0..6 * 1024).map(|at| u8::try_from(at / 512 + 1).expect("few")).collect();
        slice.write(0, Frozen::copy_from(&bytes), WriteOpts::USER).await.expect("written");
        assert_eq!(*slice.read(0, Buf::new(6144), Class::User).await.1, bytes[..]);
        let (_, part) = slice.read(3 * KIB + 512, Buf::new(1024), Class::User).await;
        assert_eq!(*part, bytes[3584..4608], "over the border");
        let on_ram = async |at: u64| ram.read(at * KIB, Buf::new(512), Class::User).await.1[0];
        assert_eq!((on_ram(40).await, on_ram(43).await, on_ram(8).await), (1, 7, 9));
        assert_eq!(on_ram(44).await + on_ram(10).await, 0, "nothing behind them");
        assert!(slice.write(6 * KIB, Frozen::copy_from(&[9; 512]), WriteOpts::USER).await.is_err());
        ranges.push(20 * KIB..22 * KIB);
        assert_eq!((slice.size_now(), slice.info().size_bytes), (8 * KIB, 6 * KIB));
        slice.write_zeroes(5 * KIB, 3 * KIB, WriteOpts::USER).await.expect("over two borders");
        slice.write(7 * KIB, Frozen::copy_from(&[9; 512]), WriteOpts::USER).await.expect("written");
        assert_eq!((on_ram(9).await, on_ram(21).await), (0, 9));
        let sparse =
            Rc::new(QueuedDisk::new(Rc::new(Sparse(RamDisk::new("s", 64 * KIB, 512))), CONFIG));
        let ranges = Rc::new(Ranges::new(vec![0..4 * KIB, 18 * KIB..22 * KIB, 40 * KIB..44 * KIB]));
        let slice = SliceDisk::of(&sparse, &ranges, "s").expect("a slice");
        assert_eq!((slice.next_data(0), slice.next_data(7 * KIB)), (Some(6 * KIB), Some(7 * KIB)));
        assert_eq!(slice.next_data(8 * KIB), None);
        let error =
            SliceDisk::of(&queue, &Rc::new(Ranges::new(vec![0..KIB, 64 * KIB..65 * KIB])), "bad");
        assert_eq!(error.expect_err("not on the device").kind, DiskErrorKind::Invalid);
    });
}
