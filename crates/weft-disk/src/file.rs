//! Disks that are regular files or block devices.
//!
//! **Past the page cache.** They are opened with O_DIRECT, so that what the array has acknowledged
//! does not sit in the kernel's memory, memory is not held twice, and a read error is the medium's.
//! A file system that refuses O_DIRECT gets buffered I/O instead ([`FileDisk::is_direct`] tells);
//! flushes make that just as safe.
//!
//! **One owner.** A block device is opened with O_EXCL, which keeps out mounts, swap and other
//! owners of that kind; a regular file is locked with `flock`. Both end with the process,
//! however that ends, so a crash leaves nothing to clean up. A file below a loop device, a swap
//! file and one that another program has locked are in use, too; a write-protected device is
//! refused before anything relies on it.
//!
//! **Its size.** A file that becomes shorter under a running program has lost its contents beyond
//! the new end; a write there would make it longer again, with a hole that reads as zeros. So the
//! size is checked before each write and after each read, and once it was too small every request
//! fails ([`DiskErrorKind::Shrunk`]). The size of a block device, which no write makes longer, is
//! checked when a request fails; one that has no size any more was unplugged, and holds what it
//! held ([`DiskErrorKind::Gone`]). A file or device may become larger: [`Disk::size_now`] looks,
//! and the first request that goes further than any before. From then on the new size counts.
//!
//! A file that was cut and made longer again between two requests has its old size. Two other
//! numbers of the same `statx` tell: the file has a new modification time although no request of
//! this program modified it, and it occupies fewer blocks than before. A single number means
//! little: `touch` changes the time, and file systems free blocks that hold no data. So that they
//! can be compared, `statx` is also called when the last modifying request in flight ends: 0.3 µs
//! per write at depth 1, less when several are in flight. Not noticed are a cut of a part that
//! holds no data (which loses nothing), one that falls into a request in flight or into the same
//! tick of the kernel's clock (at most 10 ms), and one below a file system that does not count
//! blocks.
//!
//! **Ring or in place.** [`IoMode::Ring`] is the normal way. Where the target is plain memory
//! (tmpfs, ramfs, zram, brd) the kernel cannot complete a ring's request without a worker thread,
//! and a call in place is far faster: 4 KiB at depth 1 on tmpfs, 14 k requests a second by the ring
//! and 737 k by `pread`. So the opening looks at what the target stands on, and takes
//! [`IoMode::InPlace`] there. It is not decided by timing reads: a hole in a sparse file is as fast
//! as memory.

mod open;
mod users;
mod zero;

use std::cell::Cell;
use std::io;
use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::ReadWriteFlags;
use weft_rt::ring::{Fd, RWF_DSYNC, Ring};
use weft_rt::{Buf, Frozen};

use crate::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};

/// How requests are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMode {
    /// By the thread's ring, many at a time.
    Ring,
    /// By a plain system call in the caller's own turn: for targets that are memory.
    InPlace,
}

/// How to open a file or block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// `None`: [`IoMode::InPlace`] on targets that are memory, [`IoMode::Ring`] elsewhere.
    pub io_mode: Option<IoMode>,
    /// Sector size to present, in bytes, 512 or 4096; not smaller than the target's own. `None`:
    /// the device's, or for a file the smallest that its file system takes.
    pub sector_bytes: Option<u32>,
    /// Whether to try O_DIRECT.
    pub direct: bool,
    /// Whether to open read-only, and *without* taking ownership: to look at a member that may be
    /// in use.
    pub look_only: bool,
    /// Whether to open it for writing *without* taking ownership, beside an owner that knows of it.
    pub beside_owner: bool,
    /// Whether to open read-only, as its owner.
    pub read_only: bool,
}

impl FileOptions {
    fn owns(&self) -> bool {
        !(self.look_only || self.beside_owner)
    }
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            io_mode: None,
            sector_bytes: None,
            direct: true,
            look_only: false,
            beside_owner: false,
            read_only: false,
        }
    }
}

/// A disk that is a regular file or a block device.
#[derive(Debug)]
pub struct FileDisk {
    info: DiskInfo,
    ring: Ring,
    fd: Fd,
    io_mode: IoMode,
    direct: bool,
    /// Whether it is a regular file.
    is_file: bool,
    /// The size that counts: that when it was opened, or the end of the request that went furthest.
    relied_on: Cell<u64>,
    /// It was seen to be shorter than that, or to have lost contents otherwise.
    shrunk: Cell<bool>,
    /// Modifying requests in flight. One whose future is dropped counts forever, as nothing tells
    /// when it ends.
    modifying: Cell<u32>,
    /// The file when it was last looked at; `None` if it was modified since, or if another program
    /// may write it.
    last_look: Cell<Option<Look>>,
    /// Whether no other program should modify it.
    is_owned: bool,
    zeroing: Cell<zero::Way>,
    can_discard: Cell<bool>,
}

/// What tells whether a file was modified, and whether it lost contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    modified: (i64, u32),
    blocks: u64,
}

