//! Opening: ownership, size, sectors, and what the target can do.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags, fallocate, flock,
    fstat, fstatfs, ioctl_blksszget, major, minor, seek, statx,
};
use rustix::io::Errno;
use weft_rt::ring::{Fd, Ring};

use super::users;
use super::zero::{PUNCH, Way};
use super::{FileDisk, FileOptions, IoMode};
use crate::DiskInfo;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Block devices that are memory, by the start of their kernel name.
const MEMORY_DEVICES: [&str; 2] = ["zram", "ram"];

pub(super) fn open(ring: &Ring, path: &Path, options: &FileOptions) -> io::Result<FileDisk> {
    let (fd, stat, direct) = open_owned(path, options)?;
    let block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let (needed, direct, fd) = match needed_sector(&fd, block, direct)? {
        Some(sector) => (sector, direct, fd),
        // No sector that we can present suits O_DIRECT here.
        None => {
            drop(fd);
            let (fd, ..) = open_owned(path, &FileOptions { direct: false, ..options.clone() })?;
            (512, false, fd)
        }
    };
    let sector_bytes = choose_sector(needed, options.sector_bytes)?;
    let end = seek(&fd, SeekFrom::End(0))?;
    let size_bytes = end - end % u64::from(sector_bytes);
    if size_bytes == 0 {
        return Err(invalid("it is smaller than one sector"));
    }
    let device = block.then(|| BlockDevice::of(stat.st_rdev));
    let fast_zeroes = !options.look_only
        && device.as_ref().map_or_else(|| can_punch(&fd, end), BlockDevice::has_fast_zeroes);
    let in_memory = match &device {
        Some(device) => device.is_memory(),
        None => is_memory_file(&fd)?,
    };
    // A file's is that of the disk below its file system, and what that does is not known.
    let volatile_cache = match &device {
        Some(device) => device.has_volatile_cache(),
        None => !in_memory,
    };
    let rotational = !in_memory
        && match &device {
            Some(device) => device.is_rotational(),
            None => BlockDevice::of(stat.st_dev).is_rotational(),
        };
    let name = path.display().to_string();
    let default_mode = if in_memory { IoMode::InPlace } else { IoMode::Ring };
    let disk = FileDisk {
        info: DiskInfo { name, size_bytes, sector_bytes, fast_zeroes, volatile_cache, rotational },
        ring: ring.clone(),
        fd: Fd::from(fd),
        io_mode: options.io_mode.unwrap_or(default_mode),
        direct,
        is_file: !block,
        relied_on: Cell::new(size_bytes),
        shrunk: Cell::new(false),
        modifying: Cell::new(0),
        last_look: Cell::new(None),
        is_owned: options.owns(),
        zeroing: Cell::new(Way::Unknown),
        can_discard: Cell::new(true),
    };
    // The first look, with which later ones are compared.
    disk.is_shrunk();
    Ok(disk)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

fn in_use(by: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, format!("it is in use, by {by}"))
}

/// Who may use a disk that cannot be claimed.
const SOMEBODY: &str = "a weft daemon, a mounted file system or another program";

/// Refuses a disk that other programs use although it could be claimed, and one that cannot be
/// written.
fn check_owned(
    fd: &OwnedFd,
    path: &Path,
    stat: &Stat,
    is_block: bool,
    writes: bool,
) -> io::Result<()> {
    if !is_block {
        return users::of_file(fd, path, stat).map_or(Ok(()), |user| Err(in_use(&user)));
    }
    if users::is_locked_below(stat.st_rdev) {
        return Err(in_use("the owner of the file below this loop device"));
    }
    // The kernel opens it for writing nevertheless, and refuses the first write.
    if writes && BlockDevice::of(stat.st_rdev).is_write_protected() {
        return Err(io::Error::new(
            io::ErrorKind::ReadOnlyFilesystem,
            "the device is write-protected",
        ));
    }
    Ok(())
}

/// The open file, what it is, and whether it takes O_DIRECT.
fn open_owned(path: &Path, options: &FileOptions) -> io::Result<(OwnedFd, Stat, bool)> {
    // Looked at before opening: opening a pipe would wait, opening a tape would wind it.
    let is_block = match FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => return Err(invalid("it is neither a regular file nor a block device")),
    };
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= if options.look_only || options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_block && options.owns() {
        flags |= OFlags::EXCL;
    }
    let open = |flags| match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::BUSY) => Err(in_use(SOMEBODY)),
        result => Ok(result?),
    };
    let (fd, direct) = match options.direct.then(|| open(flags | OFlags::DIRECT)) {
        Some(Ok(fd)) => (fd, true),
        Some(Err(error)) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            (open(flags)?, false)
        }
        Some(Err(error)) => return Err(error),
        None => (open(flags)?, false),
    };
    let stat = fstat(&fd)?;
    let is_block_now = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    if is_block_now != is_block {
        return Err(invalid("it was replaced by something else while it was opened"));
    }
    if !is_block && options.owns() {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(in_use(SOMEBODY)),
            result => result?,
        }
    }
    if options.owns() {
        check_owned(&fd, path, &stat, is_block, !options.read_only)?;
    }
    // NONBLOCK was for the opening only: with it the ring would give EAGAIN instead of waiting.
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK)?;
    Ok((fd, stat, direct))
}

