//! What a miss costs, as the owner of the cache knows it.

/// A block, as the owner names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its number; an address in blocks, for example.
    pub key: u64,
    /// What it is lost with: its disk. Only the class of its admission counts.
    pub class: u16,
}

/// What a miss of a block would read now, in blocks of disks that work.
///
/// RAID-5 of n disks, one lost: n − 1 for a block of the lost disk, 1 for any other. When a stripe
/// is rebuilt, its blocks cost 1 again. 0 is allowed: such blocks go first.
///
/// The cache asks when a block comes to the end of its list, and again only after the generation
/// has changed; while a rebuild advances it also asks for a few of the blocks after an expensive
/// end. Plain policies ask only to count a miss.
pub trait Penalty {
    /// Changes whenever a penalty may have changed.
    fn generation(&self) -> u64;

    /// Rises as a rebuild makes penalties smaller, and none greater.
    fn progress(&self) -> u64 {
        0
    }

    /// Blocks read by a miss of `block`.
    fn of(&self, block: Block) -> u32;
}
