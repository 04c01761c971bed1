//! Devices: adding, finding, taking over and removing them. All of this waits, for the driver or
//! for the thread that serves: it belongs on a helper thread.
//!
//! ```text
//!            add            start                the process dies
//!   (none) ────────▶ added ────────▶ live ───────────────────────▶ quiesced
//!                                     ▲  recovery, fetch, end        │
//!                                     └──────────────────────────────┘
//!   remove: from any state to none; users of a device in use get errors
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use weft_rt::ring::OpenedUblk;
use weft_rt::ublk::{CONTROL_PATH, Control, DeviceInfo, Params, flag, state};

use crate::limits::{IO_BYTES_MAX, Limits, SECTOR};

/// Requests in flight of a device.
pub const DEPTH: u16 = 64;

/// The oldest kernel whose driver is trusted with devices in use when a process dies.
const KERNEL_MIN: (u32, u32) = (6, 6);

/// The first kernel whose driver resizes devices in use.
const RESIZING_MIN: (u32, u32) = (6, 16);

/// What a device needs of the driver.
const NEEDED: u64 = flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | flag::CMD_IOCTL_ENCODE;

/// The first half of every tag: the device is weft's.
const MARK: u64 = 0x7765_6674 << 32;

/// How long a process that was killed may take to end.
const DEATH: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The tag of the device of a volume with this identity: 32 bits that mark it as weft's, and 32 of
/// a hash (FNV-1a, folded).
pub fn tag_of(identity: &[u8]) -> u64 {
    let hash = identity.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    MARK | ((hash >> 32) ^ (hash & 0xffff_ffff))
}

/// A ublk device of weft's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: u32,
    /// Its tag.
    pub tag: u64,
    /// What becomes of requests now.
    pub service: Service,
}

/// Whether a device is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// By this process.
    By(u32),
    /// Not any more: its users wait.
    Orphaned,
    /// Not yet, or it was stopped.
    NotStarted,
}

impl Device {
    fn of(info: &DeviceInfo) -> Self {
        let server = u32::try_from(info.server_pid).unwrap_or(0);
        let service = match info.state {
            state::LIVE if is_alive(server) => Service::By(server),
            // The process has just died.
            state::LIVE | state::QUIESCED => Service::Orphaned,
            _ => Service::NotStarted,
        };
        Self { number: info.id, tag: info.tag, service }
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        path_of(self.number)
    }
}

/// Whether a process runs: one that was killed may still be waited for by its parent.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the state is in brackets, and may hold any character.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// `/dev/ublkbN`.
pub fn path_of(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// The number of `ublkbN`, or of a partition of it (`ublkbNpM`).
pub fn number_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("ublkb")?;
    rest.split('p').next()?.parse().ok()
}

/// Why this machine has no ublk for this process; `None` if it has. Loads the driver if that is
/// possible.
pub fn unavailable() -> Option<String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if version_of(&release) < KERNEL_MIN {
        return Some(format!(
            "ublk needs Linux 6.6 or later, and this is {release}: earlier drivers may hang or \
             crash the machine when a daemon dies"
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Some("ublk needs a daemon that runs as root".into());
    }
    if !Path::new(CONTROL_PATH).exists() {
        // Its own message is of no interest: only whether the file is there now counts.
        let _ = Command::new(modprobe()).args(["-q", "ublk_drv"]).output();
    }
    let features = match Control::open().and_then(|mut control| control.features()) {
        Ok(features) => features,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Some("this kernel has no ublk driver (module ublk_drv)".into());
        }
        Err(e) => return Some(format!("{CONTROL_PATH}: {e}")),
    };
    (features & NEEDED != NEEDED)
        .then(|| "the ublk driver of this kernel cannot keep devices without a daemon".into())
}

/// `modprobe`, also if its folder is only on root's search path.
fn modprobe() -> &'static str {
    let places = ["/usr/sbin/modprobe", "/sbin/modprobe"];
    places.into_iter().find(|path| Path::new(path).exists()).unwrap_or("modprobe")
}

/// Major and minor version of a kernel's release; zeros for any other file.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The devices of weft's.
///
/// # Errors
/// If they cannot be asked for: for example, the user is not root. Without a driver there are none.
pub fn all() -> io::Result<Vec<Device>> {
    let mut control = match Control::open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let entries = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    // One that cannot be asked is gone.
    let infos = numbers.into_iter().filter_map(|number| control.info(number).ok());
    let all = infos.filter(|info| info.tag & (u64::MAX << 32) == MARK);
    Ok(all.map(|info| Device::of(&info)).collect())
}

/// The device with this tag.
///
/// # Errors
/// As [`all`].
pub fn find(tag: u64) -> io::Result<Option<Device>> {
    Ok(all()?.into_iter().find(|device| device.tag == tag))
}

/// The parameters of a device.
///
/// # Errors
/// The kernel's.
pub fn params(number: u32) -> io::Result<Params> {
    Control::open()?.params(number)
}

/// Whether this kernel can give a device in use another size.
pub fn can_resize() -> bool {
    let features = Control::open().and_then(|mut control| control.features());
    // Without the right to ask, the release decides.
    let release = || rustix::system::uname().release().to_string_lossy().into_owned();
    features.map_or_else(
        |_| version_of(&release()) >= RESIZING_MIN,
        |features| features & flag::UPDATE_SIZE != 0,
    )
}

