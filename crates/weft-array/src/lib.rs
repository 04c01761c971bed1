//! The engine of weft: combines disks into one redundant volume, which stays available while disks
//! fail, misbehave or are rebuilt.
//!
//! [`create`](fn@create) makes disks members, [`Array::assemble`] makes an [`Array`] from members,
//! and the array serves requests and maintains itself. Its guarantees are in `docs/consistency.md`.
//! Each file of this crate opens with the theory of its part; `docs/architecture.md` lists the
//! files.
#![forbid(unsafe_code)]

mod another_policy;
pub mod area;
mod array;
mod as_volume;
pub mod assemble;
mod at_hand;
mod budget;
mod checksum;
mod commit;
mod consistency;
mod contents;
mod copies;
pub mod create;
mod error;
mod events;
pub mod examine;
mod geometries;
mod geometry;
mod jobs;
pub mod lane;
mod locks;
mod log;
mod logging;
mod losses;
mod maintenance;
mod members;
mod mirror_copies;
mod moving;
mod names;
mod open;
mod pending;
mod read;
mod rebuild_policy;
mod recover;
pub mod region_map;
mod remove;
pub mod reshape;
mod resolve;
mod room;
mod runs;
mod salvage;
mod slot;
mod space;
mod status;
pub mod superblock;
pub mod uuid;
mod volume;
mod write;
mod zero;

pub use area::Area;
pub use assemble::{AssembleError, Assembly, Found, decide, majorities_meet, may_take_effect};
pub use consistency::Consistency;
pub use contents::{Contents, contents};
pub use create::{CreateError, CreateOptions, CreatePlan, create};
pub use error::ArrayError;
pub use events::{Event, Subscription};
pub use examine::{MemberReport, examine};
pub use maintenance::experiment;
pub use maintenance::{
    Bounds, HotZone, JobKind, JobStatus, Mismatch, RebuildCounts, RebuildStatus, ScrubReport,
};
pub use open::AssembleOptions;
pub use rebuild_policy::{Piggyback, RebuildOrder, RebuildPace, RebuildPolicy, ZONES_MAX};
pub use remove::wipe;
pub use status::{ArrayState, ByteRange, MemberState, RegionCounts, SlotStatus, Status};
pub use superblock::{LastRebuild, LastScrub, ScrubMode, Superblock, SuperblockError};
pub use uuid::Id;
pub use volume::Array;
