//! Recoveries under the load of a trace, from the failure of a member until its replacement is
//! complete.
//!
//! Compared recoveries run at the same time, each on disks of its own, and the load of each goes on
//! until the slowest has ended. So each has two results for users: over its own time, in which a
//! slow one has many requests that no longer meet lost data, and over equal time, which counts what
//! a fast one gains by being complete.
//!
//! The array is as large as the paper's, which does not fit in memory: it starts as zeros, which
//! the disks do not store, with every region marked as written, so that no read and no rebuild is
//! skipped. The trace's writes are stored, and every read of them is compared.
//!
//! The trace is replayed in an open loop, at its own times; a response time counts from when the
//! request was due.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::try_join_all;
use weft_array::{Array, RebuildCounts};
use weft_cache::Stats;
use weft_code::SlotNo;
use weft_disk::Histogram;
use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo};
use weft_model::ModelDisk;
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{AddressMap, Latency, Live, Options, Outcome, Point, Verify, run};

use super::above::{CacheAbove, CacheSetup};
use super::open_loop::{endless, open_loop, scaled};
use super::text;
use crate::modelled::{ArraySetup, array_on, disk, mark_written};
use crate::rebuild::Way;

/// Time between two checks whether the rebuild has ended.
const LOOK: Nanos = SECOND / 100;
/// A rebuild that takes longer never ends: users leave it nothing.
const PATIENCE: Nanos = 10_000 * SECOND;

/// The parameters of a recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) setup: ArraySetup,
    pub(crate) way: Way,
    /// A cache above the array, which the requests before the first fill.
    pub(crate) cache: Option<CacheSetup>,
    /// Limits of the rebuild's rate, in bytes per second.
    pub(crate) min_bytes_s: u64,
    pub(crate) max_bytes_s: Option<u64>,
    /// Requests per second, in thousandths: the trace's times are stretched to this rate.
    pub(crate) rate_milli: u32,
    /// The request of the trace with which the load starts.
    pub(crate) first: usize,
    /// Length of the intervals of the time series.
    pub(crate) interval: Nanos,
}

/// The result of a recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// From the failure to the end of the rebuild.
    pub(crate) rebuild_ns: Nanos,
    /// Response times of all requests during it.
    pub(crate) own: Latency,
    /// Response times of all requests until the slowest recovery ended.
    pub(crate) equal: Latency,
    /// Intervals until then, with the response times of requests completed in them.
    pub(crate) series: Vec<Point>,
    /// For each interval: units read by users, and how many of them had to be reconstructed. A
    /// remainder at the end of the recovery counts in the last interval.
    pub(crate) units: Vec<(u64, u64)>,
    /// Length of these intervals.
    pub(crate) interval: Nanos,
    /// How busy each surviving disk was during the rebuild.
    pub(crate) survivors_busy: Vec<f64>,
    /// The cache's counts during it.
    pub(crate) cache: Option<Stats>,
}

/// Recovers arrays from the loss of member #0, all at the same time.
pub(crate) fn recover(
    recoveries: &[Recovery],
    records: &[Record],
) -> Result<Vec<Recovered>, String> {
    let (rt, recoveries, records) =
        (virtual_rt(Schedule::Fifo), recoveries.to_vec(), Rc::<[Record]>::from(records));
    rt.clone().block_on(async move {
        let running = Rc::new(Cell::new(recoveries.len()));
        let mut benches = Vec::new();
        for recovery in &recoveries {
            benches.push(Written::new(&rt, &recovery.setup).await?);
        }
        let tasks = benches.into_iter().zip(recoveries).map(|(bench, recovery)| {
            let (records, running) = (records.clone(), running.clone());
            rt.spawn(async move { bench.recover(&recovery, records, running).await })
        });
        try_join_all(tasks).await
    })
}

/// An array of zeros, and a spare.
pub(super) struct Written {
    rt: Rt,
    pub(super) array: Array,
    disks: Vec<Rc<ModelDisk>>,
}

