//! Commands that speak with the daemon about an array.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use weft_array::{Piggyback, RebuildExecutor, RebuildOrder, RebuildPace};

use crate::control::protocol::PolicyChange;
use crate::size;

/// `weft status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft status
  weft status tank --watch=5
  weft status tank --io --watch
  weft status --json
  weft status --check || mail -s 'an array needs a disk' root < /dev/null")]
pub struct StatusArgs {
    /// Only this array, by name or id
    pub array: Option<String>,
    /// Show it again every SECONDS (1 if not given)
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = parse_period,
        value_name = "SECONDS"
    )]
    pub watch: Option<Duration>,
    /// Show what went through each disk: in all, or with --watch per second since the last look
    #[arg(long)]
    pub io: bool,
    /// Exit with 3 if redundancy is reduced, with 4 if an array has failed or did not start
    #[arg(long, conflicts_with = "watch")]
    pub check: bool,
}

/// `weft fail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Refuses if the array would lose data. A spare, if there is one, takes its place at once. What \
waits for a disk that does not answer goes on without it at once.

Examples:
  weft fail tank d2
  weft fail tank 2              (by slot)
  weft fail tank d2 --dry-run")]
pub struct FailArgs {
    /// Name or id of the array
    pub array: String,
    /// The member: its path, the end of its path, or its slot
    pub member: String,
    /// Only say what would be left
    #[arg(long)]
    pub dry_run: bool,
}

/// A disk that an array gets.
#[derive(Debug, Args)]
pub struct NewDiskArgs {
    /// File, block device or nbd:// URI
    pub disk: String,
    /// Create the file if it does not exist, of this size, and reserve its space
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Do not reserve the file's space: writes wait whenever its file system is full
    #[arg(long)]
    pub sparse: bool,
    /// Take a disk that belongs to an array or holds data of any kind (it is lost)
    #[arg(long)]
    pub force: bool,
}

/// `weft add`.
#[derive(Debug, Args)]
#[command(after_help = "\
A member that failed, or was failed by command, and works again takes its slot back: only what was \
written since it left is rebuilt. With --force it is taken for a new disk.

Examples:
  weft add tank /dev/sdx
  weft add tank spare.img --size 1G      (makes the file)")]
pub struct AddArgs {
    /// Name or id of the array
    pub array: String,
    /// The new disk.
    #[command(flatten)]
    pub new: NewDiskArgs,
    /// Only check the disk
    #[arg(long)]
    pub dry_run: bool,
}

/// `weft replace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A member that works stays in the array while it is copied to the new disk: the array can lose as \
many disks as before. What cannot be read from the member is reconstructed from the others. If \
the new disk fails, or is given to `weft fail`, everything is as it was. A member that is missing \
is rebuilt onto the new disk.

Examples:
  weft replace tank d2 /dev/sdx
  weft replace tank 2 new.img --size 1G --no-wait")]
pub struct ReplaceArgs {
    /// Name or id of the array
    pub array: String,
    /// The member to replace: its path, the end of its path, or its slot
    pub member: String,
    /// The new disk.
    #[command(flatten)]
    pub new: NewDiskArgs,
    /// Only check whether it could be done
    #[arg(long)]
    pub dry_run: bool,
    /// Return when the rebuild has started
    #[arg(long)]
    pub no_wait: bool,
}

/// `weft rebuild`.
#[derive(Debug, Args)]
#[command(after_help = "\
A rebuild starts by itself as soon as there is a disk to rebuild on (`weft add`, `weft replace`). \
How it goes about its work can be changed at any time, also while it runs: nothing is done twice. \
The array keeps the choice.

A pause lasts until `resume`, or until the array is stopped; `weft status` shows it. While it \
lasts no spare is taken: after a failure the array stays degraded.

Orders: `popularity` rebuilds first what users ask for most, `redundancy` the stripes that have \
lost most units, `ascending` goes from the first stripe to the last. `auto` is popularity, and \
redundancy while more than one disk is being rebuilt or missing.

