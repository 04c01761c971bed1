//! `weft lab`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::experiments::{LabListArgs, LabReportArgs, LabRunArgs};
use crate::size;

/// `weft lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft lab list
  weft lab run drc-table1
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
    /// List the experiments: papers' figures and tables that can be reproduced
    List(LabListArgs),
    /// Run experiments and print what they find beside the paper's numbers
    Run(LabRunArgs),
    /// Run experiments and make one HTML page of their figures
    Report(LabReportArgs),
    /// Serve disks over NBD that take as long as a certain product would
    Disk(LabDiskArgs),
}

/// `weft lab disk`.
#[derive(Debug, Clone, Args)]
#[command(
    group = ArgGroup::new("what").args(["model", "list"]).required(true).multiple(false),
    after_help = "\
Every request takes, in real time, what the model says that the product would take with all that \
is asked of it; docs/disk-models.md tells how, and how well it agrees with data sheets. Contents \
live in memory, and only what was written takes any, unless --file is given. Runs until SIGTERM \
or Ctrl-C, then prints what each disk did, by the model's clock, and how much later the answers \
were than the model's.

Examples:
  weft lab disk --list
  A hard disk of 4 GiB for any NBD client:
    weft lab disk --model wd10eals --size 4G --socket disk.sock
    nbdinfo 'nbd+unix:///d0?socket=disk.sock'
  Seven SSDs, and an array of weft over them:
    weft lab disk --model 850pro-256g --size 5G --count 7 --socket ssds.sock &
    weft create tank --code drc-g:4,2,1 \\
      nbd+unix:///d{0..6}?socket=$PWD/ssds.sock
  Files /mnt/d0/disk, /mnt/d1/disk, … for Linux in a virtual machine:
    weft lab disk --model wd10eals --size 4G --count 4 --mount /mnt"
)]
pub struct LabDiskArgs {
    /// The product (see --list)
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// List the products, with what the model does beside what their data sheets say
    #[arg(long)]
    pub list: bool,
    /// Offer only so much, from the outer edge; the mechanics stay those of the whole disk
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// How many disks, called d0, d1, …
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub count: u32,
    /// Keep contents in this file or block device (give as many as there are disks)
    #[arg(long = "file", value_name = "PATH", requires = "model")]
    pub files: Vec<String>,
    /// Serve on this Unix socket
    #[arg(long, value_name = "PATH", requires = "model")]
    pub socket: Option<PathBuf>,
    /// Serve over TCP, also on loopback to every local user
    #[arg(long, num_args = 0..=1, default_missing_value = "127.0.0.1:10809", value_name = "ADDR",
          requires = "model")]
    pub listen: Option<SocketAddr>,
    /// Mount each disk below DIR, as the file DIR/d0/disk and so on; needs root
    #[arg(long, value_name = "DIR", requires = "model")]
    pub mount: Option<PathBuf>,
    /// Let --listen take an address that other machines reach; NBD has no passwords
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// Switch a hard disk's write cache on or off [default: as the product comes]
    #[arg(long, value_name = "on|off", value_parser = parse_switch)]
    pub write_cache: Option<bool>,
    /// Turns the platters of the first disk; the others follow from it
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