impl Written {
    pub(super) async fn new(rt: &Rt, setup: &ArraySetup) -> Result<Self, String> {
        let disks: Vec<_> = (0..=setup.disks).map(|number| disk(rt, setup, number)).collect();
        let members = &disks[..setup.disks];
        let array = array_on(rt, setup, members, None).await.map_err(text)?;
        mark_written(&array).await.map_err(text)?;
        Ok(Self { rt: rt.clone(), array, disks })
    }

    async fn recover(
        self,
        recovery: &Recovery,
        records: Rc<[Record]>,
        running: Rc<Cell<usize>>,
    ) -> Result<Recovered, String> {
        let array = &self.array;
        array.set_throttle(recovery.min_bytes_s, recovery.max_bytes_s);
        recovery.way.apply(array).await.map_err(text)?;
        let map = self.map(&records);
        let above = match &recovery.cache {
            Some(setup) => Some(Rc::new(CacheAbove::new(array, setup, 0)?)),
            None => None,
        };
        let healthy = recovery.cache.map_or(0, |setup| setup.healthy);
        let fill = |requests: Range<usize>| {
            above.iter().for_each(|cache| cache.fill(&records[requests.clone()], &map));
        };
        fill(0..healthy);
        self.disks.iter().for_each(|disk| disk.reset_stats());
        array.fail(SlotNo(0)).await.map_err(text)?;
        fill(healthy..recovery.first);
        let spare = self.disks.last().ok_or("no spare")?;
        array.add_spare(spare.clone()).await.map_err(text)?;
        let course = Rc::new(Course::new(&self.rt, array, above, recovery));
        let live = Live::new();
        let survivors = self.disks[1..recovery.setup.disks].to_vec();
        let watch = self.rt.spawn(watch(course.clone(), survivors, live.clone(), running));
        let outcome = self.replay(recovery, records, &map, &course, &live).await?;
        let (rebuild_ns, survivors_busy) = watch.await?;
        array.stop().await.map_err(text)?;
        Ok(Recovered {
            rebuild_ns,
            own: Latency::from(&*course.response_times.borrow()),
            equal: outcome.all,
            series: outcome.series,
            units: course.units.take(),
            interval: recovery.interval,
            survivors_busy,
            cache: course.cached.get(),
        })
    }

    /// Where the requests of a trace lie on the array.
    pub(super) fn map(&self, records: &[Record]) -> AddressMap {
        let block = Volume::info(&self.array).block_bytes;
        scaled(records, self.array.size_bytes(), block)
    }

    async fn replay(
        &self,
        recovery: &Recovery,
        records: Rc<[Record]>,
        map: &AddressMap,
        course: &Rc<Course>,
        live: &Live,
    ) -> Result<Outcome, String> {
        let options = Options {
            verify: Verify::Reads,
            seed: recovery.setup.seed,
            ..open_loop(recovery.interval)
        };
        let all = endless(records, recovery.rate_milli, recovery.first).map(Ok::<_, Infallible>);
        let volume: Rc<dyn Volume> = course.clone();
        let Ok(outcome) = run(&self.rt, volume, map, all, &options, live).await;
        let wrong = outcome.verified.as_ref().map_or(0, |verified| verified.blocks_wrong);
        if outcome.failed.total() > 0 || wrong > 0 {
            return Err(format!("{:?}, {wrong} blocks with wrong contents", outcome.failed));
        }
        Ok(outcome)
    }
}

