//! Tokens that operations need: what a node may have in its memory while other nodes use the same
//! files.
//!
//! *Theory* (File RAID, §3.3; [`weft_token`]). What a node has changed and not written, and what it
//! keeps of what it has read, is right only while no other node changes it. So an operation first
//! takes tokens for all that it looks at or changes. The node keeps them when the operation has
//! ended, together with what it has in memory. Another node that wants them has them revoked:
//! changes become durable, cached contents are forgotten, and the other node reads what this one
//! wrote.
//!
//! | operation | everything | names | attributes | data |
//! |---|---|---|---|---|
//! | look a name up | shared | the name, shared | folder and file, shared | |
//! | read a folder | shared | all of it, shared | folder, shared | |
//! | make, link | shared | the name | folder and file | |
//! | make without a name | shared | | folder, shared | |
//! | unlink, rename | shared | the names | folders and files that have them | all, if the file goes |
//! | attributes read | shared | | file, shared | |
//! | attributes changed | shared | | file | all, for a new size or redundancy |
//! | read, seek | shared | | file, shared | blocks, shared |
//! | write, allocate, punch | shared | | file | blocks, or all |
//! | a job plans a batch | shared | | files of the batch, shared | all of these, shared |
//! | – puts copies in their places | – | | one file at a time | all of it |
//! | scrub, check data | shared | | file, shared | all of it, shared |
//! | check metadata, when it starts; disks that join, leave or fail | alone | | | |
//!
//! A job holds no token of files while it copies or reads their blocks: the one of everything,
//! which it took first, is enough ([`crate::jobs::migration`]).
//!
//! Beside these there is a token for each open file: a node has it shared as long as a program
//! there has the file open, if there may be other nodes, and asks for it before all else; who frees
//! the contents of a file without a name has it exclusively. While the kernel keeps pages of a
//! file, a node has all of the file, exclusively if a program there has it open for writing
//! ([`crate::state::kernel_cache`]).
//!
//! What is not marked *shared* is exclusive: one node has it. `fsync` and flushes take none: they
//! make durable what the node has tokens for.
//!
//! *One writer of a file.* A flush changes rows that belong to more than the blocks that it writes:
//! records cover many lines and are rewritten as a whole, the inode has the number of blocks, and
//! the maps of the disks count the file's records. So a node that writes has the attributes, too,
//! and no other node has blocks of the file that wait to be written.
//!
//! *Lines.* Parity is updated by one node at a time, and a lost block is computed from the rest of
//! its line. So ranges of blocks are widened by the widest line there may be on either side
//! ([`LINE_BLOCKS_MAX`]). That contains every line which touches the range, however the file is
//! laid out and will be, without a look at it: looking would need a token.
//!
//! *Access times* that a read notes are shared state of the metadata, not of a node: none waits for
//! them, and the last one counts.
//!
//! *Order.* An operation takes its tokens in the order everything, names, attributes, data, and
//! within a kind by the number of the file; one for each file or folder, which covers all that it
//! needs there. It has all of them before it takes a lock of this node. So nodes cannot wait for
//! each other in a circle: an operation that waits for a token holds only smaller ones, and one
//! that holds locks waits for no token. Revoking takes locks, and never tokens. An operation within
//! another takes no token that the outer one has: a revocation between the two would wait for the
//! outer one, and the inner one for it.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_token::{Ask, Kind, Mode, Space};

use crate::format::checksum::crc32c;
use crate::format::inode::Ino;

/// The most data blocks of a line: it has a disk for each.
const LINE_BLOCKS_MAX: u64 = 64;

/// A token that an operation needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) space: Space,
    pub(crate) range: Range<u64>,
    pub(crate) mode: Mode,
}

/// All of a space.
pub(crate) fn all_of(kind: Kind) -> Range<u64> {
    match kind {
        Kind::Everything | Kind::Attributes | Kind::Open => 0..1,
        Kind::Names | Kind::Data => 0..u64::MAX,
    }
}

