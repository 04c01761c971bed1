//! Serves a FUSE channel: receives requests, carries them out on a [`Volume`], answers.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use weft_disk::{Volume, VolumeError, VolumeErrorKind};
use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, Rt};
use zerocopy::{FromBytes as _, IntoBytes};

use crate::wire::{
    self, Attr, AttrOut, EntryOut, FILE, FallocateIn, InHeader, InitIn, InitOut, IoIn, OpenOut,
    OutHeader, ROOT, StatfsOut, WRITE_HEAD, WriteOut, fallocate, init_flag, op,
};

/// Name of the one file.
pub const FILE_NAME: &str = "disk";

/// Longest write, bytes; the kernel's own limit (`fs.fuse.max_pages_limit`) is the same.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Writes up to this length are copied out of the receive buffer, which can then receive the next
/// request at once; longer writes keep it.
const COPY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of requests in progress. Bounds memory: each holds at most one write.
const IN_FLIGHT_MAX: usize = 192;
/// Number of background requests that the kernel keeps in flight; below [`IN_FLIGHT_MAX`], to leave
/// room for others.
const BACKGROUND_MAX: u16 = 128;
/// Number of requests received before other tasks of this thread run, and before the disk requests
/// are submitted.
const BATCH: usize = 8;
/// How long the kernel may cache a name: one day, in seconds. Sizes, which change when an array is
/// reshaped, it asks for each time; reads and writes do not need them.
const VALID_S: u64 = 86_400;

