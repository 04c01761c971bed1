//! Serves a device: fetches requests, carries them out on a [`Volume`], gives the results.
//!
//! Each tag of the device is a task: it waits for a request, carries it out, and gives the result
//! with the command that waits for the next one. A tag's memory holds the longest request; only
//! the pages that requests touch take space.
//!
//! *Leaving.* A process that ends in order, and keeps its devices for the next one, stops carrying
//! out requests and waits a while for those in progress ([`Session::leave`]). What it was handed
//! since then is handed to the next process. The same goes for requests that do not end, or fail
//! because their volume is being stopped: they get no answer here.
//!
//! *A volume that ends before its process.* Requests that fail because the volume has ended
//! ([`Source::has_ended`]) get no answer either: to users this is a process that has died, and they
//! wait for the next one.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use futures_util::future::{join_all, pending, select};
use rustix::io::Errno;
use weft_disk::{Volume, VolumeError, VolumeErrorKind};
use weft_rt::ring::{Fetched, OpenedUblk, Ring, UblkChannel};
use weft_rt::sync::Notify;
use weft_rt::ublk::{Descriptor, io_flag, op};
use weft_rt::{Buf, Nanos, Rt, Task};

use crate::limits::SECTOR;

/// Writes up to this length are copied out of the tag's memory, which can be larger than the
/// write by far: what a cache keeps of them keeps all of their memory.
const COPY_BYTES_MAX: usize = 64 << 10;

/// What a device shows.
pub struct Source {
    /// Its contents.
    pub volume: Rc<dyn Volume>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the volume has ended and answers nothing, while a later process can go on with it.
    pub has_ended: Box<dyn Fn() -> bool>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

/// A device that is being served.
pub struct Session {
    shared: Rc<Shared>,
    tags: Cell<Vec<Task<io::Result<()>>>>,
}

struct Shared {
    rt: Rt,
    ring: Ring,
    channel: UblkChannel,
    source: Source,
    leaving: Cell<bool>,
    /// Requests that are being carried out.
    busy: Cell<usize>,
    idle: Notify,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("channel", &self.shared.channel).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts to fetch the requests of an opened device; when that is done, the device can start.
    ///
    /// # Errors
    /// If the ring has no room for its commands.
    pub fn begin(rt: &Rt, ring: &Ring, opened: OpenedUblk, source: Source) -> io::Result<Rc<Self>> {
        let channel = UblkChannel::from(opened);
        let (depth, free) = (channel.depth(), ring.commands_free());
        if usize::from(depth) > free {
            let text = "the daemon serves as many block devices as it can";
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        let (leaving, busy, idle) = (Cell::default(), Cell::default(), Notify::default());
        let (rt, ring) = (rt.clone(), ring.clone());
        let shared = Shared { rt, ring, channel, source, leaving, busy, idle };
        let shared = Rc::new(shared);
        let tags = (0..depth).map(|tag| {
            let shared = shared.clone();
            shared.rt.clone().spawn(async move { shared.serve(tag).await })
        });
        let tags = Cell::new(tags.collect());
        Ok(Rc::new(Self { shared, tags }))
    }

    /// Waits until the device is stopped. For one caller.
    ///
    /// # Errors
    /// The kernel's, after which not all requests are served.
    pub async fn ended(&self) -> io::Result<()> {
        join_all(self.tags.take()).await.into_iter().collect()
    }

    /// Carries out no more requests, and waits for those in progress, but no longer than
    /// `patience`. The device stays with the kernel when the process ends. Returns how many
    /// requests have not ended: unless they still succeed, the next process carries them out.
    pub async fn leave(&self, patience: Nanos) -> usize {
        let Shared { rt, leaving, busy, idle, .. } = &*self.shared;
        leaving.set(true);
        let deadline = rt.now().saturating_add(patience);
        while busy.get() > 0 && rt.now() < deadline {
            let (idle, end) = (std::pin::pin!(idle.wait()), rt.sleep_until(deadline));
            select(idle, std::pin::pin!(end)).await;
        }
        busy.get()
    }
}

impl Shared {
    /// Serves one tag until the device is stopped.
    async fn serve(&self, tag: u16) -> io::Result<()> {
        let memory = Buf::new(self.channel.io_bytes_max());
        let mut fetched = self.ring.ublk_fetch(&self.channel, tag, memory).await?;
        loop {
            let (request, memory) = match fetched {
                Fetched::Request(request, memory) => (request, memory),
                Fetched::Stopped => return Ok(()),
            };
            if self.leaving.get() {
                return Ok(());
            }
            self.busy.set(self.busy.get() + 1);
            let (result, memory) = self.carry_out(&request, memory).await;
            self.busy.set(self.busy.get() - 1);
            if self.leaving.get() && self.busy.get() == 0 {
                self.idle.notify_all();
            }
            if result < 0 && (self.leaving.get() || (self.source.has_ended)()) {
                // The kernel hands the request to the next process.
                return pending().await;
            }
            fetched = self.ring.ublk_commit(&self.channel, tag, result, memory).await?;
        }
    }

