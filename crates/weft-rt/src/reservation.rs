//! Persistent reservations of block devices: the kernel's interface (`linux/pr.h`), the same for
//! SCSI and NVMe disks and for several paths to one (dm-multipath).
//!
//! A machine registers a *key* at the disk, over each path to it. With a reservation of the kind
//! *write exclusive, registrants only*, the disk carries out writes of registered machines, and
//! refuses all others with EBADE. One registered machine takes the registration of another away
//! ([`Reservations::preempt`]), whether that one agrees or not, and whether it lives or not.
//!
//! Commands wait for the disk: they belong on a helper thread.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// The disk's answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was carried out.
    Done,
    /// A reservation conflict: what the command needs is not so. This machine is not registered, or
    /// the victim is not, or another machine holds the reservation.
    Conflict,
}

/// What becomes of the victim's requests that the disk has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// They end before the command does.
    Abort,
    /// They may take effect later. For disks that cannot abort, and victims that are known to have
    /// none.
    Leave,
}

/// An open block device.
#[derive(Debug)]
pub struct Reservations(File);

/// `struct pr_registration`, and the others, whose fields are as wide: two keys, or one and its
/// kind; then flags.
type Words = [u32; 6];

const TYPE_WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u32 = 3;
const FLAG_IGNORE_KEY: u32 = 1;
/// The disk's status of a conflict, for SCSI and for NVMe.
const STATUS_CONFLICT: i32 = 0x18;

/// `_IOW('p', number, size)`.
const fn command(number: u32, size: u32) -> u32 {
    (1 << 30) | (size << 16) | ((b'p' as u32) << 8) | number
}

const REGISTER: u32 = command(200, 24);
const RESERVE: u32 = command(201, 16);
const PREEMPT: u32 = command(203, 24);
const PREEMPT_ABORT: u32 = command(204, 24);
const CLEAR: u32 = command(205, 16);

fn words(key: u64) -> [u32; 2] {
    let bytes = key.to_ne_bytes();
    let half = |at: usize| bytes[at..at + 4].try_into().expect("half of a key");
    [half(0), half(4)].map(u32::from_ne_bytes)
}

fn two(first: u64, second: u64, rest: [u32; 2]) -> Words {
    let ([a, b], [c, d]) = (words(first), words(second));
    [a, b, c, d, rest[0], rest[1]]
}

fn one(key: u64, rest: [u32; 2]) -> Words {
    let [a, b] = words(key);
    [a, b, rest[0], rest[1], 0, 0]
}

impl Reservations {
    /// Opens a block device, which may be in use by this machine.
    ///
    /// # Errors
    /// It cannot be opened for writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(path).map(Self)
    }

    fn send(&self, command: u32, mut argument: Words) -> io::Result<Answer> {
        /// As the kernel reads it: 64-bit fields are aligned.
        #[repr(C, align(8))]
        struct Aligned(Words);
        let mut argument = Aligned(std::mem::take(&mut argument));
        // SAFETY: the kernel reads at most 24 bytes, which the argument has, and writes none.
        let status =
            unsafe { libc::ioctl(self.0.as_raw_fd(), command.into(), &raw mut argument.0) };
        match status {
            0 => Ok(Answer::Done),
            STATUS_CONFLICT => Ok(Answer::Conflict),
            status if status > 0 => {
                Err(io::Error::other(format!("the disk answered with status {status:#x}")))
            }
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EBADE) => Ok(Answer::Conflict),
                error if is_unsupported(&error) => Err(io::ErrorKind::Unsupported.into()),
                error => Err(error),
            },
        }
    }

    /// Registers this machine with `key`, in place of another key that it may have.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`]: the disk has no reservations. Others: it failed.
    pub fn register(&self, key: u64) -> io::Result<Answer> {
        self.send(REGISTER, two(0, key, [FLAG_IGNORE_KEY, 0]))
    }

    /// Whether this machine is registered with `key`; [`Answer::Conflict`]: it is not.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn confirm(&self, key: u64) -> io::Result<Answer> {
        self.send(REGISTER, two(key, key, [0, 0]))
    }

    /// Makes the disk refuse the writes of machines that are not registered.
    /// [`Answer::Conflict`]: another machine has the reservation, or this one is not registered.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn reserve(&self, key: u64) -> io::Result<Answer> {
        self.send(RESERVE, one(key, [TYPE_WRITE_EXCLUSIVE_REGISTRANTS_ONLY, 0]))
    }

    /// Takes the registration of `victim` away, and its reservation, if it has it.
    /// [`Answer::Conflict`]: it is not registered, or this machine is not.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn preempt(&self, own: u64, victim: u64, in_flight: InFlight) -> io::Result<Answer> {
        let command = match in_flight {
            InFlight::Abort => PREEMPT_ABORT,
            InFlight::Leave => PREEMPT,
        };
        // In the kernel's words: the old key is one's own, the new one the victim's.
        self.send(command, two(own, victim, [TYPE_WRITE_EXCLUSIVE_REGISTRANTS_ONLY, 0]))
    }

    /// Ends all registrations and the reservation. This machine must be registered with `key`.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn clear(&self, key: u64) -> io::Result<Answer> {
        self.send(CLEAR, one(key, [0, 0]))
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    const UNSUPPORTED: [i32; 4] = [libc::ENOTTY, libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL];
    error.raw_os_error().is_some_and(|errno| UNSUPPORTED.contains(&errno))
}
