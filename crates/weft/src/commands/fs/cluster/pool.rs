//! The disks of a file system on several machines, as this process reaches them: disk servers, and
//! block devices with persistent reservations.
//!
//! A block device is opened before this process joins, and by one process of a machine at a time:
//! its registration is that of the machine. So when a process registers, the requests of those
//! before it have ended, and a fence that hit these is not taken back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use weft_cli::disks::{DiskAddress, Opener};
use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_cluster::coordinator::disks::AREA_BYTES;
use weft_cluster::fence::reservation::{ReservableDevice, ReservationFence};
use weft_cluster::fence::{
    EndOfUse, FenceFuture, LastingDisk, MemberDisk, MemberSource, Patience, RemoteFence,
    RemoteLeases,
};
use weft_cluster::{ClusterName, DiskName, Fence, FenceError, Incarnation};
use weft_disk::{BoundedDisk, Disk, RestDisk};
use weft_nbd::NbdUri;
use weft_rt::Nanos;
use weft_rt::reservation::InFlight;

use super::device_name::{Kind, kind_of, name_of};
use super::{COORDINATOR_PATIENCE, FENCE_PATIENCE};

/// What a process may do with the disks of its pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// What becomes of a fenced machine's requests to block devices.
    pub in_flight: InFlight,
    /// Whether block devices may be missing.
    pub degraded: bool,
    /// What it does with leases on the disks.
    pub leases: Leases,
    /// How long a disk whose server does not answer is waited for.
    pub patience: Nanos,
}

/// What a process does with the leases on its disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leases {
    /// There are none: another machine keeps the record.
    Elsewhere,
    /// It writes its own.
    Writes,
    /// It writes that of commands, beside the machine's process.
    Commands,
    /// It reads them.
    Reads,
}

/// A shared disk.
pub(super) struct PoolDisk {
    /// What users call it.
    place: String,
    way: Way,
    has_leases: bool,
    patience: Nanos,
    /// Its leases, once they were used.
    leases: RefCell<Option<Rc<RemoteLeases>>>,
    /// The disk as a member uses it, while it does.
    in_use: RefCell<Option<Weak<dyn Disk>>>,
    /// The connections below that.
    lasting: RefCell<Weak<LastingDisk>>,
}

enum Way {
    Served(Rc<RemoteFence>),
    Reserved(Reserved),
    Missing(Rc<Missing>),
}

/// A block device with reservations.
struct Reserved {
    path: PathBuf,
    fence: Rc<ReservationFence>,
    /// From when it was opened until it is used; leases use it as well.
    held: RefCell<Option<Rc<dyn Disk>>>,
}

/// A disk that is not there: it confirms nothing.
struct Missing {
    name: DiskName,
    why: String,
}

impl Missing {
    fn unconfirmed(&self) -> FenceFuture<'_> {
        let (disk, why) = (self.name.clone(), self.why.clone());
        Box::pin(async { Err(FenceError::Unconfirmed { disk, why }) })
    }
}

impl Fence for Missing {
    fn disk(&self) -> &DiskName {
        &self.name
    }

    fn register<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        self.unconfirmed()
    }

    fn confirm<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        self.unconfirmed()
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, _: &'a Incarnation) -> FenceFuture<'a> {
        self.unconfirmed()
    }
}

impl PoolDisk {
    /// How it refuses nodes.
    pub(super) fn fence(&self) -> Rc<dyn Fence> {
        match &self.way {
            Way::Served(fence) => fence.clone(),
            Way::Reserved(disk) => disk.fence.clone(),
            Way::Missing(missing) => missing.clone(),
        }
    }

    /// What users call it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Its name in the cluster.
    pub(super) fn name(&self) -> DiskName {
        self.fence().disk().clone()
    }

