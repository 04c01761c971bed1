//! The runtime of weft: a small single-threaded executor, its clock and timers, and the
//! page-aligned buffers that I/O owns until it completes.
//!
//! **One engine, two clocks.** Everything above this crate is async code that sees time only
//! through [`Rt::now`] and [`Rt::sleep`]. A [`Driver`] implements them: an io_uring of a pinned
//! thread in production, or [`VirtualTime`] under the simulator and in tests, where "waiting" means
//! moving the clock to the next timer. So the tests run the code that ships.
//!
//! A task never moves between threads, so tasks may hold `Rc` and need no locks. A
//! [`std::task::Waker`] may be used from any thread: a wake from outside rings the driver's
//! doorbell.
//!
//! Synchronous code that must wait for asynchronous work runs on a stack of its own ([`fiber`]).
//!
//! ```
//! use weft_rt::{SECOND, Schedule, virtual_rt};
//!
//! let rt = virtual_rt(Schedule::Fifo);
//! let inner = rt.clone();
//! let waited = rt.block_on(async move {
//!     let start = inner.now();
//!     inner.sleep(3600 * SECOND).await; // an hour of virtual time passes at once
//!     inner.now() - start
//! });
//! assert_eq!(waited, 3600 * SECOND);
//! ```

mod arena;
mod buf;
mod cpu;
mod domain;
mod executor;
mod faulting_write;
pub mod fiber;
pub mod inherited;
mod local;
pub mod pool;
pub mod reservation;
pub mod ring;
mod schedule;
mod sleep;
pub mod sync;
mod timer;
pub mod ublk;
mod virtual_time;
mod waker;

pub use arena::BUF_ALIGN;
pub use buf::{Buf, BufMemory, Frozen, ZEROS_BYTES_MAX};
pub use cpu::{pin_to_cpu, usable_cpus};
pub use executor::{Attached, Driver, Rt, Task, boxed};
pub use faulting_write::write_with_fault;
pub use local::Local;
pub use schedule::Schedule;
pub use sleep::Sleep;
pub use virtual_time::{VirtualTime, virtual_rt};
pub use weft_random::{self as rng, Rng};

/// Time in nanoseconds since the driver's own zero (boot for the ring, 0 for the simulator).
pub type Nanos = u64;

/// One second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;
/// One millisecond in [`Nanos`].
pub const MILLISECOND: Nanos = 1_000_000;
/// One microsecond in [`Nanos`].
pub const MICROSECOND: Nanos = 1_000;
