//! The cache of an array: `weft cache`, and the options of `weft serve` for caches.

use clap::Args;
use weft_cache::Choice;
use weft_cli::size;

/// `weft cache`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keeps popular blocks in memory. Writes go through to the disks, so a crash loses nothing more than \
without a cache. A policy vdf-P evicts like P, but keeps blocks of a lost disk longer, as each of \
them would take several reads to reconstruct. Without options, shows the cache's counts.

The array stores these settings, also `off`, until they are changed. Arrays without settings start \
with the options of `weft serve --cache`.

Examples:
  weft cache tank
  weft cache tank --size 2GiB
  weft cache tank --policy vdf-arc
  weft cache tank --size off")]
pub struct CacheArgs {
    /// Name or id of the array
    pub array: String,
    /// Memory that the cache may take, or `off`
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    pub size: Option<u64>,
    /// The policy: lru, lfu, clock, arc, s3fifo, each of them with vdf- in front, or greedy-dual; a
    /// change of policy empties the cache [default: vdf-s3fifo]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Choice>,
}

/// The options of `weft serve` for caches.
#[derive(Debug, Clone, Args)]
pub struct CacheOptions {
    /// Keep popular blocks in memory: this size for each array (see `weft help cache`)
    #[arg(long = "cache", value_parser = parse_size, value_name = "SIZE")]
    pub size: Option<u64>,
    /// The caches' policy
    #[arg(
        long = "cache-policy",
        value_name = "POLICY",
        requires = "size",
        default_value_t = Choice::DEFAULT
    )]
    pub policy: Choice,
}

/// 0 is off.
fn parse_size(text: &str) -> Result<u64, String> {
    match text {
        "off" => Ok(0),
        _ => match size::parse(text)? {
            0 => Err("a cache needs memory: give a size such as 1GiB, or off".into()),
            size => Ok(size),
        },
    }
}
