//! `weft plan`.

use clap::{ArgGroup, Args};
use weft_cli::size;

/// `weft plan`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").args(["members", "disks"]).required(true).multiple(false),
    group = ArgGroup::new("emphasis").args(["read", "write", "most"]).multiple(false),
    after_help = "\
Every figure is computed with the layouts and the repair planner that run arrays; docs/plan.md \
explains how. Nothing is written. Without --survive, codes must survive any 2 failures (any 1 with \
fewer than 5 disks).

In stripes, D is data, L local parity, G global parity, P Q R parity, C a copy.

Examples:
  Eight disks of 20 TB, any two may fail:
    weft plan --disks 8 --size 20TB --survive 2
  Slow disks, an MTTDL of a million years, reads matter most:
    weft plan --disks 12 --size 18T --bandwidth 150M --mttdl 1e6y --read
  These disks (only their sizes are read), at least 10 TiB usable:
    weft plan --capacity 10T /dev/sd[b-h]
  Two codes side by side, MTTDL checked by simulation:
    weft plan --disks 7 --size 4TB --code lrc:4,2,1 --code drc-g:4,2,1 \\
      --monte-carlo"
)]
pub struct PlanArgs {
    /// Files, block devices or nbd:// URIs to plan for
    #[arg(value_name = "MEMBER")]
    pub members: Vec<String>,
    /// Plan for this many disks
    #[arg(long, value_name = "N", requires = "size")]
    pub disks: Option<usize>,
    /// Size of each disk: 20TB as disks are sold; 20T is 20 TiB
    #[arg(long, value_parser = size::parse, value_name = "SIZE", conflicts_with = "members")]
    pub size: Option<u64>,
    /// Sequential bandwidth of a disk, bytes per second
    #[arg(long, value_parser = size::parse, default_value = "200M", value_name = "RATE")]
    pub bandwidth: u64,
    /// Share of the bandwidth that a rebuild may take, 0 to 1
    #[arg(long, default_value_t = 0.5, value_name = "PART")]
    pub rebuild_share: f64,
    /// Mean time to failure of a disk
    #[arg(long, value_parser = parse_hours, default_value = "1e6h", value_name = "TIME")]
    pub mttf: f64,

    /// Survive the loss of any F disks
    #[arg(long, value_name = "F")]
    pub survive: Option<usize>,
    /// Minimum mean time to data loss, such as 1e6y
    #[arg(long, value_parser = parse_hours, value_name = "TIME")]
    pub mttdl: Option<f64>,
    /// Minimum usable capacity
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub capacity: Option<u64>,
    /// Favour reads, also with a disk lost
    #[arg(long)]
    pub read: bool,
    /// Favour small writes
    #[arg(long)]
    pub write: bool,
    /// Favour usable capacity
    #[arg(long)]
    pub most: bool,

    /// Compare only this code (may be repeated)
    #[arg(long = "code", value_name = "CODE")]
    pub codes: Vec<String>,
    /// Also show codes that miss a goal, or that another code beats in every figure
    #[arg(long)]
    pub all: bool,
    /// Check MTTDL by simulation of CYCLES cycles, each from all disks working until all work
    /// again, or until data is lost
    #[arg(long, num_args = 0..=1, default_missing_value = "100000", value_name = "CYCLES",
          value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub monte_carlo: Option<u64>,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Parses `1e6h`, `1000000`, `114y`; hours without a suffix.
fn parse_hours(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix('y') {
        Some(years) => (years, crate::HOURS_PER_YEAR),
        None => (text.strip_suffix('h').unwrap_or(text), 1.0),
    };
    let hours = number.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    hours
        .map(|hours| hours * factor)
        .ok_or_else(|| format!("`{text}` is not a time: write 1e6h (hours) or 100y (years)"))
}

#[cfg(test)]
mod tests {
    use super::parse_hours;

    #[test]
    fn times_are_hours_or_years() {
        assert_eq!(parse_hours("1e6h"), Ok(1e6));
        assert_eq!(parse_hours("500"), Ok(500.0));
        assert_eq!(parse_hours("2y"), Ok(17520.0));
        for text in ["", "y", "-1y", "0", "nan", "inf", "1 day"] {
            assert!(parse_hours(text).is_err(), "{text}");
        }
    }
}
