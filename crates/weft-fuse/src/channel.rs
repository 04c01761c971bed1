//! The channel to the kernel: requests are received in batches, carried out as tasks, answered.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::rc::Rc;

use futures_util::future::pending;
use rustix::io::Errno;
use weft_rt::ring::{Fd, Ring};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, MILLISECOND, Nanos, Rt};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::lookout::{self, Lookout};
use crate::wire::{self, InHeader, InitIn, InitOut, IoIn, OutHeader, WRITE_HEAD, init_flag, op};

/// Longest write, bytes; the kernel's own limit (`fs.fuse.max_pages_limit`) is the same.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;
/// How far the kernel may read ahead in a file of a file system: several of the longest reads.
pub(crate) const READ_AHEAD_BYTES: u32 = 4 << 20;
/// Writes up to this length are copied out of the receive buffer, which can then receive the next
/// request at once; longer writes keep it.
const COPY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of requests in progress. Bounds memory: each holds at most one write.
pub(crate) const IN_FLIGHT_MAX: usize = 192;
/// Number of background requests that the kernel keeps in flight; below [`IN_FLIGHT_MAX`], to leave
/// room for other requests.
const BACKGROUND_MAX: u16 = 128;
/// Number of requests received before other tasks of this thread run, and before the disk requests
/// are submitted.
const BATCH: usize = 8;

/// How long to wait when a request cannot be received.
const PAUSE_NS: Nanos = 10 * MILLISECOND;

/// Receives requests until the file system is unmounted; each is carried out in a task of its own.
/// `lookout` decides how the next one is waited for; `in_flight` may be in progress. None is
/// received any more once `is_leaving`: then this does not return.
///
/// # Errors
/// If the channel cannot be read.
pub(crate) async fn receive<F: Future<Output = ()> + 'static>(
    rt: &Rt,
    ring: &Ring,
    fd: &Fd,
    mut lookout: Lookout,
    in_flight: usize,
    is_leaving: impl Fn() -> bool,
    carry_out: impl Fn(Request) -> F + 'static,
) -> Result<(), Errno> {
    let carry_out = Rc::new(carry_out);
    let slots = Rc::new(Semaphore::new(in_flight));
    let mut receiver = Receiver::new();
    let mut taken = 0;
    let ended = loop {
        let slot = slots.acquire(1).await;
        if is_leaving() {
            return pending().await;
        }
        match receiver.receive(fd) {
            Ok(request) => {
                lookout.came(|| rt.now());
                let carry_out = carry_out.clone();
                rt.launch(Box::pin(async move {
                    let _slot = slot;
                    carry_out(request).await;
                }));
                taken += 1;
                if taken % BATCH == 0 {
                    rt.yield_now().await;
                }
            }
            Err(Errno::AGAIN) if lookout.looks_again(|| rt.now()) => {
                lookout::give_way();
                rt.yield_now().await;
            }
            Err(Errno::AGAIN) => match ring.poll_readable(fd).await {
                Ok(()) => {}
                Err(e) => break Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            },
            Err(errno) => match after(errno) {
                After::Again => {}
                After::Pause => rt.sleep(PAUSE_NS).await,
                After::End => break Ok(()),
                After::Fail => break Err(errno),
            },
        }
    };
    // Requests in progress still own their buffers and must still be answered.
    let _all = slots.acquire(in_flight).await;
    ended
}

/// What to do when no request could be received.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// Receive the next one.
    Again,
    /// Receive again after a short wait.
    Pause,
    /// The file system is unmounted.
    End,
    /// Nothing will come any more.
    Fail,
}

fn after(errno: Errno) -> After {
    match errno {
        // Interrupted between our wake-up and our read.
        Errno::INTR | Errno::NOENT => After::Again,
        // Unmounted, or the connection was ended otherwise.
        Errno::NODEV | Errno::CONNABORTED => After::End,
        // There is no such descriptor, or not one of this kind.
        Errno::BADF | Errno::PERM => After::Fail,
        // A lack of memory, or an unforeseen error. Programs use the file system, and it can still
        // serve the next request.
        _ => After::Pause,
    }
}

