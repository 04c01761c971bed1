//! Serves a FUSE channel: receives requests, carries them out on a [`Volume`], answers.
//!
//! *A channel that outlives its process.* The kernel ends the file system when the last descriptor
//! of its channel is closed. If someone else keeps one, users of the file wait for the next
//! process, which goes on with the channel: first it asks for the requests that were received and
//! not answered ([`ask_again`]). A process that leaves the channel to the next one gives no answer
//! to requests that fail because it ends ([`Session::leave`]), or because the volume has ended
//! ([`Source::has_ended`]).

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use futures_util::future::select;
use rustix::io::Errno;
use weft_disk::{Volume, VolumeError, VolumeErrorKind};
use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Notify;
use weft_rt::{Buf, Nanos, Rt};
use zerocopy::{FromBytes as _, IntoBytes};

use crate::channel::{self, Body, Request, WRITE_BYTES_MAX};
use crate::lookout::Lookout;
use crate::wire::{
    self, Attr, AttrOut, EntryOut, FILE, FallocateIn, InHeader, IoIn, OpenOut, ROOT, StatfsOut,
    WriteOut, fallocate, op,
};

/// Name of the one file.
pub const FILE_NAME: &str = "disk";

/// How long the kernel may cache a name: one day, in seconds. Sizes, which change when an array is
/// reshaped, it asks for each time; reads and writes do not need them.
const VALID_S: u64 = 86_400;

/// What the file shows.
pub struct Source {
    /// Its contents.
    pub volume: Rc<dyn Volume>,
    /// Whether the volume has ended and answers nothing, while a later process can go on with the
    /// channel.
    pub has_ended: Box<dyn Fn() -> bool>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// A channel that is being served.
pub struct Session {
    rt: Rt,
    ring: Ring,
    channel: Rc<Channel>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Asks the kernel for the requests that an earlier process received on this channel and did not
/// answer.
///
/// # Errors
/// `INVAL` if the kernel cannot (before Linux 6.9): users of such requests would wait for ever.
pub fn ask_again(channel: impl AsFd) -> Result<(), Errno> {
    channel::ask_again(&channel)
}

impl Session {
    /// A session on a channel; nothing is received yet.
    pub fn new(rt: &Rt, ring: &Ring, channel: OwnedFd, source: Source) -> Rc<Self> {
        let (fd, idle) = (Fd::from(channel), Notify::default());
        let (leaving, busy, unanswered) = (Cell::default(), Cell::default(), Cell::default());
        let channel = Channel { fd, source, leaving, busy, unanswered, idle };
        Rc::new(Self { rt: rt.clone(), ring: ring.clone(), channel: Rc::new(channel) })
    }

    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// If the channel cannot be read.
    pub async fn serve(&self) -> Result<(), Errno> {
        let Self { rt, ring, channel } = self;
        let fd = channel.fd.clone();
        let (ours, leaving) = (channel.clone(), channel.clone());
        let is_leaving = move || leaving.leaving.get();
        // The requests of a disk come many at a time, and each takes longer than a wake-up.
        let most = channel::IN_FLIGHT_MAX;
        channel::receive(rt, ring, &fd, Lookout::closed(), most, is_leaving, move |request| {
            let channel = ours.clone();
            async move {
                channel.busy.set(channel.busy.get() + 1);
                channel.carry_out(request).await;
                channel.busy.set(channel.busy.get() - 1);
                if channel.leaving.get() && channel.busy.get() == 0 {
                    channel.idle.notify_all();
                }
            }
        })
        .await
    }

