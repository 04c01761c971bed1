//! Loop devices over the one file of an attached array.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use weft_cli::failure::Failure;
use weft_disk::mounts::{self, Mount};

/// How long to wait until the kernel releases a device.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size of a device that nobody reads or writes.
const PLACEHOLDER_BYTES: u64 = 1 << 20;

/// A loop device: `/dev/loopN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    name: String,
}

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
        let device = Self { name };
        if device.setting("loop/backing_file").is_none() {
            return Err(Failure::new(format!("losetup created no device, but printed `{shown}`")));
        }
        if device.setting("loop/dio").as_deref() != Some("1") {
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
        Ok(Self { name })
    }

    /// Removes the device as soon as it is not in use.
    pub fn remove_when_unused(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--detach").arg(self.path())).map(drop)
    }

    /// The devices whose file is `file`.
    pub fn of_file(file: &Path) -> Vec<Self> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let devices = names.filter(|name| name.starts_with("loop")).map(|name| Self { name });
        let over_file = |device: &Self| {
            device.setting("loop/backing_file").is_some_and(|backing| {
                // The kernel appends this once the file system below is gone.
                Path::new(backing.strip_suffix(" (deleted)").unwrap_or(&backing)) == file
            })
        };
        devices.filter(over_file).collect()
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn sys(&self) -> PathBuf {
        Path::new("/sys/block").join(&self.name)
    }

    fn setting(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.sys().join(name)).ok().map(|text| text.trim().to_owned())
    }

    /// Its size.
    pub fn size_bytes(&self) -> Option<u64> {
        self.setting("size")?.parse::<u64>().ok()?.checked_mul(512)
    }

    /// Its logical block size.
    pub fn block_bytes(&self) -> Option<u32> {
        self.setting("queue/logical_block_size")?.parse().ok()
    }

    /// Gives it the size of its file. A file system on it, mounted or not, stays as it is.
    pub fn resize(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--set-capacity").arg(self.path())).map(drop)
    }

    /// Its partitions and itself, in `/sys`.
    fn nodes(&self) -> Vec<PathBuf> {
        let below = fs::read_dir(self.sys()).into_iter().flatten().flatten();
        let parts = below.map(|e| e.path()).filter(|path| path.join("partition").exists());
        parts.chain([self.sys()]).collect()
    }

    /// Whether `mount` is a mount of the device or of one of its partitions. Some file systems show
    /// a device number of their own, so the name counts, too.
    fn is_source_of(&self, mount: &Mount) -> bool {
        self.nodes().iter().any(|node| {
            let number = fs::read_to_string(node.join("dev")).unwrap_or_default();
            let name = node.file_name().unwrap_or_default();
            mount.device == number.trim() || mount.source == Path::new("/dev").join(name)
        })
    }

    /// Where it is mounted, as this process sees it.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let mounts = mounts::all().unwrap_or_default().into_iter();
        mounts.filter(|mount| self.is_source_of(mount)).map(|mount| mount.target).collect()
    }

    /// Who uses the device or one of its partitions, in words; `None` if it is not in use.
    pub fn user(&self) -> Option<String> {
        if let Some(target) = self.mounts().first() {
            return Some(format!("mounted on {}", target.display()));
        }
        for node in &self.nodes() {
            let mut holders = fs::read_dir(node.join("holders")).into_iter().flatten().flatten();
            if let Some(holder) = holders.next() {
                return Some(format!("used by /dev/{}", holder.file_name().display()));
            }
        }
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.lines().any(|line| line.starts_with(&format!("{} ", self.path().display()))) {
            return Some("used as swap".into());
        }
        if !self.is_claimed() {
            return None;
        }
        for (process, mounts) in mounts::of_other_namespaces() {
            if let Some(mount) = mounts.iter().find(|mount| self.is_source_of(mount)) {
                let target = mount.target.display();
                return Some(format!("mounted on {target} in the container of {process}"));
            }
        }
        Some("held open by another program".into())
    }

    /// Whether the kernel or a program has claimed it exclusively (btrfs members, for example,
    /// appear under another device number in the list of mounts).
    fn is_claimed(&self) -> bool {
        let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(self.path());
        opened.is_err_and(|e| e.raw_os_error() == Some(Errno::BUSY.raw_os_error()))
    }

    /// Removes the device and waits until it is gone.
    pub fn remove(&self) -> Result<(), Failure> {
        output(command("losetup").arg("--detach").arg(self.path()))?;
        let start = Instant::now();
        while self.setting("loop/backing_file").is_some() {
            if start.elapsed() > PATIENCE {
                let path = self.path();
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
