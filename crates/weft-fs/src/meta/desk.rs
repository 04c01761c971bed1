//! What the keeper does for nodes besides the store: it gives out tokens, space and more, of which
//! node 0, in the same process, keeps account.
//!
//! The server calls [`Desk`] with what nodes tell it, each in its order. Nothing there waits for a
//! node, but for [`Desk::room`], [`Desk::lock`] and [`Desk::work`], which the server does not wait
//! for. At a node [`super::remote`] calls [`DeskClient`], [`SpaceClient`] and [`LockClient`].

use std::rc::Rc;

use weft_disk::IoFuture;
use weft_token::{FileLock, Holding, LockedFile, NodeId, ToAuthority, ToNode};
use weft_wire::{
    Answer, DiskRequest, EarlyBlock, EarlyCommit, EarlyLive, GiveBack, LockWish, Restated,
    RoomWish, Run, WorkDone,
};

/// Takes what a node is to be told, on its present connection. Without one it is lost.
pub(crate) type Deliver = Rc<dyn Fn(ToNode)>;

/// Asks a node on its present connection to give back blocks that it does not need, in the round
/// with this number. Whether the connection is there.
pub(crate) type AskBack = Rc<dyn Fn(u64) -> bool>;

/// The part of node 0 that other nodes deal with.
pub(crate) trait Desk {
    /// A node is there on a new connection, and this is all that it has. It takes the place of what
    /// was known of it.
    ///
    /// # Errors
    /// Why that cannot be: the node is refused. None: this desk is closed, and another one may
    /// open.
    fn restated(
        &self,
        node: NodeId,
        restated: Restated,
        deliver: Deliver,
    ) -> std::result::Result<(), Option<String>>;

    /// A node asks for a token or returns one.
    fn take(&self, node: NodeId, message: ToAuthority);

    /// How a node that has said what it has is asked for blocks.
    fn reached(&self, node: NodeId, ask_back: AskBack);

    /// A node wants blocks. This may wait for others, some seconds. None: the node is not known.
    fn room(&self, node: NodeId, wish: RoomWish) -> IoFuture<'static, Option<Answer>>;

    /// A node mounts, and wants a place for its log.
    fn log(&self, node: NodeId) -> IoFuture<'static, Answer>;

    /// A node has changed the rows of disks: it has lost one.
    fn disks_changed(&self);

    /// A node gives blocks back. None: it is not known, or cannot have them.
    fn take_back(&self, node: NodeId, given: GiveBack) -> Option<Answer>;

    /// A node is unmounted: it has nothing any more.
    fn left(&self, node: NodeId);

    /// A node wants something of the locks of a file. This waits as long as the lock is not to be
    /// had, if the node wants that. None: it is not the node's lock.
    fn lock(&self, node: NodeId, wish: LockWish) -> IoFuture<'static, Option<Answer>>;

    /// A node that speaks a version of messages can carry out a part of a job, and says what came
    /// of its last one. This waits until there is one. None: the node has asked again, or is gone.
    fn work(
        &self,
        _node: (NodeId, u16),
        _done: Option<WorkDone>,
    ) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    /// A node cannot reach a disk, which it may have used. None: the node is not served any more.
    fn no_path(
        &self,
        _node: NodeId,
        _disk: u16,
        _was_used: bool,
    ) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    /// A node uses a disk through this one. The request counts from now on, whether the future is
    /// polled or not. None: the node is not served any more.
    fn use_disk(&self, _node: NodeId, _request: DiskRequest) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    /// Waits until all requests to disks that a node, or an earlier mount of it, has made so far
    /// have ended.
    fn disks_left(&self, _node: NodeId) -> IoFuture<'static, ()> {
        Box::pin(async {})
    }

    /// Which early commits of a node count; the rest are gone.
    fn early_live(&self, _node: NodeId, _live: EarlyLive) {}

    /// Takes an early commit. `false`: it is not kept.
    fn early(&self, _node: NodeId, _commit: EarlyCommit) -> bool {
        false
    }

    /// Early commits of a node up to these are over.
    fn early_done(&self, _node: NodeId, _blocks: &[EarlyBlock]) {}

    /// Requests of a node to a disk wait.
    fn disk_waits(&self, _disk: u16) {}

    /// The metadata is nearly full: it grows, if it can.
    fn grow_metadata(&self) -> IoFuture<'static, ()> {
        Box::pin(async {})
    }

    /// Waits until all nodes that a former keeper knew have said what they have, or are recovered.
    fn known(&self) -> IoFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// The locks that programs of a node have on files.
pub(crate) trait LockClient {
    /// Which they are, for a keeper that may know nothing of that.
    fn state_locks(&self) -> Vec<(LockedFile, FileLock)>;
}

/// What a node has committed early.
pub(crate) trait EarlyClient {
    /// Which of it counts, and what it is, for a keeper that may have it or not.
    fn live(&self) -> (EarlyLive, Vec<EarlyCommit>);
}

/// The other side: a node's tokens.
pub(crate) trait DeskClient {
    /// What the node holds, and what it waits for, for a keeper that knows nothing of that.
    fn restate(&self) -> (Vec<Holding>, Vec<ToAuthority>);

    /// Takes a message of the authority.
    fn take(&self, message: ToNode);
}

/// The blocks that a node has for what it writes.
pub(crate) trait SpaceClient {
    /// Which they are, for a keeper that may know nothing of that, and which give back is the next
    /// one whose blocks are among them.
    fn state_space(&self) -> (Vec<Run>, u64);

    /// Another node lacks room: gives back what is not needed, in the background.
    fn return_room(&self, round: u64);
}
