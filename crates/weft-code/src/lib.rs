//! Linear stripe codes: every RAID level as rows of coefficients over GF(2^8).
//!
//! A stripe has k data units, numbered 0..k, and p parity units, numbered k..k+p. Parity unit k+t
//! is the sum Σ coef(t, j)·d_j over GF(2^8) with polynomial 0x11d and generator 2. The levels
//! differ only in their rows:
//!
//! | code | rows |
//! |---|---|
//! | `raid0` | none |
//! | `raid1`, `raid10` | `[1]` for each further copy (k = 1) |
//! | `raid4`, `raid5` | all ones |
//! | `raid6`, `rs:K+2` | all ones; 1, 2, 4, 8, … |
//! | `rs:K+R` | any R losses survive (see `rows`) |
//! | `lrc:K,L,R` | one XOR row for each of L groups; R global rows 2^(j·t), t = 1..R |
//! | `drc:K,L,R`, `drc-g`, `drc-oa` | as LRC, the groups changing from stripe to stripe |
//!
//! This crate knows nothing of disks and offsets: `weft-layout` places units, and `weft-gf` does
//! the arithmetic on data. It answers
//! * what a write changes: [`Code::row`], [`Code::parities_of`];
//! * what a repair reads: [`Code::plan`], and [`PlanCache`] for repeated questions;
//! * what survives: [`Code::decodable`], [`Code::tolerance`], and [`Survival`] for whole arrays;
//! * how long: [`Fleet`] (a Markov chain, solved exactly) and [`monte_carlo`];
//! * at what cost: [`Traffic`] slot by slot, and the DRC paper's model in [`degraded`].
//!
//! ```
//! use weft_code::{Code, UnitSet};
//!
//! let code = Code::new("lrc:4,2,1".parse()?, 7)?;
//! let plan = code.plan(0, UnitSet::one(0), UnitSet::one(0), &|_| 1)?;
//! assert_eq!(plan.reads, UnitSet::from([1, 4])); // d0 = d1 + p0: its local group
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cache;
mod code;
mod combinations;
pub mod degraded;
mod distance;
mod matrix;
pub mod monte_carlo;
mod plan;
mod reliability;
mod rows;
mod shuffle;
mod small_field;
mod spec;
mod survival;
mod traffic;
mod units;

pub use cache::PlanCache;
pub use code::{Code, Margin};
pub use combinations::sets;
pub use plan::{Plan, Undecodable};
pub use reliability::{Fleet, HOURS_PER_YEAR};
pub use shuffle::PERIOD_MAX;
pub use spec::{CodeSpec, Copies, KNOWN, SLOTS_MAX, Shape, SpecError};
pub use survival::{Share, Survival};
pub use traffic::{SmallWrite, Traffic};
pub use units::{Number, NumberSet, Numbers, SlotNo, SlotSet, UnitSet};
