//! The disk server: shared disks as exports of NBD, whose names identify their users.
//!
//! | export | what it is |
//! |---|---|
//! | `DISK` | the disk, to be read |
//! | `DISK/CLUSTER/NODE/EPOCH` | the disk as a node of a cluster uses it, in an epoch |
//! | `DISK/CLUSTER/NODE/EPOCH/fence` | a fence of this node up to this epoch; to be read |
//!
//! To name the last *is* the fence: it is confirmed when the server accepts the name, and every
//! NBD client can do it. A connection of a fenced node is closed, and what it still sends is
//! refused.
//!
//! *Limits.* NBD has no authentication: who reaches the server can claim to be any node, and fence
//! any. So the server belongs on a network of its own, or in a tunnel.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::{IoFuture, Volume};
use weft_nbd::Export;
use weft_nbd::server::{Resolved, Resolver};

use super::shared_disk::SharedDisk;
use crate::{ClusterName, DiskName, Epoch, Incarnation};

/// What the name of an export asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhatToDo {
    /// To read a disk.
    Read(DiskName),
    /// To use it as a node.
    Use(DiskName, ClusterName, Incarnation),
    /// To fence a node.
    Fence(DiskName, ClusterName, Incarnation),
}

impl WhatToDo {
    /// What `name` asks for; `None`: it has not the form of a name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let disk: DiskName = parts.next()?.parse().ok()?;
        let Some(cluster) = parts.next() else { return Some(Self::Read(disk)) };
        let cluster: ClusterName = cluster.parse().ok()?;
        let node = parts.next()?.parse().ok()?;
        let digits = parts.next()?;
        // Of several ways to write a number only one is a name.
        let epoch: u64 = digits.parse().ok().filter(|epoch: &u64| epoch.to_string() == digits)?;
        let who = Incarnation { node, epoch: Epoch(epoch) };
        match (parts.next(), parts.next()) {
            (None, _) => Some(Self::Use(disk, cluster, who)),
            (Some("fence"), None) => Some(Self::Fence(disk, cluster, who)),
            _ => None,
        }
    }
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
        let form = "a name has the form DISK, DISK/CLUSTER/NODE/EPOCH or \
                    DISK/CLUSTER/NODE/EPOCH/fence";
        let what = WhatToDo::parse(name).ok_or(form)?;
        let (WhatToDo::Read(disk) | WhatToDo::Use(disk, ..) | WhatToDo::Fence(disk, ..)) = &what;
        let disk = self.disks.get(disk).ok_or_else(|| format!("there is no disk {disk} here"))?;
        match &what {
            WhatToDo::Read(_) => Ok(read_only(disk, "to be read")),
            WhatToDo::Use(_, cluster, who) => {
                let volume = disk.open_as(cluster, who).await.map_err(|e| e.to_string())?;
                let export = Export::new(Rc::new(volume), format!("as {who} uses it"));
                let (disk, who) = (disk.clone(), who.clone());
                let until = async move { disk.refused(&who).await };
                Ok(Resolved { export, until: Box::pin(until) })
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
