//! The record: what the nodes of a cluster agree on, and the changes it may undergo.
//!
//! Each change is a function from one record to the next, without I/O; a
//! [`Coordinator`](crate::Coordinator) makes it a compare-and-set. So two changes never mix, and
//! every one is decided on the record that it replaces.
//!
//! ```text
//!   joins ──▶ member ──▶ leaves
//!               │  ▲
//!      takes over  resigns
//!               ▼  │
//!             keeper, not active ── all fenced ──▶ keeper, active
//!
//!   evicted, or deposed as keeper ──▶ fencing ── each disk has confirmed, or is lost ──▶ (none)
//! ```
//!
//! Invariants:
//! * `epoch` rises with every join and every takeover, and is given to it. So no epoch is given
//!   twice, and no two keepers have the same term.
//! * An incarnation stands under `members` or `fencing` from when it joins, until it leaves or all
//!   disks refuse it. A disk that did not confirm stands under `lost_disks` with it.
//! * The keeper is a member.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{ClusterName, DiskName, Epoch, Incarnation, NodeName, Session};

/// The version of the record's form.
const FORMAT: u32 = 1;

/// A node that may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The epoch that it got.
    pub epoch: Epoch,
    /// The process that joined.
    pub session: u64,
    /// Where it listens as keeper, if it may become one. Records of earlier versions have none; a
    /// member whose address is not there puts it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// The keeper in a term.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// Who it is.
    pub node: Incarnation,
    /// Its term: an epoch that was given to nothing else.
    pub term: Epoch,
    /// Whether all that came before it are fenced, so that it may write.
    pub active: bool,
}

/// Incarnations by node.
pub type Incarnations = BTreeMap<NodeName, BTreeSet<Epoch>>;

/// The record of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version of its form.
    pub format: u32,
    /// The cluster.
    pub cluster: ClusterName,
    /// The highest epoch that was given.
    pub epoch: Epoch,
    /// The keeper, if there is one.
    pub keeper: Option<Keeper>,
    /// The nodes that may write.
    pub members: BTreeMap<NodeName, Member>,
    /// Incarnations that must not write any more, and whose fence is not confirmed by all disks.
    pub fencing: Incarnations,
    /// Disks that did not confirm a fence, with the incarnations that may still write to them.
    /// They must not be used until these are fenced there.
    #[serde(default)]
    pub lost_disks: BTreeMap<DiskName, Incarnations>,
    /// The number of each node that ever joined, from 1 on: what the file system knows it by. A
    /// number is never given to another node. Records of earlier versions have none: their members
    /// get one when they join again.
    #[serde(default)]
    pub numbers: BTreeMap<NodeName, u16>,
    /// The disks of the file system, and where each of them is, as its keeper says: a process that
    /// takes over fences at them, whichever it was given. Records of earlier versions, and those of
    /// clusters that had no keeper yet, have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<DiskName, String>,
    /// The nodes that reach a disk through the keeper, as it says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub relayed: BTreeMap<DiskName, BTreeSet<NodeName>>,
    /// The disks that the file system has lost as they were away, and where each of them was, as
    /// the keeper says: the next one takes them back as well, when they are there again. They may
    /// be none of the file system's by then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub away: BTreeMap<DiskName, String>,
}

/// What a keeper says of disks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskNotes {
    /// See [`Record::disks`].
    pub disks: BTreeMap<DiskName, String>,
    /// See [`Record::relayed`].
    pub relayed: BTreeMap<DiskName, BTreeSet<NodeName>>,
    /// See [`Record::away`].
    pub away: BTreeMap<DiskName, String>,
}

impl Record {
    /// The record of a new cluster.
    pub fn new(cluster: ClusterName) -> Self {
        Self {
            format: FORMAT,
            cluster,
            epoch: Epoch::default(),
            keeper: None,
            members: BTreeMap::new(),
            fencing: BTreeMap::new(),
            lost_disks: BTreeMap::new(),
            numbers: BTreeMap::new(),
            disks: BTreeMap::new(),
            relayed: BTreeMap::new(),
            away: BTreeMap::new(),
        }
    }

