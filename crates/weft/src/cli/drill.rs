//! The command that rehearses the loss of a disk.

use std::time::Duration;

use clap::Args;
use weft_cli::size;

/// `weft drill`.
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is written to any disk, and the array stays as it is: a copy of it, whose writes stay in \
memory, loses the disk, and its rebuild runs for a while beside the users of the array. Reads that \
the disk could not answer any more are repeated as reconstructions. So users feel the load of a \
rebuild for that time.

The array must be healthy, with no job running. Ctrl-C leaves the drill to end by itself after its \
time.

Examples:
  weft drill tank --fail d2
  weft drill tank --fail 2 --for 2m --json")]
pub struct DrillArgs {
    /// Name or id of the array
    pub array: String,
    /// The member that fails: its path, the end of its path, or its slot
    #[arg(long, value_name = "MEMBER")]
    pub fail: String,
    /// How long the rebuild runs, at the most
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub during: Duration,
    /// How long users are observed before that
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub before: Duration,
    /// Most memory for what the copy writes
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    pub memory: u64,
}

/// The time of a phase: a drill holds a place on the control socket, so it is bounded.
fn parse_time(text: &str) -> Result<Duration, String> {
    match size::parse_duration(text)? {
        Duration::ZERO => Err("a drill needs time: give at least 1s".into()),
        time if time > Duration::from_secs(3600) => Err("give at most 1h".into()),
        time => Ok(time),
    }
}