impl Look {
    fn of(stat: &Statx) -> Self {
        let modified = (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        Self { modified, blocks: stat.stx_blocks }
    }

    /// Whether contents were lost between this look and a later one, with no modification by this
    /// program in between.
    fn lost_contents(&self, later: &Self) -> bool {
        self.modified != later.modified && later.blocks < self.blocks
    }
}

impl FileDisk {
    /// Opens `path` and becomes its owner.
    ///
    /// # Errors
    /// [`DiskOp::Open`]: it does not exist, is neither a file nor a block device, is in use or
    /// write-protected, needs larger sectors than asked for, or is smaller than one sector. The
    /// message names it.
    pub fn open(ring: &Ring, path: &Path, options: &FileOptions) -> Result<Self, DiskError> {
        open::open(ring, path, options).map_err(|source| {
            DiskError::new(&path.display().to_string(), DiskOp::Open, 0, 0, source)
        })
    }

    /// How requests are carried out.
    pub fn io_mode(&self) -> IoMode {
        self.io_mode
    }

    /// Whether requests go past the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn error(&self, op: DiskOp, offset: u64, len: u64, source: io::Error) -> DiskError {
        // A file that ended early has lost its contents there, even if it is long again by now.
        let ended_early = self.is_file && source.kind() == io::ErrorKind::UnexpectedEof;
        self.shrunk.set(self.shrunk.get() || ended_early);
        if self.is_shrunk() {
            return self.shrunk_error(op, offset, len);
        }
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        if !self.is_file && self.size() == Some(0) {
            // It was unplugged. Its contents are still on it, regardless of the error's number.
            error.kind = DiskErrorKind::Gone;
        }
        error
    }

    /// Fails if a file has become shorter: a write must not make it longer again, and the data read
    /// may be the hole that an earlier write left.
    fn check_size(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        if self.is_file && self.is_shrunk() {
            return Err(self.shrunk_error(op, offset, len));
        }
        Ok(())
    }

    fn is_shrunk(&self) -> bool {
        if self.shrunk.get() {
            return true;
        }
        let shrunk = match self.is_file {
            true => self.look().is_some_and(|stat| self.lost_contents(&stat)),
            false => {
                let has_shrunk = |size| has_shrunk(false, size, self.relied_on.get());
                self.size().is_some_and(has_shrunk)
            }
        };
        self.shrunk.set(shrunk);
        shrunk
    }

