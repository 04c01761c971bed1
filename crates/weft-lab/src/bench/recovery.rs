//! A recovery under the load of a trace, from the failure of a member until its replacement is
//! complete.
//!
//! The array is as large as the paper's, which does not fit in memory: it begins as zeros, which
//! the disks do not store, with every region marked as written, so that no read and no rebuild is
//! skipped. The trace's writes are stored, and every read of them is compared.
//!
//! The trace is replayed in an open loop, at its own times; a response time counts from when the
//! request was due.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use weft_array::{Array, RebuildCounts};
use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo};
use weft_model::ModelDisk;
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{
    AddressMap, Fit, Latency, Live, Options, Outcome, Pace, Point, Speed, Verify, Volumes, run,
};

use super::{REGION, text};
use crate::modelled::{ArraySetup, array_on, disk, mark_written};
use crate::rebuild::Way;

/// Time between two checks whether the rebuild has ended.
const LOOK: Nanos = SECOND / 100;

/// The parameters of a recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) setup: ArraySetup,
    pub(crate) way: Way,
    /// Limits of the rebuild's rate, in bytes per second.
    pub(crate) min_bytes_s: u64,
    pub(crate) max_bytes_s: Option<u64>,
    /// Requests per second, in thousandths: the trace's times are stretched to this rate.
    pub(crate) rate_milli: u32,
    /// Length of the intervals of the time series.
    pub(crate) interval: Nanos,
}

/// The result of a recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// From the failure to the end of the rebuild.
    pub(crate) rebuild_ns: Nanos,
    /// Response times of all requests meanwhile.
    pub(crate) all: Latency,
    /// Intervals, with the response times of what was completed in them.
    pub(crate) series: Vec<Point>,
    /// For each interval: units read by users, and how many of them had to be reconstructed. A
    /// remainder at the end of the recovery counts in the last interval.
    pub(crate) units: Vec<(u64, u64)>,
    /// Length of these intervals.
    pub(crate) interval: Nanos,
    /// How busy each surviving disk was.
    pub(crate) survivors_busy: Vec<f64>,
}

/// Recovers an array from the loss of member #0.
pub(crate) fn recover(recovery: &Recovery, records: &[Record]) -> Result<Recovered, String> {
    let (rt, recovery, records) =
        (virtual_rt(Schedule::Fifo), recovery.clone(), Rc::<[Record]>::from(records));
    rt.clone().block_on(async move {
        let bench = Written::new(&rt, &recovery.setup).await?;
        bench.recover(&recovery, records).await
    })
}

/// An array of zeros.
struct Written {
    rt: Rt,
    array: Array,
    disks: Vec<Rc<ModelDisk>>,
}

impl Written {
    async fn new(rt: &Rt, setup: &ArraySetup) -> Result<Self, String> {
        let disks: Vec<_> = (0..=setup.disks).map(|number| disk(rt, setup, number)).collect();
        let members = &disks[..setup.disks];
        let array = array_on(rt, setup, members, Some(REGION)).await.map_err(text)?;
        mark_written(&array).await.map_err(text)?;
        Ok(Self { rt: rt.clone(), array, disks })
    }

    async fn recover(
        self,
        recovery: &Recovery,
        records: Rc<[Record]>,
    ) -> Result<Recovered, String> {
        let array = &self.array;
        array.set_throttle(recovery.min_bytes_s, recovery.max_bytes_s);
        recovery.way.apply(array).await.map_err(text)?;
        self.disks.iter().for_each(|disk| disk.reset_stats());
        array.fail(0).await.map_err(text)?;
        let spare = self.disks.last().ok_or("no spare")?;
        array.add_spare(spare.clone()).await.map_err(text)?;
        let course = Rc::new(Course::new(array, recovery, self.rt.now()));
        let live = Live::new();
        let watch = self.rt.spawn(watch(self.rt.clone(), course.clone(), live.clone()));
        let outcome = self.replay(recovery, records, &course, &live).await?;
        let rebuild_ns = watch.await?;
        array.stop().await.map_err(text)?;
        Ok(Recovered {
            rebuild_ns,
            all: outcome.all,
            series: outcome.series,
            units: course.units.take(),
            interval: recovery.interval,
            survivors_busy: self.disks[1..recovery.setup.disks]
                .iter()
                .map(|disk| disk.stats().utilisation())
                .collect(),
        })
    }

