//! Loop devices and mounts that are released on drop.

use std::path::{Path, PathBuf};

use crate::process::{command, run, wait_until};

/// A loop device over a file. Needs [`Need::Root`](crate::Need::Root) and
/// [`Need::Loop`](crate::Need::Loop); detached on drop.
#[derive(Debug)]
pub struct LoopDevice {
    device: PathBuf,
}

impl LoopDevice {
    /// Attaches the first free loop device to `file`, with direct I/O if `direct`.
    #[track_caller]
    #[must_use]
    pub fn attach(file: &Path, direct: bool) -> Self {
        Self::with_sectors(file, direct, 512)
    }

    /// A loop device with sectors of `sector_bytes` (512 or 4096).
    #[track_caller]
    #[must_use]
    pub fn with_sectors(file: &Path, direct: bool, sector_bytes: u32) -> Self {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        Self::with_options(file, &[direct, &format!("--sector-size={sector_bytes}")])
    }

    /// A loop device for reading only.
    #[track_caller]
    #[must_use]
    pub fn read_only(file: &Path) -> Self {
        Self::with_options(file, &["--read-only"])
    }

    #[track_caller]
    fn with_options(file: &Path, options: &[&str]) -> Self {
        let output = run(command("losetup").args(["--find", "--show"]).args(options).arg(file));
        let name = String::from_utf8(output.stdout).expect("losetup prints a path");
        Self { device: name.trim().into() }
    }

    /// The device, such as `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        report(command("losetup").arg("--detach").arg(&self.device));
    }
}

/// A mounted file system; unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts `device` on the existing folder `at`, with mount options (`""` for none).
    #[track_caller]
    #[must_use]
    pub fn new(device: &Path, at: &Path, options: &str) -> Self {
        let options = if options.is_empty() { "defaults" } else { options };
        run(command("mount").args(["-o", options]).arg(device).arg(at));
        Self { at: at.into() }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts now.
    ///
    /// # Panics
    /// If it cannot be unmounted; drop only reports that.
    #[track_caller]
    pub fn unmount(self) {
        unmount(&self.at);
        std::mem::forget(self);
    }
}

/// Unmounts what is mounted there. While another test starts a program, the copy of this process
/// that will become it holds all its open files; so it is tried again while something is busy.
///
/// # Panics
/// If it cannot be unmounted, or stays busy.
#[track_caller]
pub fn unmount(at: &Path) {
    let mut output = None;
    wait_until("nothing there is in use", || {
        let again = command("umount").arg(at).output().expect("start umount");
        let is_busy = String::from_utf8_lossy(&again.stderr).contains("busy");
        output = Some(again);
        !is_busy
    });
    let output = output.expect("umount ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "umount {}: {said}", at.display());
}

impl Drop for Mount {
    fn drop(&mut self) {
        report(command("umount").arg(&self.at));
    }
}

/// Runs a clean-up command; a failure is only printed, since a drop may run while panicking.
fn report(command: &mut std::process::Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("{command:?} ended with {status}"),
        Err(e) => eprintln!("{command:?}: {e}"),
    }
}
