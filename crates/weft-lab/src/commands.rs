//! The laboratory's commands: `lab`, `trace`, `replay`, `simulate`. Each module holds the
//! arguments of a command and carries it out.

mod lab;
mod replay;
mod simulate;
mod trace;

pub use lab::{LabArgs, lab};
pub use replay::{ReplayArgs, replay};
pub use simulate::{SimulateArgs, simulate};
pub use trace::{TraceArgs, trace};
