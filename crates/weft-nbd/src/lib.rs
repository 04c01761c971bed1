//! NBD: the protocol, and a server for [`Export`]s.
#![forbid(unsafe_code)]

mod export;
mod inbox;
mod outbox;
pub mod proto;
pub mod server;

pub use export::{Export, ExportError, Extent};
pub use server::{Server, ServerConfig, ServerError};
