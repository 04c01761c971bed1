//! `weft replay`: replays the requests of a trace to a target.

mod args;
mod modelled;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::json;
use weft_array::examine::LabelReport;
use weft_cli::disks::{DiskAddress, Opener};
use weft_cli::failure::{FAILED, Failure, Outcome};
use weft_cli::output::{self, out, outln};
use weft_cli::progress::Progress;
use weft_cli::size;
use weft_cli::thread;
use weft_disk::{Disk, DiskVolume, Volume};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_trace::generate::{Looped, Workload};
use weft_trace::replay::{
    self, AddressMap, DiskTimes, Fit, Live, Options, Pace, Verify, Volumes, Writes,
};
use weft_trace::{Info, ReadOptions, Record, TraceError};

use crate::commands::trace::report::{self, TraceSummary};
use crate::commands::trace::{explain, find, survey, workload};
use args::FitName;
pub use args::ReplayArgs;
use modelled::Modelled;

/// Number of requests of a workload, unless given.
const WORKLOAD_REQUESTS: u64 = 10_000;
/// Requests in flight in an open loop.
const IN_FLIGHT_MAX: usize = 4096;
/// Time between two progress updates.
const LOOK_EVERY: Nanos = 200 * MILLISECOND;

/// The source of the requests.
enum Source {
    File { path: PathBuf, options: ReadOptions },
    Workload { workload: Box<Workload>, seed: u64 },
}

/// The requests to replay.
struct Load {
    source: Source,
    summary: TraceSummary,
    volumes: Volumes,
    requests: u64,
    /// Whether it holds writes or trims.
    changes: bool,
}

impl Load {
    fn of(args: &ReplayArgs, silent: bool) -> Result<Self, Failure> {
        match (&args.trace, &args.workload) {
            (_, Some(name)) => Self::of_workload(workload(name)?, args),
            (Some(file), None) => Self::of_file(&find(file), args, silent),
            (None, None) => Err(Failure::usage("name a --trace or a --workload")),
        }
    }

    fn of_workload(workload: Workload, args: &ReplayArgs) -> Result<Self, Failure> {
        let mut volumes = Volumes::default();
        (0..workload.devices).for_each(|device| volumes.set(device, workload.device_bytes));
        let label = workload.label(args.seed);
        let requests = args.requests.unwrap_or(match args.duration {
            Some(_) => u64::MAX,
            None => WORKLOAD_REQUESTS,
        });
        let summary = TraceSummary {
            name: workload.name.clone(),
            format: None,
            generated: Some(format!("{label} – {}", workload.about)),
            read: None,
            info: Info::default(),
        };
        let changes = workload.read_ppm < 1_000_000;
        let source = Source::Workload { workload: Box::new(workload), seed: args.seed };
        Ok(Self { source, summary, volumes, requests, changes })
    }

    fn of_file(path: &Path, args: &ReplayArgs, silent: bool) -> Result<Self, Failure> {
        let mut summary = survey(path, &args.how, args.requests, silent)?;
        let has = summary.info.requests;
        if has == 0 {
            return Err(Failure::new(format!("{} holds no requests", path.display())));
        }
        let requests = args.requests.unwrap_or(has);
        if requests > has {
            let looped = format!("looped: {requests} requests of {has}, time shifted");
            summary.generated = Some(match summary.generated.take() {
                Some(generated) => format!("{generated}; {looped}"),
                None => looped,
            });
        }
        let options = ReadOptions { format: args.how.format, skip_bad: args.how.skip_bad };
        Ok(Self {
            source: Source::File { path: path.to_owned(), options },
            volumes: summary.info.volumes(),
            requests,
            changes: summary.info.writes + summary.info.trims > 0,
            summary,
        })
    }

    fn records(&self) -> Box<dyn Iterator<Item = Result<Record, TraceError>>> {
        let requests = self.requests;
        match &self.source {
            Source::Workload { workload, seed } => {
                let limit = usize::try_from(requests).unwrap_or(usize::MAX);
                Box::new(workload.generate(*seed).take(limit).map(Ok))
            }
            Source::File { path, options } => {
                let (path, options) = (path.clone(), options.clone());
                Box::new(Looped::new(move || weft_trace::open(&path, &options), None, requests))
            }
        }
    }
}

