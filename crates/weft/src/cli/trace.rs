//! Commands about block traces: trace, replay.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use weft_trace::Format;
use weft_trace::replay::Speed;

use crate::size;

/// `weft trace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A FILE that does not exist here is looked for in the folder $WEFT_TRACES.

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
    /// List the formats that are read and the workloads that are generated
    #[command(after_help = "Examples:\n  weft trace list --json")]
    List,
    /// Show what a trace is like: requests, lengths, rate, footprint, reuse
    Info(InfoArgs),
    /// Write a trace as weft's own CSV
    Convert(ConvertArgs),
    /// Write the requests of a described workload as CSV, marked as generated
    Generate(GenerateArgs),
}

/// A trace in a file.
#[derive(Debug, Clone, Args)]
pub struct TraceFile {
    /// Its format; found by looking at it if not given (`weft trace list`)
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub format: Option<Format>,
    /// Skip damaged lines and count them, instead of failing at the first
    #[arg(long)]
    pub skip_bad: bool,
}

/// `weft trace info`.
#[derive(Debug, Args)]
#[command(after_help = "\
The trace is read once, in memory that does not grow with it: at most 256 MiB for the map of \
blocks touched, from which footprint and reuse are counted. A trace that would need more is \
counted in larger blocks, and the answer names their length. FILE may be a pipe.

Examples:
  weft trace info web_3.csv.xz
  curl -s https://example.org/trace.spc.gz | weft trace info /dev/stdin
  weft trace info --format tencent --skip-bad cbs.csv.zst --json")]
pub struct InfoArgs {
    /// The trace, also compressed with gzip, xz or zstd
    pub file: PathBuf,
    #[command(flatten)]
    pub how: TraceFile,
}

/// `weft trace convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
With --requests and a trace that has fewer, the trace is repeated with shifted time (and says \
so).

Examples:
  weft trace convert web_3.csv.xz > web_3.weft.csv
  weft trace convert websearch1.spc -o web200k.csv --requests 200000")]
pub struct ConvertArgs {
    /// The trace, also compressed with gzip, xz or zstd
    pub file: PathBuf,
    #[command(flatten)]
    pub how: TraceFile,
    /// Where to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write so many requests [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
}

/// `weft trace generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The same workload, options and seed give the same bytes, on every machine.

Examples:
  weft trace generate zipf --requests 10000
  weft trace generate financial1 --seed 7 --requests 200000 -o fin.csv
  weft trace generate sequential --rate 1000 --volume 1G --requests 5000")]
