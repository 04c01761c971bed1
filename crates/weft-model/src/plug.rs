//! Merges adjacent requests in front of a disk, as Linux's block layer does between MD and a disk.
//!
//! MD reads and writes a member in stripe heads of 4 KiB, but the disk rarely sees such requests.
//! While a task submits, its requests wait in a *plug*, and adjacent ones are merged
//! (`blk_mq_plug`, `elv_merge`), until the plug is flushed because the task waits or a request has
//! reached 128 KiB (`BLK_PLUG_FLUSH_SIZE`). A baseline that sent MD's stripe heads straight to a
//! disk would pay the disk's time per command 32 times where MD pays it once.
//!
//! Here the plug is flushed when all runnable tasks have run, so all adjacent requests of one
//! instant of virtual time are merged. That is slightly more than the kernel merges, whose threads
//! do not run at the same instant (`weft-lab/tests/linux_md` compares this with a real kernel).
//! Requests of the same class are merged, reads with reads and writes with writes; a durable write
//! (`fua`) is never merged, as in the kernel. If a merged request fails, its parts are sent one by
//! one, so that only the damaged ones fail.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_disk::{Class, Disk, DiskError, DoneFuture, Layer, ReadFuture, WriteOpts};
use weft_rt::sync::{Sender, oneshot};
use weft_rt::{Buf, Frozen, Rt};

/// The kernel's `BLK_PLUG_FLUSH_SIZE`.
pub const JOINED_BYTES_MAX: u64 = 128 << 10;

/// Counts merged requests, as `/proc/diskstats` does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Joined {
    /// Reads, not counting the first of each merged request.
    pub reads: u64,
    /// Writes, counted in the same way.
    pub writes: u64,
}

/// A disk with a plug.
pub struct PluggedDisk {
    rt: Rt,
    shared: Rc<Shared>,
}

struct Shared {
    disk: Rc<dyn Disk>,
    waiting: RefCell<Vec<Request>>,
    joined: Cell<Joined>,
}

struct Request {
    offset: u64,
    what: Operation,
}

enum Operation {
    Read(Buf, Class, Sender<(Result<(), DiskError>, Buf)>),
    Write(Frozen, WriteOpts, Sender<Result<(), DiskError>>),
}

impl Request {
    fn len(&self) -> u64 {
        match &self.what {
            Operation::Read(buf, ..) => buf.len() as u64,
            Operation::Write(data, ..) => data.len() as u64,
        }
    }

    /// Only requests of the same kind are merged; `None`: never.
    fn kind(&self) -> Option<(bool, Class)> {
        match &self.what {
            Operation::Read(_, class, _) => Some((false, *class)),
            Operation::Write(_, opts, _) => (!opts.fua).then_some((true, opts.class)),
        }
    }

    fn follows(&self, run: &[Self]) -> bool {
        let bytes: u64 = run.iter().map(Self::len).sum();
        run.last().is_some_and(|last| {
            self.kind().is_some()
                && self.kind() == last.kind()
                && last.offset + last.len() == self.offset
                && bytes + self.len() <= JOINED_BYTES_MAX
        })
    }
}

impl std::fmt::Debug for PluggedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shared { disk, joined, .. } = &*self.shared;
        f.debug_tuple("PluggedDisk").field(&disk.info().name).field(&joined.get()).finish()
    }
}

impl PluggedDisk {
    /// Puts a plug in front of `disk`.
    pub fn new(rt: &Rt, disk: Rc<dyn Disk>) -> Self {
        let shared = Shared { disk, waiting: RefCell::default(), joined: Cell::default() };
        Self { rt: rt.clone(), shared: Rc::new(shared) }
    }

    /// How many requests it has merged.
    pub fn joined(&self) -> Joined {
        self.shared.joined.get()
    }

    fn submit(&self, request: Request) {
        let mut waiting = self.shared.waiting.borrow_mut();
        waiting.push(request);
        if waiting.len() == 1 {
            let (rt, shared) = (self.rt.clone(), self.shared.clone());
            drop(self.rt.spawn(async move {
                // All tasks that were runnable when the first request came have run, and those they
                // woke.
                rt.yield_now().await;
                rt.yield_now().await;
                shared.unplug(&rt);
            }));
        }
    }
}

impl Shared {
    fn unplug(self: &Rc<Self>, rt: &Rt) {
        let mut waiting = self.waiting.take();
        waiting.sort_by_key(|request| (request.kind(), request.offset));
        let mut runs: Vec<Vec<Request>> = Vec::new();
        for request in waiting {
            match runs.last_mut() {
                Some(run) if request.follows(run) => run.push(request),
                _ => runs.push(vec![request]),
            }
        }
        for run in runs {
            let shared = self.clone();
            drop(rt.spawn(async move { shared.carry_out(run).await }));
        }
    }

    fn count(&self, reads: usize, writes: usize) {
        let Joined { reads: r, writes: w } = self.joined.get();
        self.joined.set(Joined { reads: r + reads as u64, writes: w + writes as u64 });
    }

    async fn carry_out(&self, run: Vec<Request>) {
        let (offset, len) = (run[0].offset, run.iter().map(Request::len).sum::<u64>());
        let len = usize::try_from(len).expect("at most the bytes of buffers in memory");
        if run.len() == 1 {
            return self.one_by_one(run).await;
        }
        match &run[0].what {
            Operation::Read(_, class, _) => {
                self.count(run.len() - 1, 0);
                let (result, whole) = self.disk.read(offset, Buf::new(len), *class).await;
                if result.is_err() {
                    return self.one_by_one(run).await;
                }
                let mut at = 0;
                for request in run {
                    let Operation::Read(mut buf, _, done) = request.what else { continue };
                    let len = buf.len();
                    buf.copy_from_slice(&whole[at..at + len]);
                    at += len;
                    done.send((Ok(()), buf));
                }
            }
            Operation::Write(_, opts, _) => {
                self.count(0, run.len() - 1);
                let (opts, mut whole, mut at) = (*opts, Buf::new(len), 0);
                for request in &run {
                    let Operation::Write(data, ..) = &request.what else { continue };
                    whole[at..at + data.len()].copy_from_slice(data);
                    at += data.len();
                }
                if self.disk.write(offset, whole.freeze(), opts).await.is_err() {
                    return self.one_by_one(run).await;
                }
                for request in run {
                    let Operation::Write(_, _, done) = request.what else { continue };
                    done.send(Ok(()));
                }
            }
        }
    }

    async fn one_by_one(&self, run: Vec<Request>) {
        for Request { offset, what } in run {
            match what {
                Operation::Read(buf, class, done) => {
                    done.send(self.disk.read(offset, buf, class).await);
                }
                Operation::Write(data, opts, done) => {
                    done.send(self.disk.write(offset, data, opts).await);
                }
            }
        }
    }
}

impl Layer for PluggedDisk {
    fn below(&self) -> &dyn Disk {
        self.shared.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let (done, outcome) = oneshot();
            self.submit(Request { offset, what: Operation::Read(buf, class, done) });
            outcome.await.expect("every request behind the plug is carried out")
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let (done, outcome) = oneshot();
            self.submit(Request { offset, what: Operation::Write(data, opts, done) });
            outcome.await.expect("every request behind the plug is carried out")
        })
    }
}
