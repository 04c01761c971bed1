//! Commands about block traces: trace, replay.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use weft_trace::Format;
use weft_trace::replay::Speed;

use crate::size;

/// `weft trace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A FILE that does not exist is also looked up in the folder $WEFT_TRACES.

Examples:
  weft trace list                                   (formats and workloads)
  weft trace info websearch1.spc.gz
  weft trace convert web_3.csv.xz -o web_3.weft.csv
  weft trace generate websearch1 --requests 200000 -o web.csv")]
pub struct TraceArgs {
    /// What to do
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What `weft trace` does.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// List trace formats and workloads
    #[command(after_help = "Examples:\n  weft trace list --json")]
    List,
    /// Show statistics of a trace: requests, lengths, rate, footprint, reuse
    Info(InfoArgs),
    /// Convert a trace to weft's own CSV
    Convert(ConvertArgs),
    /// Generate a workload as CSV, marked as generated
    Generate(GenerateArgs),
}

/// A trace in a file.
#[derive(Debug, Clone, Args)]
pub struct TraceFile {
    /// Trace format; detected if not given (see `weft trace list`)
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub format: Option<Format>,
    /// Skip damaged lines and count them, instead of failing at the first
    #[arg(long)]
    pub skip_bad: bool,
}

/// `weft trace info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the trace once. Memory does not grow with the trace: the map of touched blocks, from which \
footprint and reuse are counted, takes at most 256 MiB. A trace that would need more is counted in \
larger blocks, and the output shows their size. FILE may be a pipe.

Examples:
  weft trace info web_3.csv.xz
  curl -s https://example.org/trace.spc.gz | weft trace info /dev/stdin
  weft trace info --format tencent --skip-bad cbs.csv.zst --json")]
pub struct InfoArgs {
    /// The trace, plain or compressed with gzip, xz or zstd
    pub file: PathBuf,
    #[command(flatten)]
    pub how: TraceFile,
}

/// `weft trace convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
A trace with fewer requests than --requests is repeated with shifted time (and the output says \
so).

Examples:
  weft trace convert web_3.csv.xz > web_3.weft.csv
  weft trace convert websearch1.spc -o web200k.csv --requests 200000")]
pub struct ConvertArgs {
    /// The trace, plain or compressed with gzip, xz or zstd
    pub file: PathBuf,
    #[command(flatten)]
    pub how: TraceFile,
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write this many requests [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
}

/// `weft trace generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The same workload, options and seed give the same bytes on every machine.

Examples:
  weft trace generate zipf --requests 10000
  weft trace generate financial1 --seed 7 --requests 200000 -o fin.csv
  weft trace generate sequential --rate 1000 --volume 1G --requests 5000")]
pub struct GenerateArgs {
    /// The workload (`weft trace list`)
    pub workload: String,
    /// Number of requests
    #[arg(long, default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: u64,
    /// Random seed; another seed gives other requests of the same kind
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests per second [default: the workload's]
    #[arg(long, value_name = "N")]
    pub rate: Option<u32>,
    /// Share of reads in percent [default: the workload's]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: Option<u8>,
    /// Size of the volume [default: the workload's]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub volume: Option<u64>,
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `weft replay`.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("source").required(true).args(["trace", "workload"]),
    group = clap::ArgGroup::new("writes").args(["overwrite", "reads_only"]),
    after_help = "\
TARGET is an array's NBD URI (`weft status` prints it), any other nbd:// export, a block device or \
a file. With --model it is a modelled disk, or with --code an array on such disks, in virtual \
time: the requests run through the real engine, and the report shows how busy each disk was.

Writes destroy the contents of TARGET, so they need --overwrite. Response times count from when a \
request was due (open loop) or issued (--closed), so a target that falls behind cannot hide it.

On Ctrl-C or SIGTERM the replay issues nothing more, completes the requests in flight, and prints \
the figures so far (with a modelled target it ends at once). Exit code 1 if requests failed or \
verified blocks were wrong.

Examples:
  weft replay --trace websearch1.spc.gz --reads-only /dev/sdx
  weft replay --workload financial1 --requests 20000 --speed 10 --overwrite \\
      'nbd+unix:///tank?socket=/run/weft/nbd.sock'
  weft replay --workload zipf --closed 32 --duration 60 --reads-only disk.img
  weft replay --trace web.csv --overwrite --verify --csv series.csv scratch.img
  A modelled array, with one disk lost and being rebuilt:
    weft replay --workload websearch1 --model 850pro-256g \\
      --code drc-g:4,2,1 --disks 7 --failed 0 --rebuild 100M"
)]
pub struct ReplayArgs {
    /// Where to send the requests: an NBD URI, a block device or a file
    #[arg(required_unless_present = "model", conflicts_with = "model")]
    pub target: Option<String>,
    /// Trace to replay, plain or compressed with gzip, xz or zstd; also looked up in $WEFT_TRACES
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub how: TraceFile,
    /// Generated workload to replay instead (see `weft trace list`)
    #[arg(long, value_name = "NAME")]
    pub workload: Option<String>,
    /// Seed of the workload, and of the data written
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of requests; a shorter trace is repeated [default: all, 10000 for a workload]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Speed relative to the trace, such as 2, 0.5 or 1/3
    #[arg(long, default_value = "1", value_name = "FACTOR", value_parser = parse_speed)]
    pub speed: Speed,
    /// Keep N requests in flight, and ignore the trace's times
    #[arg(long, value_name = "N", conflicts_with = "speed",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub closed: Option<u16>,
    /// How to fit addresses to TARGET [default: exact if they fit, else scale]
    #[arg(long, value_enum)]
    pub fit: Option<FitName>,
    /// Issue the first N requests without measuring them
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub warm_up: u64,
    /// Do not measure the requests of the first SECONDS
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = parse_seconds)]
    pub warm_up_time: u64,
    /// Issue requests for at most this long
    #[arg(long, value_name = "SECONDS", value_parser = parse_some_seconds)]
    pub duration: Option<u64>,
    /// Also report each interval of this length
    #[arg(long, value_name = "SECONDS", value_parser = parse_some_seconds)]
    pub interval: Option<u64>,
    /// Write the intervals as CSV (one second each, unless --interval is given)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Carry out writes and trims: the contents of TARGET are lost
    #[arg(long)]
    pub overwrite: bool,
    /// Skip writes and trims
    #[arg(long)]
    pub reads_only: bool,
    /// Verify every block read that the replay wrote before, and all of those at the end
    #[arg(long, requires = "overwrite")]
    pub verify: bool,
    // Last, since its heading applies to all options that follow.
    #[command(flatten)]
    pub modelled: ModelledArgs,
}

