//! Commands that bring an array into use: serve, attach, detach, demo.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use weft_disk::QUEUE_DEPTH;

use crate::{group, size};

/// `weft serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Members are recognised by their labels, in any order. A folder is searched for members, its \
subfolders are not. Runs until SIGTERM, Ctrl-C or `weft stop`. Clients find each array under its \
name, on a Unix socket in the runtime directory and, with --listen, over TCP.

A disk that is missing or bad stops no array that can do without it: the log says ALERT, `weft \
status` why, and it is looked for again every few seconds (SIGHUP: at once).

Examples:
  weft serve d0 d1 d2 d3 d4 d5 d6
  weft serve /srv/weft /dev/sd[b-h]       (all arrays found there)
  weft serve --socket-group kvm /srv/weft
  weft serve --wait 30s /dev/sd[b-h] nbd://10.0.0.2/disk
  weft serve --listen 127.0.0.1:10809 /srv/weft
  weft serve --listen 0.0.0.0:10809 --allow-remote /srv/weft")]
pub struct ServeArgs {
    /// Members (files, block devices, nbd:// URIs) or folders to search
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
    /// Serve only this array, by name or id (may be repeated)
    #[arg(long = "array", value_name = "ARRAY")]
    pub arrays: Vec<String>,
    /// Also listen on TCP; every local user can then read and write every array, also on loopback
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "127.0.0.1",
        value_parser = parse_listen,
        value_name = "ADDR[:PORT]"
    )]
    pub listen: Option<SocketAddr>,
    /// Let --listen take an address that other machines reach; NBD has no passwords
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// Path of the Unix socket for NBD [default: nbd.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    pub nbd_socket: Option<PathBuf>,
    /// Let the members of this group (a name in /etc/group, or a number) use that socket: its mode
    /// is 0660 then, not 0600
    #[arg(long, value_name = "GROUP", value_parser = group::parse)]
    pub socket_group: Option<u32>,
    /// Requests with each disk at most, half of them of rebuilds and scrubs; further ones wait in
    /// weft, users' first
    #[arg(
        long,
        value_name = "N",
        default_value_t = QUEUE_DEPTH,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub disk_depth: u16,
    /// Wait up to this long for members that are missing (30s, 5m) before an array is started
    /// without them; arrays that are complete start at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = size::parse_duration)]
    pub wait: Duration,
    /// How long SIGTERM and Ctrl-C wait for attached arrays that are mounted or open
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = size::parse_duration
    )]
    pub stop_timeout: Duration,
    /// A disk that answers a request for longer than this is given up: its member is failed, and
    /// the array goes on without it (at least 1s)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_disk_timeout
    )]
    pub disk_timeout: Duration,
    /// Refuse all writes; nothing on the members is changed
    #[arg(long)]
    pub read_only: bool,
    /// Start an array although half of its members or more are missing (they may hold newer data);
    /// if its code does not survive that, only for reading what is left
    #[arg(long)]
    pub force_degraded: bool,
}

fn parse_disk_timeout(text: &str) -> Result<Duration, String> {
    match size::parse_duration(text)? {
        Duration::ZERO => Err("a disk needs some time to answer: give at least 1s".into()),
        timeout => Ok(timeout),
    }
}

/// The port that IANA has assigned to NBD.
const NBD_PORT: u16 = 10809;

/// Reads an address to listen on: `127.0.0.1`, `[::1]:10810`, `localhost`.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let wrong = || {
        "give an IP address of this machine, with or without a port, such as 127.0.0.1:10809 or [::1]"
            .to_owned()
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| wrong())?)
        }
        _ => (text, NBD_PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = match bare {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => bare.parse().map_err(|_| wrong())?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// `weft attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs root: the array appears as one file of a FUSE file system, and a loop device over it. Put \
any file system on the device, mount it, and unmount it before `weft detach`.

Examples:
  dev=$(weft attach tank) && mkfs.ext4 $dev && mount $dev /mnt
  weft attach tank --block-size 4096")]
pub struct AttachArgs {
    /// Name or id of the array
    pub array: String,
    /// Logical block size of the device: 512 or 4096 [default: that of the array]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_u32)]
    pub block_size: Option<u32>,
}

/// `weft detach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Refuses while the device is mounted or open. Works without a daemon too, to clean up after one \
that has died.

Examples:
  umount /mnt && weft detach tank")]
pub struct DetachArgs {
    /// Name of the array
    pub array: String,
}

/// `weft demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no root, less than 2 GB of disk space and less than a minute. Everything happens in a \
scratch folder, which is removed at the end.

Examples:
  weft demo
  weft demo --keep --dir /var/tmp/weft-demo")]
pub struct DemoArgs {
    /// Leave the array's files in place at the end
    #[arg(long)]
    pub keep: bool,
    /// Use this folder (must not exist yet) [default: a new one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Store this tree of files [default: /usr/share, or what there is of the kind]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Store at most this much
    #[arg(long, value_parser = size::parse, default_value = "256M", value_name = "SIZE")]
    pub limit: u64,
    /// Change one byte of what is read back: the demo must notice
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

#[cfg(test)]
mod tests {
    use super::parse_listen;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let cases = [
            ("127.0.0.1", "127.0.0.1:10809"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0", "0.0.0.0:10809"),
            ("localhost", "127.0.0.1:10809"),
            ("localhost:7000", "127.0.0.1:7000"),
            ("::1", "[::1]:10809"),
            ("[::1]", "[::1]:10809"),
            ("[::1]:7000", "[::1]:7000"),
        ];
        for (text, address) in cases {
            assert_eq!(parse_listen(text).map(|a| a.to_string()), Ok(address.to_owned()), "{text}");
        }
        for text in ["", "here", "127.0.0.1:", "127.0.0.1:99999", "[::1", "1.2.3"] {
            assert!(parse_listen(text).is_err(), "{text} was taken for an address");
        }
    }
}
