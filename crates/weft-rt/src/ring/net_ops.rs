//! Operations on stream sockets.
//!
//! All of them wait for a peer, so all are cancelled when their future is dropped. A receive or
//! send that was dropped may have moved some bytes: the stream is then useless, and its
//! owner closes it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use io_uring::{opcode, squeue, types};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::disk_ops::{count, transfer_len};
use super::op::{Held, Message, Tag};
use super::{Fd, Ring};
use crate::{Buf, Frozen};

/// Parts of one `sendmsg` at most; more go out in several.
const PARTS_MAX: usize = 64;

/// Which direction [`Ring::shutdown`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// No more receiving.
    Read,
    /// No more sending: the peer sees the end of the stream.
    Write,
    /// Both.
    Both,
}

impl Ring {
    async fn socket_op(&self, fd: &Fd, held: Held, entry: squeue::Entry) -> (i32, Held) {
        let permit = self.socket_slot().await;
        self.start_op(permit, Some(fd), held, true, entry).await
    }

    /// Waits for a connection on a listening socket.
    ///
    /// # Errors
    /// The kernel's; `ECANCELED` after [`Ring::cancel`].
    pub async fn accept(&self, listener: &Fd) -> io::Result<Fd> {
        let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        let entry =
            opcode::Accept::new(listener.raw(), address, len).flags(libc::SOCK_CLOEXEC).build();
        let (result, _) = self.socket_op(listener, Held::NewFd, entry).await;
        count(result)?;
        // SAFETY: the kernel made this descriptor for us, and we take it once.
        let fd = unsafe { OwnedFd::from_raw_fd(result) };
        Ok(Fd::from(fd))
    }

    /// Connects to a TCP address.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn connect_tcp(&self, address: SocketAddr) -> io::Result<Fd> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        self.connect(family, &address).await
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// The kernel's; `ENAMETOOLONG` for a path of more than 107 bytes.
    pub async fn connect_unix(&self, path: &Path) -> io::Result<Fd> {
        let address = SocketAddrUnix::new(path)?;
        self.connect(AddressFamily::UNIX, &address).await
    }

    async fn connect(&self, family: AddressFamily, address: &impl SocketAddrArg) -> io::Result<Fd> {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let fd = Fd::from(socket);
        // SAFETY: sockaddr_storage is plain bytes, for which zero is valid.
        let mut storage: Box<libc::sockaddr_storage> = Box::new(unsafe { std::mem::zeroed() });
        let target: *mut libc::sockaddr_storage = &raw mut *storage;
        // SAFETY: `target` has the room of any address.
        let len = unsafe { address.write_sockaddr(target.cast()) };
        let entry = opcode::Connect::new(fd.raw(), target.cast_const().cast(), len).build();
        let (result, _) = self.socket_op(&fd, Held::Address(storage), entry).await;
        count(result)?;
        Ok(fd)
    }

    /// Receives the available bytes, at least one, into `buf[from..]`; gives the count of bytes (0:
    /// the peer has ended the stream) and the buffer back.
    ///
    /// # Errors
    /// The kernel's; `ECANCELED` after [`Ring::cancel`].
    ///
    /// # Panics
    /// If `from` lies beyond the buffer's end.
    pub async fn recv(&self, fd: &Fd, buf: Buf, from: usize) -> (io::Result<usize>, Buf) {
        self.recv_flags(fd, buf, from, 0).await
    }

