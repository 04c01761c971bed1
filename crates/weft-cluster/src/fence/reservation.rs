//! Fencing by persistent reservations: for SCSI and NVMe disks that several machines reach.
//!
//! *Keys.* An incarnation's key is made of its epoch, and of the cluster's name: it is never given
//! twice. A machine that was fenced could register again with any key; so a node registers only in
//! a new epoch, when all its use of the disk has ended, and the fences of earlier epochs do not hit
//! it.
//!
//! *A fence*, on a disk that has a reservation already or gets one:
//!
//! ```text
//!   am I registered?          no: I was fenced myself
//!   reserve                   done, or another one has it: machines without a key are refused
//!   preempt the victim's key  done, or it has none: it is refused, and what it had begun has ended
//!   reserve once more         the victim may have had it
//!   am I registered?          no: I was fenced meanwhile
//! ```
//!
//! No node takes its own key away, also not when it leaves: the reservation would end with the key
//! of its holder. The next keeper preempts it.
//!
//! *A disk that comes back* may have missed fences, and does not tell its keys. So the keys of all
//! epochs that no member has are preempted there, from the first epoch on.
//!
//! *What a crash leaves.* Before the preemption nothing; after it a victim that is refused. The
//! reservation outlives the machines. Whether it outlives a power cut of the disk is up to the
//! disk (`APTPL` of SCSI, which the kernel asks for).
//!
//! *What a refused node sees.* EBADE, which is
//! [`DiskErrorKind::Fenced`](weft_disk::DiskErrorKind::Fenced): it ends its use of the disk, and
//! the disk has not failed.
//!
//! *Newcomers.* Who joins writes to the disks before it has an epoch, if the cluster's record lies
//! there (`coordinator/disks.rs`). It registers the *newcomer's key*, the same for all, and writes
//! its own blocks of the record only; the key of its epoch takes the place of this one. This takes
//! no fence back, as the process is the disk's only user on its machine, and so the requests of
//! those before it have ended. A fence does not hit a newcomer, and need not: one that was expelled
//! before it has registered in its epoch finds that out before it writes anything else.
//!
//! *Limits.* A registration is that of a machine's path, not of a process: one process of a machine
//! uses the disk, which opens it as its only user. Each path needs its key; dm-multipath does that.
//! A keeper that dies in a preemption may leave requests of the victim that the disk has not
//! aborted yet, and the next one finds no key. Linux 6.12 cannot list keys.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use weft_disk::IoFuture;
use weft_rt::reservation::{Answer, InFlight, Reservations};
use weft_rt::{Nanos, Rt};

use super::{Fence, FenceError, FenceFuture};
use crate::{ClusterName, DiskName, Epoch, Incarnation, Record};

/// Bits of a key that are the epoch's.
const EPOCH_BITS: u32 = 48;
/// What newcomers have in its place.
const NEWCOMER: u64 = (1 << EPOCH_BITS) - 1;

/// The key of an incarnation; `None`: its epoch is none, or too large.
pub fn key_of(cluster: &ClusterName, epoch: Epoch) -> Option<u64> {
    (1..NEWCOMER).contains(&epoch.0).then(|| key(cluster, epoch.0))
}

/// The key of processes that have no epoch yet.
pub fn newcomers_key(cluster: &ClusterName) -> u64 {
    key(cluster, NEWCOMER)
}

fn key(cluster: &ClusterName, low: u64) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(cluster.as_str().as_bytes());
    (digest.finalize() & 0xffff) << EPOCH_BITS | low
}

/// A command to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Register with a key, in place of another.
    Register(u64),
    /// Is this machine registered with a key?
    Confirm(u64),
    /// Reserve the disk for those that are registered.
    Reserve(u64),
    /// Take another's key away.
    Preempt {
        /// This machine's key.
        own: u64,
        /// The other's.
        victim: u64,
        /// What becomes of its requests.
        in_flight: InFlight,
    },
}

/// A disk with persistent reservations, as one machine reaches it.
pub trait Reservable {
    /// Sends a command.
    fn send(&self, command: Command) -> IoFuture<'_, io::Result<Answer>>;
}

/// A block device. Each command runs on a thread of its own, as it waits for the disk.
#[derive(Debug)]
pub struct ReservableDevice(Arc<Reservations>);

impl ReservableDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// It cannot be opened for writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Reservations::open(path)?)))
    }
}

impl Reservable for ReservableDevice {
    fn send(&self, command: Command) -> IoFuture<'_, io::Result<Answer>> {
        let (sender, answer) = oneshot::channel();
        let device = self.0.clone();
        let run = move || {
            let answer = match command {
                Command::Register(key) => device.register(key),
                Command::Confirm(key) => device.confirm(key),
                Command::Reserve(key) => device.reserve(key),
                Command::Preempt { own, victim, in_flight } => {
                    device.preempt(own, victim, in_flight)
                }
            };
            // Whoever asked may have given up.
            let _ = sender.send(answer);
        };
        let thread = std::thread::Builder::new().name("weft-reserve".into()).spawn(run);
        Box::pin(async move {
            thread?;
            answer.await.unwrap_or_else(|_| Err(io::Error::other("the thread ended early")))
        })
    }
}

