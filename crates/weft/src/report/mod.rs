//! What people see: the state of arrays in words, and progress.

pub mod follow;
pub mod io;
pub mod member;
pub mod progress;
pub mod status;
pub mod trace;
