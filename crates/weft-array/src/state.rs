//! State that requests and jobs share: locks, waiting writes, events, memory budgets. It does no
//! I/O.

pub(crate) mod budget;
pub(crate) mod events;
pub(crate) mod moving_range;
pub(crate) mod observer;
pub(crate) mod pending_writes;
pub(crate) mod service;
pub(crate) mod space_waits;
pub(crate) mod stripe_locks;
