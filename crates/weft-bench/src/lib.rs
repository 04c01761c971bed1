//! What the benchmarks of arrays share.
//!
//! A benchmark is a program in `benches/` that prints a table; `./bench` runs them all. None is a
//! test: nothing fails because it was slow. What makes figures worth reading:
//!
//! * **Peers in the same run.** A contestant is measured beside what it is compared with, in turns,
//!   round by round; a ratio is the median of the rounds' ratios. Machines differ from hour to
//!   hour by a factor of two, and two contestants of one round do not.
//! * **Warm.** The first round is thrown away. Members are filled before they are read.
//! * **Bounded.** A turn ends after a fixed time; a benchmark after about a minute.
#![forbid(unsafe_code)]

mod arrays;
mod clock;
mod load;
mod race;

pub use arrays::{MIB, assemble, create_options, fill, make, ram_disk, ram_disks, rebuilt, touch};
pub use clock::{CpuClock, TrivialDriver};
pub use load::{Load, Outcome, run};
pub use race::{Contestant, Race, Row, Table, median};

/// What the program itself allocates with.
#[global_allocator]
static POOL: weft_rt::pool::Pool = weft_rt::pool::Pool;
