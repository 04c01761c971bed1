//! Files of weft's file system that are rebuilt under the reads of a trace, on modelled disks and
//! in virtual time: PRO's question, asked of a file system.
//!
//! The trace's addresses are those of the files, one after the other, so its habits are theirs.
//! The order in which the files are written is shuffled, and so is that in which a rebuild would
//! take them: nothing but what users read tells it which are popular. The files hold zeros, which
//! take no memory; the file system compares each block with its checksum, and the bench with zeros.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use weft_disk::{
    Disk, DoneFuture, Histogram, ReadFuture, Volume, VolumeError, VolumeErrorKind, VolumeInfo,
};
use weft_fs::{BLOCK_BYTES, Fs, Ino, Job, JobReport, ROOT, Redundancy};
use weft_model::Model;
use weft_rt::{Buf, Frozen, Nanos, Rng, Rt, SECOND, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{Latency, Live, Options, Point, Verify, run};

use super::files::{FileDisks, REST, new_file};
use super::open_loop::{endless, open_loop, scaled};
use super::text;

/// Bytes of a write that makes a file.
const STEP: u64 = 1 << 20;

/// Files on disks, of which one is lost.
#[derive(Clone, Debug)]
pub(crate) struct FileRebuild {
    pub(crate) model: &'static Model,
    pub(crate) disks: usize,
    pub(crate) disk_bytes: u64,
    pub(crate) redundancy: Redundancy,
    pub(crate) files: u64,
    pub(crate) file_bytes: u64,
    /// Memory for contents.
    pub(crate) cache_bytes: u64,
    /// Whether the rebuild takes what users read first.
    pub(crate) hot_parts_first: bool,
    /// As in [`Recovery`](super::Recovery).
    pub(crate) rate_milli: u32,
    pub(crate) first: usize,
    pub(crate) interval: Nanos,
    /// How long users read before the loss, and for how long after it response times count.
    pub(crate) healthy: Nanos,
    pub(crate) observed: Nanos,
    pub(crate) seed: u64,
}

/// The result.
#[derive(Clone, Debug)]
pub(crate) struct FilesRebuilt {
    pub(crate) rebuild_ns: Nanos,
    /// Response times of requests that started during the rebuild, and within the time observed.
    pub(crate) own: Latency,
    pub(crate) equal: Latency,
    /// How often blocks of the lost disk were computed for users, once for each extent of a read.
    pub(crate) computed: u64,
    /// Response times from the loss on.
    pub(crate) series: Vec<Point>,
}

/// Loses a disk of the files, and rebuilds them.
pub(crate) fn rebuild_files(
    setup: &FileRebuild,
    records: &[Record],
) -> Result<FilesRebuilt, String> {
    let (rt, setup, records) =
        (virtual_rt(Schedule::Fifo), setup.clone(), Rc::<[Record]>::from(records));
    let result = rt.clone().block_on({
        let rt = rt.clone();
        async move {
            let files = Rc::new(Files::make(&rt, &setup).await?);
            rt.sleep(REST).await;
            let map = scaled(&records, files.size_bytes(), files.info().block_bytes);
            let live = Live::new();
            let course = rt.spawn(course(files.clone(), setup.clone(), live.clone()));
            let options =
                Options { verify: Verify::Off, seed: setup.seed, ..open_loop(setup.interval) };
            let all = endless(records, setup.rate_milli, setup.first).map(Ok::<_, Infallible>);
            let Ok(outcome) = run(&rt, files.clone(), &map, all, &options, &live).await;
            let (lost_at, rebuild_ns) = course.await?;
            if outcome.failed.total() > 0 {
                return Err(format!("requests failed: {:?}", outcome.failed));
            }
            files.fs.unmount().await.map_err(text)?;
            let mut series = outcome.series;
            series.retain(|point| point.at_ns >= lost_at);
            series.iter_mut().for_each(|point| point.at_ns -= lost_at);
            let [own, equal] =
                [&files.own, &files.equal].map(|times| Latency::from(&*times.borrow()));
            Ok(FilesRebuilt { rebuild_ns, own, equal, computed: files.computed.get(), series })
        }
    });
    rt.kill_all();
    result
}

/// Loses a disk after a while, and ends the replay when response times do not count any more.
/// Returns when the disk was lost, since the replay began, and how long the rebuild took.
async fn course(
    files: Rc<Files>,
    setup: FileRebuild,
    live: Live,
) -> Result<(Nanos, Nanos), String> {
    let result = files.lose_and_rebuild(&setup).await;
    live.stop();
    result
}

/// What response times count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Healthy,
    Rebuild,
    Rebuilt,
}

/// Files as one volume: one after the other.
struct Files {
    rt: Rt,
    fs: Fs,
    inos: Vec<Ino>,
    file_bytes: u64,
    phase: Cell<Phase>,
    own: RefCell<Histogram>,
    equal: RefCell<Histogram>,
    computed: Cell<u64>,
}

