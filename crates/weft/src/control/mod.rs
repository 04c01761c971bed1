//! The control plane: how commands speak with the daemon.
//!
//! A Unix stream socket (`control.sock` in the runtime directory, mode 0600). The client sends one
//! JSON object on one line, the daemon answers with one; then the next. [`protocol`] has the
//! messages.
//!
//! The daemon serves it with plain blocking threads, one a connection and few of them, which
//! pass each request to the engine's thread and wait for the answer. Not on the engine's own
//! ring: parsing and slow clients would then share a thread with every user's I/O. And no async
//! runtime of its own: there is nothing here that needs one.

pub mod client;
pub mod protocol;
pub mod server;
mod table;

pub use table::Connections;
