//! Disks, their servers with the real fences, and disks as a process reaches them over the network.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_cluster::fence::{
    Fence, FenceError, FenceFuture, HEAD_BYTES, SharedDisk, SharedDiskError, SharedVolume,
};
use weft_cluster::{ClusterName, DiskName, Incarnation};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, Layer, ReadFuture,
    RestDisk, Volume as _, VolumeError, VolumeErrorKind, WriteOpts,
};
use weft_random::Rng;
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Nanos, Rt, SECOND};

use super::network::{Network, Place};
use super::oracle::Oracle;
use super::test_disk::TestDisk;

/// A request on its way to the disk: where, of which bytes in memory, and whose.
type Known = (u64, usize, Incarnation);

/// The disk below its server: slow at times. It tells the oracle whose blocks reach it.
pub struct Backing {
    rt: Rt,
    rng: RefCell<Rng>,
    number: usize,
    below: Rc<TestDisk>,
    authors: RefCell<Vec<Known>>,
    oracle: Rc<Oracle>,
}

impl Backing {
    pub fn new(
        rt: &Rt,
        number: usize,
        below: Rc<TestDisk>,
        rng: Rng,
        oracle: &Rc<Oracle>,
    ) -> Rc<Self> {
        let (authors, oracle) = (RefCell::default(), oracle.clone());
        Rc::new(Self { rt: rt.clone(), rng: RefCell::new(rng), number, below, authors, oracle })
    }

    fn take_author(&self, offset: u64, bytes: usize) -> Option<Incarnation> {
        let mut authors = self.authors.borrow_mut();
        let at = authors.iter().position(|(at, of, _)| (*at, *of) == (offset, bytes))?;
        Some(authors.swap_remove(at).2)
    }

    async fn delay(&self, offset: u64) {
        let delay = {
            let mut rng = self.rng.borrow_mut();
            match rng.below(1000) {
                // Claims that are late cost much time, and are another test's matter.
                0 if offset >= HEAD_BYTES => rng.within(1, 8000) * MILLISECOND,
                1..10 => rng.within(1, 100) * MILLISECOND,
                _ => rng.within(20, 400) * MICROSECOND,
            }
        };
        self.rt.sleep(delay).await;
    }

    async fn change(
        &self,
        (offset, bytes): (u64, usize),
        request: DoneFuture<'_>,
    ) -> Result<(), DiskError> {
        let author = self.take_author(offset, bytes);
        self.delay(offset).await;
        let done = request.await;
        author.iter().for_each(|author| self.oracle.effect(self.number, author));
        done
    }
}

/// What stands for the bytes of zeros.
fn zeros(len: u64) -> usize {
    usize::MAX - len as usize
}

impl Layer for Backing {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.delay(offset).await;
            Disk::read(&*self.below, offset, buf, class).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let bytes = (offset, data.as_ptr() as usize);
        let request = Disk::write(&*self.below, offset, data, opts);
        Box::pin(self.change(bytes, request))
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        let request = Disk::write_zeroes(&*self.below, offset, len, opts);
        Box::pin(self.change((offset, zeros(len)), request))
    }
}

/// What nodes see of a disk: without its head.
pub fn without_head(below: Rc<TestDisk>) -> Rc<dyn Disk> {
    Rc::new(RestDisk::new(below, HEAD_BYTES))
}

/// The way of a process to a disk.
#[derive(Default)]
pub struct Path {
    is_broken: Cell<bool>,
    broken: Notify,
}

impl Path {
    fn break_off(&self) {
        self.is_broken.set(true);
        self.broken.notify_all();
    }
}

/// A server of one shared disk.
pub struct DiskServer {
    pub name: DiskName,
    pub number: usize,
    pub backing: Rc<Backing>,
    pub shared: RefCell<Option<Rc<SharedDisk>>>,
    /// Whether disk and server are gone for good.
    pub is_dead: Cell<bool>,
    /// Ways of processes on machines to it.
    paths: RefCell<Vec<(usize, Rc<Path>)>>,
    /// Whether it confirms fences and does nothing.
    pub skips_fences: bool,
}