    /// Whether this program understands the record's form.
    pub fn is_understood(&self) -> bool {
        self.format == FORMAT
    }

    fn next_epoch(&mut self) -> Epoch {
        self.epoch = self.epoch.next();
        self.epoch
    }

    /// The incarnation of a process, if it is a member.
    pub fn incarnation_of(&self, session: &Session) -> Option<Incarnation> {
        let member = self.members.get(&session.node)?;
        (member.session == session.number)
            .then(|| Incarnation { node: session.node.clone(), epoch: member.epoch })
    }

    /// Whether `incarnation` may write.
    pub fn has(&self, incarnation: &Incarnation) -> bool {
        self.members.get(&incarnation.node).is_some_and(|member| member.epoch == incarnation.epoch)
    }

    /// The process of a member.
    pub fn session_of(&self, node: &NodeName) -> Option<Session> {
        let member = self.members.get(node)?;
        Some(Session { node: node.clone(), number: member.session })
    }

    /// A process joins in a new epoch. An earlier incarnation of its node must be fenced.
    pub fn join(&mut self, session: &Session) -> Incarnation {
        self.expel(&session.node);
        let epoch = self.next_epoch();
        let member = Member { epoch, session: session.number, address: None };
        self.members.insert(session.node.clone(), member);
        if !self.numbers.contains_key(&session.node) {
            let is_free = |number: &u16| !self.numbers.values().any(|taken| taken == number);
            let number = (1..=u16::MAX).find(is_free).expect("disks know far fewer nodes");
            self.numbers.insert(session.node.clone(), number);
        }
        Incarnation { node: session.node.clone(), epoch }
    }

    /// Tells where a member listens. Returns whether that changes anything.
    pub fn set_address(&mut self, who: &Incarnation, address: Option<&str>) -> bool {
        let is_it = |member: &&mut Member| member.epoch == who.epoch;
        let Some(member) = self.members.get_mut(&who.node).filter(is_it) else { return false };
        let changes = member.address.as_deref() != address;
        if changes {
            member.address = address.map(str::to_owned);
        }
        changes
    }

    /// A member ends. It must not have requests in flight on any disk. Returns whether it was one.
    pub fn leave(&mut self, who: &Incarnation) -> bool {
        let is_member = self.has(who);
        if is_member {
            self.members.remove(&who.node);
            self.keeper.take_if(|keeper| keeper.node == *who);
        }
        is_member
    }

    /// Takes a member out: it must be fenced.
    pub fn expel(&mut self, node: &NodeName) {
        if let Some(member) = self.members.remove(node) {
            self.fencing.entry(node.clone()).or_default().insert(member.epoch);
            self.keeper.take_if(|keeper| keeper.node.node == *node);
        }
    }

    /// `who` becomes the keeper in a new term, not active yet; the previous one must be fenced.
    /// `None` if `who` is no member.
    pub fn begin_takeover(&mut self, who: &Incarnation) -> Option<Keeper> {
        if !self.has(who) {
            return None;
        }
        if let Some(before) = self.keeper.take()
            && before.node != *who
        {
            self.expel(&before.node.node);
        }
        let keeper = Keeper { node: who.clone(), term: self.next_epoch(), active: false };
        self.keeper = Some(keeper.clone());
        Some(keeper)
    }

    /// Whether `keeper` is still the keeper, in the same term.
    pub fn is_kept_by(&self, keeper: &Keeper) -> bool {
        self.keeper.as_ref().is_some_and(|now| now.term == keeper.term && now.node == keeper.node)
    }

    /// A keeper that cannot become active gives way to another node. Returns whether it was one.
    pub fn resign(&mut self, keeper: &Keeper) -> bool {
        let resigns =
            self.is_kept_by(keeper) && !self.keeper.as_ref().is_some_and(|now| now.active);
        if resigns {
            self.keeper = None;
        }
        resigns
    }

