//! The command line of `weft fs`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use weft_cli::failure::Failure;
use weft_cli::size;
use weft_cluster::NodeName;
use weft_cluster::channel::Address;
use weft_cluster::coordinator::etcd::EtcdUri;
use weft_fs::{META_CACHE_BYTES, Redundancy};

use crate::machine;

/// The memory for metadata if none is said: this part of the machine's, within bounds. A mount
/// after a crash, and a takeover, read a database that fits into it once.
const METADATA_CACHE_PART: u64 = 32;
const METADATA_CACHE: RangeInclusive<u64> = META_CACHE_BYTES..=1 << 30;

/// Parses the memory for metadata.
///
/// # Errors
/// As [`size::parse`].
pub fn parse_metadata_cache(text: &str) -> Result<u64, String> {
    match text {
        "auto" => {
            let part = machine::memory_bytes() / METADATA_CACHE_PART;
            Ok(part.clamp(*METADATA_CACHE.start(), *METADATA_CACHE.end()))
        }
        _ => size::parse(text).map_err(|why| format!("{why}, or auto")),
    }
}

/// `weft fs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each file has its own redundancy, inherited from its folder: auto (the default) mirrors small files \
and gives larger ones parity. Mounting and all later commands need root.

This is an early version: do not keep your only copy on it. docs/weftfs.md lists known limits.

Examples:
  weft fs create home d0 d1 d2 d3
  weft fs mount home /mnt d0 d1 d2 d3
  weft fs set raid6 /mnt/photos
  weft fs status /mnt

Several machines (docs/cluster.md):
  weft fs create home nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1,e2,e3
  weft fs keeper home nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1,e2,e3")]
pub struct FsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: FsAction,
}

/// What `weft fs` does.
#[derive(Debug, Clone, Subcommand)]
pub enum FsAction {
    /// Create a file system on disks, which may differ in size
    Create(FsCreateArgs),
    /// Mount a file system on a folder (runs until unmounted)
    Mount(FsMountArgs),
    /// Show a mounted file system: its disks, bad blocks, and free space per redundancy
    Status(FsStatusArgs),
    /// Show free space per redundancy (used space: df, du)
    #[command(after_help = "\
Example:
  weft fs df /mnt")]
    Df(FsPlaceArgs),
    /// Set the redundancy of files, or of new files in folders
    Set(FsSetArgs),
    /// Take a disk out of service
    Fail(FsFailArgs),
    /// Add a disk, which may have any size
    Add(FsAddArgs),
    /// Use the full size of enlarged disks
    Grow(FsGrowArgs),
    /// Move the data of a working disk to the other disks, then remove it
    Remove(FsDiskArgs),
    /// Follow the rebuild of lost disks' data on the other disks; it starts automatically
    #[command(after_help = "\
Rebuilt data goes to any disks with room; a rebuild that lacks room continues when a disk is added. A lost \
disk that works again is taken back with its valid data: `weft fs add`.

Examples:
  weft fs rebuild /mnt
  weft fs add /mnt d2 && weft fs rebuild /mnt")]
    Rebuild(FsPlaceArgs),
    /// Move existing data to disks with more room, such as a new one
    Balance(FsBalanceArgs),
    /// Read every block, repair wrong ones, and move unreadable ones
    Scrub(FsScrubArgs),
    /// Cancel the running or waiting job; finished work is kept
    Cancel(FsCancelArgs),
    /// Check that the metadata, and with --data every block, is sound
    Fsck(FsckArgs),
    /// Keep the metadata of a file system for several machines, or stand by to do so
    Keeper(FsKeeperArgs),
    /// Take a machine out of a cluster: the disks refuse it from then on
    Evict(FsEvictArgs),
}

/// A process's part in a cluster.
#[derive(Debug, Clone, Args)]
pub struct FsClusterArgs {
    /// What tells the nodes of each other, for shared disks: `etcd://HOST[:PORT][,HOST[:PORT]…]`;
    /// or `disks`: the disks themselves, with no other machine
    #[arg(long, value_name = "URL", value_parser = parse_cluster)]
    pub cluster: Option<ClusterAt>,
    /// The name of this node, which no other process has [default: the machine's name]
    #[arg(long, requires = "cluster")]
    pub node: Option<NodeName>,
    /// A file with the cluster's shared key, which only its owner may read. Nodes and keepers prove
    /// to each other that they have it; contents are not encrypted
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub key: Option<PathBuf>,
    /// How long a disk whose server is away is waited for before it counts as lost. A server that
    /// starts after a crash takes 7 seconds
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "cluster")]
    #[arg(value_parser = size::parse_duration)]
    pub disk_patience: Duration,
}

