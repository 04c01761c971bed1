//! The gate of one disk: which incarnations may pass, and which requests are in flight.
//!
//! *Order of a fence.* First the bound rises in memory, so that nothing of the victim is admitted
//! any more. Then it becomes durable. Then the victim's requests in flight end. Only then the
//! fence is confirmed. A crash before the bound is durable leaves a fence that was not confirmed.
//!
//! *Sessions* (`session.rs`). A connection of a user that follows an earlier one ends that in the
//! same way: nothing of it is admitted any more, and what is in flight has ended when the new one
//! is taken.
//!
//! A request is admitted when it is handed to the disk, not when it is received: one that was
//! received and waits for memory is refused if a fence came first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_rt::sync::Notify;

use super::session::Session;
use crate::{ClusterName, Epoch, Incarnation, NodeName};

/// Nodes whose bounds a disk keeps, at most. A name is that of a machine: a cluster has a few.
pub const NODES_MAX: usize = 256;

/// The bounds of a disk: what it must never forget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bounds {
    /// The cluster that uses the disk; none yet: the first that comes.
    pub cluster: Option<ClusterName>,
    /// The lowest epoch of each node that is not refused. A node that is not listed was never
    /// fenced.
    pub lowest: BTreeMap<NodeName, Epoch>,
    /// A random number that tells the disk from others; none yet: its next server gives it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
}

/// The bounds of [`NODES_MAX`] nodes are kept already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the disk keeps the fences of {NODES_MAX} nodes, and has no room for another")]
pub struct BoundsFull;

impl Bounds {
    /// Whether a request of `who` may pass.
    pub fn admit(&self, who: &Incarnation) -> bool {
        self.lowest.get(&who.node).is_none_or(|lowest| who.epoch >= *lowest)
    }

    /// Refuses `victim` and earlier incarnations of its node from now on. Returns whether this
    /// changed anything.
    ///
    /// # Errors
    /// There is no room for another node.
    pub fn refuse(&mut self, victim: &Incarnation) -> Result<bool, BoundsFull> {
        if !self.admit(victim) {
            return Ok(false);
        }
        if self.lowest.len() >= NODES_MAX && !self.lowest.contains_key(&victim.node) {
            return Err(BoundsFull);
        }
        self.lowest.insert(victim.node.clone(), victim.epoch.next());
        Ok(true)
    }

    /// Takes over bounds that another server of the disk has written: of each node the higher one.
    /// A bound is never taken back, so there may be more than [`NODES_MAX`] then.
    pub fn join(&mut self, other: &Self) {
        if self.cluster.is_none() {
            self.cluster.clone_from(&other.cluster);
        }
        // If two servers that did not know of each other gave it one: always the same of them.
        self.disk = [self.disk, other.disk].into_iter().flatten().min();
        for (node, bound) in &other.lowest {
            let lowest = self.lowest.entry(node.clone()).or_default();
            *lowest = (*lowest).max(*bound);
        }
    }
}

/// Why a request or a connection does not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It was fenced.
    #[error(
        "fenced: {who} may not use this disk any more; the lowest epoch of its node is {lowest}"
    )]
    Fenced {
        /// Who asked.
        who: Incarnation,
        /// The bound.
        lowest: Epoch,
    },
    /// Another session of the same incarnation has the disk.
    #[error("{0} uses this disk in another session")]
    Superseded(Incarnation),
    /// There are too many users with sessions.
    #[error("the disk has {SESSIONS_MAX} users, and takes no more")]
    TooManyUsers,
}

/// Users with sessions that are remembered, at most.
const SESSIONS_MAX: usize = 4 * NODES_MAX;

/// The gate of one disk.
#[derive(Debug, Default)]
pub struct Gate {
    bounds: RefCell<Bounds>,
    /// Requests in flight, by users and sessions.
    in_flight: RefCell<BTreeMap<User, u64>>,
    /// The last session of each user that has any.
    sessions: RefCell<BTreeMap<Incarnation, u64>>,
    ended: Notify,
}

/// An incarnation, and the number of its session; 0: its connections have no order.
type User = (Incarnation, u64);

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    gate: Rc<Gate>,
    user: User,
}