impl Need {
    fn new(kind: Kind, ino: Ino, range: Range<u64>, mode: Mode) -> Self {
        Self { space: Space { kind, ino }, range, mode }
    }

    /// The whole file system.
    pub(crate) fn everything(mode: Mode) -> Self {
        Self::new(Kind::Everything, 0, 0..1, mode)
    }

    /// A name in a folder.
    pub(crate) fn name(folder: Ino, name: &[u8], mode: Mode) -> Self {
        let hash = u64::from(crc32c(name));
        Self::new(Kind::Names, folder, hash..hash + 1, mode)
    }

    /// All names of a folder.
    pub(crate) fn names(folder: Ino, mode: Mode) -> Self {
        Self::new(Kind::Names, folder, all_of(Kind::Names), mode)
    }

    /// The attributes of a file.
    pub(crate) fn attributes(ino: Ino, mode: Mode) -> Self {
        Self::new(Kind::Attributes, ino, 0..1, mode)
    }

    /// Blocks of a file, with the lines that they are in.
    pub(crate) fn data(ino: Ino, blocks: Range<u64>, mode: Mode) -> Self {
        let from = blocks.start.saturating_sub(LINE_BLOCKS_MAX - 1);
        let to = blocks.end.max(blocks.start + 1).saturating_add(LINE_BLOCKS_MAX - 1);
        Self::new(Kind::Data, ino, from..to, mode)
    }

    /// That a file is open, or that it is not.
    pub(crate) fn open(ino: Ino, mode: Mode) -> Self {
        Self::new(Kind::Open, ino, 0..1, mode)
    }

    /// All blocks of a file.
    pub(crate) fn all_data(ino: Ino, mode: Mode) -> Self {
        Self::new(Kind::Data, ino, all_of(Kind::Data), mode)
    }

    /// What is asked for: all of the space that is not contended.
    pub(crate) fn ask(&self) -> Ask {
        let Self { space, range, mode } = self.clone();
        Ask { space, needed: range, wanted: all_of(space.kind), mode }
    }
}

/// Tokens in the order in which they are taken, one for each space.
pub(crate) fn in_order(needs: Vec<Need>) -> Vec<Need> {
    if needs.is_sorted_by(|a, b| a.space < b.space) {
        return needs;
    }
    let mut merged: BTreeMap<Space, Need> = BTreeMap::new();
    for need in needs {
        let of = merged.entry(need.space).or_insert_with(|| need.clone());
        of.range = of.range.start.min(need.range.start)..of.range.end.max(need.range.end);
        of.mode = of.mode.max(need.mode);
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_takes_one_token_of_each_space_in_one_order() {
        use Mode::{Exclusive, Shared};
        let needs = in_order(vec![
            Need::data(7, 100..101, Exclusive),
            Need::attributes(9, Shared),
            Need::attributes(7, Shared),
            Need::name(3, b"b", Exclusive),
            Need::attributes(7, Exclusive),
            Need::name(3, b"a", Shared),
            Need::everything(Shared),
        ]);
        let (a, b) = (u64::from(crc32c(b"a")), u64::from(crc32c(b"b")));
        let kinds: Vec<_> = needs.iter().map(|need| (need.space.kind, need.space.ino)).collect();
        let order = [
            (Kind::Everything, 0),
            (Kind::Names, 3),
            (Kind::Attributes, 7),
            (Kind::Attributes, 9),
            (Kind::Data, 7),
        ];
        assert_eq!(kinds, order);
        assert_eq!((&needs[1].range, needs[1].mode), (&(a.min(b)..a.max(b) + 1), Exclusive));
        assert_eq!((needs[2].mode, needs[3].mode), (Exclusive, Shared));
        // A line with block 100 starts at 37 or later, and ends at 163 or earlier.
        assert_eq!(needs[4].range, 37..164);
    }
}