impl FsClusterArgs {
    /// Where the coordinator is.
    ///
    /// # Errors
    /// If it was not given.
    pub fn at(&self) -> Result<&ClusterAt, Failure> {
        self.cluster.as_ref().ok_or_else(|| {
            Failure::usage("no coordinator given")
                .hint("give --cluster etcd://HOST, or --cluster disks")
        })
    }
}

/// The coordinator of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAt {
    /// An etcd.
    Etcd(EtcdUri),
    /// The disks of the file system.
    Disks,
}

/// Where the coordinator of a cluster is.
///
/// # Errors
/// What to write instead.
pub fn parse_cluster(text: &str) -> Result<ClusterAt, String> {
    match text {
        "disks" => Ok(ClusterAt::Disks),
        text => text
            .parse::<EtcdUri>()
            .map(ClusterAt::Etcd)
            .map_err(|error| format!("{error}; or `disks`: the file system's own disks")),
    }
}

/// `weft fs keeper`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs until it is stopped. Start one on two machines or more: one keeps the metadata, the others stand by, \
and one of them takes over when it ends or dies. It first fences the one before it at all disks, so all \
their servers must run then. With --mount the keeper's machine uses the file system, too, and `weft fs \
status`, `add`, `remove` and the like work on that folder. docs/cluster.md shows the whole.

Peers prove to each other that they have the key; contents are not encrypted. Without --key only programs \
on this machine can connect.

Block devices that several machines reach (SCSI, NVMe) need no server if they have persistent \
reservations. One process of a machine uses them: a keeper, which may have --mount, or a node.

With --cluster disks no etcd is needed: a part of the disks that `weft fs create --cluster disks` sets \
aside keeps who is keeper and who lives. A majority of the disks must answer for that: with two disks \
both, with three any two. A process takes 9 seconds to start, or 14 after a crash.

Examples:
  weft fs keeper home nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1,e2,e3 \\
    --key /etc/weft/home.key --listen 10.0.0.7:10811
  weft fs keeper home nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1 --mount /mnt
  weft fs keeper home /dev/disk/by-id/wwn-0x600140{1,2} --cluster etcd://e1
  weft fs keeper home nbd://s1/d0 nbd://s2/d1 nbd://s3/d2 --cluster disks
  weft fs status home --cluster etcd://e1,e2,e3")]
pub struct FsKeeperArgs {
    /// The file system, which gives the cluster its name
    pub name: String,
    /// All its disks, served by `weft disks serve`: `nbd://HOST[:PORT]/DISK`; or block devices with
    /// persistent reservations
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Its part in the cluster
    #[command(flatten)]
    pub cluster: FsClusterArgs,
    /// Where nodes reach it: an address of this machine and a port, or /PATH of a Unix socket; port
    /// 0 stands for any
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: Address,
    /// Also mount the file system on this folder while it is the keeper; needs root
    #[arg(long, value_name = "FOLDER")]
    pub mount: Option<PathBuf>,
    /// Take over although disks are missing, or do not confirm a fence, if most do. They count as
    /// lost. Only if no machine that was expelled can reach them: what it writes there would be
    /// lost
    #[arg(long)]
    pub degraded: bool,
    /// Do not abort what a fenced machine has in flight on block devices: for disks that cannot,
    /// and only if no machine's requests outlive its fence
    #[arg(long)]
    pub no_abort: bool,
    /// Memory for contents
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub cache: u64,
    /// Memory for metadata; auto: a 32nd of the machine's, from 64 MiB to 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = parse_metadata_cache)]
    pub metadata_cache: u64,
    /// How long SIGTERM and Ctrl-C wait for programs that use the folder
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = size::parse_duration)]
    pub stop_timeout: Duration,
}

/// `weft fs evict`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The keeper fences the node at all disks, and its process ends. It may join again when it is started again. \
A keeper that is evicted makes room for one that stands by.

