//! Commands that ask the daemon to do something with an array.

use std::time::Duration;

use clap::{Args, Subcommand};
use weft_array::{Consistency, Piggyback, RebuildOrder, RebuildPace};
use weft_cli::failure::Failure;
use weft_cli::size;

use super::named;
use super::offline::protection;
use crate::control::protocol::PolicyChange;

/// `weft status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft status
  weft status tank --watch 5
  weft status tank --io --watch
  weft status --json
  weft status --check || mail -s 'an array needs a disk' root < /dev/null")]
pub struct StatusArgs {
    /// Only this array, by name or id
    pub array: Option<String>,
    /// The period of --watch, if a blank precedes it
    #[arg(value_name = "SECONDS", value_parser = parse_period, requires = "watch", hide = true)]
    pub period: Option<Duration>,
    /// Refresh every SECONDS (1 if not given)
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        value_parser = parse_period,
        value_name = "SECONDS"
    )]
    pub watch: Option<Option<Duration>>,
    /// Show the I/O of each disk: totals, or with --watch the rates since the last refresh
    #[arg(long)]
    pub io: bool,
    /// Exit with 3 if something needs attention, such as reduced redundancy, with 4 if an array has
    /// failed, did not start, or cannot write; report the problem and the next step
    #[arg(long, conflicts_with = "watch")]
    pub check: bool,
}

impl StatusArgs {
    /// The array and the period of the watch. `--watch 5` leaves the 5 to the positional arguments,
    /// as `--watch tank` must mean an array: a number alone is the period.
    ///
    /// # Errors
    /// If two periods are given.
    pub fn watched(&self) -> Result<(Option<&str>, Option<Duration>), Failure> {
        let Some(watch) = self.watch else { return Ok((self.array.as_deref(), None)) };
        let number = self.array.as_deref().and_then(|array| parse_period(array).ok());
        match (watch, self.period, number) {
            (Some(_), Some(_), _) => Err(Failure::usage("the period of --watch is given twice")),
            (None, None, Some(period)) => Ok((None, Some(period))),
            (given, apart, _) => {
                let period = given.or(apart).unwrap_or(Duration::from_secs(1));
                Ok((self.array.as_deref(), Some(period)))
            }
        }
    }
}

/// `weft fail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Refuses if the array would lose data. A spare, if there is one, takes over at once. Requests that \
wait for a hung disk continue without it at once.

Examples:
  weft fail tank d2
  weft fail tank 2              (by slot)
  weft fail tank d2 --dry-run")]
pub struct FailArgs {
    /// Name or id of the array
    pub array: String,
    /// The member: its path, the end of its path, or its slot
    pub member: String,
    /// Only show how much redundancy would be left
    #[arg(long)]
    pub dry_run: bool,
}

/// A disk for an array to use.
#[derive(Debug, Args)]
pub struct NewDiskArgs {
    /// File, block device or nbd:// URI
    pub disk: String,
    /// Create the file if it does not exist, of this size, and reserve its space
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Do not reserve the file's space: writes stall whenever its file system is full
    #[arg(long)]
    pub sparse: bool,
    /// Use a disk that belongs to an array or holds data of any kind (that data is lost)
    #[arg(long)]
    pub force: bool,
}

/// `weft add`.
#[derive(Debug, Args)]
#[command(after_help = "\
A member that failed, or was taken out with `weft fail`, gets its slot back if it works again: \
only the regions written since it left are rebuilt. With --force it is treated as a new disk.

Examples:
  weft add tank /dev/sdx
  weft add tank spare.img --size 1G      (creates the file)")]
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
A working member stays in service while it is copied to the new disk, so the array keeps its \
redundancy. Data that cannot be read from the member is reconstructed from the other members. If the \
new disk fails, or you take it out with `weft fail`, the array is as before. A missing member is \
rebuilt onto the new disk.

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
    /// Only check whether it can be replaced
    #[arg(long)]
    pub dry_run: bool,
    /// Return once the rebuild has started
    #[arg(long)]
    pub no_wait: bool,
}