    async fn replay(
        &self,
        recovery: &Recovery,
        records: Rc<[Record]>,
        course: &Rc<Course>,
        live: &Live,
    ) -> Result<Outcome, String> {
        let mut volumes = Volumes::default();
        records.iter().for_each(|record| volumes.add(record));
        let (size, block) = (course.size_bytes(), course.info().block_bytes);
        let map = AddressMap::new(&volumes, size, block, Fit::Scale);
        let options = Options {
            pace: Pace::Open { speed: Speed::REAL, in_flight_max: 1 << 16 },
            verify: Verify::Reads,
            seed: recovery.setup.seed,
            interval_ns: Some(recovery.interval),
            ..Options::default()
        };
        let all = endless(records, recovery.rate_milli).map(Ok::<_, Infallible>);
        let volume: Rc<dyn Volume> = course.clone();
        let Ok(outcome) = run(&self.rt, volume, &map, all, &options, live).await;
        let wrong = outcome.verified.as_ref().map_or(0, |verified| verified.blocks_wrong);
        if outcome.failed.total() > 0 || wrong > 0 {
            return Err(format!("{:?}, {wrong} blocks with wrong contents", outcome.failed));
        }
        Ok(outcome)
    }
}

/// The requests of a trace at the given mean rate, repeated without end.
fn endless(records: Rc<[Record]>, rate_milli: u32) -> impl Iterator<Item = Record> {
    let count = records.len() as u128;
    let span = u128::from(records.last().map_or(0, |record| record.at_ns)).max(1);
    let wanted = count * 1000 * u128::from(SECOND) / u128::from(rate_milli.max(1));
    (0u128..).flat_map(move |round| {
        let records = records.clone();
        (0..records.len()).map(move |index| {
            let record = records[index];
            let at = round * wanted + u128::from(record.at_ns) * wanted / span;
            Record { at_ns: u64::try_from(at).unwrap_or(u64::MAX), ..record }
        })
    })
}

/// Ends the replay when the rebuild ends, and returns how long that took.
async fn watch(rt: Rt, course: Rc<Course>, live: Live) -> Result<Nanos, String> {
    loop {
        course.look(rt.now());
        let RebuildCounts { started_ns, ended_ns, .. } = course.array.rebuild_counts();
        if let (Some(started), Some(ended)) = (started_ns, ended_ns) {
            course.end();
            live.stop();
            return Ok(ended - started);
        }
        rt.sleep(LOOK).await;
    }
}

/// The array as users see it, and how many of the units that they read had to be reconstructed.
#[derive(Debug)]
struct Course {
    array: Array,
    unit_bytes: u64,
    interval: Nanos,
    begun: Nanos,
    /// Units read since the beginning.
    read: Cell<u64>,
    /// Units read, and reconstructed, before this interval.
    before: Cell<(u64, u64)>,
    units: RefCell<Vec<(u64, u64)>>,
}

impl Course {
    fn new(array: &Array, recovery: &Recovery, begun: Nanos) -> Self {
        Self {
            array: array.clone(),
            unit_bytes: u64::from(recovery.setup.unit_bytes),
            interval: recovery.interval,
            begun,
            read: Cell::new(0),
            before: Cell::default(),
            units: RefCell::default(),
        }
    }

    /// Ends the interval if it is time.
    fn look(&self, now: Nanos) {
        let mut units = self.units.borrow_mut();
        if now >= self.begun + self.interval * (units.len() as u64 + 1) {
            units.push(self.since());
        }
    }

    /// Ends the recovery: a partial interval is too short to stand alone.
    fn end(&self) {
        let (read, reconstructed) = self.since();
        let mut units = self.units.borrow_mut();
        if units.is_empty() {
            units.push((0, 0));
        }
        if let Some(last) = units.last_mut() {
            *last = (last.0 + read, last.1 + reconstructed);
        }
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
        self.array.info()
    }

    fn size_bytes(&self) -> u64 {
        self.array.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        let end = offset + (buf.len() as u64).max(1) - 1;
        let units = end / self.unit_bytes - offset / self.unit_bytes + 1;
        self.read.set(self.read.get() + units);
        Volume::read(&self.array, offset, buf)
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Volume::write(&self.array, offset, data, fua)
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Volume::flush(&self.array)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        Volume::write_zeroes(&self.array, offset, len, fua, may_deallocate)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        Volume::discard(&self.array, offset, len)
    }
}