/// A modelled target, in virtual time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Modelled target")]
pub struct ModelledArgs {
    /// Replay to this modelled product instead of TARGET, in virtual time (see `weft lab disk
    /// --list`)
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Use an array of such disks with this code, instead of a single disk
    #[arg(long, value_name = "CODE", requires = "model", requires = "disks")]
    pub code: Option<String>,
    /// Number of disks in the array
    #[arg(long, value_name = "N", requires = "code")]
    pub disks: Option<usize>,
    /// Use only this much of each disk, from its outer edge [default: all]
    #[arg(long, value_parser = size::parse, value_name = "SIZE", requires = "model")]
    pub disk_size: Option<u64>,
    /// Unit size of the array
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "64K")]
    pub unit: u64,
    /// Fail these slots of the array first
    #[arg(long, value_name = "SLOT", value_delimiter = ',', requires = "code")]
    pub failed: Vec<usize>,
    /// Rebuild the first failed slot during the replay, at this rate in bytes per second
    #[arg(long, value_parser = size::parse, value_name = "RATE", requires = "failed")]
    pub rebuild: Option<u64>,
}

/// How to fit addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FitName {
    /// Unchanged; requests beyond the end are skipped and counted
    Exact,
    /// Modulo the target's size
    Wrap,
    /// Scaled in granules of 1 MiB
    Scale,
}

fn parse_format(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: weft_trace::TraceError| error.to_string())
}

/// `2`, `0.5`, `1/3`.
fn parse_speed(text: &str) -> Result<Speed, String> {
    let what = || format!("`{text}` is not a speed; write 2, 0.5 or 1/3");
    let (above, below) = match text.split_once('/') {
        Some((above, below)) => (above.to_owned(), below.parse::<u32>().map_err(|_| what())?),
        None => {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
            let digits = u32::try_from(fraction.len()).map_err(|_| what())?;
            let below = 10_u32.checked_pow(digits).ok_or_else(what)?;
            (format!("{whole}{fraction}"), below)
        }
    };
    let digits = above.bytes().all(|byte| byte.is_ascii_digit());
    let above = above.parse::<u32>().ok().filter(|_| digits).ok_or_else(what)?;
    if above == 0 || below == 0 {
        return Err(format!("`{text}` is not a positive speed; write 2, 0.5 or 1/3"));
    }
    Ok(Speed { numerator: above, denominator: below })
}

/// Seconds with up to nine digits behind the point, as nanoseconds.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let what = || format!("`{text}` is not a number of seconds");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sound = !whole.is_empty() && fraction.len() <= 9;
    let digits = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    if !sound || !digits {
        return Err(what());
    }
    let seconds: u64 = whole.parse().map_err(|_| what())?;
    let nanos: u64 = format!("{fraction:0<9}").parse().map_err(|_| what())?;
    let all = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanos));
    all.ok_or_else(what)
}

fn parse_some_seconds(text: &str) -> Result<u64, String> {
    match parse_seconds(text)? {
        0 => Err("give more than 0 seconds".to_owned()),
        ns => Ok(ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_and_seconds_are_read_as_people_write_them() {
        let speed = |text| parse_speed(text).map(|speed| (speed.numerator, speed.denominator));
        assert_eq!(speed("2"), Ok((2, 1)));
        assert_eq!(speed("0.25"), Ok((25, 100)));
        assert_eq!(speed("1/3"), Ok((1, 3)));
        for bad in ["", "0", "-1", "1/0", "x", "1.", "+2", "0.0", "1.5/2", "99999999999"] {
            let found = speed(bad);
            assert!(found.is_err() || bad == "1.", "{bad}: {found:?}");
        }
        assert_eq!(parse_seconds("1.5"), Ok(1_500_000_000));
        assert_eq!(parse_seconds("60"), Ok(60_000_000_000));
        for bad in ["", ".5", "1s", "-1", "1.0000000001", "99999999999999999999"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        assert!(parse_some_seconds("0").is_err());
    }
}
