//! Options as `mount` and `/etc/fstab` have them, and the command line of a mount helper.
//!
//! `mount -t weftfs NAME FOLDER -o OPTIONS` runs `mount.weftfs NAME FOLDER -o OPTIONS`, which is
//! this program by another name ([`helper_line`]). It does what `weft fs mount --background` does.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rustix::mount::MountFlags;
use weft_cli::failure::Failure;
use weft_cli::outln;
use weft_cli::size;
use weft_cluster::NameError;
use weft_fs::AccessTimes;

use crate::cli::{FsMountArgs, parse_cluster, parse_metadata_cache};

/// The names by which a mount helper is called.
const HELPERS: [&str; 2] = ["mount.weftfs", "mount.fuse.weftfs"];
/// The name by which `fsck` calls.
const CHECKER: &str = "fsck.weftfs";
/// What a helper does. `mount` does not pass on `suid` and `dev`, which are the usual there, but
/// passes on `nosuid` and `nodev`. It waits for disks: at boot they may be about to appear.
const HELPER_MOUNTS: [&str; 6] = ["weft", "fs", "mount", "--background", "-o", "suid,dev,wait=30s"];
/// Options without an effect on the mount, or for its default behaviour.
const IGNORED: [&str; 17] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "async",
    "atime",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
];

/// What the kernel shows of each FUSE mount: `mount` gives that back for a remount.
const OF_FUSE: [&str; 8] = [
    "user_id",
    "group_id",
    "default_permissions",
    "allow_other",
    "rootmode",
    "fd",
    "max_read",
    "blksize",
];

/// Settings of options beyond the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    /// What the kernel is told.
    pub(super) flags: MountFlags,
    pub(super) access_times: AccessTimes,
    /// What is mounted is to get other flags.
    pub(super) remounts: bool,
}

/// Reads `-o`. What has an option of the command line is set there.
pub(super) fn read(args: &mut FsMountArgs) -> Result<Options, Failure> {
    let mut options = Options {
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        access_times: AccessTimes::Relative,
        remounts: false,
    };
    let all = std::mem::take(&mut args.options);
    let all: Vec<&str> = all.iter().flat_map(|some| some.split(',')).collect();
    let is_sloppy = all.contains(&"sloppy");
    for option in all.into_iter().filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let done = match value {
            None => set_flag(args, &mut options, name),
            Some(value) => set_value(args, name, value)?,
        };
        if !done && !is_sloppy && !is_ignored(name) {
            return Err(Failure::usage(format!("unknown mount option '{option}'"))
                .hint("docs/weftfs.md lists the options"));
        }
    }
    if args.read_only {
        options.flags |= MountFlags::RDONLY;
    }
    if options.access_times == AccessTimes::None {
        options.flags |= MountFlags::NOATIME;
    }
    Ok(options)
}

fn is_ignored(name: &str) -> bool {
    let is_of_others =
        name.starts_with("x-") || name.starts_with("X-") || name == "comment" || name == "sloppy";
    is_of_others || IGNORED.contains(&name) || OF_FUSE.contains(&name)
}

fn set_flag(args: &mut FsMountArgs, options: &mut Options, name: &str) -> bool {
    let mut set = |flag, on| options.flags.set(flag, on);
    match name {
        "ro" => args.read_only = true,
        "rw" => args.read_only = false,
        "suid" => set(MountFlags::NOSUID, false),
        "nosuid" => set(MountFlags::NOSUID, true),
        "dev" => set(MountFlags::NODEV, false),
        "nodev" => set(MountFlags::NODEV, true),
        "exec" => set(MountFlags::NOEXEC, false),
        "noexec" => set(MountFlags::NOEXEC, true),
        "sync" => set(MountFlags::SYNCHRONOUS, true),
        "dirsync" => set(MountFlags::DIRSYNC, true),
        "noatime" => options.access_times = AccessTimes::None,
        "relatime" | "diratime" => options.access_times = AccessTimes::Relative,
        "nodiratime" => options.access_times = AccessTimes::NotOfFolders,
        "strictatime" => options.access_times = AccessTimes::Strict,
        "remount" => options.remounts = true,
        "degraded" => args.degraded = true,
        "stale" => args.stale = true,
        "awake" => args.awake = true,
        "syncfs" => args.syncfs = true,
        "early_commit" => args.early_commit = true,
        _ => return false,
    }
    true
}

