//! What keeps the record of a cluster: an etcd, or the disks of the file system.

use std::cell::RefCell;
use std::rc::Rc;

use weft_cli::disks::Opener;
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_cli::thread;
use weft_cluster::coordinator::disks::{
    AREA_BYTES, COMMANDS, DiskCoordinator, DiskLeaseConfig, POOL_NODES,
};
use weft_cluster::coordinator::etcd::{EtcdConfig, EtcdCoordinator, EtcdUri};
use weft_cluster::{ClusterName, Coordinator, CoordinatorError, DiskName, NodeError, NodeName};
use weft_disk::{Disk, WriteOpts};
use weft_fs::Label;
use weft_rt::{MILLISECOND, Nanos, SECOND};

use super::pool::PoolDisk;
use super::{COORDINATOR_PATIENCE, LEASE, MEMBER_PATIENCE, START_PATIENCE, failed};
use crate::cli::ClusterAt;

/// Pause between looks at what the disks say.
const AGAIN: Nanos = 500 * MILLISECOND;
/// How often the keeper looks whether a disk is to vote in the place of another.
const VOTERS_EVERY: Nanos = 10 * SECOND;

/// Who uses the record.
#[derive(Debug, Clone, Copy)]
pub(super) enum User<'a> {
    /// A node.
    Node(&'a NodeName),
    /// A command that changes it.
    Command,
    /// One that reads it.
    Reader,
}

/// The record of a cluster, and the leases on its disks, if it is there.
pub(super) struct Found {
    pub record: Rc<dyn Coordinator>,
    pub leases: Option<Rc<DiskLeases>>,
}

/// The record of a cluster in its coordinator.
pub(super) async fn coordinator(
    opener: &Opener,
    at: &ClusterAt,
    cluster: &ClusterName,
    disks: &[Rc<PoolDisk>],
    user: User<'_>,
) -> Result<Found, Failure> {
    match at {
        ClusterAt::Etcd(uri) => {
            let record = Rc::new(etcd(opener, uri, cluster)?);
            Ok(Found { record, leases: None })
        }
        ClusterAt::Disks => {
            let leases = Rc::new(DiskLeases::open(opener, disks, user).await?);
            Ok(Found { record: leases.coordinator.clone(), leases: Some(leases) })
        }
    }
}

fn etcd(opener: &Opener, uri: &EtcdUri, cluster: &ClusterName) -> Result<EtcdCoordinator, Failure> {
    let config = EtcdConfig {
        uri: uri.clone(),
        cluster: cluster.clone(),
        lease: LEASE,
        patience: COORDINATOR_PATIENCE,
        attempt: MEMBER_PATIENCE,
        seed: u64::from_le_bytes(thread::random()?),
    };
    Ok(EtcdCoordinator::new(&opener.rt, &opener.ring, config))
}

fn config() -> Result<DiskLeaseConfig, Failure> {
    Ok(DiskLeaseConfig {
        offset: 0,
        nodes: POOL_NODES,
        number: COMMANDS,
        lease: LEASE,
        patience: COORDINATOR_PATIENCE,
        seed: u64::from_le_bytes(thread::random()?),
    })
}

fn on_disks(opener: &Opener, disks: &[Rc<PoolDisk>], number: Option<u32>) -> Vec<Rc<dyn Disk>> {
    disks.iter().filter_map(|disk| disk.leases(opener, number)).collect()
}

/// What disks without leases say.
fn without_leases(disks: &[Rc<PoolDisk>], error: &CoordinatorError) -> Failure {
    let failure = failed(&NodeError::Coordinator(error.clone()), &ClusterAt::Disks);
    let why = disks.iter().find_map(|disk| disk.why_no_leases());
    match (error, why) {
        (CoordinatorError::Unreachable(_), Some(why)) => {
            Failure::new(format!("{}: {why}", failure.message))
                .hint(failure.hint.unwrap_or_default())
        }
        _ => failure,
    }
}

/// The record on the disks of a file system.
pub(super) struct DiskLeases {
    coordinator: Rc<DiskCoordinator>,
    opener: Opener,
    /// The disks that it knows, in its order.
    names: RefCell<Vec<DiskName>>,
}

