//! Requests of a ublk device: fetching them, and giving their results.
//!
//! A device has as many *tags* as requests can be in flight. Each tag has a command with the
//! kernel, with memory for the longest request: the kernel fills it with the data of a write before
//! the command completes, and takes the data of a read from it when the result is given, with the
//! next command of that tag.
//!
//! *Ending.* Such a command cannot be cancelled. It ends when a request comes, when the device is
//! stopped, or when the process ends or its ring goes; so a ring that is dropped leaves these
//! commands, and their memory, to the kernel.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;

use io_uring::{opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::op::Held;
use super::{Fd, Ring};
use crate::Buf;
use crate::ublk::{
    Control, Descriptor, DeviceInfo, IO_COMMIT_AND_FETCH, IO_FETCH, IoCommand, RESULT_ABORT,
    RESULT_OK,
};

/// `/dev/ublkcN`, opened, with the descriptors of its requests.
#[derive(Debug)]
pub struct OpenedUblk {
    fd: OwnedFd,
    descriptors: Descriptors,
    info: DeviceInfo,
}

/// An [`OpenedUblk`] on the ring of one thread. It has one queue.
#[derive(Debug)]
pub struct UblkChannel {
    fd: Fd,
    descriptors: Descriptors,
    info: DeviceInfo,
}

/// The descriptors that the kernel shares, one for each tag.
#[derive(Debug)]
struct Descriptors {
    first: NonNull<Descriptor>,
    bytes: usize,
}

// SAFETY: the mapping is read-only memory of the process, which any thread may read.
unsafe impl Send for Descriptors {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the whole of a mapping that nothing else refers to.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

/// What a tag's command gave.
#[derive(Debug)]
pub enum Fetched {
    /// A request, and the memory: of a write it has the data.
    Request(Descriptor, Buf),
    /// The device was stopped.
    Stopped,
}

impl OpenedUblk {
    /// Opens the device of this number, to serve it. Only one process can.
    ///
    /// # Errors
    /// The kernel's; `EBUSY` if another process serves it.
    pub fn open(control: &mut Control, device: u32) -> io::Result<Self> {
        let info = control.info(device)?;
        if info.queues != 1 {
            let text = format!("it has {} queues, not 1", info.queues);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let path = format!("/dev/ublkc{device}");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let fd = OwnedFd::from(file);
        let bytes = usize::from(info.depth) * size_of::<Descriptor>();
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, where the kernel likes; nothing else is touched.
        let map =
            unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, fd.as_fd(), 0)? };
        let first = NonNull::new(map.cast::<Descriptor>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { fd, descriptors: Descriptors { first, bytes }, info })
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }
}

impl From<OpenedUblk> for UblkChannel {
    fn from(opened: OpenedUblk) -> Self {
        let OpenedUblk { fd, descriptors, info } = opened;
        Self { fd: Fd::from(fd), descriptors, info }
    }
}

impl UblkChannel {
    /// Requests in flight at most: the tags are 0 to one less.
    pub fn depth(&self) -> u16 {
        self.info.depth
    }

    /// Bytes of the longest request.
    pub fn io_bytes_max(&self) -> usize {
        self.info.io_bytes_max as usize
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        assert!(tag < self.info.depth, "tag {tag} of {}", self.info.depth);
        // SAFETY: inside the mapping. The kernel wrote it before it completed the tag's command,
        // and writes it again only after the next one.
        unsafe { self.descriptors.first.add(tag.into()).read_volatile() }
    }
}

impl Ring {
    /// Waits for the first request of a tag, with memory for the longest one.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If the memory is shorter than [`UblkChannel::io_bytes_max`].
    pub async fn ublk_fetch(
        &self,
        channel: &UblkChannel,
        tag: u16,
        memory: Buf,
    ) -> io::Result<Fetched> {
        self.ublk_command(channel, IO_FETCH, tag, -1, memory).await
    }

    /// Gives the result of a tag's request – the bytes moved, 0, or a negative error number – and
    /// waits for the next one. `memory` has the data of a read.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If the memory is shorter than [`UblkChannel::io_bytes_max`].
    pub async fn ublk_commit(
        &self,
        channel: &UblkChannel,
        tag: u16,
        result: i32,
        memory: Buf,
    ) -> io::Result<Fetched> {
        self.ublk_command(channel, IO_COMMIT_AND_FETCH, tag, result, memory).await
    }

    async fn ublk_command(
        &self,
        channel: &UblkChannel,
        number: u32,
        tag: u16,
        result: i32,
        mut memory: Buf,
    ) -> io::Result<Fetched> {
        // The kernel takes no request that is longer than this.
        assert!(memory.len() >= channel.io_bytes_max(), "a request may be longer than {memory:?}");
        let permit = self.command_slot().await;
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let command = IoCommand { queue: 0, tag, result, address };
        let fd = types::Fd(channel.fd.raw().0);
        let entry = opcode::UringCmd16::new(fd, number).cmd(command.bytes()).build();
        let held = Held::Command(memory);
        let (done, held) = self.start_op(permit, Some(&channel.fd), held, false, entry).await;
        let Held::Command(memory) = held else { unreachable!("a command holds its memory") };
        match done {
            RESULT_OK => Ok(Fetched::Request(channel.descriptor(tag), memory)),
            RESULT_ABORT => Ok(Fetched::Stopped),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
