//! The commands: each checks its arguments, does its work or asks the daemon to, and prints the
//! result.

pub mod attach;
pub mod cache;
pub mod completions;
pub mod config;
pub mod create;
pub mod disks;
pub mod drill;
pub mod examine;
pub mod fs;
pub mod manage;
pub mod manual;
pub mod reshape;
pub mod status;
pub mod udev;
pub mod wipe;
