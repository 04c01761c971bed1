//! `weft lab`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use weft_cli::{listen, size};

use crate::store::Shard;

/// `weft lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft lab list
  weft lab run drc-table1
  weft lab show pro-table3 > my.toml
  weft lab run my.toml
  weft lab report --out report.html
  weft lab disk --list
  weft lab disk --model wd10eals --size 4G --socket disk.sock")]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What `weft lab` does.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the experiments: figures and tables of papers that weft can reproduce
    List(LabListArgs),
    /// Print an experiment, a modelled disk, or a schema, to start from
    Show(LabShowArgs),
    /// Run experiments and print their results next to the paper's numbers
    Run(LabRunArgs),
    /// Put the shards of a run together, and print their results as `run` does
    Merge(LabMergeArgs),
    /// Run experiments and write their figures as one HTML page
    Report(LabReportArgs),
    /// Serve modelled disks over NBD that take as long as a real product would
    Disk(LabDiskArgs),
}

/// `weft lab list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft lab list")]
pub struct LabListArgs {}

/// `weft lab show`.
#[derive(Debug, Args)]
#[command(after_help = "\
The schemas are JSON Schema, with which editors complete and check a file; docs/lab.md describes the \
format.

Examples:
  weft lab show pro-table3 > my.toml
  weft lab show wd10eals > models/mine.toml
  weft lab show experiment.schema.json > experiment.schema.json")]
pub struct LabShowArgs {
    /// An experiment (`weft lab list`), a modelled disk (`weft lab disk --list`),
    /// experiment.schema.json or model.schema.json
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Options of every run of experiments.
#[derive(Debug, Args)]
pub struct LabRuns {
    /// Random seed; the same seed gives the same output
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder of recorded traces; without it, generated traces are used and marked as such
    #[arg(long, env = "WEFT_TRACES", value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Folder of modelled disks of your own, a TOML file each, named as the disk
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Simulate only one in N requests: faster, but less precise
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub divide: u64,
}

/// `weft lab run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints each number next to the paper's, with the seed, the modelled disks, the traces and whether \
they were generated, and known errors in the paper.

Examples:
  weft lab run drc-table1 drc-fig9
  weft lab run drc-fig11 --csv > fig11.csv
  weft lab run ./my.toml --models models
  weft lab run pro-table3 --out cells     (finished cells are kept in cells)
  weft lab run pro-table3 --out cells --resume   (go on after Ctrl-C)
  weft lab run pro-table3 --out cells --shard 3/16
  weft lab merge cells
  weft lab run --all --traces ~/traces --json > figures.json")]
pub struct LabRunArgs {
    /// Experiments to run: names (see `weft lab list`), and files of your own, *.toml
    #[arg(value_name = "NAME|FILE", required_unless_present = "all")]
    pub names: Vec<String>,
    /// Run all experiments
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print comma-separated values, one line per number
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Keep finished cells in this folder, so that a run that was interrupted can go on
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with a run that was interrupted: measure only the cells that are not in --out
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Measure only part K of N of the cells, for `weft lab merge`
    #[arg(long, value_name = "K/N", requires = "out")]
    pub shard: Option<Shard>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: LabRuns,
}

/// `weft lab merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
The output has the same bytes as that of one run on one machine. All shards of a run must be there, \
each once, and of the same experiment, seed, divisor, traces, disks and version of weft.

Examples:
  weft lab merge cells
  weft lab merge node1/cells node2/cells --csv > figures.csv
  weft lab merge cells --page report.html --svg plots")]
pub struct LabMergeArgs {
    /// Folders that were given to `weft lab run` as --out
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// Print comma-separated values, one line per number
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Also write one HTML page with all figures to this file
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Also write each plot as an SVG image, DIR/NAME-1.svg and so on
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Folder of recorded traces, as for the run
    #[arg(long, env = "WEFT_TRACES", value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Folder of modelled disks of your own, as for the run
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
}

/// `weft lab report`.
#[derive(Debug, Args)]
#[command(after_help = "\
The page is self-contained: it has no scripts and loads nothing.

Examples:
  weft lab report --out report.html                    (all experiments)
  weft lab report --out drc.html drc-table1 drc-fig11 --traces ~/traces
  weft lab report --out drc.html --svg plots drc-fig11")]
pub struct LabReportArgs {
    /// Experiments to include: names (see `weft lab list`), and files of your own, *.toml
    /// [default: all that weft has]
    #[arg(value_name = "NAME|FILE")]
    pub names: Vec<String>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also write each plot as an SVG image, DIR/NAME-1.svg and so on
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: LabRuns,
}

/// `weft lab disk`.
#[derive(Debug, Clone, Args)]
#[command(
    group = ArgGroup::new("what").args(["model", "list"]).required(true).multiple(false),
    after_help = "\
Each request takes, in real time, as long as the model says the product would take under the same \
load; docs/disk-models.md describes the models and how well they agree with data sheets. Contents \
are kept in memory unless --file is given; only written data takes memory. Runs until SIGTERM or \
Ctrl-C, then prints statistics for each disk by the model's clock, and how far the answers lagged \
behind the model.

Examples:
  weft lab disk --list
  A hard disk of 4 GiB for any NBD client:
    weft lab disk --model wd10eals --size 4G --socket disk.sock
    nbdinfo 'nbd+unix:///d0?socket=disk.sock'
  Seven SSDs, and a weft array on them:
    weft lab disk --model 850pro-256g --size 5G --count 7 --socket ssds.sock &
    weft create tank --code drc-g:4,2,1 \\
      nbd+unix:///d{0..6}?socket=$PWD/ssds.sock
  Files /mnt/d0/disk, /mnt/d1/disk, … for Linux in a virtual machine:
    weft lab disk --model wd10eals --size 4G --count 4 --mount /mnt"
)]
pub struct LabDiskArgs {
    /// Product to model (see --list)
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Folder of modelled disks of your own, a TOML file each, named as the disk
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// List the products and the disks of --models, with the models' figures next to data sheets'
    #[arg(long)]
    pub list: bool,
    /// Serve only this much, from the outer edge; the mechanics stay those of the whole disk
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Number of disks, named d0, d1, …
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub count: u32,
    /// Keep contents in this file or block device (give one for each disk)
    #[arg(long = "file", value_name = "PATH", requires = "model")]
    pub files: Vec<String>,
    /// Serve on this Unix socket
    #[arg(long, value_name = "PATH", requires = "model")]
    pub socket: Option<PathBuf>,
    /// Serve over TCP; even on loopback, every local user can connect
    #[arg(long, num_args = 0..=1, default_missing_value = "127.0.0.1",
          value_parser = listen::parse, value_name = "ADDR[:PORT]", requires = "model")]
    pub listen: Option<SocketAddr>,
    /// Mount each disk below DIR as a file, DIR/d0/disk and so on; needs root
    #[arg(long, value_name = "DIR", requires = "model")]
    pub mount: Option<PathBuf>,
    /// Allow --listen on an address that other machines can reach: weft's NBD has no authentication
    /// and no encryption
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// Turn a hard disk's write cache on or off [default: as shipped]
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    pub write_cache: Option<bool>,
    /// Seed of the first disk's rotational position; the others derive from it
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}