/// `weft replay`.
///
/// # Errors
/// If it cannot run, requests failed, or verified blocks are wrong.
pub fn replay(args: &ReplayArgs, json: bool) -> Outcome {
    let load = Load::of(args, json)?;
    let modelled = Modelled::of(&args.modelled)?;
    if let (Some(target), true) =
        (&args.target, load.changes && !args.overwrite && !args.reads_only)
    {
        return Err(Failure::usage(format!(
            "{} contains writes, which would destroy the contents of {target}",
            load.summary.name
        ))
        .hint("--overwrite carries them out, --reads-only skips them"));
    }
    // A modelled target has no contents to destroy.
    let writes = (args.overwrite || modelled.is_some() && !args.reads_only) && load.changes;
    // Without times only the order of the requests is known: one at a time keeps it.
    let alone = (!load.summary.has_times()).then_some(1);
    let closed = args.closed.or(alone);
    let replay = Replay {
        records: load.records(),
        volumes: load.volumes.clone(),
        options: options_of(args, writes, closed),
        fit: args.fit,
        goal: Goal { requests: load.requests, duration_ns: args.duration },
        silent: json,
    };
    let target = match (&modelled, &args.target) {
        (Some(modelled), _) => modelled.title(),
        (None, Some(target)) => target.clone(),
        (None, None) => return Err(Failure::usage("name a TARGET or a --model")),
    };
    let Replayed { outcome: found, size_bytes, fit, fold } = match modelled {
        Some(modelled) => modelled.run(replay)?,
        None => to_target(target.clone(), writes, replay)?,
    };
    if let Some(path) = &args.csv {
        fs::write(path, report::csv(&found.series))
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    }
    let fit = match fit {
        Fit::Exact => "exact",
        Fit::Wrap => "wrap",
        Fit::Scale => "scale",
    };
    if json {
        let summary = &load.summary;
        let answer = json!({
            "trace": { "name": summary.name, "format": summary.format, "generated": summary.generated, "read": summary.read },
            "target": { "name": target, "size_bytes": size_bytes },
            "closed": closed, "fit": fit, "fold": fold, "outcome": found,
        });
        output::answer(&answer)?;
    } else {
        outln!("{} on {target} ({})", load.summary.name, size::show(size_bytes));
        load.summary.generated.iter().for_each(|generated| outln!("  {generated}"));
        if closed != args.closed {
            outln!("  the trace has no times: a closed loop, one request at a time");
        }
        let source = size::show(load.volumes.total_bytes());
        match fit {
            "exact" => {}
            _ => outln!("  addresses of {source} fitted by {fit}, {fold} over each other"),
        }
        let mut shown = found.clone();
        if args.interval.is_none() {
            shown.series.clear();
        }
        out!("{}", report::show_outcome(&shown));
    }
    let wrong = found.verified.map_or(0, |verified| verified.blocks_wrong);
    if wrong > 0 {
        return Err(ended(json, format!("{wrong} blocks do not hold the data written")));
    }
    match found.failed.total() {
        0 => Ok(()),
        failed => Err(ended(json, format!("{failed} requests failed"))),
    }
}

/// A load to replay on a target.
pub struct Replay {
    records: Box<dyn Iterator<Item = Result<Record, TraceError>>>,
    volumes: Volumes,
    options: Options,
    fit: Option<FitName>,
    goal: Goal,
    silent: bool,
}

/// The result.
pub struct Replayed {
    outcome: replay::Outcome,
    size_bytes: u64,
    fit: Fit,
    fold: u64,
}

impl Replay {
    /// Replays it to `volume`.
    pub async fn to(
        self,
        rt: &Rt,
        volume: Rc<dyn Volume>,
        live: Live,
    ) -> Result<Replayed, Failure> {
        let (size_bytes, block) = (volume.size_bytes(), volume.info().block_bytes);
        let fit = choose(self.fit, &self.volumes, size_bytes);
        let map = AddressMap::new(&self.volumes, size_bytes, block, fit);
        show_progress(rt, &live, self.goal, self.silent);
        let outcome = replay::run(rt, volume, &map, self.records, &self.options, &live).await;
        Ok(Replayed { outcome: outcome.map_err(explain)?, size_bytes, fit, fold: map.fold() })
    }
}

/// Replays to a real target, in real time.
fn to_target(target: String, writes: bool, replay: Replay) -> Result<Replayed, Failure> {
    thread::run(move |opener: Opener| async move {
        if let DiskAddress::Path(path) = DiskAddress::of(&target)
            && !path.exists()
        {
            return Err(Failure::new(format!("{target}: no such file or device")).hint(format!(
                "check the name; `truncate -s 10G {target}` creates a file to try on"
            )));
        }
        let disk = opener.open(&target, !writes).await?;
        if writes {
            refuse_member(&*disk).await?;
        }
        let live = match disk_times(&target) {
            Some(disks) => Live::watching(Rc::new(disks)),
            None => Live::new(),
        };
        stop_on_signals(&opener.rt, &live)?;
        replay.to(&opener.rt, Rc::new(DiskVolume::new(disk)), live).await
    })
}

/// The failure of a replay whose figures were printed; with JSON, they already report everything.
fn ended(json: bool, message: String) -> Failure {
    if json { Failure::said(FAILED) } else { Failure::new(message) }
}

