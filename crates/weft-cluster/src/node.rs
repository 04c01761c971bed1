//! A node's part in the protocol: it joins, takes over when the keeper is gone, and as keeper
//! evicts members that are gone.
//!
//! A node always acts on the record as read back, and never on its own memory of a write: an answer
//! may be lost, or come late. So [`Node::step`] reads the record, takes the one next step, and
//! returns the node's state. It may be ended anywhere, and repeated.
//!
//! **Two rules for callers.** A keeper writes only after a step has returned [`Standing::Keeper`];
//! and a node whose disks refuse it was fenced: it ends all use of the disks, and joins again with
//! [`Node::renew`]. It must not take a refusal for a failure of the disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::coordinator::{CoordinatorError, Swap, View};
use crate::record::{DiskNotes, FenceReport, each};
use crate::{
    ClusterName, Coordinator, DiskName, Fence, FenceError, Incarnation, Keeper, Record, Session,
};

/// What a node needs to know.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The cluster.
    pub cluster: ClusterName,
    /// This process.
    pub session: Session,
    /// How many of the disks that it is given must confirm a fence for a takeover to go on; the
    /// other disks are lost. Of disks that join later all must.
    pub disks_min: usize,
    /// Whether it may become the keeper.
    pub may_keep: bool,
    /// Where it listens as keeper.
    pub address: Option<String>,
}

/// Why a step failed. A later one may succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The coordinator gave no answer.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// A disk refuses this node, or cannot be shared.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// Another live process has the node's name.
    #[error("another process uses the name {0}: give each node a name of its own")]
    NameTaken(String),
    /// The record is that of another cluster.
    #[error("the coordinator has the record of cluster {found}, not of {wanted}")]
    WrongCluster {
        /// The record's.
        found: ClusterName,
        /// This node's.
        wanted: ClusterName,
    },
    /// The record was written by a later version.
    #[error("the record has format {0}, which this version of weft does not know")]
    UnknownFormat(u32),
    /// The process is no member.
    #[error("this process is no member of the cluster")]
    NoMember,
    /// Too few disks have confirmed that the nodes before are fenced.
    #[error("only {confirmed} disks confirmed the fence, and {wanted} are needed; without: {lost}")]
    TooFewDisks {
        /// Disks that have.
        confirmed: usize,
        /// Disks that must.
        wanted: usize,
        /// Disks that have not.
        lost: String,
    },
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is no member.
    Out,
    /// It is a member.
    Member(Incarnation),
    /// It was a member and is not any more: it was evicted, or deposed as keeper.
    Expelled(Incarnation),
    /// It is the keeper, and active.
    Keeper {
        /// Who it is, and its term.
        keeper: Keeper,
        /// Disks that it must not use.
        lost_disks: BTreeSet<DiskName>,
    },
}

/// A process's part in a cluster.
pub struct Node {
    coordinator: Rc<dyn Coordinator>,
    fences: RefCell<Vec<Rc<dyn Fence>>>,
    /// How many disks it was given.
    given: usize,
    config: RefCell<NodeConfig>,
    /// What it has joined as, and registered at the disks.
    own: RefCell<Option<Incarnation>>,
    registered: Cell<bool>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("config", &self.config).field("own", &self.own).finish()
    }
}

impl Node {
    /// A process that has not joined yet.
    pub fn new(
        coordinator: Rc<dyn Coordinator>,
        fences: Vec<Rc<dyn Fence>>,
        config: NodeConfig,
    ) -> Self {
        let given = fences.len();
        let (config, fences) = (RefCell::new(config), RefCell::new(fences));
        let (own, registered) = (RefCell::default(), Cell::new(false));
        Self { coordinator, fences, given, config, own, registered }
    }

    /// What it has joined as.
    pub fn own(&self) -> Option<Incarnation> {
        self.own.borrow().clone()
    }

    /// This process.
    pub fn session(&self) -> Session {
        self.config.borrow().session.clone()
    }

    /// Renews the process's lease.
    ///
    /// # Errors
    /// The coordinator gives no answer.
    pub async fn keep_alive(&self) -> Result<(), NodeError> {
        let session = self.session();
        Ok(self.coordinator.keep_alive(&session).await?)
    }

