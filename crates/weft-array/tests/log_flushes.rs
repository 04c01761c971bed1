//! The log flushes the members to make space in its rings, and no more often than that takes.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{assemble, options, pattern, ram, rt, write};
use weft_array::create;
use weft_disk::{Disk, DoneFuture, Layer};

const BLOCK: u64 = 4096;

/// A disk whose flushes are counted.
struct Counted {
    below: Rc<dyn Disk>,
    flushes: Cell<u64>,
}

impl Layer for Counted {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn flush(&self) -> DoneFuture<'_> {
        self.flushes.set(self.flushes.get() + 1);
        self.below.flush()
    }
}

/// Batches of 8 KiB in rings of 1 MiB: when a ring holds 64 that are needed, a flush retires them.
/// So each member is flushed at most once for 64 batches, also when the rings have been filled many
/// times.
#[test]
fn a_ring_is_flushed_each_time_that_half_of_it_is_needed() {
    let rt = rt();
    rt.clone().block_on(async move {
        let disks: Vec<Rc<Counted>> = (0..3)
            .map(|n| {
                Rc::new(Counted { below: ram(&format!("disk{n}"), 16), flushes: Cell::new(0) })
            })
            .collect();
        let members: Vec<Rc<dyn Disk>> =
            disks.iter().map(|disk| Rc::clone(disk) as Rc<dyn Disk>).collect();
        let options = weft_array::CreateOptions { log_bytes: Some(1 << 20), ..options("raid5") };
        create(&members, &options).await.expect("created");
        let array = assemble(&rt, &members).await;
        let flushes = || disks.iter().map(|disk| disk.flushes.get()).sum::<u64>();
        let blocks = array.size_bytes() / BLOCK;
        // Regions become dirty, and rings are filled.
        for n in 0..blocks {
            write(&array, n * BLOCK, &pattern(0, 4096, 1)).await;
        }
        let before = flushes();
        for n in 0..blocks {
            write(&array, n * BLOCK, &pattern(0, 4096, 2)).await;
        }
        // Each write has one record; a flush is one of all three members.
        let flushed = (flushes() - before) / 3;
        assert!((1..=blocks / 64).contains(&flushed), "{flushed} flushes for {blocks} batches");
        array.stop().await.expect("stopped");
    });
}