    async fn carry_out(&self, request: &Descriptor, memory: Buf) -> (i32, Buf) {
        let operation = request.operation();
        // A flush is of the whole device, and names no place.
        if operation == op::FLUSH {
            return (done(self.source.volume.flush().await), memory);
        }
        let offset = request.start_sector.checked_mul(SECTOR);
        let len = u64::from(request.sectors) * SECTOR;
        let size = self.source.volume.size_bytes();
        let Some(offset) = offset.filter(|at| at.checked_add(len).is_some_and(|end| end <= size))
        else {
            return (code(Errno::IO), memory);
        };
        if self.source.read_only && operation != op::READ {
            return (code(Errno::ROFS), memory);
        }
        let fua = request.op_flags & io_flag::FUA != 0;
        match operation {
            op::READ => self.read(offset, len, memory).await,
            op::WRITE => self.write(offset, len, fua, memory).await,
            op::DISCARD => (done(self.in_pieces(offset, len, None).await), memory),
            op::WRITE_ZEROES => {
                let may_deallocate = request.op_flags & io_flag::NO_UNMAP == 0;
                let zeroes = Some((fua, may_deallocate));
                (done(self.in_pieces(offset, len, zeroes).await), memory)
            }
            _ => (code(Errno::OPNOTSUPP), memory),
        }
    }

    /// The length of data, as a length of memory and as a result. No request is longer than the
    /// memory.
    fn len_of(&self, len: u64, memory: &Buf) -> Option<(usize, i32)> {
        let fits = usize::try_from(len).ok().filter(|len| *len <= memory.len())?;
        Some((fits, i32::try_from(fits).ok()?))
    }

    async fn read(&self, offset: u64, len: u64, mut memory: Buf) -> (i32, Buf) {
        let Some((len, moved)) = self.len_of(len, &memory) else {
            return (code(Errno::INVAL), memory);
        };
        let rest = memory.split_off(len);
        let (result, memory) = self.source.volume.read(offset, memory).await;
        let result = result.map_or_else(|e| code(errno_of(&e)), |()| moved);
        (result, Buf::rejoin(vec![memory, rest]))
    }

    async fn write(&self, offset: u64, len: u64, fua: bool, memory: Buf) -> (i32, Buf) {
        let Some((len, moved)) = self.len_of(len, &memory) else {
            return (code(Errno::INVAL), memory);
        };
        let (result, memory) = if len <= COPY_BYTES_MAX {
            let data = Buf::copy_from(&memory[..len]).freeze();
            (self.source.volume.write(offset, data, fua).await, memory)
        } else {
            let whole = memory.freeze();
            let result = self.source.volume.write(offset, whole.slice(0, len), fua).await;
            // What is still held elsewhere stays there.
            let memory = whole.try_thaw();
            (result, memory.unwrap_or_else(|_| Buf::new(self.channel.io_bytes_max())))
        };
        (result.map_or_else(|e| code(errno_of(&e)), |()| moved), memory)
    }

    /// Discards, or zeroes, piece by piece. Between two of them, other tasks get their turn.
    async fn in_pieces(
        &self,
        offset: u64,
        len: u64,
        zeroes: Option<(bool, bool)>,
    ) -> Result<(), VolumeError> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece_end = self.source.volume.zeroes_end(at).clamp(at + 1, end);
            let len = piece_end - at;
            match zeroes {
                Some((fua, may_deallocate)) => {
                    self.source.volume.write_zeroes(at, len, fua, may_deallocate).await?;
                }
                None => self.source.volume.discard(at, len).await?,
            }
            at = piece_end;
            if at < end {
                self.rt.yield_now().await;
            }
        }
        Ok(())
    }
}

fn code(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

fn done(result: Result<(), VolumeError>) -> i32 {
    result.map_or_else(|e| code(errno_of(&e)), |()| 0)
}

fn errno_of(error: &VolumeError) -> Errno {
    match error.kind {
        VolumeErrorKind::NoSpace => Errno::NOSPC,
        VolumeErrorKind::Invalid => Errno::INVAL,
        _ => Errno::IO,
    }
}