    /// Starts again after it was expelled or fenced, as a session of this number, which must be
    /// another than before. It must have ended all use of the disks.
    pub fn renew(&self, number: u64) {
        self.config.borrow_mut().session.number = number;
        *self.own.borrow_mut() = None;
        self.registered.set(false);
    }

    /// Reads the record, takes the one next step, and returns the node's state.
    ///
    /// # Errors
    /// See [`NodeError`]. What was started may have been done, and the next step goes on with it.
    pub async fn step(&self) -> Result<Standing, NodeError> {
        let view = self.read().await?;
        let (config, session) = (self.config.borrow().clone(), self.session());
        let Some(record) = &view.record else {
            return self.change(&view, Record::new(config.cluster.clone())).await;
        };
        let Some(own) = record.incarnation_of(&session) else {
            if let Some(before) = self.own() {
                return Ok(Standing::Expelled(before));
            }
            return self.join(&view, record).await;
        };
        *self.own.borrow_mut() = Some(own.clone());
        if !self.registered.get() {
            return self.register(&own).await;
        }
        let mut next = record.clone();
        if next.set_address(&own, config.address.as_deref()) {
            return self.change(&view, next).await;
        }
        match &record.keeper {
            Some(keeper) if keeper.node == own && !keeper.active => {
                self.finish_takeover(keeper, record).await
            }
            Some(keeper) if keeper.node == own => self.keep(&view, record, keeper).await,
            keeper => {
                let alive = |keeper: &Keeper| {
                    let session = record.session_of(&keeper.node.node);
                    session.is_some_and(|session| view.alive.contains(&session))
                };
                if config.may_keep && !keeper.as_ref().is_some_and(alive) {
                    let mut next = record.clone();
                    next.begin_takeover(&own);
                    return self.change(&view, next).await;
                }
                Ok(Standing::Member(own))
            }
        }
    }

    fn fences(&self) -> Vec<Rc<dyn Fence>> {
        self.fences.borrow().clone()
    }

    /// Registers this member at a disk that joins the cluster, or comes back, which later fences
    /// take place at, too. Only after that the disk may be written.
    ///
    /// # Errors
    /// The disk refuses, or the process is no member (any more).
    pub async fn join_disk(&self, fence: Rc<dyn Fence>) -> Result<(), NodeError> {
        let own = self.own().ok_or(NodeError::NoMember)?;
        fence.register(&own).await?;
        // As when a node joins: one that was fenced at this disk before must not write there.
        if !self.read().await?.record.is_some_and(|record| record.has(&own)) {
            return Err(NodeError::NoMember);
        }
        let mut fences = self.fences.borrow_mut();
        fences.retain(|other| other.disk() != fence.disk());
        fences.push(fence);
        Ok(())
    }

    /// A disk is none of the cluster's any more: no fence needs it.
    pub fn forget_disk(&self, disk: &DiskName) {
        self.fences.borrow_mut().retain(|other| other.disk() != disk);
    }

    /// As the keeper, makes a disk that joins, at which it is registered, refuse all incarnations
    /// that are no members: they may have been fenced while no fence went to this disk.
    ///
    /// # Errors
    /// The disk does not confirm, or the coordinator gives no answer.
    pub async fn clear_disk(&self, fence: &dyn Fence) -> Result<(), NodeError> {
        let view = self.read().await?;
        let (Some(record), Some(own)) = (view.record, self.own()) else {
            return Err(NodeError::NoMember);
        };
        Ok(fence.clear(&own, &record).await?)
    }

    /// As a member of a cluster without a keeper, forgets what keepers have said of disks: another
    /// file system begins.
    ///
    /// # Errors
    /// The coordinator gives no answer.
    pub async fn forget_notes(&self) -> Result<(), NodeError> {
        loop {
            let view = self.read().await?;
            let Some(mut record) = view.record.clone() else { return Ok(()) };
            if record.disk_notes() == DiskNotes::default() || !record.forget_notes() {
                return Ok(());
            }
            let swap = self.coordinator.compare_and_set(view.version, record).await?;
            if let Swap::Done(_) = swap {
                return Ok(());
            }
        }
    }