Example:
  weft fs evict home beta --cluster etcd://e1,e2,e3
  weft fs evict home beta nbd://s1/d0 nbd://s2/d1 --cluster disks")]
pub struct FsEvictArgs {
    /// The file system
    pub name: String,
    /// The node
    #[arg(value_name = "NODE")]
    pub evicted: NodeName,
    /// With `--cluster disks`: its disks
    #[arg(value_name = "DISK")]
    pub disks: Vec<String>,
    /// The cluster's coordinator: `etcd://HOST[:PORT][,HOST[:PORT]…]`, or `disks`
    #[arg(long, value_name = "URL", value_parser = parse_cluster)]
    pub cluster: ClusterAt,
}

impl FsAction {
    /// The mounted file system that this is about: its folder, or its name.
    pub fn place_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Create(_) | Self::Mount(_) | Self::Set(_) => None,
            Self::Keeper(_) | Self::Evict(_) => None,
            // With a coordinator it is the name of the cluster.
            Self::Status(args) if args.cluster.is_some() => None,
            Self::Status(args) => Some(&mut args.folder),
            Self::Df(args) | Self::Rebuild(args) => Some(&mut args.folder),
            Self::Fail(args) => Some(&mut args.folder),
            Self::Add(args) => Some(&mut args.folder),
            Self::Grow(args) => Some(&mut args.folder),
            Self::Remove(args) => Some(&mut args.folder),
            Self::Balance(args) => Some(&mut args.folder),
            Self::Scrub(args) => Some(&mut args.folder),
            Self::Cancel(args) => Some(&mut args.folder),
            Self::Fsck(args) => Some(&mut args.folder),
        }
    }
}

/// `weft fs create`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Without --force nothing is overwritten: only empty disks are accepted.

Example:
  truncate -s 1G d0 d1 d2 d3
  weft fs create home d0 d1 d2 d3
  weft fs mount home /mnt d0 d1 d2 d3
  weft fs create home nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1,e2,e3
  weft fs create home nbd://s1/d0 nbd://s2/d1 nbd://s3/d2 --cluster disks")]
pub struct FsCreateArgs {
    /// Its name
    pub name: String,
    /// Files, block devices or nbd:// URIs
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Redundancy of new files: auto, none, raid0, raid1, raid5, raid6, or another code
    #[arg(long, default_value = "auto", value_parser = parse_redundancy)]
    pub redundancy: Redundancy,
    /// Room for metadata on each disk at first; it grows [default: 4 to 8 % of a small disk, 1.5 %
    /// of a large one]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub metadata: Option<u64>,
    /// Overwrite the disks' contents
    #[arg(long)]
    pub force: bool,
    /// Shared disks
    #[command(flatten)]
    pub cluster: FsClusterArgs,
}