pub struct GenerateArgs {
    /// The workload (`weft trace list`)
    pub workload: String,
    /// How many requests
    #[arg(long, default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: u64,
    /// Another seed gives other requests of the same kind
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests a second, in place of the workload's own
    #[arg(long, value_name = "N")]
    pub rate: Option<u32>,
    /// Share of reads in percent, in place of the workload's own
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: Option<u8>,
    /// Bytes of the volume, in place of the workload's own
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub volume: Option<u64>,
    /// Where to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `weft replay`.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("source").required(true).args(["trace", "workload"]),
    group = clap::ArgGroup::new("writes").args(["overwrite", "reads_only"]),
    after_help = "\
TARGET is an array's NBD URI (`weft status` prints it), any other nbd:// export, a block device \
or a file. With --model it is a modelled disk, or with --code an array of weft on such disks, in \
virtual time: the requests meet the real engine, and the report says how busy each disk was.

Writes destroy what TARGET holds: they need --overwrite. Response times count from when a request \
was due (open loop) or issued (--closed), so a target that falls behind cannot hide it.

On Ctrl-C or SIGTERM nothing more is issued, what is in flight ends, and the figures so far are \
printed (of a real target; a modelled one ends at once). Exit code 1 if requests failed or \
verified blocks were wrong.

Examples:
  weft replay --trace websearch1.spc.gz --reads-only /dev/sdx
  weft replay --workload financial1 --requests 20000 --speed 10 --overwrite \\
      'nbd+unix:///tank?socket=/run/weft/nbd.sock'
  weft replay --workload zipf --closed 32 --duration 60 --reads-only disk.img
  weft replay --trace web.csv --overwrite --verify --csv series.csv scratch.img
  An array that does not exist, with a disk lost and being rebuilt:
    weft replay --workload websearch1 --model 850pro-256g \\
      --code drc-g:4,2,1 --disks 7 --failed 0 --rebuild 100M"
)]
pub struct ReplayArgs {
    /// Where the requests go: an NBD URI, a block device, a file
    #[arg(required_unless_present = "model", conflicts_with = "model")]
    pub target: Option<String>,
    #[command(flatten)]
    pub modelled: ModelledArgs,
    /// The trace, also compressed with gzip, xz or zstd; looked for in $WEFT_TRACES too
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub how: TraceFile,
    /// A generated workload instead (`weft trace list`)
    #[arg(long, value_name = "NAME")]
    pub workload: Option<String>,
    /// Seed of the workload, and of what is written
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many requests; a trace that has fewer is repeated [default: all, of a workload 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// How much faster than the trace, such as 2, 0.5 or 1/3
    #[arg(long, default_value = "1", value_name = "FACTOR", value_parser = parse_speed)]
    pub speed: Speed,
    /// Keep N requests in flight instead, whatever the times of the trace
    #[arg(long, value_name = "N", conflicts_with = "speed",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub closed: Option<u16>,
    /// How addresses are fitted to TARGET [default: exact if they fit, else scale]
    #[arg(long, value_enum)]
    pub fit: Option<FitName>,
    /// Carry out the first N requests without measuring them
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub warm_up: u64,
    /// Do not measure requests of the first so many seconds
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = parse_seconds)]
    pub warm_up_time: u64,
    /// Issue nothing after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_some_seconds)]
    pub duration: Option<u64>,
    /// Also report every interval of so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_some_seconds)]
    pub interval: Option<u64>,
    /// Write the intervals as CSV (every second unless --interval says otherwise)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Do the writes and trims: what TARGET holds is lost
    #[arg(long)]
    pub overwrite: bool,
    /// Leave out writes and trims
    #[arg(long)]
    pub reads_only: bool,
    /// Check every block read that was written before, and all of them at the end
    #[arg(long, requires = "overwrite")]
    pub verify: bool,
}

/// A target that is a model, in virtual time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Modelled target")]
pub struct ModelledArgs {
    /// Instead of TARGET: this product, modelled (`weft lab disk --list`), in virtual time
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// An array of such disks instead of a single one
    #[arg(long, value_name = "CODE", requires = "model", requires = "disks")]
    pub code: Option<String>,
    /// How many disks the array has
    #[arg(long, value_name = "N", requires = "code")]
    pub disks: Option<usize>,
    /// Use so much of each disk, from its outer edge [default: all]
    #[arg(long, value_parser = size::parse, value_name = "SIZE", requires = "model")]
    pub disk_size: Option<u64>,
    /// The array's unit
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "64K")]
    pub unit: u64,
    /// Fail these disks of the array first
    #[arg(long, value_name = "SLOT", value_delimiter = ',', requires = "code")]
    pub failed: Vec<usize>,
    /// And rebuild the first of them meanwhile, at so many bytes a second
    #[arg(long, value_parser = size::parse, value_name = "RATE", requires = "failed")]
    pub rebuild: Option<u64>,
}

/// How addresses are fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FitName {
    /// As they are; requests beyond the end are left out and counted
    Exact,
    /// Modulo the target's size
    Wrap,
    /// Stretched or shrunk by whole megabytes
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
        return Err(format!("a speed of `{text}` would never begin or never end"));
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
        0 => Err("in 0 seconds nothing happens".to_owned()),
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
