//! Ends the connection of a mount whose server dies while it waits for itself.
//!
//! *Fault.* A thread that tells the kernel to drop pages waits in the kernel for their locks. A
//! page is locked while a request for it waits for the answer of the server. If the server is
//! killed then, the thread cannot end before the page is free; the page is free when the connection
//! ends; and the connection ends when the process has closed its channel, which it does with its
//! last thread. So the process stays, and programs on the mount wait with it.
//!
//! *Cure.* The guard, another process, waits for the end of a *thread* of the server that does
//! nothing. A signal that kills the process ends this thread at once, whatever the other ones wait
//! for. Then the guard ends the connection.
//!
//! *This connection.* The guard ends it by the file `abort` of the kernel's control file system
//! (`fusectl`), which it has open since the connection was made. An open file stays that of its
//! connection, and does nothing once that is over. The number in its path is not looked at again:
//! the kernel gives it to later mounts.
//!
//! *Limits.* It needs Linux 6.9, for the end of a thread, and does not help if the guard was killed
//! before the server.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::gettid;
use weft_cli::failure::Failure;
use weft_cli::thread;

/// Of `pidfd_open`: a thread, not a process.
const PIDFD_THREAD: u32 = OFlags::EXCL.bits();

/// The name by which a program is called that is to [`run`] as a guard.
pub const NAME: &str = "weft-guard";

/// Starts this program again, with these arguments, as the guard of what was just mounted on a
/// folder. Returns its process.
///
/// # Errors
/// If there can be none; the mount works without.
pub fn start(folder: &Path, args: &[&str]) -> Result<u32, Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::new(format!("{what}: {error}"));
    let abort = abort_file(folder).map_err(|e| failed("fusectl", e.into()))?;
    let watched = idle_thread().map_err(|e| failed("pidfd_open", e))?;
    let mut guard = Command::new("/proc/self/exe");
    guard.arg0(NAME).args(args);
    // It keeps no folder in use, and signals for the server's group are not for it.
    guard.env_clear().current_dir("/").process_group(0);
    guard.stdin(Stdio::from(abort)).stdout(Stdio::null()).stderr(Stdio::from(watched));
    let guard = guard.spawn().map_err(|e| failed("the guard", e))?;
    Ok(guard.id())
}

/// The program of a guard, as [`start`] starts it.
#[must_use]
pub fn run() -> ExitCode {
    // It ends after the server, which may still need it after a signal to all.
    let _ = thread::on_signals(|_, _| ());
    let (abort, server) = (std::io::stdin(), std::io::stderr());
    loop {
        match poll(&mut [PollFd::new(&server, PollFlags::IN)], None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(_) => return ExitCode::FAILURE,
        }
    }
    let aborted = abort.as_fd().try_clone_to_owned();
    match aborted.and_then(|abort| File::from(abort).write_all(b"1")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The file that ends the connection of the mount on a folder.
fn abort_file(folder: &Path) -> Result<OwnedFd, Errno> {
    let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let control =
        fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    // While this is open, no other mount has its number. It must ask the server nothing.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty())?;
    let of_cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let of = statx(&root, "", of_cached, StatxFlags::empty())?;
    // As the kernel has the device of a file system in 32 bits.
    let number = of.stx_dev_major << 20 | of.stx_dev_minor;
    let abort = format!("{number}/abort");
    openat(&control, abort, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// A thread of this process that does nothing until it is killed with the rest.
fn idle_thread() -> std::io::Result<OwnedFd> {
    let (sender, receiver) = mpsc::channel();
    let idle = move || {
        let _ = sender.send(pidfd_open(gettid(), PidfdFlags::from_bits_retain(PIDFD_THREAD)));
        drop(sender);
        loop {
            std::thread::park();
        }
    };
    std::thread::Builder::new().name("weft-guarded".into()).spawn(idle)?;
    Ok(receiver.recv().unwrap_or(Err(Errno::SRCH))?)
}