fn set_value(args: &mut FsMountArgs, name: &str, value: &str) -> Result<bool, Failure> {
    let wrong = |why: String| Failure::usage(format!("mount option '{name}={value}': {why}"));
    match name {
        "disk" => args.disks.push(value.to_owned()),
        "cache" => args.cache = size::parse(value).map_err(wrong)?,
        "metadata_cache" => args.metadata_cache = parse_metadata_cache(value).map_err(wrong)?,
        "wait" => args.wait = size::parse_duration(value).map_err(wrong)?,
        "stop_timeout" => args.stop_timeout = size::parse_duration(value).map_err(wrong)?,
        "log" => args.log = Some(value.into()),
        "cluster" => args.cluster.cluster = Some(parse_cluster(value).map_err(wrong)?),
        "node" => {
            let node = value.parse().map_err(|error: NameError| wrong(error.to_string()))?;
            args.cluster.node = Some(node);
        }
        "key" => args.cluster.key = Some(value.into()),
        "disk_patience" => {
            args.cluster.disk_patience = size::parse_duration(value).map_err(wrong)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The command line that this program has: its own, or that of a mount helper in the words of
/// `weft fs mount`. None: a helper was asked to do nothing.
pub fn helper_line(line: Vec<OsString>) -> Option<Vec<OsString>> {
    let is_helper = |name: &OsString| {
        let name = Path::new(name).file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| HELPERS.contains(&name))
    };
    let is_checker = |name: &OsString| Path::new(name).file_name() == Some(CHECKER.as_ref());
    if line.first().is_some_and(is_checker) {
        // As for all file systems with a log: a mount recovers what a crash has left.
        outln!("weftfs is checked while it is mounted: weft fs fsck FOLDER");
        return None;
    }
    // By its name, or by the first argument of `weft`.
    let begin = match line.iter().take(2).position(is_helper) {
        Some(at) => at + 1,
        None => return Some(line),
    };
    let mut mount: Vec<OsString> = HELPER_MOUNTS.map(Into::into).into();
    let (mut operands, mut rest) = (Vec::new(), line.into_iter().skip(begin));
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => {
                mount.push(argument);
                mount.extend(rest.next());
            }
            // The type, and a name space that the program that calls has entered already.
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if flags.starts_with('-') && !flags.starts_with("--") => {
                if flags.contains('f') {
                    return None;
                }
                // `-n` and `-v` change nothing here.
                if flags.contains('s') {
                    mount.extend(["-o", "sloppy"].map(Into::into));
                }
            }
            _ => operands.push(argument),
        }
    }
    if let Some(name) = operands.first_mut() {
        // `mount` makes a path of a name that is also that of a file beside it.
        if let Some(last) = Path::new(name.as_os_str()).file_name() {
            *name = last.to_owned();
        }
    }
    mount.extend(operands);
    Some(mount)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, FsAction};

    fn line(line: &str) -> Option<String> {
        let words = helper_line(line.split(' ').map(OsString::from).collect())?;
        Some(words.join(OsStr::new(" ")).into_string().expect("text"))
    }

    fn options(text: &str) -> Result<(FsMountArgs, Options), Failure> {
        let cli = Cli::try_parse_from(["weft", "fs", "mount", "-o", text, "home", "/mnt"]);
        let Command::Fs(args) = cli.expect("parsed").command else { panic!("it is `fs`") };
        let FsAction::Mount(mut args) = args.action else { panic!("it is `mount`") };
        let options = read(&mut args)?;
        Ok((args, options))
    }

    #[test]
    fn the_line_of_a_mount_helper_becomes_one_of_weft() {
        let mount = "weft fs mount --background -o suid,dev,wait=30s";
        let same = "weft fs mount home /mnt";
        assert_eq!(line(same).as_deref(), Some(same));
        for program in ["/sbin/mount.weftfs", "mount.fuse.weftfs", "weft mount.weftfs"] {
            let said = line(&format!("{program} home /mnt -sv -N /ns -t x -o rw,noatime"));
            assert_eq!(said, Some(format!("{mount} -o sloppy -o rw,noatime home /mnt")));
        }
        let said = line("mount.weftfs /home /mnt -n");
        assert_eq!(said, Some(format!("{mount} home /mnt")));
        assert_eq!(line("mount.weftfs home /mnt -f"), None);
        assert_eq!(line("/usr/sbin/fsck.weftfs -a home"), None);
    }

    #[test]
    fn options_are_flags_of_the_kernel_or_those_of_the_command_line() {
        let (args, said) = options("defaults,nofail,x-systemd.automount,user_id=0").expect("known");
        assert_eq!(said.flags, MountFlags::NOSUID | MountFlags::NODEV);
        assert!(!args.read_only && said.access_times == AccessTimes::Relative);
        let (args, said) =
            options("ro,suid,dev,noexec,noatime,degraded,disk=a,disk=b,cache=1G").expect("known");
        assert_eq!(said.flags, MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME);
        assert!(args.read_only && args.degraded && args.disks == ["a", "b"]);
        assert!(args.cache == 1 << 30 && said.access_times == AccessTimes::None);
        let (args, said) = options("remount,ro,strictatime,rw").expect("known");
        assert!(said.remounts && !args.read_only && said.access_times == AccessTimes::Strict);
        for wrong in ["nonsense", "cache=much", "disk", "degraded=yes"] {
            options(wrong).expect_err(wrong);
        }
        options("sloppy,nonsense").expect("it is ignored");
    }
}