/// Waits for the end of the rebuild, and then for that of all `running` ones, which ends the
/// replay. Returns how long the rebuild took, and how busy the survivors were during it.
async fn watch(
    course: Rc<Course>,
    survivors: Vec<Rc<ModelDisk>>,
    live: Live,
    running: Rc<Cell<usize>>,
) -> Result<(Nanos, Vec<f64>), String> {
    let rebuild_ns = loop {
        course.look();
        let RebuildCounts { started_ns, ended_ns, .. } = course.array.rebuild_counts();
        if let (Some(started), Some(ended)) = (started_ns, ended_ns) {
            break ended - started;
        }
        if course.rt.now() > course.begun + PATIENCE {
            live.stop();
            return Err("the rebuild does not end: the disks are overloaded".into());
        }
        course.rt.sleep(LOOK).await;
    };
    course.end();
    let busy = survivors.iter().map(|disk| disk.stats().utilisation()).collect();
    running.set(running.get() - 1);
    while running.get() > 0 {
        course.rt.sleep(LOOK).await;
    }
    live.stop();
    Ok((rebuild_ns, busy))
}

/// The array as users see it: how long requests that started before the end of the rebuild took,
/// and how many of the units that they read had to be reconstructed.
#[derive(Debug)]
struct Course {
    rt: Rt,
    array: Array,
    above: Option<Rc<CacheAbove>>,
    unit_bytes: u64,
    interval: Nanos,
    begun: Nanos,
    ended: Cell<bool>,
    /// In an open loop that is never late these are the replay's.
    response_times: RefCell<Histogram>,
    /// Units read since the start.
    read: Cell<u64>,
    /// Units read, and reconstructed, before this interval.
    before: Cell<(u64, u64)>,
    units: RefCell<Vec<(u64, u64)>>,
    /// What the cache had done at the end.
    cached: Cell<Option<Stats>>,
}

impl Course {
    fn new(rt: &Rt, array: &Array, above: Option<Rc<CacheAbove>>, recovery: &Recovery) -> Self {
        Self {
            rt: rt.clone(),
            array: array.clone(),
            above,
            unit_bytes: u64::from(recovery.setup.unit_bytes),
            interval: recovery.interval,
            begun: rt.now(),
            ended: Cell::new(false),
            response_times: RefCell::default(),
            read: Cell::new(0),
            before: Cell::default(),
            units: RefCell::default(),
            cached: Cell::default(),
        }
    }

    /// What users read from.
    fn below(&self) -> &dyn Volume {
        match &self.above {
            Some(cache) => &**cache,
            None => &self.array,
        }
    }

    /// Ends the interval if it is time.
    fn look(&self) {
        let mut units = self.units.borrow_mut();
        if self.rt.now() >= self.begun + self.interval * (units.len() as u64 + 1) {
            units.push(self.since());
        }
    }

    /// Ends the recovery: a partial interval is too short for a figure.
    fn end(&self) {
        self.ended.set(true);
        self.cached.set(self.above.as_ref().map(|cache| cache.take_stats()));
        let (read, reconstructed) = self.since();
        let mut units = self.units.borrow_mut();
        if units.is_empty() {
            units.push((0, 0));
        }
        if let Some(last) = units.last_mut() {
            *last = (last.0 + read, last.1 + reconstructed);
        }
    }

    /// The response of a request, which counts if it started before the end.
    async fn timed<T>(&self, response: impl Future<Output = T>) -> T {
        let (begun, counts) = (self.rt.now(), !self.ended.get());
        let result = response.await;
        if counts {
            self.response_times.borrow_mut().add(self.rt.now() - begun);
        }
        result
    }

    /// Units read, and reconstructed, since the last call.
    fn since(&self) -> (u64, u64) {
        let now = (self.read.get(), self.array.rebuild_counts().reads_reconstructed);
        let before = self.before.replace(now);
        (now.0 - before.0, now.1 - before.1)
    }
}

impl Volume for Course {
    fn info(&self) -> VolumeInfo {
        self.below().info()
    }

    fn size_bytes(&self) -> u64 {
        self.below().size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        let end = offset + (buf.len() as u64).max(1) - 1;
        let units = end / self.unit_bytes - offset / self.unit_bytes + 1;
        self.read.set(self.read.get() + units);
        Box::pin(self.timed(self.below().read(offset, buf)))
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(self.timed(self.below().write(offset, data, fua)))
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