Executors: `stripe` (several whole stripes in flight, one beside users), `pipelined` (4 KiB \
requests, as Linux MD), `disk` (a process for each surviving disk, and a writer).

Examples:
  weft rebuild tank              (follows it to its end)
  weft rebuild tank pause
  weft rebuild tank resume
  weft rebuild tank --order popularity --slice 64 --zone 128
  weft rebuild tank --executor disk --pace greedy
  weft rebuild tank --defaults")]
pub struct RebuildArgs {
    /// Name or id of the array
    pub array: String,
    /// What to do
    #[command(subcommand)]
    pub action: Option<RebuildAction>,
    /// How it goes about its work
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// How a rebuild goes about its work.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it goes about its work")]
pub struct PolicyArgs {
    /// Set everything below back to its default
    #[arg(long)]
    pub defaults: bool,
    /// Which stripe is next
    #[arg(long, value_parser = named(RebuildOrder::ALL, RebuildOrder::name))]
    pub order: Option<RebuildOrder>,
    /// How a stripe is carried out
    #[arg(long, value_parser = named(RebuildExecutor::ALL, RebuildExecutor::name))]
    pub executor: Option<RebuildExecutor>,
    /// How it moves between the bounds that `weft throttle` gives
    #[arg(long, value_parser = named(RebuildPace::ALL, RebuildPace::name))]
    pub pace: Option<RebuildPace>,
    /// What users' requests bring to the new disk: nothing, units they cover, or all they touch
    #[arg(long, value_parser = named(Piggyback::ALL, Piggyback::name))]
    pub piggyback: Option<Piggyback>,
    /// Stripes that the hottest zone gets before it is chosen anew
    #[arg(long, value_name = "STRIPES")]
    pub slice: Option<u64>,
    /// Stripes of a hot zone
    #[arg(long, value_name = "STRIPES")]
    pub zone: Option<u64>,
    /// Hot zones that are followed
    #[arg(long, value_name = "NUMBER")]
    pub zones: Option<usize>,
    /// Time in which an access comes to count half
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub half_life: Option<u64>,
    /// Leave a slice as soon as another zone is twice as hot
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    pub preemptive: Option<bool>,
}

impl PolicyArgs {
    /// What they change.
    pub fn change(&self) -> PolicyChange {
        PolicyChange {
            reset: self.defaults,
            order: self.order,
            executor: self.executor,
            pace: self.pace,
            piggyback: self.piggyback,
            slice_stripes: self.slice,
            zone_stripes: self.zone,
            zones: self.zones,
            half_life_ms: self.half_life,
            preemptive: self.preemptive,
        }
    }
}

/// A parser of values that have names.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| name(*value))).map(move |given| {
        let value = all.iter().find(|value| name(**value) == given);
        *value.expect("only possible values are parsed")
    })
}

/// Time between two looks: long enough not to keep the daemon busy.
fn parse_period(text: &str) -> Result<Duration, String> {
    let wrong = || "give seconds from 0.1 to 86400, such as 0.5 or 10".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Seconds as milliseconds.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds >= 0.001);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let millis = duration.and_then(|duration| u64::try_from(duration.as_millis()).ok());
    millis.ok_or_else(|| "give seconds, such as 10 or 0.5".to_owned())
}

/// What `weft rebuild` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum RebuildAction {
    /// Follow it to its end (the default)
    Wait,
    /// Pause it
    Pause,
    /// Let it go on
    Resume,
}

/// `weft scrub`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the whole array and verifies that parity and copies match the data. Exits with 3 if they do \
not. With --repair, what does not match is made to match again.

A scrub that is interrupted (the array is stopped, or crashes) goes on by itself, from about \
where it was, when the array is served again.

Examples:
  weft scrub tank
  weft scrub tank --repair
  weft scrub tank --no-wait && weft scrub tank status
  weft scrub tank wait
  weft scrub tank cancel")]
