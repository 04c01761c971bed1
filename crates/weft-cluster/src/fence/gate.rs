//! The gate of one disk: which incarnations may pass, and which requests are in flight.
//!
//! *Order of a fence.* First the bound rises in memory, so that nothing of the victim is admitted
//! any more. Then it becomes durable. Then the victim's requests in flight end. Only then the
//! fence is confirmed. A crash before the bound is durable leaves a fence that was not confirmed.
//!
//! A request is admitted when it is handed to the disk, not when it is received: one that was
//! received and waits for memory is refused if a fence came first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_rt::sync::Notify;

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
}

/// The gate of one disk.
#[derive(Debug, Default)]
pub struct Gate {
    bounds: RefCell<Bounds>,
    /// Requests in flight.
    in_flight: RefCell<BTreeMap<Incarnation, u64>>,
    ended: Notify,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    gate: Rc<Gate>,
    who: Incarnation,
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
        self.check(who)?;
        *self.in_flight.borrow_mut().entry(who.clone()).or_default() += 1;
        Ok(InFlight { gate: self.clone(), who: who.clone() })
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
        let of_node = in_flight.iter().filter(|(who, _)| who.node == *node);
        of_node.filter(|(who, _)| !bounds.admit(who)).map(|(_, count)| count).sum()
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
            let Some(count) = in_flight.get_mut(&self.who) else { return };
            *count -= 1;
            let last = *count == 0;
            if last {
                in_flight.remove(&self.who);
            }
            last
        };
        if last {
            self.gate.ended.notify_all();
        }
    }
}
