//! What node 0 does for nodes that have lost their own paths to disks.
//!
//! It tells a path from a disk that failed: it looks at the disk itself. If the disk works, it cuts
//! the node's own path off, and carries out the node's requests from then on
//! ([`crate::disks::relayed`] has the other side, and the order of all that).
//!
//! *The cut.* Only the program knows how a disk refuses a node ([`crate::Fs::cut_paths_by`]): by a
//! fence of the node's incarnation at that disk. If it does not confirm that, or there is no such
//! way, the node stops: a late request of it could come after a newer one. The disk is not lost
//! then, as one node that reaches no disk must not cost all of them.
//!
//! *Accounts.* A request counts from when it is taken until the disk has carried it out, however
//! its node or its connection ends meanwhile. Before a node is welcomed on another connection, and
//! before it is recovered, all of its requests have ended. This node does not end before that
//! either: when another keeper follows it in order, no fence ends them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_disk::IoFuture;
use weft_rt::sync::Notify;
use weft_token::NodeId;

/// Makes a disk refuse all that a node has sent it on its own path; the disk's name is that of this
/// node. Whether that is confirmed: nothing takes effect there any more.
pub(crate) type CutPath = Rc<dyn Fn(NodeId, String) -> IoFuture<'static, bool>>;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct PathDesk {
    pub(crate) cut: RefCell<Option<CutPath>>,
    /// Requests of nodes that have not ended.
    requests: RefCell<BTreeMap<NodeId, u64>>,
    ended: Notify,
    /// The lowest epochs of nodes that are served.
    lowest: RefCell<BTreeMap<u16, u64>>,
    /// Whether nothing is taken any more.
    is_closed: Cell<bool>,
    /// Nodes, and the disks that they reach through this one.
    pub(crate) relayed: RefCell<BTreeSet<(NodeId, u16)>>,
    /// Disks that are looked at, as requests of nodes wait there.
    pub(crate) looking: RefCell<BTreeSet<u16>>,
}

impl PathDesk {
    /// A request of a node starts.
    pub(crate) fn begin(&self, node: NodeId) {
        *self.requests.borrow_mut().entry(node).or_default() += 1;
    }

    /// One has ended.
    pub(crate) fn end(&self, node: NodeId) {
        let mut requests = self.requests.borrow_mut();
        if let Some(count) = requests.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                requests.remove(&node);
            }
        }
        drop(requests);
        self.ended.notify_all();
    }

    /// Waits until no request is left for which `counts`.
    async fn until_ended(&self, counts: impl Fn(&NodeId) -> bool) {
        loop {
            let ended = self.ended.wait();
            if !self.requests.borrow().keys().any(&counts) {
                return;
            }
            ended.await;
        }
    }

    /// Waits until all requests of this mount of a node, and of earlier ones, have ended.
    pub(crate) async fn left(&self, node: NodeId) {
        self.until_ended(|of| of.number == node.number && of.epoch <= node.epoch).await;
    }

    /// Takes nothing more of this mount of a node, and of earlier ones, and waits until all of
    /// their requests have ended.
    pub(crate) async fn refuse(&self, node: NodeId) {
        {
            let mut lowest = self.lowest.borrow_mut();
            let lowest = lowest.entry(node.number).or_default();
            *lowest = (*lowest).max(node.epoch + 1);
        }
        self.left(node).await;
    }

    /// Takes nothing any more, and waits until all requests have ended.
    pub(crate) async fn close(&self) {
        self.is_closed.set(true);
        self.until_ended(|_| true).await;
    }

    /// A node has ended, or is dead.
    pub(crate) fn forget(&self, node: NodeId) {
        self.relayed.borrow_mut().retain(|(of, _)| *of != node);
    }

    /// The nodes that reach a disk through this one.
    pub(crate) fn nodes_of(&self, disk: u16) -> Vec<u16> {
        let relayed = self.relayed.borrow();
        relayed.iter().filter(|(_, of)| *of == disk).map(|(node, _)| node.number).collect()
    }

    /// Whether requests of this mount of a node are taken.
    pub(crate) fn takes(&self, node: NodeId) -> bool {
        let lowest = self.lowest.borrow().get(&node.number).copied();
        !self.is_closed.get() && lowest.is_none_or(|lowest| node.epoch >= lowest)
    }
}
