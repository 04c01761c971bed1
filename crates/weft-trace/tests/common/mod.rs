//! Virtual time, and disks whose latency is known.
#![allow(dead_code, reason = "each story uses some of it")]

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use weft_disk::{
    Class, Disk, DiskVolume, DoneFuture, Fault, FaultDisk, Faults, Layer, QueueConfig, QueuedDisk,
    RamDisk, ReadFuture, WriteOpts,
};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, Schedule, virtual_rt};
use weft_trace::replay::{self, AddressMap, Fit, Live, Options, Outcome, Volumes};
use weft_trace::{Op, Record};

/// An executor in virtual time that takes tasks in an order drawn from `seed`.
pub fn seeded_rt(seed: u64) -> Rt {
    virtual_rt(Schedule::Seeded(seed))
}

/// A disk that does one request at a time, each in `service_ns`; the others wait in line.
pub fn one_at_a_time(rt: &Rt, bytes: u64, service_ns: Nanos) -> (Rc<dyn Disk>, Faults) {
    let (disk, faults) = FaultDisk::new(rt, Rc::new(RamDisk::new("slow", bytes, 512)));
    faults.inject(Fault::Delay(service_ns));
    let limits =
        QueueConfig { maintenance_depth: 1, maintenance_every: 1, ..QueueConfig::of_depth(1) };
    (Rc::new(QueuedDisk::new(Rc::new(disk), limits)), faults)
}

/// A disk that does any number of requests at a time, each in `service_ns`.
pub fn all_at_once(rt: &Rt, bytes: u64, service_ns: Nanos) -> (Rc<dyn Disk>, Faults) {
    let (disk, faults) = FaultDisk::new(rt, Rc::new(RamDisk::new("wide", bytes, 512)));
    faults.inject(Fault::Delay(service_ns));
    (Rc::new(disk), faults)
}

/// A request at this time in milliseconds.
pub fn at_ms(at_ms: u64, op: Op, offset: u64, len: u64) -> Record {
    Record { at_ns: at_ms * MILLISECOND, device: 0, offset, len, op }
}

/// Replays `records` as they are.
pub fn replay(rt: &Rt, disk: &Rc<dyn Disk>, records: &[Record], options: &Options) -> Outcome {
    replay_live(rt, disk, records, options, &Live::new())
}

pub fn replay_live(
    rt: &Rt,
    disk: &Rc<dyn Disk>,
    records: &[Record],
    options: &Options,
    live: &Live,
) -> Outcome {
    let info = disk.info();
    let mut volumes = Volumes::default();
    volumes.set(0, info.size_bytes);
    let map = AddressMap::new(&volumes, info.size_bytes, info.sector_bytes, Fit::Exact);
    let (inner, disk, options, live) = (rt.clone(), disk.clone(), options.clone(), live.clone());
    let records: Vec<Result<Record, Infallible>> = records.iter().copied().map(Ok).collect();
    let outcome = rt.block_on(async move {
        let volume = Rc::new(DiskVolume::new(disk));
        replay::run(&inner, volume, &map, records.into_iter(), &options, &live).await
    });
    let Ok(outcome) = outcome;
    assert_eq!(outcome.issued, outcome.completed, "a request was lost");
    outcome
}

/// A disk that answers every write after a time drawn from a seed, so that writes overtake each
/// other.
pub struct Shuffled {
    disk: Rc<dyn Disk>,
    rt: Rt,
    state: Cell<u64>,
}

impl Shuffled {
    pub fn new(rt: &Rt, disk: Rc<dyn Disk>, seed: u64) -> Self {
        Self { disk, rt: rt.clone(), state: Cell::new(seed) }
    }

    async fn pause(&self) {
        let state = self.state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.state.set(state);
        self.rt.sleep((state >> 33) % (5 * MILLISECOND)).await;
    }
}

impl Layer for Shuffled {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.pause().await;
            let answer = self.disk.read(offset, buf, class).await;
            self.pause().await;
            answer
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.pause().await;
            self.disk.write(offset, data, opts).await?;
            self.pause().await;
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            self.pause().await;
            self.disk.write_zeroes(offset, len, WriteOpts::USER).await?;
            self.pause().await;
            Ok(())
        })
    }
}
