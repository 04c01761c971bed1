//! Texts for people: the state of arrays, and progress.

pub mod cache;
pub mod follow;
pub mod io;
pub mod member;
pub mod status;
pub mod verdict;