impl Gate {
    /// A gate with the bounds that the disk has kept.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds: RefCell::new(bounds), ..Self::default() }
    }

    /// The bounds now.
    pub fn bounds(&self) -> Bounds {
        self.bounds.borrow().clone()
    }

    /// Takes over bounds that the disk has kept.
    pub fn join(&self, other: &Bounds) {
        self.bounds.borrow_mut().join(other);
    }

    /// The cluster that uses the disk is `cluster`, from now on.
    pub fn set_cluster(&self, cluster: &ClusterName) {
        self.bounds.borrow_mut().cluster = Some(cluster.clone());
    }

    /// Whether `who` may use the disk.
    ///
    /// # Errors
    /// It was fenced.
    pub fn check(&self, who: &Incarnation) -> Result<(), Refusal> {
        let bounds = self.bounds.borrow();
        if bounds.admit(who) {
            return Ok(());
        }
        let lowest = bounds.lowest.get(&who.node).copied().unwrap_or_default();
        Err(Refusal::Fenced { who: who.clone(), lowest })
    }

    /// Admits a request, which is in flight until the returned guard is dropped. To be called when
    /// the request is handed to the disk.
    ///
    /// # Errors
    /// Its node was fenced.
    pub fn admit(self: &Rc<Self>, who: &Incarnation) -> Result<InFlight, Refusal> {
        self.admit_in(who, 0)
    }

    /// As [`Gate::admit`], in a session; 0: in none.
    ///
    /// # Errors
    /// Its node was fenced, or a later session has the disk.
    pub fn admit_in(self: &Rc<Self>, who: &Incarnation, session: u64) -> Result<InFlight, Refusal> {
        self.check_in(who, session)?;
        let user = (who.clone(), session);
        *self.in_flight.borrow_mut().entry(user.clone()).or_default() += 1;
        Ok(InFlight { gate: self.clone(), user })
    }

    /// Whether `who` may use the disk in a session; 0: in none.
    ///
    /// # Errors
    /// It was fenced, or a later session has the disk.
    pub fn check_in(&self, who: &Incarnation, session: u64) -> Result<(), Refusal> {
        self.check(who)?;
        match self.sessions.borrow().get(who) {
            Some(last) if session != 0 && session != *last => Err(Refusal::Superseded(who.clone())),
            _ => Ok(()),
        }
    }

    /// Begins a session: nothing of the earlier ones is admitted any more. What is in flight of
    /// them may still be, see [`Gate::settled`].
    ///
    /// # Errors
    /// `who` was fenced, or has another session than the one that this follows.
    pub fn begin_session(&self, who: &Incarnation, session: Session) -> Result<(), Refusal> {
        self.check(who)?;
        let mut sessions = self.sessions.borrow_mut();
        let last = sessions.get(who).copied();
        let is_next =
            |last: u64| session.number > last && session.after.is_none_or(|after| after >= last);
        if !last.is_none_or(is_next) {
            return Err(Refusal::Superseded(who.clone()));
        }
        if last.is_none() && sessions.len() >= SESSIONS_MAX {
            sessions.retain(|who, _| self.bounds.borrow().admit(who));
            if sessions.len() >= SESSIONS_MAX {
                return Err(Refusal::TooManyUsers);
            }
        }
        sessions.insert(who.clone(), session.number);
        Ok(())
    }

    /// Waits until nothing of the earlier sessions of `who` is in flight.
    pub async fn settled(&self, who: &Incarnation, session: u64) {
        let is_earlier = |user: &User| user.0 == *who && (1..session).contains(&user.1);
        loop {
            let ended = self.ended.wait();
            if !self.in_flight.borrow().keys().any(is_earlier) {
                return;
            }
            ended.await;
        }
    }

    /// Admits nothing of `victim` any more. Returns whether the bounds have changed: they must be
    /// made durable before the fence is confirmed, also if an earlier fence has changed them.
    ///
    /// # Errors
    /// There is no room for another node.
    pub fn refuse(&self, victim: &Incarnation) -> Result<bool, BoundsFull> {
        self.bounds.borrow_mut().refuse(victim)
    }

    /// The requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.borrow().values().sum()
    }

    /// The requests in flight of nodes that have been fenced.
    pub fn refused_in_flight(&self, node: &NodeName) -> u64 {
        let (bounds, in_flight) = (self.bounds.borrow(), self.in_flight.borrow());
        let of_node = in_flight.iter().filter(|((who, _), _)| who.node == *node);
        of_node.filter(|((who, _), _)| !bounds.admit(who)).map(|(_, count)| count).sum()
    }

    /// Waits until no request of a fenced incarnation of `node` is in flight.
    pub async fn drained(&self, node: &NodeName) {
        loop {
            let ended = self.ended.wait();
            if self.refused_in_flight(node) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl InFlight {
    /// It is not known when the request ends: it stays in flight for as long as the gate exists.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let last = {
            let mut in_flight = self.gate.in_flight.borrow_mut();
            let Some(count) = in_flight.get_mut(&self.user) else { return };
            *count -= 1;
            let last = *count == 0;
            if last {
                in_flight.remove(&self.user);
            }
            last
        };
        if last {
            self.gate.ended.notify_all();
        }
    }
}
