//! A file in the hands of an operation: its tokens, its node, its lock.
//!
//! All operations on contents begin and end in the same way: they take the tokens, then the lock;
//! at the end, also by an error, the lock is released, then the node is forgotten if nothing else
//! needs it, and then the tokens are released. [`FileGuard`] is that ritual. What writes several
//! files, or takes the lock several times, holds a [`NodeGuard`] and the tokens.

use std::ops::Deref;
use std::rc::Rc;

use weft_rt::sync::Permit;

use crate::format::inode::Ino;
use crate::state::mounted::FsState;
use crate::state::open_files::{Node, NodeGuard};
use crate::tokens::local_node::HeldTokens;

/// A locked file. Its fields are dropped in this order.
pub(crate) struct FileGuard<'a> {
    _lock: Permit,
    node: NodeGuard<'a>,
    /// Unless the caller has them.
    tokens: Option<HeldTokens>,
}

impl Deref for FileGuard<'_> {
    type Target = Rc<Node>;

    fn deref(&self) -> &Rc<Node> {
        &self.node
    }
}

impl FileGuard<'_> {
    /// Whether the tokens are being returned.
    pub(crate) fn is_late(&self) -> bool {
        self.tokens.as_ref().is_some_and(HeldTokens::is_late)
    }
}

impl FsState {
    /// The node of a file, for an operation.
    pub(crate) fn node(&self, ino: Ino) -> NodeGuard<'_> {
        self.open_files().node(ino)
    }

    /// For reading bytes of a file.
    pub(crate) async fn lock_to_read(&self, ino: Ino, offset: u64, len: u64) -> FileGuard<'_> {
        let tokens = Some(self.hold_to_read(ino, offset, len).await);
        let node = self.node(ino);
        FileGuard { _lock: node.share().await, node, tokens }
    }

    /// For looking for data or holes from a byte on.
    pub(crate) async fn lock_to_seek(&self, ino: Ino, offset: u64) -> FileGuard<'_> {
        let tokens = Some(self.hold_to_seek(ino, offset).await);
        let node = self.node(ino);
        FileGuard { _lock: node.share().await, node, tokens }
    }

    /// For changing blocks of a file, and its size.
    pub(crate) async fn lock_to_change(&self, ino: Ino, offset: u64, len: u64) -> FileGuard<'_> {
        let tokens = self.hold_to_change(ino, offset, len).await;
        self.lock_with(ino, Some(tokens)).await
    }

    /// For blocks of a file that are compared with their checksums, and may be repaired.
    pub(crate) async fn lock_to_check(&self, ino: Ino) -> FileGuard<'_> {
        let tokens = self.hold_to_check(ino).await;
        self.lock_with(ino, Some(tokens)).await
    }

    /// For all contents of a file, which goes. The caller may have its attributes.
    pub(crate) async fn lock_contents(&self, ino: Ino) -> FileGuard<'_> {
        let tokens = self.hold_contents(ino).await;
        self.lock_with(ino, Some(tokens)).await
    }

    /// For attributes and all contents of a file.
    pub(crate) async fn lock_whole(&self, ino: Ino) -> FileGuard<'_> {
        let tokens = self.hold_files([ino]).await;
        self.lock_with(ino, Some(tokens)).await
    }

    /// For a file of which the caller has the tokens.
    pub(crate) async fn lock(&self, ino: Ino) -> FileGuard<'_> {
        self.lock_with(ino, None).await
    }

    async fn lock_with(&self, ino: Ino, tokens: Option<HeldTokens>) -> FileGuard<'_> {
        let node = self.node(ino);
        FileGuard { _lock: node.alone().await, node, tokens }
    }
}
