//! The lab: what an array would do, before a disk is bought and beside what papers say.
//!
//! * [`plan`]: the codes that suit a set of disks and a goal, compared by exact counting.
#![forbid(unsafe_code)]

pub mod plan;
