//! One life of an array under the load of a trace: healthy, degraded, rebuilt, reshaped onto one
//! more disk, and healthy again.
//!
//! As in [recoveries](super::recovery) the array starts as zeros that count as written, and the
//! trace comes at its own times. Only its reads are replayed: a cache above the array holds no
//! contents. The trace's addresses are those of the array before it grows.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use weft_array::Array;
use weft_array::reshape::ReshapeOptions;
use weft_code::SlotNo;
use weft_disk::Histogram;
use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo};
use weft_model::ModelDisk;
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{Latency, Live, Options, Point, Verify, run};

use super::above::{CacheAbove, CacheSetup};
use super::open_loop::{endless, open_loop, scaled};
use super::text;
use crate::modelled::{ArraySetup, array_on, disk, mark_written};
use crate::rebuild::Way;

/// The phases, in order.
pub(crate) const PHASES: [&str; 5] = ["healthy", "degraded", "rebuild", "reshape", "larger"];
/// In front of the data of each disk, for the reshape.
const HEAD_ROOM_BYTES: u64 = 128 << 20;
/// Time between two looks at what the array does.
const LOOK: Nanos = SECOND / 100;
/// A rebuild or a reshape that takes longer never ends: users leave it nothing.
const PATIENCE: Nanos = 20_000 * SECOND;

/// The parameters of a life.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) setup: ArraySetup,
    pub(crate) way: Way,
    /// A cache above the array, which the requests before the first fill.
    pub(crate) cache: Option<CacheSetup>,
    /// Limits of the rate of rebuild and reshape, in bytes per second.
    pub(crate) min_bytes_s: u64,
    pub(crate) max_bytes_s: Option<u64>,
    /// The mean response time that the rebuild and the reshape leave to users.
    pub(crate) target: Option<Nanos>,
    /// How long the array is healthy before and after, and how long it waits for a disk.
    pub(crate) healthy: Nanos,
    pub(crate) degraded: Nanos,
    /// As in [`Recovery`](super::Recovery).
    pub(crate) rate_milli: u32,
    pub(crate) first: usize,
    pub(crate) interval: Nanos,
}

/// The result of a life.
#[derive(Clone, Debug)]
pub(crate) struct Lived {
    /// Of each phase: its length, and the response times of requests that started in it.
    pub(crate) phases: Vec<(Nanos, Latency)>,
    /// Response times over the life.
    pub(crate) series: Vec<Point>,
}

/// Lives a life.
pub(crate) fn live(life: &Life, records: &[Record]) -> Result<Lived, String> {
    let (rt, life, records) =
        (virtual_rt(Schedule::Fifo), life.clone(), Rc::<[Record]>::from(records));
    rt.clone().block_on(async move {
        let setup = &life.setup;
        // The head room is taken from the disk as it is.
        let of_disk = ArraySetup {
            disk_bytes: setup.disk_bytes.map(|bytes| bytes + HEAD_ROOM_BYTES),
            ..setup.clone()
        };
        let disks: Vec<_> = (0..setup.disks + 2).map(|n| disk(&rt, &of_disk, n)).collect();
        let (members, more) = disks.split_at(setup.disks);
        let array = array_on(&rt, setup, members, Some(HEAD_ROOM_BYTES)).await.map_err(text)?;
        mark_written(&array).await.map_err(text)?;
        array.set_throttle(life.min_bytes_s, life.max_bytes_s);
        array.set_latency_target(life.target);
        life.way.apply(&array).await.map_err(text)?;
        let map = scaled(&records, array.size_bytes(), Volume::info(&array).block_bytes);
        let above = match &life.cache {
            Some(setup) => Some(CacheAbove::new(&array, setup, 1)?),
            None => None,
        };
        above.iter().for_each(|cache| cache.fill(&records[..life.first], &map));
        let watched = Rc::new(Watched {
            rt: rt.clone(),
            array: array.clone(),
            above,
            phase: Cell::new(0),
            times: RefCell::new(vec![Histogram::default(); PHASES.len()]),
        });
        let live = Live::new();
        let course = rt.spawn(course(watched.clone(), life.clone(), more.to_vec(), live.clone()));
        let options =
            Options { verify: Verify::Reads, seed: setup.seed, ..open_loop(life.interval) };
        let all = endless(records, life.rate_milli, life.first).map(Ok::<_, Infallible>);
        let Ok(outcome) = run(&rt, watched.clone(), &map, all, &options, &live).await;
        let lengths = course.await?;
        let wrong = outcome.verified.as_ref().map_or(0, |verified| verified.blocks_wrong);
        if outcome.failed.total() > 0 || wrong > 0 {
            return Err(format!("{:?}, {wrong} blocks with wrong contents", outcome.failed));
        }
        array.stop().await.map_err(text)?;
        let times = watched.times.borrow();
        let phases = lengths.into_iter().zip(times.iter().map(Latency::from)).collect();
        Ok(Lived { phases, series: outcome.series })
    })
}