/// The fence of a disk with persistent reservations.
pub struct ReservationFence {
    rt: Rt,
    device: Rc<dyn Reservable>,
    disk: DiskName,
    cluster: ClusterName,
    patience: Nanos,
    in_flight: InFlight,
}

impl std::fmt::Debug for ReservationFence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservationFence").field("disk", &self.disk).finish_non_exhaustive()
    }
}

impl ReservationFence {
    /// The fence of a disk, which must answer within `patience`. Only with [`InFlight::Abort`] a
    /// fence also ends what the victim has in flight.
    pub fn new(
        rt: &Rt,
        device: Rc<dyn Reservable>,
        disk: DiskName,
        cluster: ClusterName,
        patience: Nanos,
        in_flight: InFlight,
    ) -> Self {
        Self { rt: rt.clone(), device, disk, cluster, patience, in_flight }
    }

    fn key(&self, who: &Incarnation) -> Result<u64, FenceError> {
        let why = || format!("{} is no epoch that a key can be made of", who.epoch);
        let disk = || self.disk.clone();
        key_of(&self.cluster, who.epoch)
            .ok_or_else(|| FenceError::Unconfirmed { disk: disk(), why: why() })
    }

    async fn send(&self, command: Command) -> Result<Answer, FenceError> {
        let disk = self.disk.clone();
        let limit = self.rt.sleep(self.patience);
        match select(self.device.send(command), Box::pin(limit)).await {
            Either::Left((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(error), _)) if error.kind() == io::ErrorKind::Unsupported => {
                let why = "it has no persistent reservations, and no disk server";
                Err(FenceError::Unsupported { disk, why: why.to_owned() })
            }
            Either::Left((Err(error), _)) => {
                Err(FenceError::Unconfirmed { disk, why: error.to_string() })
            }
            Either::Right(_) => {
                Err(FenceError::Unconfirmed { disk, why: "it does not answer".to_owned() })
            }
        }
    }

    /// This machine must be registered.
    async fn confirm(&self, key: u64) -> Result<(), FenceError> {
        match self.send(Command::Confirm(key)).await? {
            Answer::Done => Ok(()),
            Answer::Conflict => Err(FenceError::Fenced { disk: self.disk.clone() }),
        }
    }

    /// Asks whether the disk has reservations at all; changes nothing.
    ///
    /// # Errors
    /// [`FenceError::Unsupported`]: it has none. Others: it does not answer.
    pub async fn probe(&self) -> Result<(), FenceError> {
        self.send(Command::Confirm(newcomers_key(&self.cluster))).await.map(drop)
    }

    /// Registers this process as a newcomer, which has no epoch yet and writes nothing but its own
    /// part of the cluster's record. It must be the only user of the disk on this machine, and may
    /// have registered as nothing else.
    ///
    /// # Errors
    /// The disk does not answer, or has no reservations.
    pub async fn admit_newcomer(&self) -> Result<(), FenceError> {
        self.register_key(newcomers_key(&self.cluster)).await
    }

    async fn register(&self, own: &Incarnation) -> Result<(), FenceError> {
        self.register_key(self.key(own)?).await
    }

    async fn register_key(&self, key: u64) -> Result<(), FenceError> {
        if self.send(Command::Register(key)).await? == Answer::Conflict {
            let why = "it takes no key from this machine".to_owned();
            return Err(FenceError::Unconfirmed { disk: self.disk.clone(), why });
        }
        // A conflict: another machine has reserved it.
        self.send(Command::Reserve(key)).await?;
        self.confirm(key).await
    }

    async fn fence(&self, own: &Incarnation, victim: &Incarnation) -> Result<(), FenceError> {
        let (own, victim) = (self.key(own)?, self.key(victim)?);
        if own == victim {
            let why = "a node does not fence itself".to_owned();
            return Err(FenceError::Unconfirmed { disk: self.disk.clone(), why });
        }
        self.preempt(own, [victim]).await
    }

    /// Takes keys away, wherever they are registered.
    async fn preempt(
        &self,
        own: u64,
        victims: impl IntoIterator<Item = u64>,
    ) -> Result<(), FenceError> {
        self.confirm(own).await?;
        self.send(Command::Reserve(own)).await?;
        for victim in victims {
            self.send(Command::Preempt { own, victim, in_flight: self.in_flight }).await?;
        }
        self.send(Command::Reserve(own)).await?;
        self.confirm(own).await
    }
}

impl Fence for ReservationFence {
    fn disk(&self) -> &DiskName {
        &self.disk
    }

    fn register<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(self.register(own))
    }

    fn confirm<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(async { self.confirm(self.key(own)?).await })
    }

    fn fence<'a>(&'a self, own: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(self.fence(own, victim))
    }

    /// A key does not say whose it is, so an incarnation that never was may have the key of a
    /// member.
    fn clear<'a>(&'a self, own: &'a Incarnation, record: &'a Record) -> FenceFuture<'a> {
        let keys = record.bygone_epochs().filter_map(|epoch| key_of(&self.cluster, epoch));
        Box::pin(async move { self.preempt(self.key(own)?, keys).await })
    }
}
