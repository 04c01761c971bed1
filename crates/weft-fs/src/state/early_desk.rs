//! Node 0's memory of what other nodes have committed early ([`crate::write::early_commit`]).
//!
//! Of each block, and of the attributes of each file, the newest contents count. They stay until
//! the node says that the disks have them, also when its connection has ended. If the node dies,
//! they are written after its log was recovered ([`crate::mount::early_recovery`]).
//!
//! On each connection the node says which of its early commits count. The rest are gone: it may
//! have written newer contents since, when there was no connection. Those that count and are not
//! here were in the memory of a keeper that is gone. The node sends them next. If it dies before
//! that, they are *missing*: what its programs had synced is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::Frozen;
use weft_rt::sync::Notify;
use weft_token::NodeId;
use weft_wire::{EARLY_ATTRIBUTES, EarlyAttributes, EarlyBlock, EarlyCommit, EarlyLive};

use crate::format::inode::Ino;

/// The most blocks of a node.
const BLOCKS_MAX: usize = 8192;

/// A block of a file in a log record: with it the log has newer contents than early commits before.
pub(crate) type LoggedBlock = (Ino, u64, u64);

enum Contents {
    Block(Frozen),
    Attributes(EarlyAttributes),
}

struct Entry {
    number: u64,
    /// The node's last log record before it.
    after: u64,
    contents: Contents,
}

#[derive(Default)]
struct OfNode {
    entries: BTreeMap<(Ino, u64), Entry>,
    missing: BTreeMap<(Ino, u64), u64>,
}

/// What was committed early of a file.
#[derive(Default)]
pub(crate) struct EarlyFile {
    pub(crate) attributes: Option<EarlyAttributes>,
    pub(crate) blocks: Vec<(u64, Frozen)>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct EarlyDesk {
    nodes: RefCell<BTreeMap<NodeId, OfNode>>,
    is_closed: Cell<bool>,
    /// Told when something goes.
    gone: Notify,
}

impl EarlyDesk {
    /// A node is there on a new connection: these count.
    pub(crate) fn live(&self, node: NodeId, live: &EarlyLive) {
        let mut nodes = self.nodes.borrow_mut();
        let of = nodes.entry(node).or_default();
        let count = |of: &EarlyBlock| ((of.ino, of.block), of.number);
        let mut counting: BTreeMap<_, _> = live.committed.iter().map(count).collect();
        of.missing = counting.clone();
        counting.extend(live.unanswered.iter().map(count));
        of.entries.retain(|at, entry| counting.get(at).is_some_and(|last| entry.number <= *last));
        of.missing.retain(|at, _| !of.entries.contains_key(at));
        drop(nodes);
        self.gone.notify_all();
    }

    /// Takes an early commit. `false`: it is not here.
    pub(crate) fn take(&self, node: NodeId, commit: EarlyCommit) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        let Some(of) = nodes.get_mut(&node).filter(|_| !self.is_closed.get()) else { return false };
        let EarlyCommit { number, after, ino, attributes, blocks } = commit;
        if of.entries.len() + blocks.len() > BLOCKS_MAX {
            return false;
        }
        let attributes = attributes.map(|of| (EARLY_ATTRIBUTES, Contents::Attributes(of)));
        let block =
            |(block, bytes): (u64, Box<[u8]>)| (block, Contents::Block(Frozen::copy_from(&bytes)));
        for (block, contents) in blocks.into_iter().map(block).chain(attributes) {
            of.missing.remove(&(ino, block));
            of.entries.insert((ino, block), Entry { number, after, contents });
        }
        true
    }

    /// The disks of a node have these.
    pub(crate) fn done(&self, node: NodeId, blocks: &[EarlyBlock]) {
        let mut nodes = self.nodes.borrow_mut();
        let Some(of) = nodes.get_mut(&node) else { return };
        for block in blocks {
            let at = (block.ino, block.block);
            if of.entries.get(&at).is_some_and(|entry| entry.number <= block.number) {
                of.entries.remove(&at);
            }
            if of.missing.get(&at).is_some_and(|number| *number <= block.number) {
                of.missing.remove(&at);
            }
        }
        drop(nodes);
        self.gone.notify_all();
    }

    /// The log of a dead node has these blocks, and they are recovered: what was committed early
    /// before is older.
    pub(crate) fn supersede(&self, node: NodeId, logged: &[LoggedBlock]) {
        let mut nodes = self.nodes.borrow_mut();
        let Some(of) = nodes.get_mut(&node) else { return };
        for (ino, block, id) in logged {
            if of.entries.get(&(*ino, *block)).is_some_and(|entry| entry.after < *id) {
                of.entries.remove(&(*ino, *block));
            }
            of.missing.remove(&(*ino, *block));
        }
    }

