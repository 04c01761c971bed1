//! `weft lab list`, `run`, `report`.

use std::path::PathBuf;

use clap::Args;

/// `weft lab list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft lab list")]
pub struct LabListArgs {}

/// Options of every run of experiments.
#[derive(Debug, Args)]
pub struct LabRuns {
    /// Random seed; the same seed gives the same output
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder of recorded traces; without it, generated traces are used and marked as such
    #[arg(long, env = "WEFT_TRACES", value_name = "DIR")]
    pub traces: Option<PathBuf>,
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
  weft lab run --all --traces ~/traces --json > figures.json")]
pub struct LabRunArgs {
    /// Experiments to run (see `weft lab list`)
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// Run all experiments
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print comma-separated values, one line per number
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: LabRuns,
}

/// `weft lab report`.
#[derive(Debug, Args)]
#[command(after_help = "\
The page is self-contained: it has no scripts and loads nothing.

Examples:
  weft lab report --out report.html                    (all experiments)
  weft lab report --out drc.html drc-table1 drc-fig11 --traces ~/traces
  weft lab report --out drc.html --png plots drc-fig11")]
pub struct LabReportArgs {
    /// Experiments to include (see `weft lab list`) [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Write the page to this file
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also write each plot as an image, DIR/NAME-1.png and so on
    #[arg(long, value_name = "DIR")]
    pub png: Option<PathBuf>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: LabRuns,
}
