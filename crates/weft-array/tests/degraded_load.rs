//! While a disk is lost, the others share its work. An idle array repairs with the fewest reads. An
//! array limited by its disks avoids the busiest one, and serves more than the cheapest repairs
//! would.
//!
//! Members serve a fixed number of requests per second of virtual time, so the rates are exact.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{make, pattern, rt};
use futures_util::future::join_all;
use weft_array::Array;
use weft_code::SlotNo;
use weft_disk::{Disk, Fault, FaultDisk, Faults, RamDisk, RateLimit};
use weft_rt::{Buf, Frozen, Rt, SECOND};

const OPS_PER_S: u64 = 1000;
const DEPTH: usize = 96;
const READS: u64 = 3000;
const BLOCK: usize = 4096;

struct Limited {
    rt: Rt,
    array: Array,
    faults: Vec<Faults>,
}

impl Limited {
    /// A fully written array of equally slow members.
    fn new(code: &str, slots: usize) -> Self {
        let rt = rt();
        let new = |n| {
            let (disk, faults) =
                FaultDisk::new(&rt, Rc::new(RamDisk::new(&format!("disk{n}"), 4 << 20, 512)));
            (Rc::new(disk) as Rc<dyn Disk>, faults)
        };
        let (disks, faults): (Vec<_>, Vec<_>) = (0..slots).map(new).unzip();
        let (inner, code) = (rt.clone(), code.to_owned());
        let array = rt.block_on(async move {
            let array = make(&inner, &code, &disks).await;
            let len = usize::try_from(array.size_bytes()).expect("fits memory");
            array.write(0, Frozen::copy_from(&pattern(0, len, 1)), false).await.expect("written");
            array
        });
        Self { rt, array, faults }
    }

    fn lose(&self, slot: usize) {
        let array = self.array.clone();
        self.rt.block_on(async move { array.fail(SlotNo(slot)).await.expect("failed") });
    }

    fn limit(&self) {
        let limit = RateLimit { ops_per_s: OPS_PER_S, bytes_per_s: 0 };
        self.faults.iter().for_each(|faults| faults.inject(Fault::Limit(limit)));
    }

    fn reads(&self) -> u64 {
        self.faults.iter().map(|faults| faults.counts().reads).sum()
    }

    /// Random reads per second, each compared with what was written.
    fn rate(&self) -> f64 {
        let (rt, array) = (self.rt.clone(), self.array.clone());
        let left = Rc::new(Cell::new(READS));
        let elapsed = self.rt.block_on(async move {
            let begin = rt.now();
            let reader = |n: usize| {
                let (array, left) = (array.clone(), left.clone());
                async move {
                    let mut state = n as u64 + 1;
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let block = (state >> 33) % (array.size_bytes() / BLOCK as u64);
                        let (result, buf) = array.read(block << 12, Buf::new(BLOCK)).await;
                        result.expect("read");
                        assert_eq!(*buf, pattern(block << 12, BLOCK, 1));
                    }
                }
            };
            join_all((0..DEPTH).map(reader)).await;
            rt.now() - begin
        });
        READS as f64 * SECOND as f64 / elapsed as f64
    }
}

/// The degraded rate divided by the healthy one, for the lost slot that costs most.
fn worst(code: &str, slots: usize) -> f64 {
    let rate = |slot: Option<usize>| {
        let limited = Limited::new(code, slots);
        slot.into_iter().for_each(|slot| limited.lose(slot));
        limited.limit();
        let rate = limited.rate();
        limited.rt.kill_all();
        rate
    };
    let healthy = rate(None);
    (0..slots).map(|slot| rate(Some(slot)) / healthy).fold(f64::MAX, f64::min)
}

#[test]
fn the_busiest_survivor_is_relieved() {
    // Cheapest repairs alone: at most 2/3 for cyclic DRC-G, and 1/2 for RAID-6 if Q is never read.
    let (drc_g, raid6) = (worst("drc-g:4,2,1", 7), worst("raid6", 6));
    assert!(drc_g >= 0.69, "drc-g keeps {drc_g:.3} of its rate");
    assert!(raid6 >= 0.53, "raid6 keeps {raid6:.3} of its rate");
}

#[test]
fn an_idle_array_repairs_with_the_fewest_reads() {
    let limited = Limited::new("drc-g:4,2,1", 7);
    limited.lose(0);
    limited.limit();
    let array = limited.array.clone();
    let (blocks, before) = (array.size_bytes() / BLOCK as u64, limited.reads());
    limited.rt.block_on(async move {
        for block in 0..blocks {
            array.read(block << 12, Buf::new(BLOCK)).await.0.expect("read");
        }
    });
    // A seventh of the data is lost, and needs two reads instead of one.
    let reads = limited.reads() - before;
    assert!(reads.abs_diff(blocks * 8 / 7) <= blocks / 50, "{reads} reads of {blocks} blocks");
    limited.rt.kill_all();
}