    /// The disk as a member uses it.
    pub(super) async fn open_as(
        &self,
        opener: &Opener,
        own: &Incarnation,
        end: &Rc<EndOfUse>,
    ) -> Result<Rc<dyn Disk>, Failure> {
        let (mut is_lasting, by) = (false, (self.fence(), self.place.clone()));
        let disk = match &self.way {
            Way::Served(fence) => {
                is_lasting = true;
                let disk = lasting(opener, fence, own, self.patience).await?;
                *self.lasting.borrow_mut() = Rc::downgrade(&disk);
                // A request may be made, lost, and made again on another connection.
                let limit = opener.disk_timeout.saturating_add(self.patience.saturating_mul(2));
                Rc::new(BoundedDisk::new(&opener.rt, disk, limit))
            }
            Way::Reserved(Reserved { path, held, .. }) => {
                let disk = match self.has_leases {
                    true => held.borrow().clone(),
                    false => held.borrow_mut().take(),
                };
                match disk {
                    Some(disk) => disk,
                    None => opener.open_path(path, false).await?,
                }
            }
            Way::Missing(missing) => {
                return Err(Failure::new(format!("{}: {}", self.place, missing.why)));
            }
        };
        let make = if is_lasting { MemberDisk::lasting } else { MemberDisk::new };
        let member = make(disk, by, own.clone(), end.clone());
        let disk: Rc<dyn Disk> = match self.has_leases {
            true => Rc::new(RestDisk::new(Rc::new(member), AREA_BYTES)),
            false => Rc::new(member),
        };
        *self.in_use.borrow_mut() = Some(Rc::downgrade(&disk));
        Ok(disk)
    }

    /// The disk as a member uses it, if it does.
    pub(super) fn in_use(&self) -> Option<Rc<dyn Disk>> {
        self.in_use.borrow().as_ref()?.upgrade()
    }

    /// Whether it was lost because its server ended, or the way to it.
    pub(super) fn was_away(&self) -> bool {
        self.lasting.borrow().upgrade().is_some_and(|disk| disk.was_away())
    }

    /// Whether it answers, as it was found just now.
    pub(super) async fn answers(&self, own: &Incarnation) -> bool {
        match &self.way {
            Way::Served(fence) => fence.confirm(own).await.is_ok(),
            // To be found it has answered.
            Way::Reserved(_) => true,
            Way::Missing(_) => false,
        }
    }

    /// Whether it is not there.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.way, Way::Missing(_))
    }

    /// The place of its leases, as the node of a number uses it; with none, to be read.
    pub(super) fn leases(&self, opener: &Opener, number: Option<u32>) -> Option<Rc<dyn Disk>> {
        match &self.way {
            Way::Served(fence) => {
                let (uri, read_only) = (fence.uri_of_leases(number), number.is_none());
                let (rt, ring) = (&opener.rt, &opener.ring);
                let leases = RemoteLeases::new(rt, ring, uri, read_only, COORDINATOR_PATIENCE);
                let leases = Rc::new(leases);
                *self.leases.borrow_mut() = Some(leases.clone());
                Some(leases)
            }
            Way::Reserved(disk) => disk.held.borrow().clone(),
            Way::Missing(_) => None,
        }
    }

    /// Why its leases were not reached.
    pub(super) fn why_no_leases(&self) -> Option<String> {
        self.leases.borrow().as_ref()?.why()
    }
}

/// A disk of a disk server. If the server ends, or the way to it, that is waited for.
async fn lasting(
    opener: &Opener,
    fence: &Rc<RemoteFence>,
    own: &Incarnation,
    patience: Nanos,
) -> Result<Rc<LastingDisk>, Failure> {
    let source = MemberSource::new(fence.clone(), own.clone(), opener.disk_timeout);
    let lasting = Patience { reconnect: patience, ..Patience::default() };
    LastingDisk::open(&opener.rt, Rc::new(source), lasting).await.map(Rc::new).map_err(|error| {
        Failure::new(format!("{}: {error}", fence.place()))
            .hint("check that the server is running and can be reached from here")
    })
}

/// What to do about a disk that cannot be shared.
pub(super) const SERVE: &str = "serve it on the machine that has it: weft disks prepare DISK; weft disks serve --listen ADDR \
     DISK; and name it nbd://HOST/DISK";

/// Finds the disks of a cluster. Block devices are opened.
pub(super) async fn find(
    opener: &Opener,
    cluster: &ClusterName,
    places: &[String],
    terms: Terms,
) -> Result<Vec<Rc<PoolDisk>>, Failure> {
    let (mut names, mut disks) = (BTreeSet::new(), Vec::new());
    for place in places {
        let (way, hint) = match DiskAddress::of(place) {
            DiskAddress::Uri(uri) => (
                served(opener, cluster, &uri)?,
                "serve one of them under another name: weft disks serve NAME=DISK",
            ),
            DiskAddress::Path(path) => (
                reserved(opener, cluster, &path, terms).await?,
                "two of these are paths to one disk: name one, or the device of dm-multipath",
            ),
        };
        let (place, has_leases) = (place.clone(), terms.leases != Leases::Elsewhere);
        let (leases, in_use, lasting) = Default::default();
        let patience = terms.patience;
        let disk = PoolDisk { place, way, has_leases, patience, leases, in_use, lasting };
        let disk = Rc::new(disk);
        if !names.insert(disk.name()) {
            return Err(Failure::usage(format!("two disks are named {}", disk.name())).hint(hint));
        }
        disks.push(disk);
    }
    Ok(disks)
}

