//! The disk server: shared disks as exports of NBD, whose names identify their users.
//!
//! | export | what it is |
//! |---|---|
//! | `DISK` | the disk, to be read |
//! | `DISK/CLUSTER/lease-NUMBER` | the place of the leases, as the node of a number uses it |
//! | `DISK/CLUSTER/NODE/EPOCH` | the disk as a node of a cluster uses it, in an epoch |
//! | `DISK/CLUSTER/NODE/EPOCH/SESSION` | the same, in a session: a number above all earlier ones |
//! | `DISK/CLUSTER/NODE/EPOCH/SESSION/EARLIER` | the same, if its last session was not after EARLIER |
//! | `DISK/CLUSTER/NODE/EPOCH/fence` | a fence of this node up to this epoch; to be read |
//! | `DISK/state` | which disk it is ([`super::DiskState`]), as JSON; to be read |
//!
//! To name the last *is* the fence: it is confirmed when the server accepts the name, and every
//! NBD client can do it. A connection of a fenced node is closed, and what it still sends is
//! refused.
//!
//! *Limits.* NBD has no authentication: who reaches the server can claim to be any node, and fence
//! any. So the server belongs on a network of its own, or in a tunnel.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::{Disk as _, DiskVolume, IoFuture, RamDisk, Volume, WriteOpts};
use weft_nbd::Export;
use weft_nbd::server::{Resolved, Resolver};
use weft_rt::Buf;

use super::lease_volume::LeaseVolume;
use super::session::Session;
use super::shared_disk::{SharedDisk, SharedVolume};
use crate::coordinator::disks::POOL_NODES;
use crate::{ClusterName, DiskName, Epoch, Incarnation};

/// The name of the state of a disk, after that of the disk.
pub(super) const STATE: &str = "state";
/// The state's size.
pub(super) const STATE_BYTES: u64 = 4096;

/// What the name of an export asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhatToDo {
    /// To read a disk.
    Read(DiskName),
    /// To hear which disk it is.
    State(DiskName),
    /// To use its leases as the node of a number.
    Lease(DiskName, ClusterName, u32),
    /// To use it as a node.
    Use(DiskName, ClusterName, Incarnation),
    /// To use it as a node, in a session.
    UseIn(DiskName, ClusterName, Incarnation, Session),
    /// To fence a node.
    Fence(DiskName, ClusterName, Incarnation),
}

impl WhatToDo {
    /// What `name` asks for; `None`: it has not the form of a name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let disk: DiskName = parts.next()?.parse().ok()?;
        let Some(cluster) = parts.next() else { return Some(Self::Read(disk)) };
        let Some(node) = parts.next() else {
            return (cluster == STATE).then_some(Self::State(disk));
        };
        let cluster: ClusterName = cluster.parse().ok()?;
        let Some(epoch) = parts.next() else {
            let lease = u32::try_from(number(node.strip_prefix("lease-")?)?).ok()?;
            return (lease < POOL_NODES).then_some(Self::Lease(disk, cluster, lease));
        };
        let who = Incarnation { node: node.parse().ok()?, epoch: Epoch(number(epoch)?) };
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Some(Self::Use(disk, cluster, who)),
            (Some("fence"), None, _) => Some(Self::Fence(disk, cluster, who)),
            (Some(session), after, None) => {
                let number = self::number(session).filter(|number| *number > 0)?;
                let after = match after {
                    Some(after) => Some(self::number(after)?),
                    None => None,
                };
                Some(Self::UseIn(disk, cluster, who, Session { number, after }))
            }
            _ => None,
        }
    }

    fn disk(&self) -> &DiskName {
        match self {
            Self::Read(disk) | Self::State(disk) | Self::Lease(disk, ..) => disk,
            Self::Use(disk, ..) | Self::UseIn(disk, ..) | Self::Fence(disk, ..) => disk,
        }
    }
}