impl DiskLeases {
    async fn open(
        opener: &Opener,
        disks: &[Rc<PoolDisk>],
        user: User<'_>,
    ) -> Result<Self, Failure> {
        let deadline = opener.rt.now() + START_PATIENCE;
        let mut said = false;
        loop {
            let (rt, clock, config) = (&opener.rt, Rc::new(opener.rt.clone()), config()?);
            let find = |number| on_disks(opener, disks, number);
            let opened = match user {
                User::Node(name) => DiskCoordinator::open_as(rt, clock, find, config, name).await,
                User::Command => {
                    DiskCoordinator::open(rt, clock, find(Some(COMMANDS)), config).await
                }
                User::Reader => DiskCoordinator::watch(rt, clock, find(None), config).await,
            };
            match opened {
                Ok(coordinator) => {
                    let there = disks.iter().filter(|disk| !disk.is_missing());
                    let names = RefCell::new(there.map(|disk| disk.name()).collect());
                    let (coordinator, opener) = (Rc::new(coordinator), opener.clone());
                    return Ok(Self { coordinator, opener, names });
                }
                Err(error @ CoordinatorError::Unreachable(_)) if opener.rt.now() < deadline => {
                    if !std::mem::replace(&mut said, true) {
                        log_line(&format!("waiting: {}", without_leases(disks, &error).message));
                    }
                    opener.rt.sleep(AGAIN).await;
                }
                Err(error) => return Err(without_leases(disks, &error)),
            }
        }
    }

    /// Waits until it is known who lives.
    pub(super) async fn await_signs(&self) -> Result<(), Failure> {
        let signs = self.coordinator.await_signs(AGAIN / 2).await;
        signs.map_err(|error| failed(&error.into(), &ClusterAt::Disks))
    }

    /// As the keeper, gives the votes of disks that are gone to others of the file system, again
    /// and again.
    pub(super) async fn keep_voters(&self, name: &str, disks: impl Fn() -> Vec<Rc<PoolDisk>>) {
        loop {
            self.opener.rt.sleep(VOTERS_EVERY).await;
            let Ok(vacant) = self.coordinator.vacant().await else { continue };
            for (place, disk) in vacant.into_iter().zip(self.without_vote(name, &disks()).await) {
                let what = format!("{} votes in the place of a disk that is gone", disk.name());
                match self.coordinator.replace(self.number_of(&disk), place).await {
                    Ok(()) => log_line(&what),
                    Err(error) => log_line(&format!("not yet: {what}: {error}")),
                }
            }
        }
    }

    /// A disk has joined, which may vote, now or later.
    pub(super) fn take_in(&self, disk: &Rc<PoolDisk>) {
        if self.number_of(disk) == usize::MAX
            && let Some(leases) = disk.leases(&self.opener, Some(self.coordinator.number()))
        {
            self.coordinator.add_disk(leases);
            self.names.borrow_mut().push(disk.name());
        }
    }

    fn number_of(&self, disk: &Rc<PoolDisk>) -> usize {
        let known = self.names.borrow().iter().position(|name| *name == disk.name());
        known.unwrap_or(usize::MAX)
    }

    /// Disks of the file system that do not vote.
    async fn without_vote(&self, name: &str, disks: &[Rc<PoolDisk>]) -> Vec<Rc<PoolDisk>> {
        let mut found = Vec::new();
        for disk in disks {
            // Only what carries its label may be written.
            let Some(open) = disk.in_use() else { continue };
            let label = Label::read(&*open).await.ok().flatten();
            if label.is_none_or(|label| label.name != name) {
                continue;
            }
            self.take_in(disk);
            if !self.coordinator.votes(self.number_of(disk)).await {
                found.push(disk.clone());
            }
        }
        found
    }
}

/// Sets disks of a new file system up for leases, if they are not yet.
pub(super) async fn set_up(
    opener: &Opener,
    disks: &[Rc<PoolDisk>],
    force: bool,
) -> Result<(), Failure> {
    let (rt, clock, config) = (&opener.rt, Rc::new(opener.rt.clone()), config()?);
    let leases = on_disks(opener, disks, Some(COMMANDS));
    // Epochs must go on where they were: a group that is there is used on.
    if DiskCoordinator::watch(rt, clock, leases.clone(), config.clone()).await.is_ok() {
        return Ok(());
    }
    let group = u64::from_le_bytes(thread::random()?);
    match DiskCoordinator::set_up(&leases, &config, group).await {
        Err(CoordinatorError::Refused(why)) if force => {
            log_line(&format!("erased the place of leases: {why}"));
            for disk in &leases {
                let zeroes = disk.write_zeroes(0, AREA_BYTES, WriteOpts::USER_FUA).await;
                zeroes.map_err(|error| Failure::new(error.to_string()))?;
            }
            let made = DiskCoordinator::set_up(&leases, &config, group).await;
            made.map_err(|error| without_leases(disks, &error))
        }
        made => made.map_err(|error| match error {
            CoordinatorError::Refused(why) => Failure::new(why).hint(
                "name all disks of the file system that it belonged to, or add --force to lose what it \
                 holds",
            ),
            error => without_leases(disks, &error),
        }),
    }
}