/// Gives a device another size, also while it is used.
///
/// # Errors
/// `Unsupported` if the kernel cannot.
pub fn resize(number: u32, size_bytes: u64) -> io::Result<()> {
    let mut control = Control::open()?;
    if control.features()? & flag::UPDATE_SIZE == 0 {
        let text = "this kernel cannot resize ublk devices in use (Linux 6.16 can)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    control.resize(number, size_bytes / SECTOR)
}

/// Removes a device, and waits until it is gone. Its users get errors while it is `claimed`, and
/// then must have closed it.
///
/// # Errors
/// The kernel's.
pub fn remove<T>(number: u32, claimed: T) -> io::Result<()> {
    let mut control = Control::open()?;
    control.stop(number)?;
    // The driver waits for all who have it open, and so for this one.
    drop(claimed);
    // What serves it was told by the stop, and closes it.
    control.delete(number)
}

/// Removes a device that may be in use: its users get errors. It goes when the last of them has
/// closed it.
///
/// # Errors
/// The kernel's.
pub fn remove_in_use(number: u32) -> io::Result<()> {
    let mut control = Control::open()?;
    control.stop(number)?;
    control.delete_later(number)
}

/// A device that was added, or is being taken over: it is opened, and starts when all of its
/// requests are fetched.
#[derive(Debug)]
pub struct Starting {
    number: u32,
    recovery: bool,
    armed: bool,
}

impl Starting {
    /// Adds a device.
    ///
    /// # Errors
    /// The kernel's; then nothing is left.
    pub fn add(tag: u64, limits: &Limits) -> io::Result<(Self, OpenedUblk)> {
        let mut control = Control::open()?;
        let info = DeviceInfo {
            queues: 1,
            depth: DEPTH,
            io_bytes_max: IO_BYTES_MAX,
            id: u32::MAX,
            server_pid: i32::try_from(std::process::id()).unwrap_or(i32::MAX),
            flags: NEEDED,
            tag,
            ..DeviceInfo::default()
        };
        let added = control.add(&info)?;
        let starting = Self { number: added.id, recovery: false, armed: true };
        if added.flags & NEEDED != NEEDED {
            return Err(io::Error::other("the driver refuses to keep the device for a successor"));
        }
        control.set_params(added.id, &limits.params())?;
        let opened = open(&mut control, added.id)?;
        Ok((starting, opened))
    }

    /// Starts to take over a device whose process has ended, or is about to.
    ///
    /// # Errors
    /// The kernel's; the device stays as it is.
    pub fn take_over(number: u32) -> io::Result<(Self, OpenedUblk)> {
        let mut control = Control::open()?;
        let start = Instant::now();
        // Busy until the last operation of the dead process has ended.
        while let Err(e) = control.start_recovery(number) {
            let busy = rustix::io::Errno::from_io_error(&e) == Some(rustix::io::Errno::BUSY);
            if !busy || start.elapsed() > DEATH {
                return Err(e);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let opened = open(&mut control, number)?;
        Ok((Self { number, recovery: true, armed: true }, opened))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Lets users in, when all requests are fetched; waits for that.
    ///
    /// # Errors
    /// The kernel's; a device that was added is then removed again.
    pub fn start(mut self) -> io::Result<()> {
        let mut control = Control::open()?;
        match self.recovery {
            true => control.end_recovery(self.number)?,
            false => control.start(self.number)?,
        }
        self.armed = false;
        Ok(())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Users wait for a device that should have been taken over: that one stays.
        if self.armed && !self.recovery {
            let _ = remove(self.number, ());
        }
    }
}

/// Opens the file of a device; it appears a moment after the device.
fn open(control: &mut Control, number: u32) -> io::Result<OpenedUblk> {
    let start = Instant::now();
    loop {
        match OpenedUblk::open(control, number) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && start.elapsed() < DEATH / 6 => {
                std::thread::sleep(LOOK_EVERY);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_marked_and_differ() {
        let (one, other) = (tag_of(&[1; 16]), tag_of(&[2; 16]));
        assert_eq!((one >> 32, other >> 32), (0x7765_6674, 0x7765_6674));
        assert_ne!(one, other);
        assert_eq!(one, tag_of(&[1; 16]));
        assert_eq!(tag_of(b""), MARK | (0xcbf2_9ce4 ^ 0x8422_2325));
    }

    #[test]
    fn kernels_are_told_apart_by_their_release() {
        assert_eq!(version_of("6.12.117+deb12-amd64"), (6, 12));
        assert_eq!(version_of("6.6-rc3"), (6, 6));
        assert!(version_of("6.1.0-41-amd64") < KERNEL_MIN && version_of("?") < KERNEL_MIN);
        assert!(version_of("7.0.1") >= KERNEL_MIN && version_of("6.18.44-x") >= KERNEL_MIN);
    }

    #[test]
    fn names_of_devices_are_read() {
        assert_eq!(number_of("ublkb12"), Some(12));
        assert_eq!(number_of("ublkb3p1"), Some(3));
        assert_eq!((number_of("ublkc1"), number_of("ublkb"), number_of("sda")), (None, None, None));
        assert_eq!(path_of(4), Path::new("/dev/ublkb4"));
    }
}
