//! Commands that bring an array into use: serve, attach, detach.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weft_cli::listen::ListenArgs;
use weft_cli::size;
use weft_disk::QUEUE_DEPTH;

use super::cache::CacheOptions;
use crate::group;

/// `weft serve`.
#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Without members it follows /etc/weft/weft.toml and /etc/weft/weft.d/*.toml, or serves all arrays on \
block devices. Options of the command line win.

Recognises members by their labels, in any order. Searches folders for members, but not their \
subfolders, and then all block devices for missing members. Runs until SIGTERM, Ctrl-C or \
`weft stop`. Clients find each array under its name, on a Unix socket in the runtime directory and, \
with --listen, over TCP.

A missing or bad disk does not stop an array that can run without it: the log shows an ALERT, \
`weft status` shows why, and weft looks for the disk again every few seconds (on SIGHUP at once).

Examples:
  weft serve d0 d1 d2 d3 d4 d5 d6
  weft serve /dev                         (all arrays on block devices)
  weft serve --background /dev            (returns when they are served)
  weft serve /srv/weft /dev/sd[b-h]       (all arrays found there)
  weft serve --socket-group kvm /srv/weft
  weft serve --vhost-user /run/weft-vhost --socket-group kvm /dev
  weft serve --wait 30s /dev/sd[b-h] nbd://10.0.0.2/disk
  weft serve --cache 1GiB /srv/weft
  weft serve --listen 127.0.0.1:10809 /srv/weft
  weft serve --listen 0.0.0.0:10809 --allow-remote /srv/weft"
)]
pub struct ServeArgs {
    /// Members (files, block devices, nbd:// URIs) or folders to search [default: from the
    /// configuration, or /dev]
    #[arg(value_name = "MEMBER")]
    pub members: Vec<String>,
    /// Follow this file and its drop-ins (`FILE` with `.d` for `.toml`), also if members are named
    /// [default: /etc/weft/weft.toml if none are]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve only this array, by name or id (may be repeated)
    #[arg(long = "array", value_name = "ARRAY")]
    pub arrays: Vec<String>,
    /// Where to listen on TCP, besides the Unix socket.
    #[command(flatten)]
    pub tcp: ListenArgs,
    /// Path of the Unix socket for NBD [default: nbd.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    pub nbd_socket: Option<PathBuf>,
    /// Also serve each array to virtual machines, on a socket ARRAY.sock in this folder
    /// (vhost-user-blk)
    #[arg(long, value_name = "DIR")]
    pub vhost_user: Option<PathBuf>,
    /// Let the members of this group (a name in /etc/group, or a number) use these sockets; their
    /// mode is then 0660 instead of 0600
    #[arg(long, value_name = "GROUP", value_parser = group::parse)]
    pub socket_group: Option<u32>,
    /// Maximum number of requests in flight per disk; rebuilds and scrubs may use half of them.
    /// Further requests queue in weft, users' first
    #[arg(
        long,
        value_name = "N",
        default_value_t = QUEUE_DEPTH,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub disk_depth: u16,
    /// Wait up to this long (30s, 5m) for missing members before starting an array without them;
    /// complete arrays start at once [default: 30s if a spare would take the place of a member,
    /// else 0s]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    pub wait: Option<Duration>,
    /// How long SIGTERM and Ctrl-C wait for attached arrays that are mounted or open
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = size::parse_duration
    )]
    pub stop_timeout: Duration,
    /// Give up a disk that takes longer than this to answer a request: its member is failed, and
    /// the array continues without it (at least 1s)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_disk_timeout
    )]
    pub disk_timeout: Duration,
    /// The caches.
    #[command(flatten)]
    pub cache: CacheOptions,
    /// Refuse all writes; change nothing on the members
    #[arg(long)]
    pub read_only: bool,
    /// Serve on although no array is found: members that appear later start theirs
    #[arg(long)]
    pub allow_empty: bool,
    /// Run this program for each event, with its name, the array and the member as arguments, as
    /// mdadm does
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// Mail what needs attention to this address, with sendmail
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub mail: Option<String>,
    /// Return when the arrays are served; another process serves them. Shows which members are
    /// missing, and ends with an error if none can be served after --wait, unless --allow-empty
    #[arg(long)]
    pub background: bool,
    /// Where messages go with --background [default: serve.log in the runtime directory]
    #[arg(long, value_name = "FILE", requires = "background")]
    pub log: Option<PathBuf>,
    /// Start an array even if half of its members or more are missing (they may hold newer data);
    /// if its code does not survive that, its remaining data can only be read
    #[arg(long)]
    pub force_degraded: bool,
}

/// An address that stays one line of a mail's head.
fn parse_address(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace();
    match !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        true => Ok(text.to_owned()),
        false => Err("give a mail address, such as root".into()),
    }
}

fn parse_disk_timeout(text: &str) -> Result<Duration, String> {
    match size::parse_duration(text)? {
        Duration::ZERO => Err("a disk needs time to answer: give at least 1s".into()),
        timeout => Ok(timeout),
    }
}

/// `weft attach`.
#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Needs root. Create any file system on the device, mount it, and unmount it before `weft detach`. \
/dev/weft/ARRAY is a link to the device, for fstab.

With ublk (Linux 6.6 or later, and a daemon that runs as root) the device outlives its daemon: if \
the daemon is killed or upgraded, users of the device wait until the next `weft serve` takes it \
over, and see no error. Otherwise the array appears as the one file of a FUSE file system, with a \
loop device over it, which returns errors once the daemon has died. Loop devices grow with their \
array while they are mounted; ublk devices do from Linux 6.16 on. A device of the kernel's NBD client \
outlives a daemon of any user, for 10 minutes at most.

Examples:
  dev=$(weft attach tank) && mkfs.ext4 $dev && mount $dev /mnt
  weft attach tank --read-only
  weft attach tank --via fuse --block-size 4096"
)]
pub struct AttachArgs {
    /// Name or id of the array
    pub array: String,
    /// Logical block size of the device: 512 or 4096 [default: that of the array]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_u32)]
    pub block_size: Option<u32>,
    /// The way from the kernel to the daemon [default: ublk, else fuse, else nbd]
    #[arg(long, value_name = "WAY")]
    pub via: Option<AttachWay>,
    /// Make a device that takes no writes
    #[arg(long)]
    pub read_only: bool,
    /// Wait up to this long for a daemon that serves the array
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = size::parse_duration)]
    pub wait: Duration,
}

/// A way from the kernel to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttachWay {
    /// A ublk device: it outlives its daemon
    Ublk,
    /// A FUSE file system with one file, and a loop device over it
    Fuse,
    /// A device of the kernel's NBD client: it outlives its daemon
    Nbd,
}

/// `weft detach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Refuses while the device is mounted or open. Also works without a daemon, to clean up after one \
that died.

Examples:
  umount /mnt && weft detach tank
  weft detach --force tank     (its daemon has ended and will not come back)")]
pub struct DetachArgs {
    /// Name of the array
    pub array: String,
    /// Remove a device without a daemon even if it is in use: its users get errors
    #[arg(long)]
    pub force: bool,
}