/// `weft fs mount`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs in the foreground until the folder is unmounted (umount); with --background it returns when the \
file system is mounted. SIGTERM and SIGINT unmount it as soon as nothing is open there, and the log \
names its users. Needs root. With --degraded, a disk that is missing, has become too short, or cannot be \
opened counts as lost from then on, and its data is rebuilt on the other disks; `weft fs add` takes it back. \
Disks that other hosts can reach (nbd://) are marked as mounted: another host cannot mount them at the same \
time, and a mount takes 6 seconds, or 26 after a crash. Interrupted jobs resume: rebuilds, removals, new \
redundancies, balances and scrubs.

With --read-only nothing is written to the disks, which may be write-protected. Each such mount recovers \
from a crash in memory.

Called `mount.weftfs` (ln -s /usr/local/bin/weft /sbin/mount.weftfs), it serves `mount -t weftfs` and \
lines of /etc/fstab.

Examples:
  weft fs mount home /mnt
  weft fs mount --read-only -o noexec home /mnt
  mount -t weftfs home /mnt -o noatime,disk=/srv/disks
  weft fs mount --background home /mnt
  weft fs mount home /mnt d0 d1 d2 d3
  weft fs mount home /mnt /srv/disks

With --cluster it is one of several machines, and a keeper must run (weft fs keeper):
  weft fs mount home /mnt nbd://s1/d0 nbd://s2/d1 --cluster etcd://e1 --key k
  weft fs mount vms /mnt nbd://s/d0 nbd://s/d1 --cluster etcd://e --early-commit")]
pub struct FsMountArgs {
    /// The file system
    pub name: String,
    /// The folder
    pub folder: PathBuf,
    /// Its disks, in any order, and folders in which to look for them [default: /dev and
    /// /dev/mapper]
    #[arg(value_name = "DISK")]
    pub disks: Vec<String>,
    /// Mount although disks are missing
    #[arg(long)]
    pub degraded: bool,
    /// Like --degraded, and also mount disks whose metadata may be old: they were not unmounted
    /// together, and the missing disks may have been used without them. Without this option the
    /// error shows their age
    #[arg(long)]
    pub stale: bool,
    /// Wait up to this long for missing disks
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = size::parse_duration)]
    pub wait: Duration,
    /// Write nothing to the disks
    #[arg(long)]
    pub read_only: bool,
    /// Options as in /etc/fstab: ro, suid, dev, noexec, noatime, nodiratime, strictatime, remount,
    /// sync …, and of these here degraded, stale, awake, syncfs, early_commit, disk=, cache=,
    /// metadata_cache=, wait=, stop_timeout=, log=, cluster=, node=, key=, disk_patience=
    #[arg(short, value_name = "OPTION,…")]
    pub options: Vec<String>,
    /// Memory for contents: at most half of it waits to be written, the rest was read or written
    /// lately
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub cache: u64,
    /// Memory for metadata: names, attributes, places and checksums. What is not in it is read
    /// again; auto: a 32nd of the machine's, from 64 MiB to 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = parse_metadata_cache)]
    pub metadata_cache: u64,
    /// Keep processors awake while programs send one small request after the other, as untar and rm
    /// do: faster, above all in virtual machines, but costs power
    #[arg(long)]
    pub awake: bool,
    /// sync and syncfs wait until everything is on the disks (since Linux 6.18); the kernel shows a
    /// loop device as the source, and `fuseblk.weftfs` as the type
    #[arg(long)]
    pub syncfs: bool,
    /// With --cluster: fsync of overwritten blocks waits for the keeper's memory, and not for a
    /// disk. If this node and the keeper die within seconds of each other, as when the power fails
    /// for both, what was synced last is lost, and the file system stays sound
    #[arg(long)]
    pub early_commit: bool,
    /// Return when it is mounted; another process serves it
    #[arg(long)]
    pub background: bool,
    /// Where messages go with --background [default: /run/weftfs-NAME.log]
    #[arg(long, value_name = "FILE", requires = "background")]
    pub log: Option<PathBuf>,
    /// How long SIGTERM and Ctrl-C wait for programs that use the file system; and, up to a minute,
    /// the end of a node for its keeper
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = size::parse_duration)]
    pub stop_timeout: Duration,
    /// Shared disks
    #[command(flatten)]
    pub cluster: FsClusterArgs,
}

/// `weft fs status`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
It lists problems first. With --check the exit code reports them, for cron and monitoring: 0 if there \
are none, 3 otherwise.

Examples:
  weft fs status /mnt
  weft fs status --check /mnt || mail -s 'weftfs' root < /dev/null
  weft fs status home --cluster etcd://e1,e2,e3
  weft fs status home nbd://s1/d0 nbd://s2/d1 --cluster disks")]
pub struct FsStatusArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// With `--cluster disks`: its disks
    #[arg(value_name = "DISK", requires = "cluster")]
    pub disks: Vec<String>,
    /// Show the cluster's nodes and keeper, from any machine that reaches its coordinator:
    /// `etcd://HOST[:PORT][,HOST[:PORT]…]`, or `disks`
    #[arg(long, value_name = "URL", value_parser = parse_cluster)]
    pub cluster: Option<ClusterAt>,
    /// Exit with 3 if something needs attention
    #[arg(long)]
    pub check: bool,
}

/// Commands for a mounted file system.
#[derive(Debug, Clone, Args)]
pub struct FsPlaceArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
}

/// `weft fs set`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Rewrites the files with the new redundancy, a part at a time; they stay usable. With --background the \
command does not wait for that; `weft fs status` shows the progress. After an unmount or a crash it \
resumes with the next mount. This does the same, without progress:
  setfattr -n user.weft.redundancy -v raid1 FILE

