//! Fences and disks as a process reaches them over the network.

use std::io;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_cluster::fence::{
    DiskSource, Fence, FenceError, FenceFuture, HEAD_BYTES, LastingDisk, NotOpened, Opened,
    Patience, Refusal, Session, SharedDisk, SharedDiskError, SharedVolume,
};
use weft_cluster::{ClusterName, DiskName, Incarnation};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, IoFuture, ReadFuture,
    Volume as _, VolumeError, VolumeErrorKind, WriteOpts,
};
use weft_rt::sync::oneshot;
use weft_rt::{Buf, Frozen, Nanos, Rt, SECOND};

use super::network::{Network, Place};
use super::oracle::Oracle;
use super::server::{DiskServer, Life, Serving, zeros};

/// What a process reaches, and how.
#[derive(Clone)]
pub struct Line {
    pub network: Rc<Network>,
    /// The executor of the world, in which messages go on when their sender dies.
    pub world: Rt,
    /// That of the process.
    pub rt: Rt,
    pub machine: usize,
    /// The number of the process.
    pub process: u64,
    /// Whether the process is to stand still before it sends a request to a disk.
    pub stands_still: Rc<dyn Fn() -> bool>,
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
            let Serving { shared, life, .. } = server.serves_soon().await?;
            life.during(work(shared)).await
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

/// How long a request to a disk may take.
const REQUEST_PATIENCE: Nanos = 30 * SECOND;

/// A disk as an incarnation uses it over the network, in one session after the other: as
/// `MemberSource` of the real one.
struct NetSource {
    line: Line,
    server: Rc<DiskServer>,
    cluster: ClusterName,
    own: Incarnation,
}

/// Opens a disk as a member of the cluster uses it.
pub async fn open_disk(
    line: &Line,
    server: &Rc<DiskServer>,
    cluster: &ClusterName,
    own: &Incarnation,
) -> Result<Rc<dyn Disk>, NotOpened> {
    let source = NetSource {
        line: line.clone(),
        server: server.clone(),
        cluster: cluster.clone(),
        own: own.clone(),
    };
    let patience = Patience { reconnect: DISK_PATIENCE, ..Patience::default() };
    let disk = LastingDisk::open(&line.rt, Rc::new(source), patience).await?;
    Ok(Rc::new(disk))
}

/// How long a process waits for the server of a disk: longer than one takes that starts after a
/// crash, with requests of the one before it in flight.
pub const DISK_PATIENCE: Nanos = 25 * SECOND;

impl NetSource {
    async fn open_in(&self, session: Session) -> Result<Opened, NotOpened> {
        let Self { line, server, cluster, own } = self;
        let away = || NotOpened::Away("no answer".to_owned());
        let life = server.connect(line.process, line.machine);
        let (at, who, of) = (server.clone(), own.clone(), cluster.clone());
        let (process, its) = (line.process, life.clone());
        let open = async move {
            let serving = at.reached_by(process);
            let Some(Serving { shared, life, .. }) = serving else { return Some(None) };
            let opened = life.during(its.during(shared.open_session(&of, &who, session))).await;
            Some(opened.flatten().map(|opened| (opened, shared.state(), life)))
        };
        let to = Place::Disk(server.number);
        let asked = line.call(to, (FENCE_PATIENCE, true), open).await;
        let (opened, state, serving) = asked.flatten().ok_or_else(away)?;
        let volume = opened.map_err(|error| match &error {
            SharedDiskError::Refused(Refusal::Fenced { .. }) => {
                NotOpened::Fenced(error.to_string())
            }
            SharedDiskError::Refused(_) => NotOpened::Refused(error.to_string()),
            _ => NotOpened::Away(error.to_string()),
        })?;
        let below = server.info();
        let (name, size_bytes) = (server.name.to_string(), below.size_bytes - HEAD_BYTES);
        let info = DiskInfo { name, size_bytes, ..below.clone() };
        let (line, server, own) = (line.clone(), server.clone(), own.clone());
        let disk = Rc::new(NetDisk { line, server, own, info, volume, life, serving });
        Ok(Opened { disk, state })
    }
}

impl DiskSource for NetSource {
    fn open(&self, session: Session) -> IoFuture<'_, Result<Opened, NotOpened>> {
        Box::pin(self.open_in(session))
    }
}

/// One connection of an incarnation to a shared disk.
struct NetDisk {
    line: Line,
    server: Rc<DiskServer>,
    own: Incarnation,
    info: DiskInfo,
    volume: SharedVolume,
    life: Rc<Life>,
    /// That of its server.
    serving: Rc<Life>,
}

impl NetDisk {
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
        if (self.line.stands_still)() {
            // All that was looked at before may be outdated when it goes on.
            self.line.rt.yield_now().await;
        }
        let (volume, server) = (self.volume.clone(), self.server.clone());
        let (life, serving) = (self.life.clone(), self.serving.clone());
        // A server reads nothing more of a connection that has ended, and carries out what it has
        // read.
        let work = async move {
            match life.has_ended() {
                true => None,
                false => serving.during(work(volume, server)).await,
            }
        };
        let to = Place::Disk(self.server.number);
        let called = self.line.call(to, (REQUEST_PATIENCE, true), work);
        self.life.during(called).await.flatten()
    }

    async fn change<F: Future<Output = Result<(), VolumeError>> + 'static>(
        &self,
        (op, offset, len): (DiskOp, u64, u64),
        bytes: usize,
        work: impl FnOnce(SharedVolume) -> F + 'static,
    ) -> Result<(), DiskError> {
        let (own, at) = (self.own.clone(), offset + HEAD_BYTES);
        let done = self.call(move |volume, server| async move {
            let is_change = op != DiskOp::Flush;
            let _author = is_change.then(|| server.backing.note_author((at, bytes), own));
            work(volume).await
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
                self.life.end();
                Err(self.error(op, at, ENODEV))
            }
            Some(Err(_)) => Err(self.error(op, at, EIO)),
            None => {
                self.life.end();
                Err(self.error(op, at, ENODEV))
            }
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

    fn sever(&self, _: &str) {
        self.life.end();
    }
}
