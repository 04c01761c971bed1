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
mod command;
mod disk;
mod gate;
pub mod hdd;
pub mod measure;
mod number;
pub mod plug;
mod product;
pub mod ssd;
mod station;
mod stats;

pub use catalog::UnknownModel;
pub use command::{Command, Done, Mechanism, Verb, Work};
pub use disk::{Contents, ModelDisk, ModelOptions};
pub use hdd::{Hdd, HddSpec};
pub use plug::PluggedDisk;
pub use product::{Kind, Measure, Model, Sheet};
pub use ssd::{Ssd, SsdSpec};
pub use station::{Service, Station};
pub use stats::DiskStats;