Examples:
  weft fs set raid6 /mnt/photos
  weft fs set --background raid1 /mnt/disk.img")]
pub struct FsSetArgs {
    /// auto, none, raid0, raid1, raid5, raid6, rs:K+R, lrc:K,L,R …
    #[arg(value_parser = parse_redundancy)]
    pub redundancy: Redundancy,
    /// Files and folders
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Return at once; needs root
    #[arg(long)]
    pub background: bool,
}

/// `weft fs add`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
New files use the disk at once; existing data stays in place until `weft fs balance` moves it. If all \
other disks are full, mirrored files find no room before that. Without --force only an empty disk is \
accepted. A lost disk of this file system is taken back: its valid data is used, and the rest is rebuilt \
on it.

Examples:
  weft fs add /mnt d5 && weft fs balance /mnt
  weft fs add /mnt d2 && weft fs rebuild /mnt")]
pub struct FsAddArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// A file, block device or nbd:// URI
    pub disk: String,
    /// Overwrite the disk's contents
    #[arg(long)]
    pub force: bool,
}

/// `weft fs grow`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
For enlarged disks: a larger file, volume or partition, or a copy on a larger disk. Nothing is moved; the \
new space is free at once. The room for metadata stays the same.

Example:
  truncate -s 2G d0 && weft fs grow /mnt")]
pub struct FsGrowArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// Number of the disk, as in the status [default: all enlarged disks]
    pub disk: Option<u16>,
}

/// `weft fs fail`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Refuses if files have blocks that only this disk can give: `weft fs remove` empties a disk before it \
leaves. The data of a disk out of service is rebuilt on the other disks. `weft fs add` takes the disk \
back with its valid data.

Examples:
  weft fs fail /mnt 2
  weft fs fail /mnt /dev/sdc
  weft fs fail /mnt 2 --dry-run")]
pub struct FsFailArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// The disk: its number, as in the status, or its path
    pub disk: String,
    /// Only list the files that would lose blocks
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
    /// Do it although files lose blocks, unless the disk is added again
    #[arg(long)]
    pub force: bool,
}

/// `weft fs remove`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Files stay usable. It is refused if the other disks have too little room, or are too few for the \
redundancy of a file. `weft fs cancel` keeps the disk.

Examples:
  weft fs remove /mnt 2
  weft fs remove /mnt /dev/sdc")]
pub struct FsDiskArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// The disk: its number, as in the status, or its path
    pub disk: String,
}

/// `weft fs scrub`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Files stay usable. After an unmount, a crash or a rebuild the scrub resumes near where it stopped, \
automatically or with this command; to start again, cancel it first. `weft fs fsck --data` names the \
files whose blocks cannot be repaired.

Examples:
  weft fs scrub /mnt
  weft fs cancel /mnt")]
pub struct FsScrubArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
}

/// `weft fs balance`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Moves blocks of files from the disks with the least free space to those with the most, until they \
differ by little. Files stay usable, and keep their redundancy. The command shows the progress; the job \
continues if the command ends, and resumes with the next mount after an unmount or a crash, unless it is \
cancelled.

Examples:
  weft fs add /mnt d5 && weft fs balance /mnt
  weft fs cancel /mnt")]
pub struct FsBalanceArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
}

/// `weft fs cancel`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A disk that was being removed stays, and new files use it again; moved data stays on the other disks. If \
no job runs, the waiting one is cancelled. A rebuild and a new redundancy of files cannot be cancelled; \
but `weft fs set` can restore the former redundancy.

Example:
  weft fs cancel /mnt")]
pub struct FsCancelArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
}

/// `weft fs fsck`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Files stay usable. The exit code is 3 if anything was found.

Examples:
  weft fs fsck /mnt
  weft fs fsck /mnt --data")]
pub struct FsckArgs {
    /// Where it is mounted, or its name
    pub folder: PathBuf,
    /// Read every block, compare it with its checksum and its line, and repair wrong ones
    #[arg(long)]
    pub data: bool,
}

fn parse_redundancy(text: &str) -> Result<Redundancy, String> {
    text.parse().map_err(|error: weft_fs::FsError| error.to_string())
}
