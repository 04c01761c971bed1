//! What weft's commands have in common, whichever crate they live in: how they print, how they
//! fail, how users write sizes and name disks.
//!
//! * [`command_line`]: parsing it, and reporting its errors.
//! * [`failure`]: exit codes, and errors that name the next step.
//! * [`output`]: the only place that prints; the JSON envelope; [`output::run`] runs a command.
//! * [`progress`]: progress bars; [`interrupt`]: Ctrl-C while a job is followed.
//! * [`size`], [`listen`], [`disks`]: sizes, rates, times, addresses and disks as users write them.
//! * [`thread`]: the executor with its ring that a command runs on; signals.
//! * [`owned_folder`]: folders that only one user can change.
//!
//! ```
//! use weft_cli::size;
//!
//! assert_eq!(size::parse("10G"), Ok(10 << 30));
//! assert_eq!(size::show(10 << 30), "10 GiB");
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod command_line;
pub mod disks;
pub mod failure;
pub mod interrupt;
pub mod listen;
pub mod output;
pub mod owned_folder;
pub mod progress;
pub mod size;
pub mod thread;
