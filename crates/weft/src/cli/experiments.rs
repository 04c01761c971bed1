//! `weft lab list`, `run`, `report`.

use std::path::PathBuf;

use clap::Args;

/// `weft lab list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft lab list")]
pub struct LabListArgs {}

/// What all runs of experiments take.
#[derive(Debug, Args)]
pub struct LabRuns {
    /// Seed of everything that is drawn; the same seed gives the same bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder with recorded traces; without it generated ones stand in, and are marked as such
    #[arg(long, env = "WEFT_TRACES", value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Threads [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Simulate only one request of N: quicker, and coarser
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub divide: u64,
}

/// `weft lab run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every number stands beside the paper's, with the seed, the modelled disks, the traces and whether \
they were generated, and where the paper errs.

Examples:
  weft lab run drc-table1 drc-fig9
  weft lab run drc-fig11 --csv > fig11.csv
  weft lab run --all --traces ~/traces --json > figures.json")]
pub struct LabRunArgs {
    /// Experiments (`weft lab list`)
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// One line of comma-separated values for each number
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// How they are run.
    #[command(flatten)]
    pub runs: LabRuns,
}

/// `weft lab report`.
#[derive(Debug, Args)]
#[command(after_help = "\
The page stands for itself: no scripts, nothing is fetched.

Examples:
  weft lab report --out report.html                    (all experiments)
  weft lab report --out drc.html drc-table1 drc-fig11 --traces ~/traces
  weft lab report --out drc.html --png plots drc-fig11")]
pub struct LabReportArgs {
    /// Experiments (`weft lab list`) [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also each plot as a picture, DIR/NAME-1.png and so on
    #[arg(long, value_name = "DIR")]
    pub png: Option<PathBuf>,
    /// How they are run.
    #[command(flatten)]
    pub runs: LabRuns,
}
