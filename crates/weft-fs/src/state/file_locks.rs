//! Locks of files, `fcntl` and `flock`, across nodes.
//!
//! Node 0 keeps the locks of all nodes ([`weft_token::FileLocks`]). Another node asks it, and
//! remembers what it was granted for the next keeper: as long as a node that may have locks has not
//! said which, nothing is locked. A request that waits is a question whose answer comes late; when
//! its program is interrupted, another question cancels it, and the first one is answered either
//! way. Locks of a node go when it is dead and recovered.

use std::ops::Range;
use std::pin::pin;
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_token::{FileLock, LockAnswer, LockFamily, LockOwner, LockRequest, LockedFile, NodeId};
use weft_wire::{Answer, LockReply, LockWish, Question};

use crate::error::Result;
use crate::meta::desk::LockClient;
use crate::meta::remote::unexpected;
use crate::state::mounted::{Fs, FsState};

/// What became of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// The owner has it.
    Yes,
    /// Another lock is in the way.
    Busy,
    /// Its owner would wait for itself.
    Deadlock,
    /// It was interrupted while it waited.
    Interrupted,
}

/// Node 0, for all nodes.
impl FsState {
    /// Does what a node wants with locks. None: a lock is not that node's.
    pub(crate) async fn answer_lock(
        self: Rc<Self>,
        node: NodeId,
        wish: LockWish,
    ) -> Option<LockReply> {
        let is_its = match &wish {
            LockWish::Take { lock, .. } | LockWish::Find { lock, .. } => lock.owner.node == node,
            LockWish::Release { owner, .. } => owner.node == node,
            LockWish::Cancel { .. } => true,
        };
        if !is_its {
            return None;
        }
        if let LockWish::Take { .. } | LockWish::Find { .. } = wish {
            self.space_desk().known().await;
        }
        let table = self.locks();
        match wish {
            LockWish::Find { file, lock } => Some(table.with(|locks, _| {
                locks.conflict(file, &lock).cloned().map_or(LockReply::Done, LockReply::Found)
            })),
            LockWish::Release { file, owner, bytes } => {
                table.with(|locks, granted| locks.unlock(file, owner, &bytes, granted));
                Some(LockReply::Done)
            }
            LockWish::Cancel { waits } => {
                table.cancel(LockRequest { node, number: waits });
                Some(LockReply::Done)
            }
            LockWish::Take { file, lock, waits } => {
                let request = waits.map(|number| LockRequest { node, number });
                let granted = request.map(|request| table.wait(request));
                let answer = table.with(|locks, granted| locks.lock(file, lock, request, granted));
                if answer != LockAnswer::Waits
                    && let Some(request) = request
                {
                    table.does_not_wait(request);
                }
                Some(match (answer, granted) {
                    (LockAnswer::Granted, _) => LockReply::Done,
                    (LockAnswer::Deadlock, _) => LockReply::Deadlock,
                    (LockAnswer::Waits, Some(granted)) => {
                        drop(self);
                        if granted.await { LockReply::Done } else { LockReply::Cancelled }
                    }
                    _ => LockReply::Busy,
                })
            }
        }
    }

    /// A node is there on a new connection, and has these locks. `false` if another node has one of
    /// them.
    pub(crate) fn locks_restated(&self, node: NodeId, held: Vec<(LockedFile, FileLock)>) -> bool {
        let are_its = held.iter().all(|(_, lock)| lock.owner.node == node);
        are_its && self.locks().with(|locks, granted| locks.replace(node, held, granted))
    }

    /// A dead node has no locks any more.
    pub(crate) fn end_locks(&self, node: NodeId) {
        self.locks().with(|locks, granted| locks.end_node(node, granted));
    }
}

/// How the keeper learns of the locks of this node.
pub(crate) struct LocksOfNode(pub(crate) Weak<FsState>);