/// `weft reshape`.
#[derive(Debug, Args)]
#[command(after_help = "\
The array stays usable during a reshape, and survives as much as before: crashes and lost disks, \
also together. Disks to add are taken from its spares. The new size takes effect at the end: \
`weft attach` resizes its block device, mounted or not, and NBD clients see it when they connect \
again. A pause, a stop or a crash loses nothing: the reshape resumes from the last checkpoint.

No backup file is needed. The data moves towards the start of the disks, into space that \
`weft create` leaves before it on disks of 64 MiB or more (see --head-room there). Each reshape \
takes some of it. An array that becomes smaller gives some back (`weft shrink`).

--back turns a running reshape back: moved data moves back, and added disks are spares again. If a \
member fails during a reshape, and there is a spare, the reshape waits until it is rebuilt.

--size lets the array use more of each disk once all of its disks are larger: they were replaced \
with `weft replace`, or their files or volumes were enlarged. Nothing is moved, and the new size is \
there at once. SIZE is what is used of each disk, as in `weft create --size`; `max` is all that the \
smallest disk has. Spares that are smaller are not used any more.

Examples:
  weft add tank /dev/sdx && weft grow tank
  weft grow tank --size max
  weft add tank d5.img --size 10G && weft reshape tank --code raid6 --add 1
  weft grow tank --add 2 --dry-run
  weft grow tank --no-wait && weft reshape tank --wait
  weft reshape tank --back")]
pub struct ReshapeArgs {
    /// Name or id of the array
    pub array: String,
    /// Spares to add; needed if there are several, and neither code nor unit changes
    #[arg(long, value_name = "N")]
    pub add: Option<usize>,
    /// The new code
    #[arg(long, value_name = "CODE")]
    pub code: Option<String>,
    /// The new unit: bytes of an array's address space on one disk before the next
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub unit: Option<u64>,
    /// Use SIZE of each disk, or all that the smallest has
    #[arg(
        long,
        value_parser = UsedSize::parse,
        value_name = "max|SIZE",
        conflicts_with_all = ["add", "code", "unit", "used", "no_wait", "back", "wait"],
    )]
    pub size: Option<UsedSize>,
    /// Turn the running reshape back
    #[arg(long, conflicts_with_all = ["add", "code", "unit", "used", "dry_run"])]
    pub back: bool,
    /// Follow the running reshape to its end
    #[arg(long, conflicts_with_all = ["add", "code", "unit", "used", "dry_run", "back", "no_wait"])]
    pub wait: bool,
    /// What all reshapes take
    #[command(flatten)]
    pub how: HowArgs,
}

/// How much of each disk an array uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedSize {
    /// All that the smallest has.
    Max,
    /// Bytes.
    Bytes(u64),
}

impl UsedSize {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        size::parse(text).map(Self::Bytes).map_err(|why| format!("{why}, or max"))
    }

    /// The bytes; `None`: all that the smallest disk has.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Max => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// What all reshapes take.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// Bytes in use, from the start, if the array becomes smaller: the rest is discarded
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub used: Option<u64>,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Return once it has started
    #[arg(long)]
    pub no_wait: bool,
}

/// `weft shrink`.
#[derive(Debug, Args)]
#[command(after_help = "\
The disks of the last slots become spares, and `weft remove` takes them out. To remove another \
disk, shrink first, then `weft replace` that one with a spare.

Data beyond the new end is discarded at once. So first make the file system smaller, and give its \
size with --used. Without --used, the array shrinks only if nothing was ever written beyond the \
new end. NBD clients see the new size when they connect again.

The array stays usable during this, and survives as much as before. `weft reshape ARRAY --back` \
turns back; discarded data is then empty space.

Examples:
  weft shrink tank --dry-run
  resize2fs /dev/loop0 20G && weft shrink tank --used 20G
  weft shrink tank --disks 2 --used 20G --no-wait")]
pub struct ShrinkArgs {
    /// Name or id of the array
    pub array: String,
    /// Disks to remove
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub disks: usize,
    /// What all reshapes take
    #[command(flatten)]
    pub how: HowArgs,
}

