//! The arguments of `weft replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weft_cli::size;
use weft_trace::replay::Speed;

use crate::commands::trace::TraceFile;

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
request was due (open loop) or issued (--closed), so a target that falls behind cannot hide it. \
A trace without times (arc) is replayed in a closed loop, with --closed 1 unless N is given.

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
    /// How to read it.
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
    /// A modelled target.
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

/// Seconds with up to nine decimal places, as nanoseconds.
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