impl LockClient for LocksOfNode {
    fn state_locks(&self) -> Vec<(LockedFile, FileLock)> {
        let Some(fs) = self.0.upgrade() else { return Vec::new() };
        let node = fs.node_id();
        fs.locks()
            .with(|locks, _| locks.of_node(node).map(|(file, lock)| (file, lock.clone())).collect())
    }
}

/// Any node, for its programs.
impl FsState {
    /// This mount.
    fn node_id(&self) -> NodeId {
        let link = self.meta().link();
        link.map_or_else(|| NodeId { number: 0, epoch: self.log().epoch() }, |link| link.node())
    }

    async fn ask_for_lock(self: &Rc<Self>, wish: LockWish) -> Result<LockReply> {
        let node = self.node_id();
        if node.number == 0 {
            return self.clone().answer_lock(node, wish).await.ok_or_else(unexpected);
        }
        match self.meta().ask_keeper(Question::Lock(wish)).await? {
            Answer::Lock(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }
}

impl Fs {
    /// Who has a lock, by the number that this node's kernel gives it.
    #[must_use]
    pub fn lock_owner(&self, number: u64) -> LockOwner {
        LockOwner { node: self.0.node_id(), number }
    }

    /// A program of this node wants a lock. With `interrupted` it waits for it, until that ends.
    ///
    /// # Errors
    /// If the file system has stopped.
    pub async fn lock_file(
        &self,
        file: LockedFile,
        lock: FileLock,
        interrupted: Option<impl Future<Output = ()>>,
    ) -> Result<Locked> {
        self.0.check()?;
        let request = self.0.locks().new_request(lock.owner.node);
        let waits = interrupted.is_some().then_some(request.number);
        let wish = LockWish::Take { file, lock: lock.clone(), waits };
        let mut reply = pin!(self.0.ask_for_lock(wish));
        let reply = match interrupted {
            None => reply.await?,
            Some(interrupted) => match select(reply.as_mut(), pin!(interrupted)).await {
                Either::Left((reply, _)) => reply?,
                Either::Right(_) => {
                    self.0.ask_for_lock(LockWish::Cancel { waits: request.number }).await?;
                    reply.await?
                }
            },
        };
        if lock.owner.node.number != 0 {
            self.0.locks().with(|locks, granted| match &reply {
                LockReply::Done => {
                    locks.restate(file, lock);
                }
                // The lock that was to be changed is gone.
                _ if file.family == LockFamily::Flock => {
                    locks.unlock(file, lock.owner, &lock.bytes, granted);
                }
                _ => {}
            });
        }
        match reply {
            LockReply::Done => Ok(Locked::Yes),
            LockReply::Busy => Ok(Locked::Busy),
            LockReply::Deadlock => Ok(Locked::Deadlock),
            LockReply::Cancelled => Ok(Locked::Interrupted),
            LockReply::Found(_) => Err(unexpected()),
        }
    }

    /// An owner of this node gives up its locks of some bytes.
    ///
    /// # Errors
    /// If the file system has stopped.
    pub async fn unlock_file(
        &self,
        file: LockedFile,
        owner: LockOwner,
        bytes: Range<u64>,
    ) -> Result<()> {
        self.0.check()?;
        if !self.0.locks().with(|locks, _| locks.has(file, owner)) {
            return Ok(());
        }
        if owner.node.number != 0 {
            // A keeper that comes meanwhile hears of it no more.
            self.0.locks().with(|locks, granted| locks.unlock(file, owner, &bytes, granted));
        }
        self.0.ask_for_lock(LockWish::Release { file, owner, bytes }).await.map(drop)
    }

    /// A lock that is in the way of one that a program of this node would have.
    ///
    /// # Errors
    /// If the file system has stopped.
    pub async fn find_lock(&self, file: LockedFile, lock: FileLock) -> Result<Option<FileLock>> {
        self.0.check()?;
        match self.0.ask_for_lock(LockWish::Find { file, lock }).await? {
            LockReply::Found(lock) => Ok(Some(lock)),
            LockReply::Done => Ok(None),
            _ => Err(unexpected()),
        }
    }
}