/// Serves `channel` until the file system is unmounted.
///
/// # Errors
/// If the channel cannot be read.
pub async fn serve(
    rt: Rt,
    ring: Ring,
    channel: OwnedFd,
    volume: Rc<dyn Volume>,
) -> Result<(), Errno> {
    let channel = Rc::new(Channel { fd: Fd::from(channel), volume });
    let slots = Rc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut receiver = Receiver::new();
    let mut taken = 0;
    let ended = loop {
        let slot = slots.acquire(1).await;
        match receiver.receive(&channel.fd) {
            Ok(request) => {
                let channel = channel.clone();
                rt.launch(Box::pin(async move {
                    let _slot = slot;
                    channel.carry_out(request).await;
                }));
                taken += 1;
                if taken % BATCH == 0 {
                    rt.yield_now().await;
                }
            }
            Err(Errno::AGAIN) => match ring.poll_readable(&channel.fd).await {
                Ok(()) => {}
                Err(e) => break Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            },
            // Interrupted between our wake-up and our read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::NODEV) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    // Requests in progress still own their buffers and must still be answered.
    let _all = slots.acquire(IN_FLIGHT_MAX).await;
    ended
}

/// A request as received: the header, and what follows it.
struct Request {
    head: InHeader,
    body: Body,
}

enum Body {
    Read(IoIn),
    Write(IoIn, Buf),
    /// Everything else.
    Plain(Vec<u8>),
}

/// Receives requests; the header and the payload of a write go to different buffers.
struct Receiver {
    head: [u8; WRITE_HEAD],
    payload: Buf,
}

impl Receiver {
    fn new() -> Self {
        Self { head: [0; WRITE_HEAD], payload: Buf::new(WRITE_BYTES_MAX) }
    }

    fn receive(&mut self, fd: &Fd) -> Result<Request, Errno> {
        let mut parts = [IoSliceMut::new(&mut self.head), IoSliceMut::new(&mut self.payload)];
        let received = rustix::io::readv(fd, &mut parts)?;
        let in_head = received.min(WRITE_HEAD);
        let (head, body) =
            InHeader::read_from_prefix(&self.head[..in_head]).map_err(|_| Errno::IO)?;
        if matches!(head.opcode, op::READ | op::WRITE) {
            let io = IoIn::read_from_bytes(body).map_err(|_| Errno::IO)?;
            let body = match head.opcode {
                op::READ => Body::Read(io),
                _ => Body::Write(io, self.take_payload(received - in_head)),
            };
            return Ok(Request { head, body });
        }
        let mut bytes = body.to_vec();
        bytes.extend_from_slice(&self.payload[..received - in_head]);
        Ok(Request { head, body: Body::Plain(bytes) })
    }

    fn take_payload(&mut self, len: usize) -> Buf {
        if len <= COPY_BYTES_MAX {
            return Buf::copy_from(&self.payload[..len]);
        }
        let mut data = std::mem::replace(&mut self.payload, Buf::new(WRITE_BYTES_MAX));
        data.truncate(len);
        data
    }
}

struct Channel {
    fd: Fd,
    volume: Rc<dyn Volume>,
}

impl Channel {
    async fn carry_out(&self, Request { head, body }: Request) {
        match body {
            Body::Read(io) => self.read(&head, &io).await,
            Body::Write(io, data) => self.write(&head, &io, data).await,
            Body::Plain(body) => match head.opcode {
                op::FSYNC => {
                    let result = self.volume.flush().await.map_err(|e| errno_of(&e));
                    self.answer(&head, result.map(|()| [].as_slice()));
                }
                op::FALLOCATE => {
                    let result = self.fallocate(&body).await;
                    self.answer(&head, result.map(|()| [].as_slice()));
                }
                op::FORGET | op::BATCH_FORGET | op::INTERRUPT => {}
                _ => self.answer_plain(&head, &body),
            },
        }
    }

    async fn read(&self, head: &InHeader, io: &IoIn) {
        let size = self.volume.size_bytes();
        let len = u64::from(io.size).min(size.saturating_sub(io.offset));
        let Ok(len) = usize::try_from(len) else { return self.answer(head, Err(Errno::INVAL)) };
        if len > WRITE_BYTES_MAX || len == 0 {
            let result = if len == 0 { Ok([].as_slice()) } else { Err(Errno::INVAL) };
            return self.answer(head, result);
        }
        let (result, buf) = self.volume.read(io.offset, Buf::new(len)).await;
        self.answer(head, result.map(|()| &*buf).map_err(|e| errno_of(&e)));
    }

    async fn write(&self, head: &InHeader, io: &IoIn, data: Buf) {
        let len = data.len() as u64;
        let fits = io.offset.checked_add(len).is_some_and(|end| end <= self.volume.size_bytes());
        if len != u64::from(io.size) || !fits {
            return self.answer(head, Err(Errno::FBIG));
        }
        let sync = io.flags & (rustix::fs::OFlags::DSYNC.bits()) != 0;
        let result = match len {
            0 => Ok(()),
            _ => self.volume.write(io.offset, data.freeze(), sync).await,
        };
        let out = WriteOut { size: io.size, padding: 0 };
        self.answer(head, result.map(|()| out.as_bytes()).map_err(|e| errno_of(&e)));
    }

    /// Discard and write-zeroes of the loop device arrive as FALLOCATE.
    async fn fallocate(&self, body: &[u8]) -> Result<(), Errno> {
        let (FallocateIn { offset, length, mode, .. }, _) =
            FallocateIn::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let size = self.volume.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Errno::FBIG);
        }
        let result = match mode & !fallocate::KEEP_SIZE {
            _ if length == 0 => Ok(()),
            // A hole reads as zeros: more than NBD's trim promises.
            fallocate::PUNCH_HOLE => self.volume.write_zeroes(offset, length, false, true).await,
            fallocate::ZERO_RANGE => self.volume.write_zeroes(offset, length, false, false).await,
            _ => return Err(Errno::OPNOTSUPP),
        };
        result.map_err(|e| errno_of(&e))
    }

    /// Requests that need no disk.
    fn answer_plain(&self, head: &InHeader, body: &[u8]) {
        match head.opcode {
            op::INIT => match negotiate(body) {
                Ok(out) => self.answer(head, Ok(out.as_bytes())),
                Err(e) => self.answer(head, Err(e)),
            },
            op::LOOKUP if head.nodeid == ROOT && name_of(body) == FILE_NAME.as_bytes() => {
                let out = EntryOut {
                    nodeid: FILE,
                    generation: 0,
                    entry_valid: VALID_S,
                    attr_valid: 0,
                    entry_valid_nsec: 0,
                    attr_valid_nsec: 0,
                    attr: self.attr(FILE),
                };
                self.answer(head, Ok(out.as_bytes()));
            }
            op::LOOKUP => self.answer(head, Err(Errno::NOENT)),
            // The size is the array's; times and owners do not matter.
            op::SETATTR if sets_size(body) => self.answer(head, Err(Errno::PERM)),
            op::GETATTR | op::SETATTR => {
                let attr = self.attr(head.nodeid);
                let out = AttrOut { attr_valid: 0, attr_valid_nsec: 0, dummy: 0, attr };
                self.answer(head, Ok(out.as_bytes()));
            }
            op::OPEN => {
                let open_flags = wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES;
                let out = OpenOut { open_flags, ..OpenOut::default() };
                self.answer(head, Ok(out.as_bytes()));
            }
            op::OPENDIR => self.answer(head, Ok(OpenOut::default().as_bytes())),
            op::READDIR => self.answer(head, Ok(&directory(body))),
            op::STATFS => {
                // No blocks: `df` leaves out file systems without any, as it should this one, which
                // nothing can be stored in. The loop driver takes `bsize` for the granularity of
                // discards.
                let out =
                    StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..StatfsOut::default() };
                self.answer(head, Ok(out.as_bytes()));
            }
            op::RELEASE | op::RELEASEDIR | op::DESTROY => self.answer(head, Ok(&[])),
            _ => self.answer(head, Err(Errno::NOSYS)),
        }
    }

    fn attr(&self, node: u64) -> Attr {
        let size = if node == FILE { self.volume.size_bytes() } else { 0 };
        let mode = if node == FILE { 0o100_600 } else { 0o40_700 };
        let nlink = if node == FILE { 1 } else { 2 };
        Attr { ino: node, size, blocks: size / 512, mode, nlink, blksize: 4096, ..Attr::default() }
    }

    fn answer(&self, head: &InHeader, result: Result<&[u8], Errno>) {
        let (error, data) = match result {
            Ok(data) => (0, data),
            Err(e) => (-e.raw_os_error(), [].as_slice()),
        };
        let len = u32::try_from(size_of::<OutHeader>() + data.len()).unwrap_or(u32::MAX);
        let out = OutHeader { len, error, unique: head.unique };
        // It fails only if the request was interrupted, or the file system was unmounted.
        let _ = rustix::io::writev(&self.fd, &[IoSlice::new(out.as_bytes()), IoSlice::new(data)]);
    }
}

