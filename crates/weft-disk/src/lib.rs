//! Disks as the engine sees them: one trait, [`Disk`], and its implementations – files and block
//! devices, memory, memory over another disk, a queue with classes, slices, a time limit, injected
//! faults. NBD disks and modelled disks implement the same trait in the crates above. What is built
//! from disks is a [`Volume`].
//!
//! ```
//! use weft_disk::{Class, Disk, RamDisk, WriteOpts};
//! use weft_rt::{Buf, Frozen, Schedule, virtual_rt};
//!
//! virtual_rt(Schedule::Fifo).block_on(async {
//!     let disk = RamDisk::new("ram", 1 << 20, 512);
//!     disk.write(4096, Frozen::copy_from(&[7; 512]), WriteOpts::USER).await?;
//!     disk.flush().await?; // what completed before is durable now
//!     let (result, buf) = disk.read(4096, Buf::new(512), Class::User).await;
//!     result?;
//!     assert_eq!(buf[..], [7; 512]);
//!     Ok::<(), weft_disk::DiskError>(())
//! })?;
//! # Ok::<(), weft_disk::DiskError>(())
//! ```
#![forbid(unsafe_code)]

mod bounded;
mod bytes;
mod copy_on_write;
mod counters;
mod disk;
mod disk_volume;
mod error;
mod fault;
mod file;
mod given_up;
mod hardware;
mod histogram;
mod layer;
pub mod mounts;
mod queue;
mod ram;
mod rest;
mod slice;
mod volume;

pub use bounded::{BoundedDisk, DISK_TIMEOUT, TICKS, ZEROES_BYTES_MAX};
pub use bytes::Bytes;
pub use copy_on_write::CopyOnWriteDisk;
pub use counters::{Counters, IoCounts};
pub use disk::{Class, Disk, DiskInfo, DoneFuture, IoFuture, ReadFuture, WriteOpts};
pub use disk_volume::DiskVolume;
pub use error::{DiskError, DiskErrorKind, DiskFailure, DiskOp};
pub use fault::{Fault, FaultDisk, Faults, OpCounts, RateLimit};
pub use file::{FileDisk, FileOptions, IoMode};
pub use hardware::Hardware;
pub use histogram::{Histogram, Latency};
pub use layer::Layer;
pub use queue::{QUEUE_DEPTH, QueueConfig, QueueLoad, QueuedDisk};
pub use ram::RamDisk;
pub use rest::RestDisk;
pub use slice::{Ranges, SliceDisk};
pub use volume::{
    AllocationRange, CachedContents, Volume, VolumeError, VolumeErrorKind, VolumeInfo,
};
