//! The control plane: how commands talk to the daemon.
//!
//! It is a Unix stream socket (`control.sock` in the runtime directory, mode 0600). The client
//! sends one JSON object on one line, the daemon answers with one; then the next request may
//! follow. [`protocol`] has the messages.
//!
//! The daemon serves the socket with plain blocking threads, one per connection and few of them,
//! which pass each request to the engine's thread and wait for the answer. The engine's own ring
//! does not serve it: parsing and slow clients would then share a thread with every user's I/O.
//! Nothing here needs an async runtime.

pub mod client;
pub mod protocol;
pub mod server;
mod table;

pub use table::Connections;