pub struct ScrubArgs {
    /// Name or id of the array
    pub array: String,
    /// What to do
    #[command(subcommand)]
    pub action: Option<ScrubAction>,
    /// Make what does not match match again
    #[arg(long, global = true)]
    pub repair: bool,
    /// Return when it has started
    #[arg(long, global = true)]
    pub no_wait: bool,
}

/// What `weft scrub` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ScrubAction {
    /// Start and follow it to its end (the default)
    Start,
    /// Follow the one running to its end
    Wait,
    /// Start over from the beginning, also if one is running
    Restart,
    /// Stop it for good
    Cancel,
    /// Show the one running, or the result of the last
    Status,
}

/// `weft throttle`.
#[derive(Debug, Args)]
#[command(after_help = "\
Applies to rebuild, resync and scrub. Between the two rates they give way to users; below --min \
they go on in batches of 2.5 MiB of each disk, between which it is the users' turn, and they \
never go faster than --max. Rates are bytes per second on each member. Takes effect at once.

Examples:
  weft throttle tank --max 50MB/s
  weft throttle tank --min 10M --max 200M
  weft throttle tank --max unlimited")]
pub struct ThrottleArgs {
    /// Name or id of the array
    pub array: String,
    /// Lowest rate, bytes per second
    #[arg(long, value_parser = size::parse_rate, value_name = "RATE")]
    pub min: Option<u64>,
    /// Highest rate, bytes per second, or `unlimited`
    #[arg(long, value_parser = parse_max, value_name = "RATE")]
    pub max: Option<u64>,
}

fn parse_max(text: &str) -> Result<u64, String> {
    match text {
        "unlimited" => Ok(u64::MAX),
        _ => match size::parse_rate(text)? {
            0 => {
                Err("a highest rate of 0 would never end: `weft rebuild ARRAY pause` pauses".into())
            }
            rate => Ok(rate),
        },
    }
}

/// `weft stop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Requests in flight are finished, everything is flushed and marked clean. Refuses while an array \
is attached as a block device. An array that was stopped stays so until `weft start`, or until \
the daemon is started again.

Examples:
  weft stop
  weft stop tank                (the daemon goes on with the others)")]
pub struct StopArgs {
    /// Only this array, by name or id
    pub array: Option<String>,
}

/// `weft start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Starts an array that the running daemon found and does not serve: it was stopped, members were \
missing, or another array has its name. Given a disk, its array is started, also if the daemon \
was not told of it before; the other members are looked for where the daemon looks, and among the \
disks given. It is started with what is there, even if members are missing, unless that could \
lose data.

Examples:
  weft start tank
  weft start 3f0c2a7e9b5d41d8a6c4e2f01b7d9c35    (by id)
  weft start /dev/sdb /dev/sdc /dev/sdd
  weft start tank --dry-run")]
pub struct StartArgs {
    /// Arrays by name or id, or disks
    #[arg(required = true, value_name = "ARRAY|DISK")]
    pub targets: Vec<String>,
    /// Start although half of the members or more are missing (they may hold newer data)
    #[arg(long)]
    pub force_degraded: bool,
    /// Only say what would be started, and what is missing
    #[arg(long)]
    pub dry_run: bool,
}

/// `weft remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
A spare leaves the array, and its label is erased: the disk is free for something else. Of a slot \
that is missing, the array forgets which disk was last in it. A member that works is not removed: \
replace it, or fail it.

Examples:
  weft remove tank /dev/sdx
  weft remove tank 3              (slot 3, which is missing)
  weft remove tank spare0 --dry-run")]
pub struct RemoveArgs {
    /// Name or id of the array
    pub array: String,
    /// The spare, or the missing member: its path, the end of its path, or its slot
    pub member: String,
    /// Only check
    #[arg(long)]
    pub dry_run: bool,
}