/// The smallest sector (512 or 4096 bytes) that the target takes; `None` if none suits O_DIRECT.
fn needed_sector(fd: impl AsFd, block: bool, direct: bool) -> io::Result<Option<u32>> {
    if block {
        return match ioctl_blksszget(&fd)? {
            size @ (512 | 4096) => Ok(Some(size)),
            size => Err(invalid(&format!("its sectors have {size} bytes; 512 or 4096 are needed"))),
        };
    }
    if !direct {
        return Ok(Some(512));
    }
    let flags = StatxFlags::DIOALIGN;
    let align = match statx(&fd, "", AtFlags::EMPTY_PATH, flags) {
        Ok(stat) if stat.stx_mask & flags.bits() != 0 => {
            stat.stx_dio_mem_align.max(stat.stx_dio_offset_align)
        }
        // An older kernel does not report it; whole pages suit every file system.
        _ => 4096,
    };
    Ok(match align {
        // The file system takes O_DIRECT at opening but not for this file.
        0 => None,
        1..=512 => Some(512),
        513..=4096 => Some(4096),
        _ => None,
    })
}

fn choose_sector(needed: u32, wanted: Option<u32>) -> io::Result<u32> {
    match wanted {
        None => Ok(needed),
        Some(wanted @ (512 | 4096)) if wanted >= needed => Ok(wanted),
        Some(wanted @ (512 | 4096)) => Err(invalid(&format!(
            "its sectors have {needed} bytes, so it cannot have sectors of {wanted}"
        ))),
        Some(wanted) => Err(invalid(&format!("sectors have 512 or 4096 bytes, not {wanted}"))),
    }
}

fn is_memory_file(fd: impl AsFd) -> io::Result<bool> {
    let kind = fstatfs(fd)?.f_type;
    Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Whether holes can be punched: tried beyond the end, where it changes nothing.
fn can_punch(fd: impl AsFd, end: u64) -> bool {
    fallocate(fd, PUNCH, end.next_multiple_of(4096), 4096).is_ok()
}

/// What sysfs tells about a block device.
struct BlockDevice {
    directory: PathBuf,
}

impl BlockDevice {
    fn of(device: u64) -> Self {
        Self::find(Path::new("/sys"), major(device), minor(device))
    }

    fn find(sys: &Path, major: u32, minor: u32) -> Self {
        let link = sys.join(format!("dev/block/{major}:{minor}"));
        // Resolved, so that its parent is the whole disk of a partition.
        let directory = std::fs::canonicalize(&link).unwrap_or(link);
        Self { directory }
    }

    fn is_memory(&self) -> bool {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        MEMORY_DEVICES.iter().any(|prefix| name.starts_with(prefix))
    }

    fn has_fast_zeroes(&self) -> bool {
        let bytes = self.queue("write_zeroes_max_bytes").and_then(|text| text.parse().ok());
        bytes.is_some_and(|bytes: u64| bytes > 0)
    }

    /// Whether it takes no writes now: by a switch on it, or as the kernel was told.
    fn is_write_protected(&self) -> bool {
        std::fs::read_to_string(self.directory.join("ro")).is_ok_and(|text| text.trim() == "1")
    }

    /// Whether the kernel flushes it: a device that is `write through` is never flushed.
    fn has_volatile_cache(&self) -> bool {
        self.queue("write_cache").is_none_or(|text| text != "write through")
    }

    /// Whether it has platters, as the kernel knows it. The kernel passes it on through device
    /// mapper, md and loop devices. Of a file system that is on no device of its own (overlay,
    /// btrfs, network) nothing is known.
    fn is_rotational(&self) -> bool {
        self.queue("rotational").is_some_and(|text| text == "1")
    }

    /// A property of its request queue, or of that of the whole disk.
    fn queue(&self, name: &str) -> Option<String> {
        let read = |queue: &str| {
            let text = std::fs::read_to_string(self.directory.join(queue).join(name));
            Some(text.ok()?.trim().to_owned())
        };
        read("queue").or_else(|| read("../queue"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use weft_testkit::Scratch;

    use super::*;

    #[test]
    fn sysfs_tells_what_a_device_is() {
        let sys = Scratch::new("rotational");
        let make = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("make a folder");
            fs::write(path, text).expect("write a file");
        };
        make("devices/sda/queue/rotational", "1\n");
        make("devices/sda/sda1/partition", "1\n");
        make("devices/nvme0n1/queue/rotational", "0\n");
        make("devices/nvme0n1/nvme0n1p1/partition", "1\n");
        make("devices/sda/ro", "0\n");
        make("devices/sda/sda1/ro", "1\n");
        // Device mapper and loop devices have a queue of their own.
        make("devices/virtual/dm-0/queue/rotational", "1\n");
        make("devices/virtual/loop0/queue/rotational", "0\n");
        make("dev/block/none", "");
        for (number, device) in [
            ("8:0", "sda"),
            ("8:1", "sda/sda1"),
            ("259:0", "nvme0n1"),
            ("259:1", "nvme0n1/nvme0n1p1"),
            ("252:0", "virtual/dm-0"),
            ("7:0", "virtual/loop0"),
        ] {
            let link = sys.join(format!("dev/block/{number}"));
            symlink(format!("../../devices/{device}"), link).expect("make a link");
        }
        let rotates = |major, minor| BlockDevice::find(sys.path(), major, minor).is_rotational();
        assert!(rotates(8, 0) && rotates(8, 1) && rotates(252, 0));
        let protected = |minor| BlockDevice::find(sys.path(), 8, minor).is_write_protected();
        assert!(!protected(0) && protected(1), "a partition has a switch of its own");
        assert!(!rotates(259, 0) && !rotates(259, 1) && !rotates(7, 0));
        assert!(!rotates(0, 37), "a file system that is on no device of its own");
    }
}