    /// Refuses a request beyond the end, or not of whole sectors.
    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        let end = offset.saturating_add(len);
        if end > self.relied_on.get() {
            let size = self.size_now();
            self.info.check_within(size, op, offset, len)?;
            self.relied_on.set(end);
            return Ok(());
        }
        self.info.check_within(end, op, offset, len)
    }

    /// What the file is like now, without asking a server, which may not answer: everything waits
    /// for this call.
    fn look(&self) -> Option<Statx> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::SIZE | StatxFlags::BLOCKS | StatxFlags::MTIME;
        rustix::fs::statx(&self.fd, c"", flags, wanted).ok()
    }

    /// The size now.
    fn size(&self) -> Option<u64> {
        if self.is_file {
            return self.look().map(|stat| stat.stx_size);
        }
        // The position of the open file is of no use to anybody.
        rustix::fs::seek(&self.fd, SeekFrom::End(0)).ok()
    }

    /// Whether a file is shorter than what counts, or was shorter since the last look.
    fn lost_contents(&self, stat: &Statx) -> bool {
        let is_shorter = has_shrunk(true, stat.stx_size, self.relied_on.get());
        if !self.is_owned || self.modifying.get() > 0 {
            return is_shorter;
        }
        let now = Look::of(stat);
        let last = self.last_look.replace(Some(now));
        is_shorter || last.is_some_and(|last| last.lost_contents(&now))
    }

    /// Carries out a request that modifies the file, unless it has lost contents.
    async fn modify(
        &self,
        op: DiskOp,
        offset: u64,
        len: u64,
        request: impl Future<Output = io::Result<()>>,
    ) -> Result<(), DiskError> {
        self.check_size(op, offset, len)?;
        self.last_look.set(None);
        self.modifying.set(self.modifying.get() + 1);
        let result = request.await;
        self.modifying.set(self.modifying.get() - 1);
        if self.is_file && self.modifying.get() == 0 {
            // A loss that shows now fails the next request.
            self.is_shrunk();
        }
        result.map_err(|source| self.error(op, offset, len, source))
    }

    fn shrunk_error(&self, op: DiskOp, offset: u64, len: u64) -> DiskError {
        let mut error = DiskError::new(&self.info.name, op, offset, len, truncated());
        error.kind = DiskErrorKind::Shrunk;
        error
    }

    /// Refuses what the kernel would refuse, or, without O_DIRECT, wrongly let pass.
    fn check_memory(&self, op: DiskOp, offset: u64, memory: &[u8]) -> Result<(), DiskError> {
        self.check(op, offset, memory.len() as u64)?;
        if memory.as_ptr().addr().is_multiple_of(self.info.sector_bytes as usize) {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::InvalidInput, "memory not aligned to sectors");
        Err(self.error(op, offset, memory.len() as u64, source))
    }

    /// Fills all of `buf`; short transfers are continued.
    async fn read_all(&self, offset: u64, mut buf: Buf) -> (io::Result<()>, Buf) {
        if self.io_mode == IoMode::InPlace {
            let result = read_in_place(&self.fd, &mut buf, offset);
            return (result, buf);
        }
        let (result, mut buf) = self.ring.read_at(&self.fd, buf, offset).await;
        let mut done = match result {
            Ok(count) if count == buf.len() => return (Ok(()), buf),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return (Err(error), buf),
        };
        while done < buf.len() {
            let rest = buf.split_off(done);
            let (result, rest) = self.ring.read_at(&self.fd, rest, offset + done as u64).await;
            buf.join(rest).expect("the two parts of one buffer join again");
            match result {
                Ok(0) => return (Err(truncated()), buf),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes all of `data`; short transfers are continued.
    async fn write_all(&self, offset: u64, data: Frozen, fua: bool) -> io::Result<()> {
        if self.io_mode == IoMode::InPlace {
            return write_in_place(&self.fd, &data, offset, fua);
        }
        let flags = if fua { RWF_DSYNC } else { 0 };
        let len = data.len();
        let (mut done, mut rest) = (0, data);
        loop {
            let at = offset + done as u64;
            match self.ring.write_at(&self.fd, rest.clone(), at, flags).await {
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if done >= len {
                return Ok(());
            }
            rest = rest.slice(rest.len() - (len - done), len - done);
        }
    }

    async fn sync(&self) -> io::Result<()> {
        match self.io_mode {
            IoMode::InPlace => Ok(rustix::fs::fdatasync(&self.fd)?),
            IoMode::Ring => self.ring.fdatasync(&self.fd).await,
        }
    }
}

impl Drop for FileDisk {
    /// Gives up the ownership of a file at once. A lock of `flock` belongs to the open file and not
    /// to the process: closing without that would leave it with a child that another thread has
    /// forked and that has not yet called exec. With requests still in flight it stays until the
    /// last one ends.
    fn drop(&mut self) {
        if !self.fd.is_shared() {
            // Without a lock (block devices, onlookers) this does nothing.
            let _ = rustix::fs::flock(&self.fd, rustix::fs::FlockOperation::Unlock);
        }
    }
}

/// Whether what had `before` bytes when it was opened and has `size` now has lost contents. The
/// kernel takes all of its size from a block device that was unplugged; that comes back with what
/// it holds.
fn has_shrunk(is_file: bool, size: u64, before: u64) -> bool {
    size < before && (is_file || size > 0)
}

fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "it has become shorter than it was when opened, for a time or still, and has lost what it \
         held there",
    )
}

fn read_in_place(fd: impl AsFd, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(&fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => return Err(truncated()),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_in_place(fd: impl AsFd, data: &[u8], offset: u64, fua: bool) -> io::Result<()> {
    let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut done = 0;
    while done < data.len() {
        let part = [io::IoSlice::new(&data[done..])];
        match rustix::io::pwritev2(&fd, &part, offset + done as u64, flags) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Disk for FileDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            if let Err(error) = self.check_memory(DiskOp::Read, offset, &buf) {
                return (Err(error), buf);
            }
            let (result, buf) = self.read_all(offset, buf).await;
            let len = buf.len() as u64;
            let result = result.map_err(|source| self.error(DiskOp::Read, offset, len, source));
            (result.and_then(|()| self.check_size(DiskOp::Read, offset, len)), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.check_memory(DiskOp::Write, offset, &data)?;
            let len = data.len() as u64;
            self.modify(DiskOp::Write, offset, len, self.write_all(offset, data, opts.fua)).await
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            self.check_size(DiskOp::Flush, 0, 0)?;
            self.sync().await.map_err(|source| self.error(DiskOp::Flush, 0, 0, source))
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.check(DiskOp::WriteZeroes, offset, len)?;
            self.modify(DiskOp::WriteZeroes, offset, len, self.zero(offset, len, opts.fua)).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            self.check(DiskOp::Discard, offset, len)?;
            self.modify(DiskOp::Discard, offset, len, self.punch(offset, len)).await
        })
    }

    /// Files tell where their holes are. Block devices, and file systems without holes, do not.
    fn next_data(&self, offset: u64) -> Option<u64> {
        let inside = |offset: u64| (offset < self.size_now()).then_some(offset);
        match rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Data(offset)) {
            Ok(offset) => inside(offset),
            Err(rustix::io::Errno::NXIO) => None,
            Err(_) => inside(offset),
        }
    }

    fn size_now(&self) -> u64 {
        let sector = u64::from(self.info.sector_bytes);
        let size = self.size().unwrap_or_default();
        (size - size % sector).max(self.relied_on.get())
    }

    fn has_shrunk(&self) -> bool {
        self.is_shrunk()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_unplugged_has_lost_nothing() {
        assert!(!has_shrunk(false, 0, 100));
        assert!(has_shrunk(false, 50, 100) && has_shrunk(true, 0, 100));
        assert!(!has_shrunk(true, 100, 100) && !has_shrunk(false, 200, 100));
    }
}