/// `weft rebuild`.
#[derive(Debug, Args)]
#[command(after_help = "\
A rebuild starts automatically once a disk is available (`weft add`, `weft replace`). Its policy \
can be changed at any time, also while it runs; no work is repeated. The array stores the policy.

A pause lasts until `resume`, or until the array is stopped; `weft status` shows it. While paused, \
the array uses no spare: after a failure it stays degraded.

Orders: `popularity` rebuilds the most accessed data first, `redundancy` the stripes that have \
lost the most units, `ascending` goes from the first stripe to the last. `auto` is popularity, or \
redundancy while more than one disk is missing or being rebuilt.

Paces: `users-first` holds the rebuild back while it is in users' way, `greedy` does not.

Examples:
  weft rebuild tank              (follows it to the end)
  weft rebuild tank pause
  weft rebuild tank resume
  weft rebuild tank --order popularity --slice 64 --zone 128
  weft rebuild tank --order ascending --pace greedy
  weft rebuild tank --defaults")]
pub struct RebuildArgs {
    /// Name or id of the array
    pub array: String,
    /// What to do
    #[command(subcommand)]
    pub action: Option<RebuildAction>,
    /// Rebuild policy
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// The rebuild policy.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rebuild policy")]
pub struct PolicyArgs {
    /// Reset all options below to their defaults
    #[arg(long)]
    pub defaults: bool,
    /// Which stripes to rebuild first
    #[arg(long, value_parser = named(RebuildOrder::ALL, RebuildOrder::name))]
    pub order: Option<RebuildOrder>,
    /// Who comes first on a disk, between the limits of `weft throttle`
    #[arg(long, value_parser = named(RebuildPace::ALL, RebuildPace::name))]
    pub pace: Option<RebuildPace>,
    /// Opportunistic rebuild from user I/O: off, units that a request covers, or all units it
    /// touches
    #[arg(long, value_parser = named(Piggyback::ALL, Piggyback::name))]
    pub piggyback: Option<Piggyback>,
    /// Stripes to rebuild in the hottest zone before choosing again
    #[arg(long, value_name = "STRIPES")]
    pub slice: Option<u64>,
    /// Stripes per hot zone
    #[arg(long, value_name = "STRIPES")]
    pub zone: Option<u64>,
    /// Number of hot zones to track
    #[arg(long, value_name = "NUMBER")]
    pub zones: Option<usize>,
    /// Half-life of access popularity
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub half_life: Option<u64>,
    /// Leave a slice as soon as another zone is twice as hot
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false")]
    pub preemptive: Option<bool>,
}

impl PolicyArgs {
    /// The changes that they ask for.
    pub fn change(&self) -> PolicyChange {
        PolicyChange {
            reset: self.defaults,
            order: self.order,
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

/// The period of --watch: long enough not to keep the daemon busy.
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
    /// Follow it to the end (the default)
    Wait,
    /// Pause it
    Pause,
    /// Resume it
    Resume,
}

/// `weft scrub`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the whole array and checks that parity and copies match the data. Exits with 3 if they do \
not. With --repair, mismatches are repaired.

An interrupted scrub (the array was stopped, or crashed) resumes automatically, close to where it \
stopped, when the array is served again.

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
    /// Repair mismatches
    #[arg(long, global = true)]
    pub repair: bool,
    /// Return once it has started
    #[arg(long, global = true)]
    pub no_wait: bool,
}

/// What `weft scrub` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ScrubAction {
    /// Start a scrub and follow it to the end (the default)
    Start,
    /// Follow the running scrub to the end
    Wait,
    /// Start again from the first block, even if a scrub is running
    Restart,
    /// Cancel the running scrub
    Cancel,
    /// Show the running scrub, or the result of the last one
    Status,
}

/// `weft throttle`.
#[derive(Debug, Args)]
#[command(after_help = "\
Applies to rebuild, resync, scrub and reshape. Between the two rates they yield to user I/O. Below --min \
they proceed in batches of 2.5 MiB per disk, and user I/O runs between the batches. They never \
exceed --max. Rates are bytes per second on each member, and take effect at once.

With --latency they run as fast as they can between the two rates so that users' reads and writes \
take that long on average. The array stores all of it, so it holds until it is changed.

Examples:
  weft throttle tank --max 50MB/s
  weft throttle tank --min 10M --max 200M
  weft throttle tank --latency 20ms
  weft throttle tank --max unlimited --latency off")]
pub struct ThrottleArgs {
    /// Name or id of the array
    pub array: String,
    /// Minimum rate, bytes per second
    #[arg(long, value_parser = size::parse_rate, value_name = "RATE")]
    pub min: Option<u64>,
    /// Maximum rate, bytes per second, or `unlimited`
    #[arg(long, value_parser = parse_max, value_name = "RATE")]
    pub max: Option<u64>,
    /// Mean time of user requests to aim at, such as `20ms` or `500us`, or `off`
    #[arg(long, value_parser = parse_latency, value_name = "TIME")]
    pub latency: Option<u64>,
}

/// A time in microseconds; 0 for `off`.
fn parse_latency(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    let wrong = || format!("{text:?} is no time: give one as `20ms`, `500us` or `1s`, or `off`");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_us = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit_us).filter(|latency_us| *latency_us > 0).ok_or_else(wrong)
}

