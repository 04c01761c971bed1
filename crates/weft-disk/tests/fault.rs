//! Injected faults do what they say, when they say, and nothing else.

mod common;

use std::rc::Rc;

use common::run;
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, Fault, FaultDisk, Faults, RamDisk, RateLimit, WriteOpts,
};
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Rt, SECOND};

fn disk(rt: &Rt) -> (Rc<FaultDisk>, Faults) {
    let (disk, faults) = FaultDisk::new(rt, Rc::new(RamDisk::new("ram", 1 << 20, 512)));
    (Rc::new(disk), faults)
}

async fn read(disk: &FaultDisk, offset: u64, len: usize) -> Result<Buf, DiskError> {
    let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
    result.map(|()| buf)
}

async fn write(disk: &FaultDisk, offset: u64, byte: u8, len: usize) -> Result<(), DiskError> {
    disk.write(offset, Frozen::copy_from(&vec![byte; len]), WriteOpts::USER).await
}

#[test]
fn a_disk_that_is_gone_fails_everything_until_it_is_back() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        write(&disk, 0, 5, 512).await.expect("write");
        faults.inject(Fault::Gone);
        let errors = [
            read(&disk, 0, 512).await.expect_err("gone"),
            write(&disk, 0, 6, 512).await.expect_err("gone"),
            disk.flush().await.expect_err("gone"),
            disk.write_zeroes(0, 512, WriteOpts::USER).await.expect_err("gone"),
            disk.discard(0, 512).await.expect_err("gone"),
        ];
        assert!(errors.iter().all(|error| error.kind == DiskErrorKind::Gone));
        faults.inject(Fault::Back);
        assert_eq!(read(&disk, 0, 512).await.expect("back")[0], 5);
        assert_eq!(faults.counts().total(), 7);
    });
}

#[test]
fn what_is_under_way_when_the_disk_goes_fails() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject(Fault::Delay(MILLISECOND));
        let disk2 = disk.clone();
        let task = rt.spawn(async move { read(&disk2, 0, 512).await.map(drop) });
        rt.sleep(MILLISECOND / 2).await;
        faults.inject(Fault::Gone);
        assert_eq!(task.await.expect_err("gone").kind, DiskErrorKind::Gone);
    });
}

#[test]
fn bad_sectors_are_cured_one_by_one_by_writing() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject(Fault::Medium(1024..4096));
        for (offset, len, good) in
            [(0, 1024, true), (512, 1024, false), (3584, 512, false), (4096, 512, true)]
        {
            let result = read(&disk, offset, len).await;
            assert_eq!(result.is_ok(), good, "{offset}+{len}");
            if let Err(error) = result {
                assert_eq!(error.kind, DiskErrorKind::Medium);
            }
        }
        write(&disk, 2048, 1, 512).await.expect("write");
        read(&disk, 2048, 512).await.expect("cured");
        read(&disk, 1536, 512).await.expect_err("before it");
        read(&disk, 2560, 512).await.expect_err("behind it");
        disk.write_zeroes(0, 8192, WriteOpts::USER).await.expect("zero");
        read(&disk, 0, 8192).await.expect("all cured");
    });
}

#[test]
fn writes_are_refused_lost_and_misdirected() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject(Fault::FailWrites(512..1024));
        write(&disk, 0, 1, 512).await.expect("outside");
        write(&disk, 0, 2, 1024).await.expect_err("inside");
        disk.write_zeroes(512, 512, WriteOpts::USER).await.expect_err("inside");
        assert_eq!(read(&disk, 0, 512).await.expect("read")[0], 1);
        faults.clear();
        faults.inject(Fault::LoseWrites(2));
        for _ in 0..2 {
            write(&disk, 0, 3, 512).await.expect("acknowledged");
        }
        assert_eq!(read(&disk, 0, 512).await.expect("read")[0], 1);
        faults.inject(Fault::MisdirectWrite(4096));
        write(&disk, 0, 4, 512).await.expect("acknowledged");
        assert_eq!(read(&disk, 0, 512).await.expect("read")[0], 1);
        assert_eq!(read(&disk, 4096, 512).await.expect("read")[0], 4);
        write(&disk, 0, 5, 512).await.expect("write");
        assert_eq!(read(&disk, 0, 512).await.expect("read")[0], 5);
        faults.inject(Fault::FailFlushes(true));
        disk.flush().await.expect_err("refused");
    });
}

#[test]
fn flipped_bits_stay_until_written_over() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject(Fault::BitFlip { offset: 700, mask: 0x41 });
        let buf = read(&disk, 512, 512).await.expect("read");
        assert!(buf.iter().enumerate().all(|(i, b)| *b == if i == 188 { 0x41 } else { 0 }));
        assert!(read(&disk, 0, 512).await.expect("read").iter().all(|b| *b == 0));
        write(&disk, 512, 9, 512).await.expect("write");
        assert!(read(&disk, 512, 512).await.expect("read").iter().all(|b| *b == 9));
    });
}

#[test]
fn a_script_strikes_at_its_operation() {
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject_at(3, Fault::Gone);
        faults.inject_at(5, Fault::Back);
        let mut good = Vec::new();
        for _ in 0..7 {
            good.push(read(&disk, 0, 512).await.is_ok());
        }
        assert_eq!(good, [true, true, true, false, false, true, true]);
    });
}

#[test]
fn a_limit_is_held_whatever_the_depth_and_delays_do_not_add_up() {
    for depth in [1, 16] {
        for (limit, len, expected) in [
            (RateLimit { bytes_per_s: 1_000_000, ops_per_s: 0 }, 10_240, 1600 * 10_240 * 1000),
            (RateLimit { bytes_per_s: 0, ops_per_s: 1000 }, 512, 1600 * MILLISECOND),
        ] {
            run(async move |rt| {
                let (disk, faults) = disk(&rt);
                faults.inject(Fault::Limit(limit));
                rt.sleep(SECOND).await;
                let before = rt.now();
                let tasks: Vec<_> = (0..depth)
                    .map(|_| {
                        let disk = disk.clone();
                        rt.spawn(async move {
                            for _ in 0..1600 / depth {
                                read(&disk, 0, len).await.expect("read");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await;
                }
                let took = rt.now() - before;
                assert!((expected - MILLISECOND..=expected).contains(&took), "{took}");
            });
        }
    }
    run(async |rt| {
        let (disk, faults) = disk(&rt);
        faults.inject(Fault::Delay(50 * MICROSECOND));
        let (a, b) = (disk.clone(), disk.clone());
        let tasks = [
            rt.spawn(async move { read(&a, 0, 512).await.map(drop) }),
            rt.spawn(async move { read(&b, 0, 512).await.map(drop) }),
        ];
        for task in tasks {
            task.await.expect("read");
        }
        assert_eq!(rt.now(), 50 * MICROSECOND);
    });
}
