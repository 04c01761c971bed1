//! Requests for the contents of files: opened, read, written, made durable, closed.

use std::ops::Range;
use std::pin::pin;

use futures_util::future::select;
use rustix::fs::OFlags;
use rustix::io::Errno;
use weft_fs::{FsError, Ino, SetAttr};

use super::{DROP_WAIT_NS, Tree};
use crate::answer::{Answer, bytes, empty, errno_of, opened, parse};
use crate::channel::{self, WRITE_BYTES_MAX};
use crate::long::Going;
use crate::wire::{
    self, CopyIn, FallocateIn, InHeader, IoIn, LseekIn, OpenOut, WriteOut, fallocate,
};
use crate::{notification, unwritten};

/// The most bytes copied for one request.
const COPY_BYTES_MAX: usize = 16 << 20;
/// Where LSEEK looks for data, or for a hole.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Tree {
    pub(super) async fn open(&self, ino: Ino, flags: u32) -> Answer {
        if unwritten::writes(flags) {
            let appends = flags & OFlags::APPEND.bits() != 0;
            self.fs.check_open(ino, appends).await.map_err(errno_of)?;
        }
        match self.fs.begin_open(ino).await {
            // What the kernel knows is old: it looks the name up again.
            Err(FsError::NotFound) => return Err(Errno::STALE),
            opened => opened.map_err(errno_of)?,
        }
        self.begin_writes(ino, flags).await;
        self.fs.begin_use(ino);
        bytes(&self.opened(ino, flags))
    }

    /// A program opens a file with these flags.
    pub(super) async fn begin_writes(&self, ino: Ino, flags: u32) {
        self.writers.opened(ino, flags);
        if unwritten::writes(flags) {
            self.fs.begin_writes(ino).await;
        }
    }

    /// A file is in use by another handle.
    pub(super) fn opened(&self, ino: Ino, flags: u32) -> OpenOut {
        let handle = self.last_handle.get() + 1;
        self.last_handle.set(handle);
        self.handles.borrow_mut().insert(handle, self.fs.told_losses(ino));
        let mut open_flags = wire::FOPEN_KEEP_CACHE;
        if self.is_shared && flags & OFlags::APPEND.bits() != 0 && unwritten::writes(flags) {
            // The kernel does not know where the bytes will be.
            open_flags |= wire::FOPEN_DIRECT_IO;
        }
        opened(handle, open_flags)
    }

    pub(super) async fn fsync(&self, ino: Ino, handle: u64) -> Answer {
        let known = self.handles.borrow().get(&handle).copied();
        let mut known = known.unwrap_or_else(|| self.fs.told_losses(ino));
        let synced = self.fs.fsync_for(ino, &mut known).await;
        if let Some(knows) = self.handles.borrow_mut().get_mut(&handle) {
            *knows = known.max(*knows);
        }
        empty(synced)
    }

    pub(super) async fn release(&self, ino: Ino, flags: u32) -> Answer {
        if unwritten::writes(flags) && self.cut.borrow_mut().remove(&ino) {
            // A program has replaced all contents, and knows no fsync. What is there after a crash
            // is to be the new ones.
            let _ = self.fs.write_back(ino).await;
        }
        self.writers.closed(ino, flags);
        if unwritten::writes(flags) {
            self.fs.end_writes(ino);
        }
        self.fs.end_open(ino);
        empty(self.fs.end_uses(ino, 1).await)
    }

    /// Reads, and answers from the buffer.
    pub(super) async fn read(&self, head: &InHeader, io: &IoIn) {
        let len = (io.size as usize).min(WRITE_BYTES_MAX);
        let read = self.fs.read(head.nodeid, io.offset, len).await;
        match read {
            Ok(data) => {
                if self.is_shared && self.fs.was_contended(head.nodeid) {
                    let end = io.offset.saturating_add(io.size.into());
                    self.read_again.note(head.nodeid, io.offset..end);
                }
                if data.len() < len {
                    self.sizes.lower(head.nodeid, io.offset.saturating_add(data.len() as u64));
                }
                channel::answer(&self.fd, head, Ok(&data));
            }
            Err(error) => channel::answer(&self.fd, head, Err(errno_of(error))),
        }
    }

    pub(super) async fn write(&self, head: &InHeader, io: &IoIn, data: weft_rt::Buf) -> Answer {
        if data.len() != io.size as usize {
            return Err(Errno::INVAL);
        }
        let suid = io.io_flags & wire::WRITE_KILL_SUIDGID != 0;
        self.end_privileges(head.nodeid, suid).await?;
        let (ino, len) = (head.nodeid, u64::from(io.size));
        let (is_of_pages, appends) =
            (io.io_flags & wire::WRITE_CACHE != 0, io.flags & OFlags::APPEND.bits() != 0);
        let mut at = io.offset;
        if self.is_shared && appends && !is_of_pages {
            at = self.fs.append(ino, data.freeze()).await.map_err(errno_of)?;
        } else if is_of_pages {
            self.fs.write_pages(ino, at, data.freeze()).await.map_err(errno_of)?;
        } else {
            self.fs.write(ino, at, data.freeze()).await.map_err(errno_of)?;
        }
        if self.is_shared && !is_of_pages {
            let written = at..at.saturating_add(len);
            let mut old = self.read_again.take(ino, &written);
            if at != io.offset {
                // The kernel has put the bytes where it believes the end to be.
                old.push(io.offset..io.offset.saturating_add(len));
                old.push(written);
            } else if appends && !self.version.drops_bypassed_pages() {
                old.push(written);
            }
            for bytes in old {
                self.drop_pages(ino, bytes).await;
            }
        }
        if io.flags & OFlags::DSYNC.bits() != 0 {
            self.fsync(head.nodeid, io.fh).await?;
        }
        bytes(&WriteOut { size: io.size, padding: 0 })
    }

    /// The kernel drops pages that may lack what was just written.
    async fn drop_pages(&self, ino: Ino, bytes: Range<u64>) {
        let dropped = pin!(notification::write_back(&self.fd, ino, bytes));
        // If it cannot be told, there is no mount any more, or no memory for a thread.
        let _ = select(dropped, pin!(self.rt.sleep(DROP_WAIT_NS))).await;
    }

    pub(super) async fn seek(&self, going: &Going, head: &InHeader, body: &[u8]) -> Answer {
        let ino = head.nodeid;
        let (LseekIn { offset, whence, .. }, _) = parse::<LseekIn>(body)?;
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return Err(Errno::INVAL),
        };
        let found = match self.writers.has(ino) {
            true => {
                unwritten::seek(&self.fs, &self.fd, ino, offset, data, &going.goes_on()).await?
            }
            false => {
                let found = self.fs.seek_while(ino, offset, data, going.goes_on()).await;
                found.map_err(errno_of)?.ok_or(Errno::NXIO)?
            }
        };
        bytes(&found)
    }

    /// New contents end privileges; with `suid` also the bits of the mode. The kernel has kept the
    /// mode, and executes the file by what it knows: so it is told before the request is answered.
    pub(super) async fn end_privileges(&self, ino: Ino, suid: bool) -> Result<(), Errno> {
        if self.fs.drop_privileges(ino, suid).await.map_err(errno_of)? {
            notification::forget_attributes(&self.fd, ino).await?;
        }
        Ok(())
    }

    /// Copies bytes from one file to another; as many as one request should take. The kernel asks
    /// for the rest.
    pub(super) async fn copy(&self, going: &Going, head: &InHeader, wanted: &CopyIn) -> Answer {
        let from = head.nodeid;
        // Unlike for a write, the kernel does not tell whether the program may keep the bits of the
        // mode: root may.
        self.end_privileges(wanted.node_to, head.uid != 0).await?;
        let most = usize::try_from(wanted.length).unwrap_or(usize::MAX).min(COPY_BYTES_MAX);
        let mut copied = 0;
        let goes_on = going.goes_on();
        while copied < most {
            if !goes_on() && copied == 0 {
                return Err(Errno::INTR);
            }
            if !goes_on() {
                break;
            }
            let len = (most - copied).min(WRITE_BYTES_MAX);
            let at = |offset: u64| offset.checked_add(copied as u64).ok_or(Errno::FBIG);
            let read = self.fs.read(from, at(wanted.offset_from)?, len).await;
            let data = read.map_err(errno_of)?;
            if data.is_empty() {
                break;
            }
            let len = data.len();
            match self.fs.write(wanted.node_to, at(wanted.offset_to)?, data.freeze()).await {
                Ok(()) => copied += len,
                Err(error) if copied == 0 => return Err(errno_of(error)),
                // What was copied counts; the next request meets the error.
                Err(_) => break,
            }
        }
        let size = u32::try_from(copied).unwrap_or(u32::MAX);
        bytes(&WriteOut { size, padding: 0 })
    }

    pub(super) async fn fallocate(
        &self,
        going: &Going,
        head: &InHeader,
        wanted: &FallocateIn,
    ) -> Answer {
        let ino = head.nodeid;
        self.end_privileges(ino, head.uid != 0).await?;
        let end = wanted.offset.checked_add(wanted.length).ok_or(Errno::FBIG)?;
        match wanted.mode & !fallocate::KEEP_SIZE {
            fallocate::PUNCH_HOLE | fallocate::ZERO_RANGE => {
                let (offset, len) = (wanted.offset, wanted.length);
                let punched = self.fs.punch_hole_while(ino, offset, len, going.goes_on()).await;
                punched.map_err(errno_of)?;
                let size = self.fs.attr(ino).await.map_err(errno_of)?.size;
                if wanted.mode & fallocate::KEEP_SIZE == 0 && end > size {
                    let set = SetAttr { size: Some(end), ..SetAttr::default() };
                    self.fs.set_attr(ino, set).await.map_err(errno_of)?;
                }
                Ok(Vec::new())
            }
            0 => {
                let keep_size = wanted.mode & fallocate::KEEP_SIZE != 0;
                let (offset, len) = (wanted.offset, wanted.length);
                let goes_on = going.goes_on();
                empty(self.fs.allocate_while(ino, offset, len, keep_size, goes_on).await)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}
