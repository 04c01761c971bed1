//! Commands on `/dev/ublk-control`, on a ring of their own: they need entries of 128 bytes, and the
//! thread that sends one waits for it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::abi::{ControlCommand, DeviceInfo, Params, control};

/// The file that takes commands.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// How long a command may take. Drivers with a fault never answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory that commands read and write.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Memory([u8; 64]);

/// The control file.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// `None` after a command that did not end: the kernel may still use what it had.
    memory: Option<Box<Memory>>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Plain data of the kernel's, of at most 64 bytes, for which every pattern of bits is valid.
///
/// # Safety
/// Only for such types.
unsafe trait Plain: Copy + Default {}

// SAFETY: integers without padding that would matter: bytes are copied, never compared.
unsafe impl Plain for DeviceInfo {}
// SAFETY: as above.
unsafe impl Plain for Params {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

fn put<T: Plain>(value: &T, memory: &mut Memory) {
    const { assert!(size_of::<T>() <= 64 && align_of::<T>() <= 8) };
    // SAFETY: the memory is as long and as aligned as `T` needs.
    unsafe { memory.0.as_mut_ptr().cast::<T>().write(*value) }
}

fn get<T: Plain>(memory: &Memory) -> T {
    const { assert!(size_of::<T>() <= 64 && align_of::<T>() <= 8) };
    // SAFETY: as in `put`; every pattern of bits is a value.
    unsafe { memory.0.as_ptr().cast::<T>().read() }
}

impl Control {
    /// Opens the control file.
    ///
    /// # Errors
    /// If the driver is not loaded (`NotFound`), the user is not root, or there is no io_uring.
    pub fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL_PATH)?;
        let ring = IoUring::builder().build(4)?;
        Ok(Self { file, ring, memory: Some(Box::new(Memory([0; 64]))) })
    }

    /// The [`flag`](super::flag)s that the driver knows.
    ///
    /// # Errors
    /// The kernel's; drivers before Linux 6.5 do not know the command.
    pub fn features(&mut self) -> io::Result<u64> {
        self.exchange(control::GET_FEATURES, u32::MAX, 8, &0_u64)
    }

    /// Adds a device; `info` describes it. Returns what it is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&mut self, info: &DeviceInfo) -> io::Result<DeviceInfo> {
        self.exchange(control::ADD_DEV, info.id, 64, info)
    }

    /// What a device is now.
    ///
    /// # Errors
    /// `ENODEV` if there is none of this number.
    pub fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        self.exchange(control::GET_DEV_INFO, device, 64, &DeviceInfo::default())
    }

    /// Sets the parameters of a device that was not started yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_params(&mut self, device: u32, params: &Params) -> io::Result<()> {
        let params = Params { len: Params::BYTES.into(), ..*params };
        self.exchange(control::SET_PARAMS, device, Params::BYTES, &params).map(drop)
    }

    /// The parameters of a device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn params(&mut self, device: u32) -> io::Result<Params> {
        let asked = Params { len: Params::BYTES.into(), ..Params::default() };
        self.exchange(control::GET_PARAMS, device, Params::BYTES, &asked)
    }

    /// Starts a device; waits until this process has fetched with every tag.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::START_DEV, device, std::process::id().into())
    }

    /// Stops a device: its users get errors from then on, and who serves it is told.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stop(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::STOP_DEV, device, 0)
    }

    /// Deletes a stopped device; waits until who serves it, and all who use it, have closed it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn delete(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::DEL_DEV, device, 0)
    }

    /// Deletes a stopped device. It goes when the last who has it open closes it.
    ///
    /// # Errors
    /// The kernel's; drivers before Linux 6.9 do not know the command.
    pub fn delete_later(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::DEL_DEV_ASYNC, device, 0)
    }

    /// Starts to take over a device whose process has ended.
    ///
    /// # Errors
    /// `EBUSY` while that process still ends, or if it lives.
    pub fn start_recovery(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::START_USER_RECOVERY, device, 0)
    }

    /// Ends taking over a device; waits until this process has fetched with every tag.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.simple(control::END_USER_RECOVERY, device, std::process::id().into())
    }

    /// Gives a device another size, in sectors of 512 bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.16.
    pub fn resize(&mut self, device: u32, sectors: u64) -> io::Result<()> {
        self.simple(control::UPDATE_SIZE, device, sectors)
    }

    fn simple(&mut self, number: u32, device: u32, data: u64) -> io::Result<()> {
        self.command(number, ControlCommand { device, len: 0, address: 0, data })
    }

    /// A command with a structure that the kernel reads and may change.
    fn exchange<T: Plain>(
        &mut self,
        number: u32,
        device: u32,
        len: u16,
        value: &T,
    ) -> io::Result<T> {
        let memory = self.memory.as_mut().ok_or_else(stuck)?;
        put(value, memory);
        let address = memory.0.as_mut_ptr().expose_provenance() as u64;
        self.command(number, ControlCommand { device, len, address, data: 0 })?;
        self.memory.as_ref().map(|memory| get(memory)).ok_or_else(stuck)
    }

    fn command(&mut self, number: u32, command: ControlCommand) -> io::Result<()> {
        if self.memory.is_none() {
            return Err(stuck());
        }
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, number).cmd(command.bytes()).build();
        // SAFETY: the command points to `memory`, if at all, which stays until its completion, or
        // for ever.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        let time = types::Timespec::from(PATIENCE);
        loop {
            let args = types::SubmitArgs::new().timespec(&time);
            match self.ring.submitter().submit_with_args(1, &args) {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) if e.raw_os_error() != Some(libc::ETIME) => return Err(self.give_up(e)),
                _ => break,
            }
        }
        let Some(done) = self.ring.completion().next() else { return Err(self.give_up(stuck())) };
        match done.result() {
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }

    /// A command has not ended: its memory stays the kernel's.
    fn give_up(&mut self, error: io::Error) -> io::Error {
        self.memory.take().map(Box::leak);
        error
    }
}

fn stuck() -> io::Error {
    let text = "the ublk driver does not answer; `dmesg` may show why";
    io::Error::new(io::ErrorKind::TimedOut, text)
}
