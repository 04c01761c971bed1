//! A request of which some blocks are cached reads the others, each once, and no more.

use std::cell::RefCell;
use std::rc::Rc;

use weft_cache::{CachedVolume, Choice, PAGE_BYTES};
use weft_disk::{Class, Disk, DiskVolume, Layer, RamDisk, ReadFuture, Volume, WriteOpts};
use weft_rt::{Buf, Frozen, Schedule, virtual_rt};

const PAGE: usize = 4096;
const BLOCKS: u8 = 96;

/// A disk that notes what is read.
struct Noted {
    disk: RamDisk,
    /// First block and number of blocks.
    reads: RefCell<Vec<(u64, usize)>>,
}

impl Layer for Noted {
    fn below(&self) -> &dyn Disk {
        &self.disk
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.reads.borrow_mut().push((offset / PAGE_BYTES, buf.len() / PAGE));
        self.disk.read(offset, buf, class)
    }
}

struct Bench {
    disk: Rc<Noted>,
    volume: CachedVolume,
}

impl Bench {
    /// A disk whose block n is full of n, behind a cache.
    async fn new() -> Self {
        let disk = RamDisk::new("ram", u64::from(BLOCKS) * PAGE_BYTES, 512);
        for n in 0..BLOCKS {
            let data = Frozen::copy_from(&[n; PAGE]);
            disk.write(u64::from(n) * PAGE_BYTES, data, WriteOpts::USER).await.expect("written");
        }
        let disk = Rc::new(Noted { disk, reads: RefCell::default() });
        let volume = CachedVolume::new(Rc::new(DiskVolume::new(disk.clone())));
        volume.switch_on(Choice::DEFAULT, 1 << 20).expect("room");
        Self { disk, volume }
    }

    /// Reads bytes, checks them, and tells what the disk was asked for.
    async fn read(&self, offset: u64, len: usize) -> Vec<(u64, usize)> {
        let (result, buf) = self.volume.read(offset, Buf::new(len)).await;
        result.expect("read");
        for (at, byte) in (offset..).zip(buf.iter()) {
            assert_eq!(u64::from(*byte), at / PAGE_BYTES, "byte {at}");
        }
        self.disk.reads.take()
    }

    /// Blocks requested, and how many of these were cached.
    fn counts(&self) -> (u64, u64) {
        let domains = self.volume.usage().expect("it is on").domains;
        (domains[0].requests, domains[0].hits)
    }
}

fn run(test: impl Future<Output = ()> + 'static) {
    virtual_rt(Schedule::Fifo).block_on(test);
}

#[test]
fn cached_blocks_between_missing_ones_are_not_read_again() {
    run(async {
        let bench = Bench::new().await;
        assert_eq!(bench.read(3 * PAGE_BYTES, 2 * PAGE).await, [(3, 2)]);
        assert_eq!(bench.read(8 * PAGE_BYTES, PAGE).await, [(8, 1)]);
        assert_eq!(bench.counts(), (3, 0));
        assert_eq!(bench.read(0, 12 * PAGE).await, [(0, 3), (5, 3), (9, 3)]);
        assert_eq!(bench.counts(), (15, 3), "three of twelve were cached");
        assert_eq!(bench.read(0, 12 * PAGE).await, []);
        assert_eq!(bench.counts(), (27, 15));
    });
}

#[test]
fn a_request_that_begins_and_ends_inside_of_blocks_reads_whole_ones() {
    run(async {
        let bench = Bench::new().await;
        assert_eq!(bench.read(5 * PAGE_BYTES + 100, 300).await, [(5, 1)]);
        assert_eq!(bench.read(4 * PAGE_BYTES + 4000, 2 * PAGE).await, [(4, 1), (6, 1)]);
        assert_eq!(bench.read(4 * PAGE_BYTES, 3 * PAGE).await, []);
        assert_eq!(bench.read(6 * PAGE_BYTES + 1, 2 * PAGE - 1).await, [(7, 1)]);
    });
}

#[test]
fn a_long_request_bypasses_the_cache() {
    run(async {
        let bench = Bench::new().await;
        bench.read(0, PAGE).await;
        assert_eq!(bench.read(0, 64 * PAGE).await, [(1, 63)]);
        assert_eq!(bench.read(0, 65 * PAGE).await, [(0, 65)]);
        assert_eq!(bench.read(63 * PAGE_BYTES, 2 * PAGE).await, [(64, 1)], "it was not kept");
    });
}
