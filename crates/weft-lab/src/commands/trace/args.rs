//! The arguments of `weft trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use weft_cli::size;
use weft_trace::Format;

/// `weft trace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A FILE that does not exist is also looked up in the folder $WEFT_TRACES. Formats are detected from \
the contents of FILE. The ARC paper's traces (.lis) have neither times nor operations: all requests \
are reads at time 0, which `weft replay` issues in a closed loop.

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
    /// How to read it.
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
    /// How to read it.
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

fn parse_format(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: weft_trace::TraceError| error.to_string())
}
