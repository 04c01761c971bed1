//! A disk whose writes stay in memory: it gives what was written, and the disk below stays as it
//! was.

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::run;
use weft_disk::{Class, CopyOnWriteDisk, Disk, DiskErrorKind, RamDisk, WriteOpts};
use weft_rt::{Buf, Frozen};

const SIZE: usize = 64 << 10;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from((n * 7 + seed * 31 + n / 251) % 256).expect("a byte")).collect()
}

async fn read(disk: &dyn Disk) -> Vec<u8> {
    let (result, buf) = disk.read(0, Buf::new(SIZE), Class::User).await;
    result.expect("read");
    buf.to_vec()
}

#[test]
fn it_gives_what_was_written_and_the_disk_below_stays_as_it_was() {
    run(async |_| {
        let below = Rc::new(RamDisk::new("ram", SIZE as u64, 512));
        let mut model = bytes(SIZE, 0);
        below.write(0, Frozen::copy_from(&model), WriteOpts::USER).await.expect("written");
        let before = model.clone();
        let room = Rc::new(Cell::new(1 << 20));
        let disk = CopyOnWriteDisk::new(below.clone(), &room);
        for (n, (from, len)) in
            [(0, 512), (1024, 4096), (2048, 512), (8192, 2048)].into_iter().enumerate()
        {
            let data = bytes(len, n + 1);
            disk.write(from as u64, Frozen::copy_from(&data), WriteOpts::USER)
                .await
                .expect("written");
            model[from..from + len].copy_from_slice(&data);
            assert!(read(&disk).await == model, "{n}");
        }
        disk.write_zeroes(1536, 8192, WriteOpts::USER).await.expect("written");
        model[1536..1536 + 8192].fill(0);
        disk.discard(0, 4096).await.expect("done");
        disk.flush().await.expect("done");
        assert!(read(&disk).await == model);
        assert!(read(&*below).await == before, "nothing was written there");
        disk.write(100, Frozen::copy_from(&[0; 512]), WriteOpts::USER)
            .await
            .expect_err("no sector");
    });
}

#[test]
fn all_that_share_its_memory_have_no_room_when_that_is_full() {
    run(async |_| {
        let room = Rc::new(Cell::new(10_000));
        let disk = || {
            let below = Rc::new(RamDisk::new("ram", SIZE as u64, 512));
            CopyOnWriteDisk::new(below, &room)
        };
        let (one, other) = (disk(), disk());
        let block = Frozen::copy_from(&[7; 4096]);
        one.write(0, block.clone(), WriteOpts::USER).await.expect("there is room");
        other.write(0, block.clone(), WriteOpts::USER).await.expect("there is room");
        let full = other.write(4096, block.clone(), WriteOpts::USER).await.expect_err("full");
        assert_eq!(full.kind, DiskErrorKind::NoSpace);
        // What was written may be overwritten.
        one.write(0, block, WriteOpts::USER).await.expect("it has its room");
    });
}