fn options_of(args: &ReplayArgs, writes: bool, closed: Option<u16>) -> Options {
    let pace = match closed {
        Some(outstanding) => Pace::Closed { outstanding: usize::from(outstanding) },
        None => Pace::Open { speed: args.speed, in_flight_max: IN_FLIGHT_MAX },
    };
    Options {
        pace,
        warm_up_requests: args.warm_up,
        warm_up_ns: args.warm_up_time,
        duration_ns: args.duration,
        interval_ns: args.interval.or_else(|| args.csv.as_ref().map(|_| SECOND)),
        writes: if writes { Writes::Perform } else { Writes::Skip },
        verify: if args.verify { Verify::All } else { Verify::Off },
        seed: args.seed,
        ..Options::default()
    }
}

fn choose(fit: Option<FitName>, volumes: &Volumes, target_bytes: u64) -> Fit {
    match fit {
        Some(FitName::Exact) => Fit::Exact,
        Some(FitName::Wrap) => Fit::Wrap,
        Some(FitName::Scale) => Fit::Scale,
        None if AddressMap::fits_exactly(volumes, target_bytes) => Fit::Exact,
        None => Fit::Scale,
    }
}

/// Refuses a member of an array, and a disk of a weft file system: nothing may write to them
/// unnoticed.
async fn refuse_member(disk: &dyn Disk) -> Result<(), Failure> {
    let name = &disk.info().name;
    let report = weft_array::examine(disk).await;
    let report = report.map_err(|e| Failure::new(format!("{name}: {e}")))?;
    match report.label {
        LabelReport::None { .. } => match weft_fs::Label::read(disk).await {
            Ok(Some(label)) => {
                let what = format!("{name} is a disk of the weft file system {}", label.name);
                Err(Failure::new(format!("{what}; nothing was written"))
                    .hint("choose another target; `weft wipe` erases the disk for other uses"))
            }
            _ => Ok(()),
        },
        _ => Err(Failure::new(format!("{name} is a member of an array; nothing was written"))
            .hint("replay to the array itself: `weft status` prints its NBD URI")),
    }
}

/// When it will end.
#[derive(Clone, Copy)]
struct Goal {
    requests: u64,
    duration_ns: Option<Nanos>,
}

/// A first signal ends the replay, which then prints its figures so far; a second ends it at once.
fn stop_on_signals(rt: &Rt, live: &Live) -> Outcome {
    let mut inbox = thread::ending_signals()?;
    let live = live.clone();
    drop(rt.spawn(async move {
        inbox.next().await;
        live.stop();
    }));
    Ok(())
}

/// Shows the progress, until the executor ends.
fn show_progress(rt: &Rt, live: &Live, goal: Goal, silent: bool) {
    let (tasks, rt, live) = (rt, rt.clone(), live.clone());
    let begun_ns = rt.now();
    let mut progress = Progress::new("replaying", goal.requests, silent);
    drop(tasks.spawn(async move {
        loop {
            rt.sleep(LOOK_EVERY).await;
            let (issued, completed) = live.progress();
            let in_flight = issued - completed;
            match goal.duration_ns {
                Some(all_ns) => {
                    let done_ns = rt.now().saturating_sub(begun_ns).min(all_ns);
                    let message = format!(
                        "{} of {}, {completed} requests, {in_flight} in flight",
                        size::show_duration(Duration::from_nanos(done_ns)),
                        size::show_duration(Duration::from_nanos(all_ns)),
                    );
                    progress.at(done_ns, all_ns, &message);
                }
                None => {
                    let all = goal.requests;
                    let message = format!("{completed} of {all} requests, {in_flight} in flight");
                    progress.at(completed, all, &message);
                }
            }
        }
    }));
}

/// How long a block device has been busy, from sysfs.
struct BlockTimes {
    name: String,
    stat: PathBuf,
}

/// The times of `target`, if it is a block device.
fn disk_times(target: &str) -> Option<BlockTimes> {
    let DiskAddress::Path(path) = DiskAddress::of(target) else { return None };
    let metadata = fs::metadata(&path).ok().filter(|data| data.file_type().is_block_device())?;
    let device = metadata.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    stat.exists().then(|| BlockTimes { name: target.to_owned(), stat })
}

impl DiskTimes for BlockTimes {
    fn busy(&self) -> Vec<(String, Nanos)> {
        // The tenth number: milliseconds with at least one request in flight.
        let text = fs::read_to_string(&self.stat).unwrap_or_default();
        let busy_ms: u64 =
            text.split_whitespace().nth(9).and_then(|word| word.parse().ok()).unwrap_or(0);
        vec![(self.name.clone(), busy_ms.saturating_mul(MILLISECOND))]
    }
}
