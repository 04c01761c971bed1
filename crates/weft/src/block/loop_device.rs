//! Loop devices over the one file of an attached array.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use weft_cli::failure::Failure;

use crate::block::node::Node;
use crate::block::users;

/// How long to wait until the kernel releases a device.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size of a device that is never read or written.
const PLACEHOLDER_BYTES: u64 = 1 << 20;

/// A loop device: `/dev/loopN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice(Node);

impl LoopDevice {
    /// Creates a device over `file` with the logical block size `block_bytes`.
    pub fn create(file: &Path, block_bytes: u32, read_only: bool) -> Result<Self, Failure> {
        let mut losetup = command("losetup");
        if read_only {
            losetup.arg("--read-only");
        }
        losetup.args(["--find", "--show", "--direct-io=on", "--sector-size"]);
        losetup.arg(block_bytes.to_string()).arg(file);
        let shown = output(&mut losetup)?;
        let name = shown.trim().strip_prefix("/dev/").unwrap_or_default().to_owned();
        let device = Self(Node::new(name));
        if device.0.setting("loop/backing_file").is_none() {
            return Err(Failure::new(format!("losetup created no device, but printed `{shown}`")));
        }
        if device.0.setting("loop/dio").as_deref() != Some("1") {
            device.remove()?;
            return Err(Failure::new(
                "the loop device does not support direct I/O, so data would be cached twice",
            ));
        }
        Ok(device)
    }

    /// Creates a device over a piece of memory, for a mount that must have one and does not use it.
    pub fn placeholder() -> Result<Self, Failure> {
        let failed = |e: Errno| Failure::new(format!("memory for a loop device: {e}"));
        let memory = memfd_create("weftfs", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&memory, PLACEHOLDER_BYTES).map_err(failed)?;
        let file = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let shown = output(command("losetup").args(["--find", "--show", &file]))?;
        let name = shown.trim().strip_prefix("/dev/").unwrap_or_default().to_owned();
        Ok(Self(Node::new(name)))
    }

    /// Removes the device as soon as it is not in use.
    pub fn remove_when_unused(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--detach").arg(self.0.path())).map(drop)
    }

    /// The devices whose file is `file`.
    pub fn of_file(file: &Path) -> Vec<Self> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.filter(|name| name.starts_with("loop"));
        let devices = names.map(|name| Self(Node::new(name)));
        let over_file = |device: &Self| {
            device.0.setting("loop/backing_file").is_some_and(|backing| {
                // The kernel appends this once the file system below is gone.
                Path::new(backing.strip_suffix(" (deleted)").unwrap_or(&backing)) == file
            })
        };
        devices.filter(over_file).collect()
    }

    /// What `/sys` shows of it.
    pub fn node(&self) -> &Node {
        &self.0
    }

    /// Gives it the size of its file. A file system on it, mounted or not, stays as it is.
    pub fn resize(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--set-capacity").arg(self.0.path())).map(drop)
    }

    /// Removes the device and waits until it is gone.
    pub fn remove(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--detach").arg(self.0.path()))?;
        let start = Instant::now();
        while self.0.setting("loop/backing_file").is_some() {
            if start.elapsed() > users::patience(PATIENCE) {
                let path = self.0.path();
                return Err(Failure::new(format!("{} is still open", path.display()))
                    .hint("it goes away when its last user closes it; then run this again"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// `program`, also if its folder is only on root's search path.
fn command(program: &str) -> Command {
    let sbin = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).join(program));
    let found = sbin.into_iter().find(|path| path.exists());
    Command::new(found.unwrap_or_else(|| program.into()))
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let name =
        Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
    let output = command.output().map_err(|e| {
        Failure::new(format!("{name}: {e}"))
            .hint(format!("check that {name} (util-linux) is installed"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{name} failed: {}", said.trim())))
}
