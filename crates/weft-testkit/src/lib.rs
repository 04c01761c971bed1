//! The foundation of weft's tests against the real world.
//!
//! A development-only crate: nothing in the product depends on it. It holds the few things that
//! every end-to-end test needs and that are easy to get subtly wrong.
//!
//! - [`Scratch`]: a folder that goes away with the test.
//! - [`have`] and [`Need`]: the one policy for tests that need a tool, root, FUSE or loop devices.
//!   Without it they are *skipped loudly*; with `WEFT_NOTHING_SKIPPED=1` (what `./test` sets in CI)
//!   a missing need is a failure, so that a green run never hides a test that did not run.
//! - [`run`], [`command`], [`Process`]: commands whose failure shows their output, and daemons that
//!   do not outlive their test, not even when the test runner is killed.
//! - [`LoopDevice`], [`Mount`]: detached and unmounted on drop.
//! - [`Guest`]: a shell script inside a real Linux kernel with MD, in a virtual machine.
//! - [`md`]: where the members of an md array have their data.
//! - [`Rng`], [`for_seeds`], [`pattern`]: seeded randomness that prints how to replay a failure,
//!   and data in which every sector names itself.
//! - [`appends`]: whether what programs read of lists, to which several append, fits one order.
//! - [`states`]: drawings of state machines, compared with the pages that show them.
//!
//! Failures panic: this is code for tests, and the panic's message is the report.
//!
//! ```
//! use weft_testkit::{Scratch, pattern};
//!
//! let scratch = Scratch::new("example");
//! let path = scratch.file("disk", 1 << 20);
//! assert_eq!(std::fs::metadata(&path).expect("made").len(), 1 << 20);
//! drop(scratch); // and so when a test panics
//! assert!(!path.exists());
//! pattern::check(1, 0, &pattern::bytes(1, 4096));
//! ```
#![forbid(unsafe_code)]

pub mod appends;
mod block;
mod guest;
pub mod md;
mod need;
pub mod pattern;
mod process;
mod scratch;
mod seed;
pub mod states;

pub use block::{LoopDevice, Mount, unmount};
pub use guest::{Guest, GuestOutcome};
pub use need::{Need, have, skip};
pub use process::{Process, command, run, wait_until};
pub use scratch::Scratch;
pub use seed::{Rng, for_seeds, stride};