/// Answers a request. If the kernel does not take the answer, it gets an error: the caller must not
/// wait for ever.
pub(crate) fn answer(fd: &Fd, head: &InHeader, result: Result<&[u8], Errno>) {
    for result in [result, Err(Errno::IO)] {
        match send(fd, head, result) {
            // The request was interrupted, or the file system was unmounted.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return,
            Err(_) => {}
        }
    }
}

fn send(fd: &Fd, head: &InHeader, result: Result<&[u8], Errno>) -> Result<(), Errno> {
    let (error, data) = match result {
        Ok(data) => (0, data),
        Err(e) => (-e.raw_os_error(), [].as_slice()),
    };
    let len = u32::try_from(size_of::<OutHeader>() + data.len()).unwrap_or(u32::MAX);
    let out = OutHeader { len, error, unique: head.unique };
    let parts = [IoSlice::new(out.as_bytes()), IoSlice::new(data)];
    rustix::io::retry_on_intr(|| rustix::io::writev(fd, &parts)).map(drop)
}

/// Asks the kernel for the requests again that an earlier process received and did not answer.
/// They come with another number.
///
/// # Errors
/// `INVAL` if the kernel cannot (before Linux 6.9); then there may be requests that nothing
/// answers.
pub(crate) fn ask_again(fd: &impl AsFd) -> Result<(), Errno> {
    let len = u32::try_from(size_of::<OutHeader>()).unwrap_or(0);
    let out = OutHeader { len, error: wire::NOTIFY_RESEND, unique: 0 };
    rustix::io::retry_on_intr(|| rustix::io::write(fd, out.as_bytes())).map(drop)
}

/// The answer to INIT; `also` are flags wanted beyond the usual ones.
pub(crate) fn negotiate(body: &[u8], also: u32) -> Result<InitOut, Errno> {
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
        flags: (wanted | also) & offer.flags,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX,
        max_write: u32::try_from(WRITE_BYTES_MAX).unwrap_or(u32::MAX),
        time_gran: 1,
        max_pages: u16::try_from(WRITE_BYTES_MAX / 4096).unwrap_or(u16::MAX),
        ..InitOut::default()
    })
}

/// A request as received: the header, and what follows it.
pub(crate) struct Request {
    pub(crate) head: InHeader,
    pub(crate) body: Body,
}

pub(crate) enum Body {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_channel_ends_the_service() {
        assert_eq!(after(Errno::NODEV), After::End);
        assert_eq!(after(Errno::BADF), After::Fail);
        assert_eq!(after(Errno::INTR), After::Again);
        for errno in [Errno::NOMEM, Errno::IO, Errno::INVAL, Errno::FAULT, Errno::NOBUFS] {
            assert_eq!(after(errno), After::Pause);
        }
    }

    #[test]
    fn an_answer_that_is_not_taken_is_replaced_by_an_error() {
        use std::io::Read as _;
        use std::os::unix::net::UnixDatagram;

        // It takes messages up to a size.
        let (ours, kernel) = UnixDatagram::pair().expect("made");
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).expect("set");
        let head = InHeader::read_from_bytes(&[0; size_of::<InHeader>()]).expect("its size");
        let head = InHeader { unique: 77, ..head };
        let fd = Fd::from(std::os::fd::OwnedFd::from(ours));
        answer(&fd, &head, Ok(&vec![1; 1 << 20]));
        kernel.set_nonblocking(true).expect("set");
        let mut bytes = [0; 64];
        let len = std::fs::File::from(std::os::fd::OwnedFd::from(kernel))
            .read(&mut bytes)
            .expect("an answer came");
        let out = OutHeader { len: 16, error: -Errno::IO.raw_os_error(), unique: 77 };
        assert_eq!(&bytes[..len], out.as_bytes());
    }
}
