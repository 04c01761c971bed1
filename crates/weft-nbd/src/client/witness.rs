//! Whether a server that comes back has the same disk: a record of its first blocks.
//!
//! Another disk at the same address may have the same size and flags. The first blocks of a disk
//! distinguish it from other disks, and from an earlier state of itself: the label and the numbered
//! superblocks of a member of an array. Of each block there that was read or written whole, a hash
//! is kept. The client reconnects only while every write is durable, so the same disk still holds
//! that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// Blocks before this byte are looked at.
const END: u64 = 512 << 10;

/// What is known of a disk's first blocks.
#[derive(Debug, Default)]
pub(super) struct Witness {
    /// The hash of each known block, by its offset.
    known: RefCell<BTreeMap<u64, u64>>,
    /// Changes so far to the first blocks, and those in progress.
    begun: Cell<u64>,
    running: Cell<u64>,
}

/// A change of some of them, in progress until this is dropped.
pub(super) struct Changing<'a> {
    witness: &'a Witness,
    number: u64,
    /// No other was in progress when it started.
    alone: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.witness.running.set(self.witness.running.get() - 1);
    }
}

fn hash(block: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(block);
    hasher.finish()
}

impl Witness {
    /// A range is being changed. `None` if it does not matter.
    pub(super) fn change(&self, offset: u64, len: u64) -> Option<Changing<'_>> {
        if offset >= END || len == 0 {
            return None;
        }
        let first = offset - offset % BLOCK as u64;
        let end = offset.saturating_add(len);
        self.known.borrow_mut().retain(|block, _| !(first..end).contains(block));
        let alone = self.running.get() == 0;
        self.begun.set(self.begun.get() + 1);
        self.running.set(self.running.get() + 1);
        Some(Changing { witness: self, number: self.begun.get(), alone })
    }

    /// A number for [`Witness::note_read`], before the read.
    pub(super) fn before_read(&self) -> Option<u64> {
        (self.running.get() == 0).then_some(self.begun.get())
    }

    /// The contents read, if nothing changed since.
    pub(super) fn note_read(&self, before: Option<u64>, offset: u64, bytes: &[u8]) {
        if before == Some(self.begun.get()) {
            self.note(offset, bytes);
        }
    }

    fn note(&self, offset: u64, bytes: &[u8]) {
        if offset >= END || !offset.is_multiple_of(BLOCK as u64) {
            return;
        }
        let blocks = (offset..END).step_by(BLOCK).zip(bytes.chunks_exact(BLOCK));
        self.known.borrow_mut().extend(blocks.map(|(at, block)| (at, hash(block))));
    }

    /// The offsets of known blocks.
    pub(super) fn blocks(&self) -> Vec<u64> {
        self.known.borrow().keys().copied().collect()
    }

    /// Whether a block is unchanged.
    pub(super) fn is_same(&self, offset: u64, block: &[u8]) -> bool {
        self.known.borrow().get(&offset).is_none_or(|known| *known == hash(block))
    }
}

impl Changing<'_> {
    /// The change is complete; `bytes` are there now, if no other change was in progress.
    pub(super) fn done(self, offset: u64, bytes: &[u8]) {
        let witness = self.witness;
        if self.alone && witness.begun.get() == self.number {
            witness.note(offset, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_is_known() {
        let witness = Witness::default();
        let block = |byte| vec![byte; BLOCK];
        let before = witness.before_read();
        witness.note_read(before, 0, &[block(1), block(2)].concat());
        assert_eq!(witness.blocks(), [0, 4096]);
        assert!(witness.is_same(4096, &block(2)) && !witness.is_same(0, &block(2)));
        // Partly overwritten, and not known any more.
        drop(witness.change(4096 + 512, 512));
        assert_eq!(witness.blocks(), [0]);
        let one = witness.change(8192, 4096).expect("it matters");
        let late = witness.before_read();
        let other = witness.change(8192, 4096).expect("it matters");
        one.done(8192, &block(3));
        other.done(8192, &block(4));
        witness.note_read(late, 8192, &block(3));
        assert_eq!(witness.blocks(), [0], "either of the two may be there");
        let one = witness.change(8192, 4096).expect("it matters");
        one.done(8192, &block(5));
        assert!(witness.is_same(8192, &block(5)) && !witness.is_same(8192, &block(4)));
        assert!(witness.change(END, 4096).is_none());
    }
}
