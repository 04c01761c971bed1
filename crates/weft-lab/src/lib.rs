//! The lab: what an array would do, before its disks are bought, and compared with papers.
//!
//! * [`Experiment`]: a paper's table or figure as a small file; [`run()`] makes a [`Figure`] of it,
//!   with our numbers and the paper's; [`report`] draws it. A seed always gives the same bytes.
//! * [`modelled`]: an array on modelled disks, as large as the products.
//! * [`rebuild`]: rebuilds as Linux MD and the papers do them, to compare the engine's with.
//! * `reshape`: reshapes of a modelled array as Linux MD and the papers do them.
//! * [`commands`]: what users type; the binary only passes the arguments on.
//!
//! Every number comes from the code that runs arrays: the codes, the layouts, the planner and –
//! where requests are simulated – the engine itself, in virtual time.
//!
//! ```
//! use weft_lab::Experiment;
//!
//! let experiment = Experiment::find("alv-fig10")?;
//! assert!(!experiment.title.is_empty());
//! assert!(Experiment::all().len() > 1);
//! # Ok::<(), weft_lab::UnknownExperiment>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
pub mod commands;
pub mod experiment;
pub mod figure;
mod found;
pub mod kinds;
mod lab;
pub mod modelled;
pub mod models;
mod number;
pub mod parallel;
pub mod rebuild;
pub mod report;
mod reshape;
mod rules;
pub mod run;
pub mod schema;
pub mod store;

pub use experiment::{Experiment, UnknownExperiment};
pub use figure::Figure;
pub use lab::{LabError, RunOptions};
pub use models::Models;
pub use run::{run, run_part};
