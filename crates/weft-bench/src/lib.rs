//! Code that the array benchmarks share.
//!
//! A benchmark is a program in `benches/` that prints a table; `./bench` runs them all. None is a
//! test: nothing fails because it was slow. What makes the figures reliable:
//!
//! * **Peers in the same run.** A contestant and its peers are measured in turns, round by round; a
//!   ratio is the median of the rounds' ratios. A machine's speed varies by a factor of two from
//!   hour to hour, but not between two contestants of one round.
//! * **Warm.** The first round is discarded. Members are filled before they are read.
//! * **Bounded.** A turn ends after a fixed time; a benchmark after about a minute.
//!
//! ```
//! assert!((weft_bench::median(vec![1.0, 9.0, 2.0]) - 2.0).abs() < f64::EPSILON);
//! ```
#![forbid(unsafe_code)]

mod arrays;
mod clock;
mod closed_network;
mod instructions;
mod load;
mod race;

pub use arrays::{MIB, assemble, create_options, fill, make, ram_disk, ram_disks, rebuilt, touch};
pub use clock::{CpuClock, TrivialDriver};
pub use closed_network::{Throughput, closed_network};
pub use instructions::instructions;
pub use load::{Load, Outcome, run};
pub use race::{Contestant, Race, Row, Table, median};

/// The program's own allocator.
#[global_allocator]
static POOL: weft_rt::pool::Pool = weft_rt::pool::Pool;
