//! The commands of a disk, and the trait of the models that serve them.

use weft_rt::Nanos;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Transfers data from the disk.
    Read,
    /// Transfers data to the disk.
    Write,
    /// Zeros a range inside the disk; no data crosses the interface.
    Zero,
    /// Makes completed writes durable.
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

    /// The offset of its end.
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A completed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Done {
    /// When it completed.
    pub at: Nanos,
    /// The number it was submitted with.
    pub tag: u64,
}

/// What a model has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Reads answered from the disk's cache or buffer, without the medium.
    pub cache_hits: u64,
    /// Accesses to the medium. Hard disk: times that the heads were positioned. SSD: page reads and
    /// programs.
    pub accesses: u64,
    /// Nanoseconds in which the arm moved or settled, or heads were switched.
    pub seek_ns: Nanos,
    /// Nanoseconds of rotational delay.
    pub rotation_ns: Nanos,
    /// Hard disk: nanoseconds in which data passed the heads. SSD: busy time of all dies, summed
    /// up.
    pub transfer_ns: Nanos,
}

/// A model of a disk: a state machine over time.
///
/// Time never runs backwards: `now` is at least that of the previous call. The order of calls at
/// the same instant matters, and the caller decides it.
pub trait Mechanism: std::fmt::Debug {
    /// A command arrives. `tag` identifies it on completion.
    fn submit(&mut self, now: Nanos, tag: u64, command: Command);

    /// The time of the next internal event, which need not be a completion; `None`: there is none
    /// until the next command.
    fn next_event(&self) -> Option<Nanos>;

    /// Advances time to `now`, and appends the commands completed by then, ordered by time.
    fn advance(&mut self, now: Nanos, done: &mut Vec<Done>);

    /// What it has done so far.
    fn work(&self) -> Work;
}
