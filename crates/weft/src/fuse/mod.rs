//! A FUSE file system of one file: the array, for the kernel's loop driver to make a disk of.
//!
//! The kernel's FUSE protocol is spoken directly ([`wire`]), on the engine's own thread
//! ([`session`]): a request is taken from `/dev/fuse`, carried out and answered without ever
//! crossing to another thread, which costs more than most of our I/O does (74–94 µs across cores,
//! 7–10 µs within one). Data of large writes arrives page-aligned in the buffer that goes to the
//! disks: `readv` splits header and payload. Libraries for FUSE hand requests to threads of their
//! own and keep the payload behind the header, so both would be lost.
//!
//! Reads and writes bypass the page cache of this layer (FOPEN_DIRECT_IO), since the file system on
//! the loop device has one already. If the daemon dies, the kernel ends the connection with
//! it: everything in flight, and all that comes after, fails with an I/O error and nothing hangs.

pub mod mount;
pub mod session;
pub mod wire;