    /// As the keeper, says what `change` makes of what it has said of disks. Returns whether it is
    /// the keeper.
    ///
    /// # Errors
    /// The coordinator gives no answer.
    pub async fn note_disks(&self, change: impl Fn(&mut DiskNotes)) -> Result<bool, NodeError> {
        loop {
            let view = self.read().await?;
            let (Some(mut record), Some(own)) = (view.record.clone(), self.own()) else {
                return Ok(false);
            };
            let Some(keeper) = record.keeper.clone().filter(|keeper| keeper.node == own) else {
                return Ok(false);
            };
            let before = record.disk_notes();
            let mut notes = before.clone();
            change(&mut notes);
            if notes == before {
                return Ok(true);
            }
            if !record.note_disks(&keeper, notes) {
                return Ok(false);
            }
            let swap = self.coordinator.compare_and_set(view.version, record).await?;
            if let Swap::Done(_) = swap {
                return Ok(true);
            }
        }
    }

    /// Ends its membership. It must have no requests in flight on any disk.
    ///
    /// # Errors
    /// The coordinator gives no answer: then it is evicted later.
    pub async fn leave(&self) -> Result<(), NodeError> {
        while let Some(own) = self.own() {
            let view = self.read().await?;
            let Some(mut record) = view.record.clone() else { break };
            if !record.leave(&own) {
                break;
            }
            if let Swap::Done(_) = self.coordinator.compare_and_set(view.version, record).await? {
                break;
            }
        }
        *self.own.borrow_mut() = None;
        let session = self.session();
        Ok(self.coordinator.end_lease(&session).await?)
    }

    /// As the keeper, tries to use a lost disk again: fences there all that may still write to it.
    /// Returns whether it can be used.
    ///
    /// # Errors
    /// The disk does not confirm, or the coordinator gives no answer.
    pub async fn regain_disk(&self, disk: &DiskName) -> Result<bool, NodeError> {
        let view = self.read().await?;
        let (Some(mut record), Some(own)) = (view.record.clone(), self.own()) else {
            return Ok(false);
        };
        let Some(keeper) = record.keeper.clone().filter(|keeper| keeper.node == own) else {
            return Ok(false);
        };
        let Some(victims) = record.lost_disks.get(disk).cloned() else { return Ok(true) };
        let fence = self.fences().into_iter().find(|fence| fence.disk() == disk);
        let Some(fence) = fence else { return Ok(false) };
        for victim in each(&victims) {
            fence.fence(&own, &victim).await?;
        }
        if !record.regain_disk(&keeper, disk, &victims) {
            return Ok(false);
        }
        let swap = self.coordinator.compare_and_set(view.version, record).await?;
        Ok(matches!(swap, Swap::Done(_)))
    }

    async fn read(&self) -> Result<View, NodeError> {
        let view = self.coordinator.read().await?;
        if let Some(record) = &view.record {
            let wanted = self.config.borrow().cluster.clone();
            if !record.is_understood() {
                return Err(NodeError::UnknownFormat(record.format));
            }
            if record.cluster != wanted {
                return Err(NodeError::WrongCluster { found: record.cluster.clone(), wanted });
            }
        }
        Ok(view)
    }

    /// Where it stands, as far as this record tells, after a change or an attempt at one.
    async fn change(&self, view: &View, record: Record) -> Result<Standing, NodeError> {
        self.coordinator.compare_and_set(view.version, record).await?;
        Ok(self.own().map_or(Standing::Out, Standing::Member))
    }

    async fn join(&self, view: &View, record: &Record) -> Result<Standing, NodeError> {
        let session = self.session();
        if let Some(before) = record.session_of(&session.node)
            && view.alive.contains(&before)
        {
            return Err(NodeError::NameTaken(session.node.to_string()));
        }
        let mut next = record.clone();
        let own = next.join(&session);
        let address = self.config.borrow().address.clone();
        next.set_address(&own, address.as_deref());
        // Whether it has joined, and in which epoch, the next step finds in the record.
        self.change(view, next).await
    }