    /// What is here of a node, by file.
    pub(crate) fn files(&self, node: NodeId) -> BTreeMap<Ino, EarlyFile> {
        let nodes = self.nodes.borrow();
        let mut files: BTreeMap<Ino, EarlyFile> = BTreeMap::new();
        for ((ino, block), entry) in nodes.get(&node).iter().flat_map(|of| &of.entries) {
            let file = files.entry(*ino).or_default();
            match &entry.contents {
                Contents::Block(data) => file.blocks.push((*block, data.clone())),
                Contents::Attributes(attributes) => file.attributes = Some(*attributes),
            }
        }
        files
    }

    /// Whether all early commits of a node that count are here, as far as it has said.
    pub(crate) fn is_complete(&self, node: NodeId) -> bool {
        self.nodes.borrow().get(&node).is_some_and(|of| of.missing.is_empty())
    }

    /// Whether a node has said that no early commits of it count.
    pub(crate) fn has_nothing(&self, node: NodeId) -> bool {
        self.is_complete(node) && self.files(node).is_empty()
    }

    /// Blocks of a node that are here.
    pub(crate) fn blocks(&self, number: u16) -> usize {
        let nodes = self.nodes.borrow();
        let of_node = nodes.iter().filter(|(node, _)| node.number == number);
        of_node.map(|(_, of)| of.entries.len()).sum()
    }

    /// A mount of a node has ended, or was recovered.
    pub(crate) fn forget(&self, node: NodeId) {
        let is_over = |of: &NodeId| of.number == node.number && of.epoch <= node.epoch;
        self.nodes.borrow_mut().retain(|of, _| !is_over(of));
        self.gone.notify_all();
    }

    /// Takes nothing more, and waits until nothing is here: nodes write what they have, and those
    /// that are dead are recovered.
    pub(crate) async fn close(&self) {
        self.is_closed.set(true);
        loop {
            let gone = self.gone.wait();
            if self.nodes.borrow().values().all(|of| of.entries.is_empty()) {
                return;
            }
            gone.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::EARLY_BLOCK_BYTES;

    use super::*;

    const NODE: NodeId = NodeId { number: 1, epoch: 7 };

    fn commit(number: u64, after: u64) -> EarlyCommit {
        let contents = vec![7; EARLY_BLOCK_BYTES].into();
        EarlyCommit { number, after, ino: 3, attributes: None, blocks: vec![(5, contents)] }
    }

    fn desk() -> EarlyDesk {
        let desk = EarlyDesk::default();
        assert!(!desk.take(NODE, commit(1, 0)), "the node has not said what counts");
        desk.live(NODE, &EarlyLive::default());
        assert!(desk.take(NODE, commit(2, 9)));
        desk
    }

    #[test]
    fn the_log_counts_if_it_is_newer() {
        let desk = desk();
        desk.supersede(NODE, &[(3, 4, 10), (3, 5, 9)]);
        assert_eq!(desk.blocks(1), 1);
        desk.supersede(NODE, &[(3, 5, 10)]);
        assert!(desk.has_nothing(NODE));
    }

    #[test]
    fn a_later_one_stays_when_an_earlier_one_is_over() {
        let desk = desk();
        desk.done(NODE, &[EarlyBlock { ino: 3, block: 5, number: 1 }]);
        assert_eq!(desk.blocks(1), 1);
        desk.done(NODE, &[EarlyBlock { ino: 3, block: 5, number: 2 }]);
        assert!(desk.has_nothing(NODE));
    }

    #[test]
    fn what_counts_and_is_not_here_is_missing_until_it_comes() {
        let desk = desk();
        let block = |number| EarlyBlock { ino: 3, block: 5, number };
        let other = EarlyBlock { ino: 3, block: 6, number: 1 };
        let live = EarlyLive { committed: vec![other], unanswered: vec![block(3)] };
        desk.live(NODE, &live);
        assert!(!desk.is_complete(NODE) && desk.blocks(1) == 1);
        desk.done(NODE, &[other]);
        assert!(desk.is_complete(NODE));
        // None of them counts.
        desk.live(NODE, &EarlyLive::default());
        assert!(desk.has_nothing(NODE));
        desk.forget(NODE);
        assert!(!desk.is_complete(NODE), "it has said nothing");
    }
}
