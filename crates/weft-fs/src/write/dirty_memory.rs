//! Blocks that are written in the cache and not on the disks yet.
//!
//! When they go to the disks is decided by `write/writeback.rs`.

use weft_rt::Frozen;

use crate::state::mounted::FsState;
use crate::state::open_files::Node;

/// Which dirty blocks to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushScope {
    /// All of them.
    All,
    /// The last blocks of a long file may wait for blocks that complete their lines.
    Whole,
    /// Only new lines of each file, up to a block that has a place.
    New,
}

/// The most blocks that are written at a time.
pub(crate) const BLOCKS_MAX: usize = 4096;

impl FsState {
    /// Puts a block into the cache. One that waits there already keeps its place: a flush that has
    /// it queued writes the newer contents.
    pub(crate) fn dirty(&self, node: &Node, block: u64, data: Frozen) {
        let write = self.unwritten().next_write();
        let mut dirty = node.dirty.borrow_mut();
        match dirty.get_mut(&block) {
            Some((_, waiting)) => *waiting = data,
            None => {
                dirty.insert(block, (write, data));
                self.note_dirty(self.unwritten().blocks() + 1);
            }
        }
    }

    /// So many blocks wait to be written now.
    pub(crate) fn note_dirty(&self, blocks: u64) {
        self.unwritten().set_blocks(blocks);
        self.promised().note_waiting(blocks);
        self.pool().at_hand.wait(blocks);
    }

    /// Forgets blocks of a file, from `first` on, that are not written yet.
    pub(crate) fn drop_dirty(&self, node: &Node, first: u64) {
        let dropped = node.dirty.borrow_mut().split_off(&first);
        self.note_dirty(self.unwritten().blocks() - dropped.len() as u64);
    }

    /// A block is on the disks like this. If it was written again since, the next flush has it.
    pub(crate) fn drop_written(&self, node: &Node, block: u64, data: &Frozen) {
        let mut dirty = node.dirty.borrow_mut();
        match dirty.get_mut(&block) {
            Some((_, waiting)) if waiting.as_ptr() == data.as_ptr() => {
                dirty.remove(&block);
                self.note_dirty(self.unwritten().blocks() - 1);
            }
            Some((write, _)) => *write = self.unwritten().writes(),
            None => {}
        }
    }
}
