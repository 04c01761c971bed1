//! NBD: the protocol, a server for [`Export`]s, and a client that is a disk.
//!
//! ```
//! use weft_nbd::NbdUri;
//! use weft_nbd::client::NbdAddress;
//!
//! let uri: NbdUri = "nbd://storage.example/tank".parse()?;
//! assert_eq!(uri.export, "tank");
//! assert_eq!(uri.address, NbdAddress::Tcp("storage.example".into(), 10809));
//! # Ok::<(), weft_nbd::client::UriError>(())
//! ```
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