fn served(opener: &Opener, cluster: &ClusterName, uri: &str) -> Result<Way, Failure> {
    let parsed: NbdUri = uri.parse().map_err(|error: weft_nbd::client::UriError| {
        Failure::usage(format!("{uri}: {error}")).hint(SERVE)
    })?;
    let (rt, ring) = (&opener.rt, &opener.ring);
    let fence = RemoteFence::new(rt, ring, parsed, cluster.clone(), FENCE_PATIENCE);
    let fence = fence.map_err(|error| {
        Failure::usage(format!("{uri}: {error}"))
            .hint("name the disk alone: the cluster, the node and its epoch are added")
    })?;
    Ok(Way::Served(Rc::new(fence)))
}

async fn reserved(
    opener: &Opener,
    cluster: &ClusterName,
    path: &Path,
    terms: Terms,
) -> Result<Way, Failure> {
    let for_one_node = |why: &str| {
        let shown = path.display();
        Failure::usage(format!("{shown} can be used by one node only{why}")).hint(SERVE)
    };
    match kind_of(path) {
        Kind::Disk => {}
        Kind::Partition => {
            return Err(for_one_node(": reservations are those of whole disks, and it is a part"));
        }
        Kind::Other => return Err(for_one_node(": it is no block device, and has no disk server")),
    }
    let name = name_of(path)
        .ok_or_else(|| Failure::usage(format!("{} has no name for a disk", path.display())))?;
    match open_reserved(opener, cluster, path, (&name, terms)).await {
        Ok(disk) => Ok(Way::Reserved(disk)),
        Err(NotShared { failure, may_be_away: true }) if terms.degraded => {
            log_line(&format!("left out: {}", failure.message));
            Ok(Way::Missing(Rc::new(Missing { name, why: failure.message })))
        }
        Err(NotShared { failure, .. }) => Err(failure),
    }
}

/// Why a block device cannot be used.
struct NotShared {
    failure: Failure,
    /// Whether it may be used without this disk.
    may_be_away: bool,
}

impl From<Failure> for NotShared {
    fn from(failure: Failure) -> Self {
        Self { failure, may_be_away: true }
    }
}

async fn open_reserved(
    opener: &Opener,
    cluster: &ClusterName,
    path: &Path,
    (name, terms): (&DiskName, Terms),
) -> Result<Reserved, NotShared> {
    let look_only = terms.leases == Leases::Reads;
    // First: nothing is sent to a disk that another process of this machine uses.
    let opened = opener.open_path(path, look_only).await;
    let (disk, is_own) = match opened {
        Ok(disk) => (disk, !look_only),
        // The machine's registration holds for commands, too.
        Err(error) if error.busy && terms.leases == Leases::Commands => {
            (opener.open_beside_owner(path).await.map_err(Failure::from)?, false)
        }
        Err(error) if error.busy => {
            let failure = Failure::from(error).hint(
                "of the processes of a machine one uses a shared block device: a keeper with --mount, \
                 or a node; end the other one",
            );
            return Err(NotShared { failure, may_be_away: false });
        }
        Err(error) => return Err(Failure::from(error).into()),
    };
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let device = Rc::new(ReservableDevice::open(path).map_err(failed)?);
    let (rt, cluster, name) = (&opener.rt, cluster.clone(), name.clone());
    let patience = FENCE_PATIENCE;
    let fence = ReservationFence::new(rt, device, name, cluster, patience, terms.in_flight);
    let asked = match is_own && terms.leases != Leases::Elsewhere {
        // Who joins writes its lease first.
        true => fence.admit_newcomer().await,
        false => fence.probe().await,
    };
    asked.map_err(|error| {
        let failure = Failure::new(format!("{}: {error}", path.display()));
        match error {
            FenceError::Unsupported { .. } => {
                NotShared { failure: failure.hint(SERVE), may_be_away: false }
            }
            _ => failure.hint("its reservations must work before a cluster uses it").into(),
        }
    })?;
    Ok(Reserved { path: path.to_owned(), fence: Rc::new(fence), held: RefCell::new(Some(disk)) })
}