/// Of several ways to write a number only one is a part of a name.
fn number(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|number: &u64| number.to_string() == digits)
}

/// Serves shared disks by the names of their users.
#[derive(Debug, Default)]
pub struct DiskServer {
    disks: BTreeMap<DiskName, Rc<SharedDisk>>,
}

impl DiskServer {
    /// A server of these disks.
    pub fn new(disks: BTreeMap<DiskName, Rc<SharedDisk>>) -> Self {
        Self { disks }
    }

    /// Its disks.
    pub fn disks(&self) -> &BTreeMap<DiskName, Rc<SharedDisk>> {
        &self.disks
    }

    async fn open(&self, name: &str) -> Result<Resolved, String> {
        let form = "a name has the form DISK, DISK/state, DISK/CLUSTER/lease-NUMBER, \
                    DISK/CLUSTER/NODE/EPOCH[/SESSION] or DISK/CLUSTER/NODE/EPOCH/fence";
        let what = WhatToDo::parse(name).ok_or(form)?;
        let disk = what.disk();
        let disk = self.disks.get(disk).ok_or_else(|| format!("there is no disk {disk} here"))?;
        let used = |volume: SharedVolume, who: &Incarnation, session: u64| {
            let export = Export::new(Rc::new(volume), format!("as {who} uses it"));
            let (disk, who) = (disk.clone(), who.clone());
            let until = async move { disk.refused(&who, session).await };
            Resolved { export, until: Box::pin(until) }
        };
        match &what {
            WhatToDo::Read(_) => Ok(read_only(disk, "to be read")),
            WhatToDo::State(_) => {
                let told = serde_json::to_vec(&disk.state()).map_err(|e| e.to_string())?;
                let page = RamDisk::new("state", STATE_BYTES, 512);
                let mut bytes = Buf::zeroed(usize::try_from(STATE_BYTES).unwrap_or(0));
                bytes[..told.len()].copy_from_slice(&told);
                let written = page.write(0, bytes.freeze(), WriteOpts::USER).await;
                written.map_err(|e| e.to_string())?;
                let volume: Rc<dyn Volume> = Rc::new(DiskVolume::new(Rc::new(page)));
                let export = Export { volume, description: "its state".into(), read_only: true };
                Ok(Resolved { export, until: Box::pin(std::future::pending()) })
            }
            WhatToDo::Lease(_, cluster, number) => {
                let volume = LeaseVolume::open(disk, cluster, *number).await;
                let volume = Rc::new(volume.map_err(|e| e.to_string())?);
                let what = format!("its leases, as node number {number} uses them");
                let export = Export::new(volume.clone(), what);
                let until = async move { volume.ended().await };
                Ok(Resolved { export, until: Box::pin(until) })
            }
            WhatToDo::Use(_, cluster, who) => {
                let volume = disk.open_as(cluster, who).await.map_err(|e| e.to_string())?;
                Ok(used(volume, who, 0))
            }
            WhatToDo::UseIn(_, cluster, who, session) => {
                let opened = disk.open_session(cluster, who, *session).await;
                Ok(used(opened.map_err(|e| e.to_string())?, who, session.number))
            }
            WhatToDo::Fence(_, cluster, victim) => {
                disk.fence(cluster, victim).await.map_err(|e| e.to_string())?;
                Ok(read_only(disk, &format!("{victim} is fenced")))
            }
        }
    }
}

fn read_only(disk: &Rc<SharedDisk>, what: &str) -> Resolved {
    let volume: Rc<dyn Volume> = Rc::new(disk.open_read_only());
    let export = Export { volume, description: what.to_owned(), read_only: true };
    Resolved { export, until: Box::pin(std::future::pending()) }
}

impl Resolver for DiskServer {
    fn resolve<'a>(&'a self, name: &'a str) -> IoFuture<'a, Result<Resolved, String>> {
        Box::pin(self.open(name))
    }
}