    /// Registers at the disks; then it looks once more whether it is a member still.
    async fn register(&self, own: &Incarnation) -> Result<Standing, NodeError> {
        for fence in self.fences() {
            match fence.register(own).await {
                // A disk that is away cannot be used.
                Err(FenceError::Unconfirmed { .. }) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let view = self.read().await?;
        if view.record.is_some_and(|record| record.has(own)) {
            self.registered.set(true);
            return Ok(Standing::Member(own.clone()));
        }
        Ok(Standing::Expelled(own.clone()))
    }

    async fn finish_takeover(
        &self,
        keeper: &Keeper,
        record: &Record,
    ) -> Result<Standing, NodeError> {
        let report = match self.fence_all(&keeper.node, record).await {
            Err(error @ NodeError::TooFewDisks { .. }) => {
                // Another node may reach more of them.
                self.conclude(keeper, |record| record.resign(keeper)).await?;
                return Err(error);
            }
            outcome => outcome?,
        };
        self.conclude(keeper, |record| record.end_takeover(keeper, &report)).await
    }

    /// What an active keeper does: evicts members that are gone.
    async fn keep(
        &self,
        view: &View,
        record: &Record,
        keeper: &Keeper,
    ) -> Result<Standing, NodeError> {
        if !record.fencing.is_empty() {
            let report = self.fence_all(&keeper.node, record).await?;
            return self.conclude(keeper, |record| record.end_fencing(keeper, &report)).await;
        }
        let is_gone = |session: &Session| !view.alive.contains(session);
        let sessions = record.members.keys().filter_map(|node| record.session_of(node));
        let gone = sessions.filter(|session| session.node != keeper.node.node).find(is_gone);
        if let Some(gone) = gone {
            let mut next = record.clone();
            next.expel(&gone.node);
            self.coordinator.compare_and_set(view.version, next).await?;
        }
        Ok(keeping(keeper, record))
    }

    /// Fences at all disks at once. One that the record names, and of which this process has not
    /// heard yet, has not confirmed.
    async fn fence_all(
        &self,
        own: &Incarnation,
        record: &Record,
    ) -> Result<FenceReport, NodeError> {
        let victims = &record.fencing;
        let mut report = FenceReport { victims: victims.clone(), ..FenceReport::default() };
        let fence_on = |fence: Rc<dyn Fence>| async move {
            for victim in each(victims) {
                fence.fence(own, &victim).await?;
            }
            Ok::<(), FenceError>(())
        };
        let fences = self.fences();
        let outcomes = futures_util::future::join_all(fences.iter().cloned().map(fence_on)).await;
        for (fence, outcome) in fences.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {}
                Err(FenceError::Unconfirmed { .. }) => {
                    report.lost.insert(fence.disk().clone());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let confirmed = fences.len() - report.lost.len();
        let unknown = record.disks.keys().filter(|name| fences.iter().all(|of| of.disk() != *name));
        report.lost.extend(unknown.cloned());
        let wanted = self.wanted(confirmed + report.lost.len());
        if confirmed < wanted {
            let lost: Vec<_> = report.lost.iter().map(ToString::to_string).collect();
            let lost = lost.join(", ");
            return Err(NodeError::TooFewDisks { confirmed, wanted, lost });
        }
        Ok(report)
    }

    /// How many of so many disks must confirm a fence.
    fn wanted(&self, disks: usize) -> usize {
        let of_given = self.config.borrow().disks_min.min(disks);
        of_given + disks.saturating_sub(self.given)
    }

    /// Writes down what the keeper has done, on the record as it is by then.
    async fn conclude(
        &self,
        keeper: &Keeper,
        change: impl Fn(&mut Record) -> bool,
    ) -> Result<Standing, NodeError> {
        loop {
            let view = self.read().await?;
            let Some(mut record) = view.record.clone() else { return Ok(Standing::Out) };
            if !change(&mut record) {
                return Ok(Standing::Expelled(keeper.node.clone()));
            }
            let standing = keeping(keeper, &record);
            let swap = self.coordinator.compare_and_set(view.version, record).await?;
            if let Swap::Done(_) = swap {
                return Ok(standing);
            }
        }
    }
}

fn keeping(keeper: &Keeper, record: &Record) -> Standing {
    let keeper = Keeper { active: true, ..keeper.clone() };
    Standing::Keeper { keeper, lost_disks: record.lost_disks.keys().cloned().collect() }
}
