//! NBD: the protocol, a server for [`Export`]s, and a client that is a disk.
#![forbid(unsafe_code)]

pub mod proto;
