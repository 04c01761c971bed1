//! Models of real disks: how long each command takes on a disk of a certain make.
//!
//! A disk is a *station* in the sense of queueing theory: commands arrive, wait, are served in an
//! order that the disk chooses, and leave. The time that one takes depends on the position of the
//! heads, on the other commands in the queue, and on the cache. A model is therefore not a function
//! from a request to a delay, like the crash simulator's `Latency`, which draws random delays.
//! It is a state machine that sees the whole queue: a [`Mechanism`] is told which commands arrive
//! and when, and returns which complete and when. It does not depend on an executor, on contents or
//! on the wall clock; in its steady state it allocates nothing per command; and the same commands
//! at the same times give the same completions, to the nanosecond.
//!
//! * [`Hdd`] (`hdd/`): arm, platters, zones, cache and queue.
//! * [`Ssd`]: channels, dies, buffer and link.
//! * [`Model`] (`catalog/`): the parameters of a product, from its data sheet.
//! * [`Station`]: runs a mechanism on an executor's clock, virtual or real.
//! * [`ModelDisk`]: a station with contents, as a [`weft_disk::Disk`].
//! * [`PluggedDisk`]: merges adjacent requests in front of a disk, as Linux does.
//! * [`measure`]: measures the figures of a data sheet on a model.
//! * [`Pages`]: sparse contents in memory.
//! * [`Medium`]: contents with a volatile cache, and what a crash leaves of them.
//!
//! ```
//! use weft_disk::{Class, Disk};
//! use weft_model::{Model, ModelDisk, ModelOptions};
//! use weft_rt::{Buf, MILLISECOND, Schedule, virtual_rt};
//!
//! let model = Model::find("exos-x20")?;
//! let rt = virtual_rt(Schedule::Fifo);
//! let clock = rt.clone();
//! rt.block_on(async move {
//!     let disk = ModelDisk::open(&clock, model, ModelOptions::default());
//!     let start = clock.now();
//!     let (result, _) = disk.read(5 << 40, Buf::new(4096), Class::User).await;
//!     result.expect("a sound disk");
//!     assert!(clock.now() - start > MILLISECOND); // the arm moved, the platter turned
//! });
//! # Ok::<(), weft_model::UnknownModel>(())
//! ```
#![forbid(unsafe_code)]

pub mod catalog;
mod command;
mod disk;
mod gate;
pub mod hdd;
pub mod measure;
mod medium;
mod number;
mod pages;
pub mod plug;
mod product;
pub mod ssd;
mod station;
mod stats;

pub use catalog::UnknownModel;
pub use command::{Command, Done, Mechanism, Verb, Work};
pub use disk::{Contents, ModelDisk, ModelOptions};
pub use hdd::{Hdd, HddSpec};
pub use medium::{Medium, Version};
pub use pages::{PAGE, Pages};
pub use plug::PluggedDisk;
pub use product::{Kind, Measure, Model, Scheduler, Sheet};
pub use ssd::{Ssd, SsdSpec};
pub use station::{Service, Station};
pub use stats::DiskStats;
