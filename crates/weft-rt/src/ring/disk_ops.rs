//! Operations on files and block devices.
//!
//! Each is one request to the kernel: reads and writes may be short, as the kernel's are.

use std::io;

use io_uring::{opcode, squeue, types};

use super::op::Held;
use super::setup::ARENA_INDEX;
use super::{Fd, Ring};
use crate::{Buf, Frozen};

/// Longest transfer of one request, in bytes (Linux's MAX_RW_COUNT); longer ones come back short.
pub const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// `rw_flags` of [`Ring::write_at`]: durable when it completes.
pub const RWF_DSYNC: i32 = libc::RWF_DSYNC;

/// Length of a transfer as the ring wants it.
pub(super) fn transfer_len(len: usize) -> u32 {
    u32::try_from(len.min(TRANSFER_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// A completion's result as the count of the bytes moved, or its error.
pub(super) fn count(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Ring {
    async fn disk_op(&self, fd: &Fd, entry: squeue::Entry) -> io::Result<()> {
        let permit = self.disk_slot().await;
        let (result, _) = self.start_op(permit, Some(fd), Held::Nothing, false, entry).await;
        count(result).map(drop)
    }

    /// Reads from `offset` (bytes) into the start of `buf`; gives the count of bytes read (0 at
    /// the end of the file) and the buffer back. A dropped future's read runs on unobserved.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn read_at(&self, fd: &Fd, mut buf: Buf, offset: u64) -> (io::Result<usize>, Buf) {
        let permit = self.disk_slot().await;
        let (target, len) = (buf.as_mut_ptr(), transfer_len(buf.len()));
        let entry = if self.0.is_registered(target, buf.len()) {
            opcode::ReadFixed::new(fd.raw(), target, len, ARENA_INDEX).offset(offset).build()
        } else {
            opcode::Read::new(fd.raw(), target, len).offset(offset).build()
        };
        let (result, held) = self.start_op(permit, Some(fd), Held::Buf(buf), false, entry).await;
        let Held::Buf(buf) = held else { unreachable!("a read holds its buffer") };
        (count(result), buf)
    }

    /// Writes `data` at `offset` (bytes) with `rw_flags` (0 or [`RWF_DSYNC`]); gives the count of
    /// bytes written. A dropped future's write runs on unobserved.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn write_at(
        &self,
        fd: &Fd,
        data: Frozen,
        offset: u64,
        rw_flags: i32,
    ) -> io::Result<usize> {
        let permit = self.disk_slot().await;
        let (source, len) = (data.as_ptr(), transfer_len(data.len()));
        let entry = if self.0.is_registered(source, data.len()) {
            let write = opcode::WriteFixed::new(fd.raw(), source, len, ARENA_INDEX);
            write.offset(offset).rw_flags(rw_flags).build()
        } else {
            opcode::Write::new(fd.raw(), source, len).offset(offset).rw_flags(rw_flags).build()
        };
        let held = Held::Frozen(data);
        let (result, _) = self.start_op(permit, Some(fd), held, false, entry).await;
        count(result)
    }

    /// Makes data and metadata of the file durable.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn fsync(&self, fd: &Fd) -> io::Result<()> {
        self.disk_op(fd, opcode::Fsync::new(fd.raw()).build()).await
    }

    /// Makes data of the file durable, and the metadata needed to find it.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn fdatasync(&self, fd: &Fd) -> io::Result<()> {
        let flags = types::FsyncFlags::DATASYNC;
        self.disk_op(fd, opcode::Fsync::new(fd.raw()).flags(flags).build()).await
    }

    /// `fallocate(2)` of `len` bytes from `offset` with its `mode` bits (`FALLOC_FL_*`).
    ///
    /// # Errors
    /// The kernel's.
    pub async fn fallocate(&self, fd: &Fd, mode: u32, offset: u64, len: u64) -> io::Result<()> {
        let entry =
            opcode::Fallocate::new(fd.raw(), len).offset(offset).mode(mode.cast_signed()).build();
        self.disk_op(fd, entry).await
    }
}
