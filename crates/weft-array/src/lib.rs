//! The engine of weft: combines disks into one redundant volume, which stays available while disks
//! fail, misbehave or are rebuilt.
//!
//! [`create`](fn@create) makes disks members, [`Array::assemble`] makes an [`Array`] from members,
//! and the array serves requests and maintains itself. Its guarantees are in `docs/consistency.md`.
//! Each file of this crate opens with the theory of its part; `docs/architecture.md` lists the
//! files.
//!
//! ```
//! use std::rc::Rc;
//! use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, create};
//! use weft_code::{CodeSpec, SlotNo};
//! use weft_disk::{Disk, RamDisk};
//! use weft_rt::{Buf, Frozen, Schedule, virtual_rt};
//!
//! let rt = virtual_rt(Schedule::Fifo);
//! rt.clone().block_on(async move {
//!     let disk = |n| Rc::new(RamDisk::new(&format!("d{n}"), 32 << 20, 512)) as Rc<dyn Disk>;
//!     let disks: Vec<_> = (0..4).map(disk).collect();
//!     let code: CodeSpec = "raid6".parse()?;
//!     let options = CreateOptions {
//!         name: "tank".into(),
//!         code,
//!         algorithm: None,
//!         unit_bytes: 64 << 10,
//!         consistency: Consistency::default_for(code),
//!         region_bytes: None,
//!         log_bytes: None,
//!         head_room_bytes: None,
//!         spares: 0,
//!         force: false,
//!         id: [1; 16], // 16 random bytes
//!         now_unix_s: 0,
//!     };
//!     create(&disks, &options).await?;
//!     let array = Array::assemble(&rt, disks, AssembleOptions::default()).await?;
//!     array.write(0, Frozen::copy_from(&[7; 4096]), true).await?;
//!     array.fail(SlotNo(0)).await?;
//!     let (result, buf) = array.read(0, Buf::new(4096)).await;
//!     result?;
//!     assert_eq!(buf[..], [7; 4096]);
//!     assert_eq!(array.status().redundancy_remaining, Some(1));
//!     array.stop().await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod api;
mod engine;
mod error;
mod format;
mod geometry;
mod io;
mod jobs;
mod lifecycle;
mod log;
mod maintenance;
mod members;
mod recovery;
pub mod region_map;
mod state;
pub mod superblock;

pub use api::array::Array;
pub use api::drill;
pub use engine::status::{ArrayState, ByteRange, MemberState, RegionCounts, SlotStatus, Status};
pub use error::ArrayError;
pub use format::consistency::Consistency;
pub use format::lane;
pub use format::preferences::{CacheChoice, Preferences};
pub use format::rebuild_policy::{Piggyback, RebuildOrder, RebuildPace, RebuildPolicy, ZONES_MAX};
pub use format::uuid;
pub use format::uuid::Id;
pub use jobs::growth::{GrowthPlan, plan_growth};
pub use jobs::reshape::plan as reshape;
pub use lifecycle::create;
pub use lifecycle::create::{CreateError, CreateOptions, CreatePlan, create};
pub use lifecycle::examine;
pub use lifecycle::examine::{MemberReport, examine};
pub use lifecycle::start_stop::AssembleOptions;
pub use maintenance::experiment;
pub use maintenance::{
    Bounds, HotZone, JobKind, JobStatus, Mismatch, RebuildCounts, RebuildStatus, ScrubReport,
};
pub use members::assemble;
pub use members::assemble::{
    AssembleError, Assembly, FoundDisk, decide, majorities_meet, may_take_effect,
};
pub use state::events::{Event, Subscription};
pub use superblock::area;
pub use superblock::area::Area;
pub use superblock::disk_contents::{Contents, contents};
pub use superblock::wipe::wipe;
pub use superblock::{LastRebuild, LastScrub, ScrubMode, Superblock, SuperblockError};