impl DiskServer {
    pub fn new(
        name: DiskName,
        number: usize,
        backing: Rc<Backing>,
        skips_fences: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            name,
            number,
            backing,
            shared: RefCell::default(),
            is_dead: Cell::new(false),
            paths: RefCell::default(),
            skips_fences,
        })
    }

    fn serves(&self) -> Option<Rc<SharedDisk>> {
        self.shared.borrow().clone().filter(|_| !self.is_dead.get())
    }

    /// Connections end: of one machine, or of all.
    pub fn break_paths(&self, machine: Option<usize>) {
        let is_meant = |of: usize| machine.is_none_or(|machine| machine == of);
        let paths = self.paths.borrow();
        paths.iter().filter(|(of, _)| is_meant(*of)).for_each(|(_, path)| path.break_off());
    }

    pub fn die(&self) {
        self.is_dead.set(true);
        self.break_paths(None);
    }
}

/// What a process reaches, and how.
#[derive(Clone)]
pub struct Line {
    pub network: Rc<Network>,
    /// The executor of the world, in which messages go on when their sender dies.
    pub world: Rt,
    /// That of the process.
    pub rt: Rt,
    pub machine: usize,
}

impl Line {
    pub fn place(&self) -> Place {
        Place::Machine(self.machine)
    }

    /// A message there, `work` there, a message back. `None` if no answer comes in time.
    pub async fn call<T: 'static>(
        &self,
        to: Place,
        (patience, is_connected): (Nanos, bool),
        work: impl Future<Output = Option<T>> + 'static,
    ) -> Option<T> {
        let (network, here) = (self.network.clone(), self.place());
        let (sender, answer) = oneshot();
        self.world.spawn(async move {
            let network = &*network;
            let goes = async |from, to| match is_connected {
                true => {
                    network.bring(from, to).await;
                    true
                }
                false => network.carry(from, to).await,
            };
            if goes(here, to).await
                && let Some(value) = work.await
                && goes(to, here).await
            {
                sender.send(value);
            }
        });
        let answer = Box::pin(async {
            match answer.await {
                Some(value) => value,
                None => std::future::pending().await,
            }
        });
        match select(answer, Box::pin(self.rt.sleep(patience))).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }
}

/// How long a disk server may take to confirm a fence.
const FENCE_PATIENCE: Nanos = 10 * SECOND;

/// The fence of a disk, as a process reaches it.
pub struct NetFence {
    pub line: Line,
    pub server: Rc<DiskServer>,
    pub cluster: ClusterName,
    pub oracle: Rc<Oracle>,
}

impl NetFence {
    async fn ask<F: Future<Output = Result<(), SharedDiskError>> + 'static>(
        &self,
        work: impl FnOnce(Rc<SharedDisk>) -> F + 'static,
    ) -> Result<(), FenceError> {
        let (server, disk) = (self.server.clone(), self.server.name.clone());
        let to = Place::Disk(server.number);
        let asked = self.line.call(to, (FENCE_PATIENCE, true), async move {
            let done = work(server.serves()?).await;
            (!server.is_dead.get()).then_some(done)
        });
        match asked.await {
            Some(Ok(())) => Ok(()),
            Some(Err(SharedDiskError::Refused(_))) => Err(FenceError::Fenced { disk }),
            Some(Err(error)) => Err(FenceError::Unconfirmed { disk, why: error.to_string() }),
            None => Err(FenceError::Unconfirmed { disk, why: "no answer".to_owned() }),
        }
    }
}

impl Fence for NetFence {
    fn disk(&self) -> &DiskName {
        &self.server.name
    }

    fn register<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        let (cluster, own) = (self.cluster.clone(), own.clone());
        let work = move |shared: Rc<SharedDisk>| async move {
            shared.open_as(&cluster, &own).await.map(drop)
        };
        Box::pin(self.ask(work))
    }

    fn confirm<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        self.register(own)
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        let (cluster, victim) = (self.cluster.clone(), victim.clone());
        let (oracle, number) = (self.oracle.clone(), self.server.number);
        let is_skipped = self.server.skips_fences;
        let work = move |shared: Rc<SharedDisk>| async move {
            if !is_skipped {
                shared.fence(&cluster, &victim).await?;
            }
            oracle.fenced(number, &victim);
            Ok(())
        };
        Box::pin(self.ask(work))
    }
}

/// A shared disk as an incarnation uses it, over the network.
pub struct NetDisk {
    line: Line,
    server: Rc<DiskServer>,
    own: Incarnation,
    info: DiskInfo,
    volume: SharedVolume,
    path: Rc<Path>,
}

