//! Models of real disks: how long a disk of a certain make takes, whatever is asked of it.
//!
//! A disk is a *station*: commands arrive, wait, are served in an order of the disk's own choosing,
//! and leave. How long one takes depends on where the last one left the heads, on what else is
//! waiting, on what lies in the cache. So a model is not a function from a request to a delay (what
//! [`crate::Latency`] is, which draws disorder for the crash tests) but a machine that sees the whole
//! queue: a [`Mechanism`] is told what arrives and when, and tells what leaves and when. It knows
//! nothing of an executor, of contents or of the wall clock, it allocates nothing per command in
//! its steady state, and the same commands at the same times give the same completions, to the
//! nanosecond.
//!
//! * [`Hdd`] (`hdd/`): arm, platters, zones, cache and queue. [`Ssd`]: channels, dies, buffer,
//!   link.
//! * [`Model`] (`catalog/`): the parameters of one product, from its data sheet.
//! * [`Station`]: puts a mechanism on an executor's clock – virtual time or the real one.
//! * [`ModelDisk`]: a station with contents, as a [`weft_disk::Disk`].
//! * [`PluggedDisk`]: joins neighbouring requests before a disk, as Linux does.
//! * [`measure`]: what a data sheet would say of a model.

pub mod catalog;
mod disk;
mod gate;
pub mod hdd;
pub mod measure;
mod number;
pub mod plug;
pub mod ssd;
mod station;
mod stats;

pub use catalog::{Kind, Model, Sheet, UnknownModel};
pub use disk::{Contents, ModelDisk, ModelOptions};
pub use hdd::{Hdd, HddSpec};
pub use plug::PluggedDisk;
pub use ssd::{Ssd, SsdSpec};
pub use station::{Service, Station};
pub use stats::{DiskStats, Work};

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
