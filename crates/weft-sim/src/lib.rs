//! The simulator: proves the engine by living through its disasters in virtual time.
//!
//! One `u64` seed decides everything – the array, the clients, which task runs next, how long a
//! disk takes, when the power goes and what is left of each sector. The same seed gives the
//! same run, event for event; a failure names its seed.
//!
//! * [`sim_rt`]: the executor of the product under a clock that jumps ([`weft_rt::VirtualTime`]).
//! * [`model`]: how long real disks take, product by product.
//! * [`disk`]: disks with real contents, a volatile cache, and faults.
//! * [`oracle`]: what a volume may answer, sector by sector, before and after a crash.
//! * [`workload`]: clients that hold every answer against the oracle.
#![forbid(unsafe_code)]

mod canary;
mod clock;
pub mod disk;
mod engine;
mod events;
mod excuse;
mod factory;
mod format;
mod member;
mod membership;
pub mod model;
pub mod oracle;
mod pages;
mod panics;
mod policy;
mod report;
mod rng;
mod run;
mod setup;
mod simulate;
mod slots;
mod violation;
pub mod volume;
pub mod workload;
mod world;

pub use canary::Canary;
pub use clock::{lab_rt, sim_rt};
pub use disk::{Faults, Latency, Platter, SimDisk, Uniform};
pub use model::{Contents, Model, ModelDisk, ModelOptions, PluggedDisk};
pub use oracle::Oracle;
pub use report::{Failure, Options, Report, Story};
pub use rng::Rng;
pub use run::run;
pub use setup::{DiskSetup, Policy, Setup, Wishes};
pub use simulate::{Outcome, Simulation, every_cut, shrink, simulate};
pub use violation::{Broken, Violation};
pub use world::{Event, What, World};