fn negotiate(body: &[u8]) -> Result<InitOut, Errno> {
    let (offer, _) = InitIn::read_from_prefix(body).map_err(|_| Errno::PROTO)?;
    if offer.major != wire::MAJOR || offer.minor < wire::MINOR_MIN {
        return Err(Errno::PROTO);
    }
    let wanted =
        init_flag::ASYNC_READ | init_flag::BIG_WRITES | init_flag::ASYNC_DIO | init_flag::MAX_PAGES;
    Ok(InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR.min(offer.minor),
        max_readahead: offer.max_readahead,
        flags: wanted & offer.flags,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX,
        max_write: u32::try_from(WRITE_BYTES_MAX).unwrap_or(u32::MAX),
        time_gran: 1,
        max_pages: u16::try_from(WRITE_BYTES_MAX / 4096).unwrap_or(u16::MAX),
        ..InitOut::default()
    })
}

fn name_of(body: &[u8]) -> &[u8] {
    body.split(|b| *b == 0).next().unwrap_or_default()
}

fn sets_size(body: &[u8]) -> bool {
    const FATTR_SIZE: u32 = 1 << 3;
    u32::read_from_prefix(body).is_ok_and(|(valid, _)| valid & FATTR_SIZE != 0)
}

/// The entries of the root folder, from the offset that `body` gives.
fn directory(body: &[u8]) -> Vec<u8> {
    const DIRECTORY: u32 = 4;
    const REGULAR: u32 = 8;
    let from = IoIn::read_from_prefix(body).map_or(0, |(io, _)| io.offset);
    let mut bytes = Vec::new();
    let entries = [(ROOT, DIRECTORY, "."), (ROOT, DIRECTORY, ".."), (FILE, REGULAR, FILE_NAME)];
    for (next, (node, kind, name)) in (1_u64..).zip(entries) {
        if next > from {
            bytes.extend_from_slice(&node.to_ne_bytes());
            bytes.extend_from_slice(&next.to_ne_bytes());
            bytes.extend_from_slice(&u32::try_from(name.len()).unwrap_or(0).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
    }
    bytes
}

fn errno_of(error: &VolumeError) -> Errno {
    match error.kind {
        VolumeErrorKind::NoSpace => Errno::NOSPC,
        VolumeErrorKind::ReadOnly => Errno::ROFS,
        _ => Errno::IO,
    }
}