impl Files {
    async fn make(rt: &Rt, setup: &FileRebuild) -> Result<Self, String> {
        let FileRebuild { model, disks, disk_bytes, seed, file_bytes, .. } = *setup;
        let on = FileDisks { model, disks, disk_bytes, seed, cache_bytes: setup.cache_bytes };
        let disks: Vec<Rc<dyn Disk>> = on.open(rt);
        let fs = on.mount(rt, &disks, setup.redundancy).await?;
        let mut inos = Vec::new();
        for number in 0..setup.files {
            let name = format!("file{number}");
            inos.push(fs.make(ROOT, name.as_bytes(), new_file()).await.map_err(text)?.0);
        }
        let (mut rng, mut order) = (Rng::new(seed), inos.clone());
        while !order.is_empty() {
            let ino =
                order.swap_remove(usize::try_from(rng.below(order.len() as u64)).expect("few"));
            fs.begin_use(ino);
            for at in (0..file_bytes).step_by(usize::try_from(STEP).expect("it fits")) {
                let len = usize::try_from(STEP.min(file_bytes - at)).expect("it fits");
                fs.write(ino, at, Buf::zeroed(len).freeze()).await.map_err(text)?;
            }
            fs.fsync(ino).await.map_err(text)?;
        }
        fs.sync().await.map_err(text)?;
        fs.rebuild_hot_parts_first(setup.hot_parts_first);
        Ok(Self {
            rt: rt.clone(),
            fs,
            inos,
            file_bytes,
            phase: Cell::new(Phase::Healthy),
            own: RefCell::default(),
            equal: RefCell::default(),
            computed: Cell::new(0),
        })
    }

    async fn lose_and_rebuild(&self, setup: &FileRebuild) -> Result<(Nanos, Nanos), String> {
        let begun = self.rt.now();
        self.rt.sleep(setup.healthy).await;
        let lost_at = self.rt.now();
        let (number, ..) = self.fs.disk_names().into_iter().next().ok_or("there is no disk")?;
        self.phase.set(Phase::Rebuild);
        self.fs.fail_disk(number).await.map_err(text)?;
        let job = self.fs.begin_job(Job::Rebuild).map_err(text)?;
        let JobReport::Moved(report) = job.await.map_err(text)? else {
            return Err("the rebuild was another job".into());
        };
        if !report.damaged.is_empty() || !report.waiting.is_empty() {
            return Err(format!("not all files were rebuilt: {report:?}"));
        }
        let rebuild_ns = self.rt.now() - lost_at;
        self.computed.set(self.fs.computed_extents());
        self.phase.set(Phase::Rebuilt);
        if rebuild_ns > setup.observed {
            let took = rebuild_ns / SECOND;
            return Err(format!("the rebuild takes {took} s, longer than observed_s"));
        }
        self.rt.sleep(setup.observed - rebuild_ns).await;
        Ok((lost_at - begun, rebuild_ns))
    }

    async fn read_some(&self, mut at: u64, buf: &mut Buf) -> Result<(), String> {
        let mut read = 0;
        while read < buf.len() {
            let number = usize::try_from(at / self.file_bytes).expect("few files");
            let within = at % self.file_bytes;
            let left = usize::try_from(self.file_bytes - within).unwrap_or(usize::MAX);
            let len = left.min(buf.len() - read);
            let some = self.fs.read(self.inos[number], within, len).await.map_err(text)?;
            if some.len() != len || some.iter().any(|byte| *byte != 0) {
                return Err(format!("file {number} has other contents at {within}"));
            }
            buf[read..read + len].copy_from_slice(&some);
            (at, read) = (at + len as u64, read + len);
        }
        Ok(())
    }
}

/// The error of what no reader does.
fn unused<T>() -> Result<T, VolumeError> {
    Err(VolumeError::new(VolumeErrorKind::ReadOnly, "files are only read"))
}

impl Volume for Files {
    fn info(&self) -> VolumeInfo {
        let block_bytes = u32::try_from(BLOCK_BYTES).expect("a small block");
        VolumeInfo { align_bytes: 1, block_bytes, fast_zeroes: false }
    }

    fn size_bytes(&self) -> u64 {
        self.inos.len() as u64 * self.file_bytes
    }

    fn read(&self, offset: u64, mut buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            let (begun, phase) = (self.rt.now(), self.phase.get());
            let read = self.read_some(offset, &mut buf).await;
            let took = self.rt.now() - begun;
            if phase != Phase::Healthy {
                self.equal.borrow_mut().add(took);
            }
            if phase == Phase::Rebuild {
                self.own.borrow_mut().add(took);
            }
            (read.map_err(|cause| VolumeError::new(VolumeErrorKind::Failed, cause)), buf)
        })
    }

    fn write(&self, _: u64, _: Frozen, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async { unused() })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async { unused() })
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(async { unused() })
    }
}
