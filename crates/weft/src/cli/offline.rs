//! Commands that need no daemon: create, examine, simulate.

use clap::{Args, ValueEnum};

use crate::size;

/// `weft create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Codes:
  raid0  raid1  raid10  raid10:n2  raid4  raid5  raid6
  rs:K+R       Reed-Solomon: K data, R parity; survives any R losses
  lrc:K,L,R    K data in L local groups of one parity each, R global parities
  drc:K,L,R    as lrc, groups shuffled from stripe to stripe: faster degraded
  drc-g:K,L,R  drc with every unit rotated over all disks
  drc-oa:K,L,R drc with a shorter period
The code needs at least as many members as its stripe is wide, not counting spares.

A disk that is not zero at its start, its end and samples between is refused without --force, \
also if what it holds is not recognised.

Examples:
  Seven new files of 1 GiB, two of any seven may be lost:
    weft create tank --code drc-g:4,2,1 --size 1G d0 d1 d2 d3 d4 d5 d6
  Block devices, the last one a hot spare:
    weft create vault --code raid6 --spares 1 /dev/sd[b-h]
  A member on another machine, and nothing done yet:
    weft create far --code raid5 --dry-run /dev/sdb /dev/sdc nbd://10.0.0.2/disk")]
pub struct CreateArgs {
    /// Name of the array: letters, digits, `-`, `_`, `.`
    pub name: String,
    /// Files, block devices or nbd:// URIs, in slot order; spares last
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
    /// How data is protected (see below)
    #[arg(long, value_name = "CODE")]
    pub code: String,
    /// Bytes of a stripe on one member
    #[arg(long, default_value = "64K", value_parser = size::parse_u32, value_name = "SIZE")]
    pub unit: u32,
    /// Order of data and parity for raid4/5/6, named as Linux md does
    /// [default: left-symmetric]
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<String>,
    /// What protects a stripe from a crash in the middle of a write
    /// [default: ppl for parity codes, bitmap for mirrors]
    #[arg(long, value_enum)]
    pub consistency: Option<Consistency>,
    /// How many of the members, from the end, are hot spares
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub spares: usize,
    /// Create member files that do not exist, of this size
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Do not reserve the space of member files: writes wait whenever their file system is full
    #[arg(long)]
    pub sparse: bool,
    /// Bytes of the array that share one entry in the map of what needs resync or rebuild
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub region: Option<u64>,
    /// Take disks that belong to an array or hold data of any kind (it is lost)
    #[arg(long)]
    pub force: bool,
    /// Check everything and say what would be done, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What protects a stripe from a crash in the middle of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Consistency {
    /// Partial parity log: no write hole, also when a disk is lost with the crash
    Ppl,
    /// Only remembers what to resync; the write hole stays
    Bitmap,
    /// Remembers nothing: a crash means a resync of all that was ever written; the write hole stays
    None,
}

/// `weft examine`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft examine d0
  weft examine --json /dev/sd[b-h]")]
pub struct ExamineArgs {
    /// Files, block devices or nbd:// URIs
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
}

/// `weft wipe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Erases the label and the superblocks that make a disk a member; with --zero everything on it. \
Without --force it only says what is on the disk. No daemon is needed; a disk that a daemon, a \
mounted file system or another program uses is refused. What other programs left is not touched: \
`wipefs -a` erases that.

Examples:
  weft wipe d1                  (only says what would be erased)
  weft wipe /dev/sdx --force
  weft wipe old0 old1 --force --zero")]
pub struct WipeArgs {
    /// Files, block devices or nbd:// URIs
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Erase it: the array that the disk belongs to loses this member
    #[arg(long)]
    pub force: bool,
    /// Make everything on the disk read as zeros
    #[arg(long)]
    pub zero: bool,
    /// Only say what would be erased
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
}

/// `weft simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
A run is an array under a random workload with power cuts, disk failures, read errors and slow \
disks, in virtual time; every byte read is compared with a model of what may be read. The same \
seed always gives the same run. If runs fail, their seeds are listed, and the exit code is 1.

Examples:
  weft simulate --seed 1 --runs 1000
  weft simulate --seed 4711            (replays one run)")]
pub struct SimulateArgs {
    /// Seed of the first run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many runs, with seeds counting up
    #[arg(long, default_value_t = 1, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: u64,
}
