//! NBD: the protocol, a server for [`Export`]s, and a client that is a disk.
#![forbid(unsafe_code)]

pub mod client;
mod export;
mod inbox;
mod outbox;
pub mod proto;
pub mod server;
mod socket;

pub use client::{NbdDisk, NbdOptions, NbdUri};
pub use export::Export;
pub use server::{Server, ServerConfig, ServerError};