    /// Receives until `buf[from..]` is full; gives the count of bytes, which is smaller only if the
    /// peer has ended the stream, and the buffer back.
    ///
    /// # Errors
    /// As [`Ring::recv`].
    ///
    /// # Panics
    /// If `from` lies beyond the buffer's end.
    pub async fn recv_full(&self, fd: &Fd, buf: Buf, from: usize) -> (io::Result<usize>, Buf) {
        let (mut buf, mut at) = (buf, from);
        // The kernel itself waits for all of it; the loop is for kernels that come back early.
        while at < buf.len() {
            let (result, back) = self.recv_flags(fd, buf, at, libc::MSG_WAITALL).await;
            buf = back;
            match result {
                Ok(0) => break,
                Ok(received) => at += received,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(at - from), buf)
    }

    async fn recv_flags(
        &self,
        fd: &Fd,
        mut buf: Buf,
        from: usize,
        flags: i32,
    ) -> (io::Result<usize>, Buf) {
        let target = &mut buf[from..];
        let entry = opcode::Recv::new(fd.raw(), target.as_mut_ptr(), transfer_len(target.len()))
            .flags(flags)
            .build();
        let (result, held) = self.socket_op(fd, Held::Buf(buf), entry).await;
        let Held::Buf(buf) = held else { unreachable!("a receive holds its buffer") };
        (count(result), buf)
    }

    /// Sends all of `data`.
    ///
    /// # Errors
    /// The kernel's (`EPIPE` if the peer is gone; no signal is raised).
    pub async fn send(&self, fd: &Fd, data: Frozen) -> io::Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            let entry = opcode::Send::new(fd.raw(), rest.as_ptr(), transfer_len(rest.len()))
                .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                .build();
            let (result, held) = self.socket_op(fd, Held::Frozen(rest), entry).await;
            let Held::Frozen(data) = held else { unreachable!("a send holds its data") };
            let sent = count(result)?;
            rest = data.slice(sent, data.len() - sent);
        }
        Ok(())
    }

    /// Sends all of `parts`, one after the other, with as few calls as possible. The emptied vector
    /// comes back for the next message.
    ///
    /// # Errors
    /// As [`Ring::send`].
    pub async fn send_parts(&self, fd: &Fd, parts: Vec<Frozen>) -> io::Result<Vec<Frozen>> {
        let mut message = Box::new(Message {
            iovecs: Vec::with_capacity(parts.len().min(PARTS_MAX)),
            parts,
            // SAFETY: msghdr is plain data, for which zero is valid.
            header: unsafe { std::mem::zeroed() },
        });
        loop {
            message.parts.retain(|part| !part.is_empty());
            if message.parts.is_empty() {
                return Ok(message.parts);
            }
            message.point();
            let header: *const libc::msghdr = &raw const message.header;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
            let entry = opcode::SendMsg::new(fd.raw(), header).flags(flags.cast_unsigned()).build();
            let (result, held) = self.socket_op(fd, Held::Message(message), entry).await;
            let Held::Message(back) = held else { unreachable!("a send holds its message") };
            message = back;
            message.advance(count(result)?);
        }
    }

    /// Ends one or both directions of a connection.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn shutdown(&self, fd: &Fd, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = opcode::Shutdown::new(fd.raw(), how).build();
        let (result, _) = self.socket_op(fd, Held::Nothing, entry).await;
        count(result).map(drop)
    }

    /// Waits until `fd` can be read, or has an error or a hang-up to tell.
    ///
    /// # Errors
    /// The kernel's; `ECANCELED` after [`Ring::cancel`].
    pub async fn poll_readable(&self, fd: &Fd) -> io::Result<()> {
        let events = u32::from(libc::POLLIN.cast_unsigned());
        let entry = opcode::PollAdd::new(fd.raw(), events).build();
        let (result, _) = self.socket_op(fd, Held::Nothing, entry).await;
        count(result).map(drop)
    }

    /// Ends every operation on `fd` that has been submitted and still waits: those give
    /// `ECANCELED`. A server does this before it closes a listener or a client.
    pub fn cancel(&self, fd: &Fd) {
        let which = types::CancelBuilder::fd(fd.raw()).all();
        self.0.push(&opcode::AsyncCancel2::new(which).build().user_data(Tag::Cancel.encode()));
    }
}

impl Message {
    /// Lets the header point to the parts, at the place where the message now is.
    fn point(&mut self) {
        self.iovecs.clear();
        self.iovecs.extend(self.parts.iter().take(PARTS_MAX).map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        }));
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = self.iovecs.len() as _;
    }

    /// Drops the first `sent` bytes.
    fn advance(&mut self, sent: usize) {
        let mut sent = sent;
        let mut whole = 0;
        while whole < self.parts.len() && sent >= self.parts[whole].len() {
            sent -= self.parts[whole].len();
            whole += 1;
        }
        self.parts.drain(..whole);
        if sent > 0 {
            let first = &self.parts[0];
            self.parts[0] = first.slice(sent, first.len() - sent);
        }
    }
}
