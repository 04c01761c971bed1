//! FUSE file systems: one with a single file – the array, from which the kernel's loop driver makes
//! a disk ([`session`]) – and weftfs ([`tree`]).
//!
//! weft implements the kernel's FUSE protocol itself (`wire`), on the engine's own thread
//! (`channel`): a request is read from `/dev/fuse`, carried out and answered without crossing to
//! another thread, which costs more than most of our I/O (74–94 µs across cores, 7–10 µs within
//! one). The data of large writes arrives page-aligned in the buffer that goes to the disks:
//! `readv` splits header and payload. FUSE libraries hand requests to threads of their own and keep
//! the payload after the header, so both advantages would be lost.
//!
//! Reads and writes of an array bypass the page cache of this layer (FOPEN_DIRECT_IO), since the
//! file system on the loop device already has one. If the daemon dies, the kernel closes the
//! connection: all requests in flight, and all later ones, fail with an I/O error and nothing
//! hangs.
//!
//! ```no_run
//! use std::path::Path;
//!
//! // As root: an empty folder becomes a file system, whose requests come through the channel.
//! let flags = rustix::mount::MountFlags::NODEV;
//! let channel = weft_fuse::mount::mount_on(Path::new("/mnt"), "example", None, flags)?;
//! weft_fuse::mount::end_service(Path::new("/mnt"));
//! # drop(channel);
//! # Ok::<(), weft_cli::failure::Failure>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(test)]
mod actors;
mod answer;
pub mod awake;
mod capability;
mod channel;
#[cfg(test)]
#[expect(dead_code, reason = "the tests of the file system use all of it")]
#[path = "../../weft-fs/tests/common/contender.rs"]
mod contender;
pub mod control;
mod counts;
mod file_flags;
pub mod guard;
#[cfg(test)]
mod guarded_mounts;
mod kernel_cache;
mod kernel_sizes;
mod long;
mod lookout;
pub mod mount;
mod notification;
pub mod session;
#[cfg(test)]
mod shared_mount;
#[cfg(test)]
mod test_mounts;
pub mod tree;
#[cfg(test)]
mod two_mounts;
mod unwritten;
mod wire;