/// Takes the array through its phases, and ends the replay. Returns how long each took.
async fn course(
    watched: Rc<Watched>,
    life: Life,
    disks: Vec<Rc<ModelDisk>>,
    live: Live,
) -> Result<Vec<Nanos>, String> {
    let result = phases(&watched, &life, &disks).await;
    live.stop();
    result
}

async fn phases(
    watched: &Watched,
    life: &Life,
    disks: &[Rc<ModelDisk>],
) -> Result<Vec<Nanos>, String> {
    let (rt, array) = (&watched.rt, &watched.array);
    let mut begun = vec![rt.now()];
    let mut next = || {
        watched.phase.set(begun.len());
        begun.push(rt.now());
    };
    rt.sleep(life.healthy).await;
    next();
    array.fail(SlotNo(0)).await.map_err(text)?;
    rt.sleep(life.degraded).await;
    next();
    array.add_spare(disks[0].clone()).await.map_err(text)?;
    until(rt, "rebuild", || array.rebuild_counts().ended_ns.is_some()).await?;
    next();
    array.add_spare(disks[1].clone()).await.map_err(text)?;
    let options = ReshapeOptions { add: 1, ..ReshapeOptions::default() };
    array.reshape(options).await.map_err(text)?;
    until(rt, "reshape", || !array.is_reshaping()).await?;
    next();
    rt.sleep(life.healthy).await;
    begun.push(rt.now());
    Ok(begun.windows(2).map(|two| two[1] - two[0]).collect())
}

async fn until(rt: &Rt, what: &str, ended: impl Fn() -> bool) -> Result<(), String> {
    let late = rt.now() + PATIENCE;
    while !ended() {
        if rt.now() > late {
            return Err(format!("the {what} does not end: the disks are overloaded"));
        }
        rt.sleep(LOOK).await;
    }
    Ok(())
}

/// The array as users see it, with the response times of each phase.
struct Watched {
    rt: Rt,
    array: Array,
    above: Option<CacheAbove>,
    phase: Cell<usize>,
    times: RefCell<Vec<Histogram>>,
}

impl Watched {
    fn below(&self) -> &dyn Volume {
        self.above.as_ref().map_or(&self.array, |cache| cache)
    }
}

impl Volume for Watched {
    fn info(&self) -> VolumeInfo {
        self.below().info()
    }

    fn size_bytes(&self) -> u64 {
        self.below().size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            let (begun, phase) = (self.rt.now(), self.phase.get());
            let answer = self.below().read(offset, buf).await;
            self.times.borrow_mut()[phase].add(self.rt.now() - begun);
            answer
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        self.below().write(offset, data, fua)
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        self.below().flush()
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        self.below().write_zeroes(offset, len, fua, may_deallocate)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        self.below().discard(offset, len)
    }
}
