//! weftfs: a file system over separate disks that chooses the redundancy of each file.
//!
//! `docs/weftfs.md` has the theory, the format on disk, and what a crash leaves. Each file here
//! opens with the theory of its part. The rooms, from the bottom to the top; each uses the ones
//! before it: the format on disk (`format`, `raid_log`, `meta`) ← the disks (`disks`) ← what nodes
//! may keep in memory (`tokens`) ← the mounted file system (`state`) ← from memory to the disks
//! (`write`) ← what users ask of files (`files`) ← mounting (`mount`) ← long work (`jobs`).
//!
//! ```
//! use std::rc::Rc;
//! use weft_disk::{Disk, RamDisk};
//! use weft_fs::{AccessTimes, CreateOptions, Fs, META_CACHE_BYTES, MountOptions, Redundancy, Time, create};
//! use weft_rt::{Schedule, virtual_rt};
//!
//! let rt = virtual_rt(Schedule::Fifo);
//! let inner = rt.clone();
//! rt.block_on(async move {
//!     let disk = |name, mib: u64| Rc::new(RamDisk::new(name, mib << 20, 512)) as Rc<dyn Disk>;
//!     let disks = [disk("a", 64), disk("b", 64), disk("c", 96)];
//!     let now = Time { s: 1_700_000_000, ns: 0 };
//!     let options = CreateOptions {
//!         name: "home".into(),
//!         redundancy: Redundancy::Auto,
//!         slice_bytes: Some(8 << 20),
//!         force: false,
//!         id: [1; 16], // 16 random bytes
//!         now,
//!     };
//!     create(&inner, &disks, &options).await?;
//!     let options = MountOptions {
//!         degraded: false,
//!         stale: false,
//!         read_only: false,
//!         access_times: AccessTimes::Relative,
//!         cache_bytes: 4 << 20,
//!         meta_cache_bytes: META_CACHE_BYTES,
//!         nonce: 1,
//!         now,
//!         host: None,
//!         clock: None,
//!     };
//!     let fs = Fs::mount(&inner, &disks, options).await?;
//!     let (none, auto) = (fs.free_bytes(Redundancy::Single), fs.free_bytes(Redundancy::Auto));
//!     assert!(auto < none); // redundancy takes room
//!     fs.unmount().await
//! })?;
//! rt.kill_all();
//! # Ok::<(), weft_fs::FsError>(())
//! ```
#![forbid(unsafe_code)]

mod disks;
mod error;
mod files;
mod format;
mod jobs;
mod meta;
mod mount;
mod raid_log;
mod state;
mod tokens;
mod write;

pub use disks::old_block_cache::OldBlockCounts;
pub use disks::pool::Counts;
pub use disks::reopen::Reopen;
pub use error::{FsError, Result};
pub use files::attributes::SetAttr;
pub use files::namespace::{DirEntry, NewFile, Rename};
pub use files::write::FILE_BYTES_MAX;
pub use files::xattrs::{REDUNDANCY_XATTR, SetXattr, XATTR_LIST_MAX};
pub use format::block::BLOCK_BYTES;
pub use format::extent::{Column, Extent};
pub use format::inode::{Flags, Ino, Inode, Kind, ROOT, Time};
pub use format::label::{Label, NAME_BYTES_MAX};
pub use format::mount_mark::Host;
pub use format::redundancy::{Coded, Redundancy};
pub use jobs::JobReport;
pub use jobs::balance::BalanceReport;
pub use jobs::findings::{Finding, FsckReport};
pub use jobs::loss::Loss;
pub use jobs::rebuild::RebuildReport;
pub use jobs::scrub::ScrubReport;
pub use jobs::set::SetReport;
pub use meta::server::KeeperServer;
pub use meta::stream::{Connector, Stream, memory_stream};
pub use meta::{MetaCacheCounts, MetaPageCounts};
pub use mount::rings::{LogCopy, NodeStatus};
pub use mount::sizing::{PlannedRoom, plan_room};
pub use mount::{CreateOptions, META_CACHE_BYTES, RemoteMetadata, create};
pub use state::early_commits::EarlyCounts;
pub use state::file_locks::Locked;
pub use state::job::{Job, JobStatus};
pub use state::metadata_copies::MetaCopy;
pub use state::mounted::{AccessTimes, Fs, MountOptions};
pub use state::status::{DiskStatus, FsStatus, SpaceFor};
pub use tokens::returned_pages::Dropped;
pub use tokens::sharing::{Forgotten, KernelCache};
pub use write::early_commit::EarlyStatus;
