//! A deterministic simulator: runs the engine in virtual time against simulated disks, crashes and
//! faults, and checks every answer.
//!
//! One `u64` seed determines everything: the array, the clients, which task runs next, how long
//! each disk operation takes, when the power is cut, and what each sector holds afterwards. A seed
//! always gives the same run, event for event; a failure names its seed.
//!
//! * [`sim_rt`]: the product's executor under virtual time ([`weft_rt::VirtualTime`]).
//! * [`disk`]: disks with contents, a volatile cache, and faults.
//! * [`oracle`]: what each sector of a volume may hold, before and after a crash.
//! * [`workload`]: clients that check every answer against the oracle.
//!
//! ```
//! use weft_sim::{Options, run};
//!
//! let mut options = Options { lives_max: Some(2), ..Options::default() };
//! options.filter.requests_max = Some(30);
//! let report = run(7, &options)?;
//! assert_eq!(report.trace_hash, run(7, &options)?.trace_hash); // the same seed, the same run
//! # Ok::<(), Box<weft_sim::Failure>>(())
//! ```
#![forbid(unsafe_code)]

mod cached;
mod canary;
mod clock;
pub mod disk;
mod engine;
mod excuse;
mod exposure;
mod factory;
mod foreign;
mod format;
mod injector;
mod member;
mod membership;
pub mod oracle;
mod panics;
mod policy;
mod report;
mod run;
mod setup;
mod simulate;
mod slots;
mod violation;
pub mod workload;
mod world;

pub use canary::Canary;
pub use clock::sim_rt;
pub use disk::{Faults, Latency, Platter, SimDisk, Uniform};
pub use oracle::Oracle;
pub use report::{Failure, Options, Report, Scenario};
pub use run::run;
pub use setup::{DiskSetup, Setup, SetupFilter};
pub use simulate::{Outcome, Simulation, every_cut, shrink, simulate};
pub use violation::{Violation, ViolationKind};
pub use world::{Event, EventKind, World};
