//! What is asked of a disk, and the machine that answers.

use weft_rt::Nanos;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Data from the disk.
    Read,
    /// Data to the disk.
    Write,
    /// Zeros, made by the disk itself: nothing crosses the interface.
    Zero,
    /// What was completed becomes durable.
    Flush,
}

/// A command as it arrives at a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// What it does.
    pub verb: Verb,
    /// Byte offset, a multiple of the disk's sectors.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
    /// Force unit access: complete only when durable.
    pub fua: bool,
}

impl Command {
    /// A read of `len` bytes at `offset`.
    pub const fn read(offset: u64, len: u64) -> Self {
        Self { verb: Verb::Read, offset, len, fua: false }
    }

    /// A write of `len` bytes at `offset`.
    pub const fn write(offset: u64, len: u64) -> Self {
        Self { verb: Verb::Write, offset, len, fua: false }
    }

    /// A flush.
    pub const FLUSH: Self = Self { verb: Verb::Flush, offset: 0, len: 0, fua: false };

    /// Where it ends.
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A command that has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Done {
    /// When it was complete.
    pub at: Nanos,
    /// Which it was: the number it was submitted with.
    pub tag: u64,
}

/// What the machine inside has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Reads answered from the disk's cache or buffer, without the medium.
    pub cache_hits: u64,
    /// Accesses to the medium: of a hard disk, times that the heads were positioned; of an SSD,
    /// page reads and programs.
    pub accesses: u64,
    /// Nanoseconds in which the arm moved, settled, or heads were switched.
    pub seek_ns: Nanos,
    /// Nanoseconds that were waited for the platter to turn.
    pub rotation_ns: Nanos,
    /// Nanoseconds in which data passed the heads. Of an SSD: in which dies were busy, summed up.
    pub transfer_ns: Nanos,
}

/// The machine inside a disk.
///
/// Time never runs backwards: each call's `now` is at least that of the call before. The order of
/// calls at one instant matters, and is the caller's to keep.
pub trait Mechanism: std::fmt::Debug {
    /// A command arrives. `tag` comes back with its completion.
    fn submit(&mut self, now: Nanos, tag: u64, command: Command);

    /// When something will happen without anybody's doing; `None`: never. What happens then need
    /// not be a completion.
    fn next_event(&self) -> Option<Nanos>;

    /// Lets time pass until `now`, and appends what is complete by then, in the order of time.
    fn advance(&mut self, now: Nanos, done: &mut Vec<Done>);

    /// What it has done so far.
    fn work(&self) -> Work;
}
