//! A process beside one that serves a mount, which ends the mount when the other one has died.
//!
//! When a process dies the kernel closes what it had open, and so ends the mount. But a thread that
//! makes the kernel forget pages cannot be killed while it waits for one, and a page may wait for an
//! answer of this process: then the process would never be gone, and every program on its mount would
//! wait for ever. This ends with the mount.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;

use crate::cli::FsGuardArgs;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Starts the guard of a mount of this process.
pub(super) fn start(folder: &Path) {
    let pid = std::process::id().to_string();
    let mut guard = Command::new("/proc/self/exe");
    guard.args(["fs", "guard", &pid]).arg(folder).current_dir("/");
    // Signals to this process's group, also one that kills it, are not for the guard.
    guard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Err(error) = guard.spawn() {
        log_line(&format!(
            "no guard for {}: {error}; if this process is killed, umount -f ends the mount",
            folder.display()
        ));
    }
}

/// `weft fs guard`.
pub(in crate::commands::fs) fn guard(args: &FsGuardArgs) -> Outcome {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Failure::new(format!("signal {signal}: {error}")))?;
    }
    let Some(mount) = mount_id(&args.folder) else { return Ok(()) };
    while !has_died(args.process) {
        std::thread::sleep(LOOK_EVERY);
    }
    // Another process may have mounted there.
    if mount_id(&args.folder) != Some(mount) {
        return Ok(());
    }
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
    unmount(&args.folder, flags)
        .map_err(|error| Failure::new(format!("{}: {error}", args.folder.display())))
}

/// Whether the parent has died, perhaps but for a thread that waits for the kernel.
fn has_died(parent: u32) -> bool {
    if parent_id() != parent {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_none_or(|state| "ZX".contains(state))
}

/// Which mount is on a folder, without asking it.
fn mount_id(folder: &Path) -> Option<u64> {
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let on_folder = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let place = unescaped(fields.nth(3)?);
        (Path::new(&place) == folder).then_some(id)
    });
    on_folder.last()
}

/// Spaces and such are octal numbers there.
fn unescaped(text: &[u8]) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = rest.get(1..4).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_folders() {
        assert_eq!(unescaped(b"/a\\040b\\134c\\09"), "/a b\\c\\09");
        assert!(mount_id(Path::new("/proc")).is_some());
        assert_eq!(mount_id(Path::new("/proc/self")), None);
    }
}