    /// The keeper has fenced what the record named; it is active now. Returns false if it is not
    /// the keeper any more.
    pub fn end_takeover(&mut self, keeper: &Keeper, report: &FenceReport) -> bool {
        if !self.end_fencing(keeper, report) {
            return false;
        }
        let now = self.keeper.as_mut().expect("it is the keeper");
        now.active = true;
        true
    }

    /// The keeper has fenced some incarnations. Returns false if it is not the keeper any more.
    pub fn end_fencing(&mut self, keeper: &Keeper, report: &FenceReport) -> bool {
        if !self.is_kept_by(keeper) {
            return false;
        }
        for (node, epochs) in &report.victims {
            let Some(pending) = self.fencing.get_mut(node) else { continue };
            pending.retain(|epoch| !epochs.contains(epoch));
            if pending.is_empty() {
                self.fencing.remove(node);
            }
        }
        for disk in &report.lost {
            let unfenced = self.lost_disks.entry(disk.clone()).or_default();
            for (node, epochs) in &report.victims {
                unfenced.entry(node.clone()).or_default().extend(epochs);
            }
        }
        true
    }

    /// What the keeper has said of disks.
    pub fn disk_notes(&self) -> DiskNotes {
        DiskNotes {
            disks: self.disks.clone(),
            relayed: self.relayed.clone(),
            away: self.away.clone(),
        }
    }

    /// The keeper says something else of disks. Returns false if it is not the keeper any more.
    pub fn note_disks(&mut self, keeper: &Keeper, notes: DiskNotes) -> bool {
        let is_kept = self.is_kept_by(keeper);
        if is_kept {
            let DiskNotes { disks, relayed, away } = notes;
            (self.disks, self.relayed, self.away) = (disks, relayed, away);
        }
        is_kept
    }

    /// Nothing is said of disks any more, if there is no keeper. Returns whether that is so.
    pub fn forget_notes(&mut self) -> bool {
        let is_kept = self.keeper.is_some();
        if !is_kept {
            self.disks.clear();
            self.relayed.clear();
            self.away.clear();
        }
        !is_kept
    }

    /// Of each node the last incarnation that is no member, if there was one: a disk that joins may
    /// have been elsewhere when that was fenced, or one before it.
    pub fn bygone(&self) -> impl Iterator<Item = Incarnation> + '_ {
        self.numbers.keys().filter_map(|node| {
            let member = self.members.get(node);
            let last = member.map_or(self.epoch.0, |member| member.epoch.0.saturating_sub(1));
            (last > 0).then(|| Incarnation { node: node.clone(), epoch: Epoch(last) })
        })
    }

    /// The epochs that no member has.
    pub fn bygone_epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        let of_members: BTreeSet<Epoch> =
            self.members.values().map(|member| member.epoch).collect();
        (1..=self.epoch.0).map(Epoch).filter(move |epoch| !of_members.contains(epoch))
    }

    /// The keeper has fenced on a lost disk all that were pending there; it can be used again.
    /// Returns whether it is: not if others are pending.
    pub fn regain_disk(&mut self, keeper: &Keeper, disk: &DiskName, fenced: &Incarnations) -> bool {
        let regained = self.is_kept_by(keeper) && self.lost_disks.get(disk) == Some(fenced);
        if regained {
            self.lost_disks.remove(disk);
        }
        regained
    }
}

/// Which fences were confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FenceReport {
    /// The incarnations that had to be fenced.
    pub victims: Incarnations,
    /// The disks that did not confirm all of them.
    pub lost: BTreeSet<DiskName>,
}

/// Each of some incarnations.
pub fn each(incarnations: &Incarnations) -> impl Iterator<Item = Incarnation> + '_ {
    let of = |(node, epochs): (&NodeName, &BTreeSet<Epoch>)| {
        let node = node.clone();
        let epochs: Vec<Epoch> = epochs.iter().copied().collect();
        epochs.into_iter().map(move |epoch| Incarnation { node: node.clone(), epoch })
    };
    incarnations.iter().flat_map(of)
}
