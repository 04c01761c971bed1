//! Waiting for each other on one thread: a fair semaphore, a notification, a one-shot value.
//! None of them locks; all are deterministic (first come, first served).

mod notify;
mod oneshot;
mod semaphore;

pub use notify::Notify;
pub use oneshot::{Receiver, Sender, oneshot};
pub use semaphore::{Permit, Semaphore};
