//! The command line of `weft disks`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use weft_cli::listen::ListenArgs;
use weft_cluster::{ClusterName, NodeName};

/// `weft disks`.
#[derive(Debug, Args)]
#[command(after_help = "\
Disks of a file system on several machines: `weft fs keeper`, docs/cluster.md.

Examples:
  weft disks prepare d0 d1
  weft disks serve --listen 127.0.0.1:10809 d0 d1
  weft disks fence nbd://127.0.0.1/d0 home alpha 7
  weft disks reserve /dev/sdb home 8
  weft disks fence /dev/sdb home alpha 7 --own-epoch 8")]
pub struct DisksArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DisksAction,
}

/// What `weft disks` does.
#[derive(Debug, Subcommand)]
pub enum DisksAction {
    /// Prepare disks to be shared by several nodes: writes their first MiB
    Prepare(DisksPrepareArgs),
    /// Serve prepared disks to nodes, and fence nodes (runs until stopped)
    Serve(DisksServeArgs),
    /// Make a disk refuse a node, up to an epoch, for ever
    Fence(DisksFenceArgs),
    /// Register this machine at a disk with persistent reservations, and reserve it
    Reserve(DisksReserveArgs),
}

/// `weft disks prepare`.
#[derive(Debug, Args)]
#[command(after_help = "\
The first MiB of a shared disk keeps which nodes it refuses. Nodes see the rest of the disk.

Example:
  truncate -s 1G d0
  weft disks prepare d0")]
pub struct DisksPrepareArgs {
    /// Files or block devices
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Also prepare disks whose first MiB holds something (that data is lost), or that were
    /// prepared already: they forget which nodes they refuse
    #[arg(long)]
    pub force: bool,
    /// Also erase the 4 MiB after it, where a file system that was made with `--cluster disks`
    /// keeps its leases: for disks that had another one
    #[arg(long, requires = "force")]
    pub leases: bool,
}

/// `weft disks serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Exports of a disk d0, over NBD:
  d0                        the disk, to be read
  d0/CLUSTER/lease-NUMBER   its leases, as the node of a number writes them
  d0/CLUSTER/NODE/EPOCH     the disk as a node uses it in an epoch
  d0/CLUSTER/NODE/EPOCH/fence
                            to name it is to fence this node up to this epoch
A fence is confirmed when the disk will never forget it and no request of the node is in flight. The \
first cluster that uses a disk owns it.

A disk has one server at a time, on whatever machine: a second one is refused, and one that starts \
after a server that was killed waits 6 seconds.

NBD has no authentication: who reaches the server can use the name of any node.

Examples:
  weft disks serve --listen 127.0.0.1:10809 d0 d1
  weft disks serve --socket /run/weft/disks.sock data=/dev/sdb
  weft disks serve --listen 10.0.0.2 --allow-remote /dev/sdb /dev/sdc")]
pub struct DisksServeArgs {
    /// Prepared files or block devices; NAME=PATH gives one another name than that of its file
    #[arg(required = true, value_name = "[NAME=]DISK")]
    pub disks: Vec<String>,
    /// Where to listen on TCP.
    #[command(flatten)]
    pub tcp: ListenArgs,
    /// Listen on a Unix socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// `weft disks reserve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
For SCSI and NVMe disks that several machines reach: from then on the disk refuses the writes of \
machines that are not registered (write exclusive, registrants only). The key is made of the \
cluster's name and the epoch. A machine has one key: a later epoch takes the place of an earlier one. \
A machine that was fenced must have ended its use of the disk before it registers in a new epoch.

Example:
  weft disks reserve /dev/sdb home 8")]
pub struct DisksReserveArgs {
    /// A block device
    #[arg(value_name = "DISK")]
    pub disk: std::path::PathBuf,
    /// The cluster that the disk belongs to
    pub cluster: ClusterName,
    /// The epoch in which this machine uses the disk
    #[arg(value_parser = clap::value_parser!(u64).range(1..1 << 48))]
    pub epoch: u64,
    /// How long to wait for the disk
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = weft_cli::size::parse_duration
    )]
    pub timeout: std::time::Duration,
}

/// `weft disks fence`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A fence is never taken back: the node joins again, and gets a new epoch. Without a confirmation the \
node may still write to the disk, or be refused already.

A block device is fenced with persistent reservations: this machine must be registered there, and what \
the node has in flight is aborted.

Examples:
  weft disks fence nbd://10.0.0.2/d0 home alpha 7
  weft disks fence /dev/sdb home alpha 7 --own-epoch 8")]
pub struct DisksFenceArgs {
    /// The disk: nbd://HOST/DISK, nbd://HOST:PORT/DISK or nbd+unix:///DISK?socket=PATH, or a block
    /// device
    #[arg(value_name = "URI|DISK")]
    pub disk: String,
    /// The cluster that the disk belongs to
    pub cluster: ClusterName,
    /// The node
    pub node: NodeName,
    /// The highest epoch that is refused
    #[arg(value_parser = clap::value_parser!(u64).range(1..u64::MAX))]
    pub epoch: u64,
    /// The epoch in which this machine is registered at a block device
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u64).range(1..1 << 48))]
    pub own_epoch: Option<u64>,
    /// Do not abort what the node has in flight on a block device: for disks that cannot, and nodes
    /// that are known to be off
    #[arg(long, requires = "own_epoch")]
    pub no_abort: bool,
    /// How long to wait for the confirmation
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = weft_cli::size::parse_duration
    )]
    pub timeout: std::time::Duration,
}