impl NetDisk {
    pub async fn open(
        line: &Line,
        server: &Rc<DiskServer>,
        cluster: &ClusterName,
        own: &Incarnation,
    ) -> Option<Rc<dyn Disk>> {
        let path = Rc::<Path>::default();
        server.paths.borrow_mut().retain(|(_, path)| Rc::strong_count(path) > 1);
        server.paths.borrow_mut().push((line.machine, path.clone()));
        let (cluster, who, serves) = (cluster.clone(), own.clone(), server.clone());
        let open = async move { serves.serves()?.open_as(&cluster, &who).await.ok() };
        let to = Place::Disk(server.number);
        let volume = line.call(to, (FENCE_PATIENCE, true), open).await?;
        let below = server.backing.below.info();
        let (name, size_bytes) = (server.name.to_string(), below.size_bytes - HEAD_BYTES);
        let info = DiskInfo { name, size_bytes, ..below.clone() };
        let (line, server, own) = (line.clone(), server.clone(), own.clone());
        Some(Rc::new(Self { line, server, own, info, volume, path }))
    }

    fn error(&self, op: DiskOp, (offset, len): (u64, u64), errno: i32) -> DiskError {
        let source = io::Error::from_raw_os_error(errno);
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        if errno == ENODEV {
            error.kind = DiskErrorKind::Gone;
        }
        error
    }

    /// What the server gives; none if the connection has ended.
    async fn call<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(SharedVolume, Rc<DiskServer>) -> F + 'static,
    ) -> Option<T> {
        let broken = self.path.broken.wait();
        if self.path.is_broken.get() || self.server.is_dead.get() {
            return None;
        }
        let (volume, server, path) = (self.volume.clone(), self.server.clone(), self.path.clone());
        let work = async move {
            // A server reads nothing more of a connection that has ended.
            if path.is_broken.get() || server.is_dead.get() {
                return None;
            }
            Some(work(volume, server).await)
        };
        let called = self.line.call(Place::Disk(self.server.number), (Nanos::MAX, true), work);
        match select(Box::pin(called), Box::pin(broken)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => None,
        }
    }

    async fn change<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        (op, offset, len): (DiskOp, u64, u64),
        bytes: usize,
        work: impl FnOnce(SharedVolume) -> F + 'static,
    ) -> Result<(), DiskError> {
        let (own, at) = (self.own.clone(), offset + HEAD_BYTES);
        let done = self.call(move |volume, server| async move {
            if op != DiskOp::Flush {
                server.backing.authors.borrow_mut().push((at, bytes, own));
            }
            let done = work(volume).await;
            // One that was refused.
            if done.is_err() {
                server.backing.take_author(at, bytes);
            }
            done
        });
        self.result(op, (offset, len), done.await)
    }

    fn result(
        &self,
        op: DiskOp,
        at: (u64, u64),
        done: Option<Result<(), VolumeError>>,
    ) -> Result<(), DiskError> {
        match done {
            Some(Ok(())) => Ok(()),
            // A server ends the connection of a node that was fenced.
            Some(Err(error)) if error.kind == VolumeErrorKind::Stopped => {
                self.path.break_off();
                Err(self.error(op, at, ENODEV))
            }
            Some(Err(_)) => Err(self.error(op, at, EIO)),
            None => Err(self.error(op, at, ENODEV)),
        }
    }
}

const EIO: i32 = 5;
const ENODEV: i32 = 19;

impl Disk for NetDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len();
            let done = self.call(move |volume, _| async move {
                let (done, buf) = volume.read(offset, Buf::new(len)).await;
                done.map(|()| buf)
            });
            let mut buf = buf;
            let done = done.await.map(|done| done.map(|read| buf.copy_from_slice(&read)));
            (self.result(DiskOp::Read, (offset, len as u64), done), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let (len, bytes) = (data.len() as u64, data.as_ptr() as usize);
        Box::pin(self.change((DiskOp::Write, offset, len), bytes, move |volume| async move {
            volume.write(offset, data, opts.fua).await
        }))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(
            self.change(
                (DiskOp::Flush, 0, 0),
                0,
                move |volume| async move { volume.flush().await },
            ),
        )
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        let op = DiskOp::WriteZeroes;
        Box::pin(self.change((op, offset, len), zeros(len), move |volume| async move {
            volume.write_zeroes(offset, len, opts.fua, true).await
        }))
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }

    fn size_now(&self) -> u64 {
        self.info.size_bytes
    }
}
