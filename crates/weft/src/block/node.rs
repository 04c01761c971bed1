//! A block device as `/sys` shows it, of any driver: its size, and who uses it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use weft_disk::mounts::{self, Mount};

/// A block device: `/dev/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    name: String,
}

impl Node {
    /// The device of this name.
    pub fn new(name: String) -> Self {
        Self { name }
    }

    /// Its name, without `/dev/`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/dev/NAME`.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn sys(&self) -> PathBuf {
        Path::new("/sys/block").join(&self.name)
    }

    /// Whether the kernel has it.
    pub fn exists(&self) -> bool {
        self.sys().exists()
    }

    /// A file of its folder in `/sys`.
    pub fn setting(&self, name: &str) -> Option<String> {
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

    /// Claims it exclusively, for as long as the file is open: it can be neither mounted nor
    /// claimed by another program.
    ///
    /// # Errors
    /// The kernel's; `EBUSY` if it is claimed.
    pub fn claim(&self) -> io::Result<File> {
        let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        OpenOptions::new().read(true).custom_flags(flags).open(self.path())
    }

    /// Whether the kernel or a program has claimed it exclusively (btrfs members, for example,
    /// appear under another device number in the list of mounts).
    fn is_claimed(&self) -> bool {
        let busy = rustix::io::Errno::BUSY;
        self.claim().is_err_and(|e| rustix::io::Errno::from_io_error(&e) == Some(busy))
    }
}