fn parse_max(text: &str) -> Result<u64, String> {
    match text {
        "unlimited" => Ok(u64::MAX),
        _ => match size::parse_rate(text)? {
            0 => Err("with a maximum rate of 0 it would never end: use `weft rebuild ARRAY pause`"
                .into()),
            rate => Ok(rate),
        },
    }
}

/// `weft stop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Completes the requests in flight, flushes, and marks arrays clean. Refuses while an array is \
attached as a block device. An array stopped by name stays stopped until `weft start`, or until \
the daemon restarts.

Examples:
  weft stop
  weft stop tank                (the daemon keeps serving the other arrays)
  weft stop --keep-devices             (an upgrade, under mounted devices)")]
pub struct StopArgs {
    /// Only this array, by name or id
    pub array: Option<String>,
    /// Stop the daemon under ublk devices in use: they stay, and their users wait until the next
    /// `weft serve` takes them over
    #[arg(long, conflicts_with = "array")]
    pub keep_devices: bool,
}

/// `weft start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Starts an array that the running daemon found but does not serve: it was stopped, members were \
missing, or another array has the same name. Given a disk, starts that disk's array, even if the \
daemon was not told of the disk; the other members are searched for where the daemon looks, \
among the given disks, and on all block devices. The array starts even if members are missing, unless that could lose data.

Examples:
  weft start tank
  weft start 3f0c2a7e9b5d41d8a6c4e2f01b7d9c35    (by id)
  weft start /dev/sdb /dev/sdc /dev/sdd
  weft start tank --consistency bitmap       (before a reshape to mirrors)
  weft start tank --dry-run")]
pub struct StartArgs {
    /// Arrays by name or id, or disks
    #[arg(required = true, value_name = "ARRAY|DISK")]
    pub targets: Vec<String>,
    /// Start even if half of the members or more are missing (they may hold newer data)
    #[arg(long)]
    pub force_degraded: bool,
    /// Keep parity consistent in this way from now on: `ppl`, `bitmap` or `none`. The array must
    /// have been stopped cleanly
    #[arg(long, value_parser = named(Consistency::ALL, protection), value_name = "POLICY")]
    pub consistency: Option<Consistency>,
    /// Wait up to this long for a missing member whose place a spare would take [default: that of
    /// `weft serve`, or 30s]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    pub wait: Option<Duration>,
    /// Only show what would be started, and the missing members
    #[arg(long)]
    pub dry_run: bool,
}

/// `weft remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Takes a spare out of the array and erases its label, so that the disk can be reused. For a missing \
slot, the array forgets which disk was last in it. A working member is not removed: use `weft \
replace` or `weft fail`.

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
