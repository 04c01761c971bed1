//! The locks that programs have on files: at node 0 those of all nodes, elsewhere those of this
//! one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::{Sender, oneshot};
use weft_token::{FileLocks, LockRequest, NodeId};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct LockTable {
    locks: RefCell<FileLocks>,
    /// Requests that wait, at node 0. They are told whether they have the lock.
    waiting: RefCell<BTreeMap<LockRequest, Sender<bool>>>,
    /// The last number of a request of this node.
    last: Cell<u64>,
}

impl LockTable {
    /// Does something with the locks. Requests that are granted by that hear of it.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut FileLocks, &mut Vec<LockRequest>) -> T,
    ) -> T {
        let mut granted = Vec::new();
        let done = work(&mut self.locks.borrow_mut(), &mut granted);
        granted.into_iter().for_each(|request| self.tell(request, true));
        done
    }

    fn tell(&self, request: LockRequest, has: bool) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&request) {
            waiting.send(has);
        }
    }

    /// A number for a request of a node.
    pub(crate) fn new_request(&self, node: NodeId) -> LockRequest {
        self.last.set(self.last.get() + 1);
        LockRequest { node, number: self.last.get() }
    }

    /// A request is about to wait, and is told by this whether it has its lock. What waits with the
    /// same number is told nothing any more.
    pub(crate) fn wait(&self, request: LockRequest) -> impl Future<Output = bool> + use<> {
        let (sender, wait) = oneshot();
        self.locks.borrow_mut().cancel(request);
        self.waiting.borrow_mut().insert(request, sender);
        async move { wait.await.unwrap_or(false) }
    }

    /// A request has not waited.
    pub(crate) fn does_not_wait(&self, request: LockRequest) {
        self.waiting.borrow_mut().remove(&request);
    }

    /// A request waits no longer, if it has no lock yet.
    pub(crate) fn cancel(&self, request: LockRequest) {
        if self.locks.borrow_mut().cancel(request) {
            self.tell(request, false);
        }
    }
}