    /// Receives no more requests, and waits for those in progress, but no longer than `patience`.
    /// Returns how many have got no answer, as they have not ended or have failed: unless they
    /// still succeed, the next process carries them out.
    pub async fn leave(&self, patience: Nanos) -> usize {
        let Channel { leaving, busy, unanswered, idle, .. } = &*self.channel;
        leaving.set(true);
        let deadline = self.rt.now().saturating_add(patience);
        while busy.get() > 0 && self.rt.now() < deadline {
            let (idle, end) = (std::pin::pin!(idle.wait()), self.rt.sleep_until(deadline));
            select(idle, std::pin::pin!(end)).await;
        }
        busy.get() + unanswered.get()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd.as_fd()
    }
}

struct Channel {
    fd: Fd,
    source: Source,
    leaving: Cell<bool>,
    /// Requests that are being carried out.
    busy: Cell<usize>,
    /// Requests that have ended, and are left to the next process.
    unanswered: Cell<usize>,
    idle: Notify,
}

impl Channel {
    async fn carry_out(&self, Request { head, body }: Request) {
        match body {
            Body::Read(io) => self.read(&head, &io).await,
            Body::Write(io, data) => self.write(&head, &io, data).await,
            Body::Plain(body) => match head.opcode {
                op::FSYNC => {
                    let result = self.source.volume.flush().await.map_err(|e| errno_of(&e));
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
        let size = self.source.volume.size_bytes();
        let len = u64::from(io.size).min(size.saturating_sub(io.offset));
        let Ok(len) = usize::try_from(len) else { return self.answer(head, Err(Errno::INVAL)) };
        if len > WRITE_BYTES_MAX || len == 0 {
            let result = if len == 0 { Ok([].as_slice()) } else { Err(Errno::INVAL) };
            return self.answer(head, result);
        }
        let (result, buf) = self.source.volume.read(io.offset, Buf::new(len)).await;
        self.answer(head, result.map(|()| &*buf).map_err(|e| errno_of(&e)));
    }

    async fn write(&self, head: &InHeader, io: &IoIn, data: Buf) {
        let len = data.len() as u64;
        let fits =
            io.offset.checked_add(len).is_some_and(|end| end <= self.source.volume.size_bytes());
        if len != u64::from(io.size) || !fits {
            return self.answer(head, Err(Errno::FBIG));
        }
        let sync = io.flags & (rustix::fs::OFlags::DSYNC.bits()) != 0;
        let result = match len {
            0 => Ok(()),
            _ => self.source.volume.write(io.offset, data.freeze(), sync).await,
        };
        let out = WriteOut { size: io.size, padding: 0 };
        self.answer(head, result.map(|()| out.as_bytes()).map_err(|e| errno_of(&e)));
    }

    /// Discard and write-zeroes of the loop device arrive as FALLOCATE.
    async fn fallocate(&self, body: &[u8]) -> Result<(), Errno> {
        let (FallocateIn { offset, length, mode, .. }, _) =
            FallocateIn::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let size = self.source.volume.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Errno::FBIG);
        }
        let result = match mode & !fallocate::KEEP_SIZE {
            _ if length == 0 => Ok(()),
            // A hole reads as zeros: more than NBD's trim promises.
            fallocate::PUNCH_HOLE => {
                self.source.volume.write_zeroes(offset, length, false, true).await
            }
            fallocate::ZERO_RANGE => {
                self.source.volume.write_zeroes(offset, length, false, false).await
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        result.map_err(|e| errno_of(&e))
    }

    /// Requests that need no disk.
    fn answer_plain(&self, head: &InHeader, body: &[u8]) {
        match head.opcode {
            op::INIT => match channel::negotiate(body, 0) {
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
        let size = if node == FILE { self.source.volume.size_bytes() } else { 0 };
        let mode = if node == FILE { 0o100_600 } else { 0o40_700 };
        let nlink = if node == FILE { 1 } else { 2 };
        Attr { ino: node, size, blocks: size / 512, mode, nlink, blksize: 4096, ..Attr::default() }
    }

    fn answer(&self, head: &InHeader, result: Result<&[u8], Errno>) {
        if result.is_err() && (self.leaving.get() || (self.source.has_ended)()) {
            // The next process asks for the request again.
            self.unanswered.set(self.unanswered.get() + 1);
            return;
        }
        channel::answer(&self.fd, head, result);
    }
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

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use weft_disk::{DoneFuture, ReadFuture, VolumeInfo};
    use weft_rt::ring::{self, RingConfig};
    use weft_rt::sync::Semaphore;
    use weft_rt::{Frozen, MILLISECOND};

    use super::*;

    /// A volume whose requests fail once they may end.
    struct Failing(Semaphore);

    impl Failing {
        fn fail(&self) -> DoneFuture<'_, VolumeError> {
            Box::pin(async move {
                drop(self.0.acquire(1).await);
                Err(VolumeError::new(VolumeErrorKind::Stopped, "stopped"))
            })
        }
    }

    impl Volume for Failing {
        fn info(&self) -> VolumeInfo {
            VolumeInfo { align_bytes: 512, block_bytes: 512, fast_zeroes: false }
        }

        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn read(&self, _offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
            Box::pin(async move { (self.fail().await, buf) })
        }

        fn write(&self, _offset: u64, _data: Frozen, _fua: bool) -> DoneFuture<'_, VolumeError> {
            self.fail()
        }

        fn flush(&self) -> DoneFuture<'_, VolumeError> {
            self.fail()
        }

        fn write_zeroes(
            &self,
            _offset: u64,
            _len: u64,
            _fua: bool,
            _may_deallocate: bool,
        ) -> DoneFuture<'_, VolumeError> {
            self.fail()
        }

        fn discard(&self, _offset: u64, _len: u64) -> DoneFuture<'_, VolumeError> {
            self.fail()
        }
    }

    #[test]
    fn a_request_that_fails_while_its_session_leaves_is_left_to_the_next_process() {
        let Ok((rt, ring)) = ring::start(RingConfig::default()) else { return };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, kernel) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .expect("made");
        let main = rt.clone();
        rt.block_on(async move {
            let rt = main;
            let volume = Rc::new(Failing(Semaphore::new(1)));
            let hold = volume.0.acquire(1).await;
            let source = Source { volume: volume.clone(), has_ended: Box::new(|| false) };
            let session = Session::new(&rt, &ring, ours, source);
            let served = session.clone();
            drop(rt.spawn(async move { served.serve().await }));
            let head = InHeader::read_from_bytes(&[0; size_of::<InHeader>()]).expect("its size");
            let len = u32::try_from(size_of::<InHeader>()).expect("short");
            let head = InHeader { len, opcode: op::FSYNC, unique: 7, nodeid: FILE, ..head };
            rustix::io::write(&kernel, head.as_bytes()).expect("sent");
            while session.channel.busy.get() == 0 {
                rt.sleep(MILLISECOND).await;
            }
            let leaving = session.clone();
            let left = rt.spawn(async move { leaving.leave(60_000 * MILLISECOND).await });
            rt.sleep(MILLISECOND).await;
            drop(hold);
            assert_eq!(left.await, 1, "it got no answer");
            let answer = rustix::io::read(&kernel, &mut [0_u8; 64]);
            assert_eq!(answer.err(), Some(Errno::AGAIN), "an answer");
        });
    }
}
