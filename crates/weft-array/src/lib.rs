//! The array engine.
#![forbid(unsafe_code)]

pub mod area;
pub mod assemble;
pub mod create;
pub mod examine;
pub mod region_map;
pub mod superblock;
pub mod uuid;

pub use area::Area;
pub use assemble::{AssembleError, Assembly, Found, decide, may_take_effect};
pub use create::{CreateError, CreateOptions, CreatePlan, create};
pub use examine::{MemberReport, examine};
pub use superblock::{Consistency, Superblock, SuperblockError};
pub use uuid::Id;
