//! Volumes as disks of virtual machines: vhost-user-blk, which QEMU, Cloud Hypervisor and others
//! speak.
//!
//! The machine's emulator connects to a Unix socket, and passes the guest's memory and the queues
//! of a virtio disk. From then on the guest's requests come straight from its memory, and their
//! data goes straight there: no kernel and no socket is between the guest and this process.
//!
//! ```text
//!  guest ── queue in shared memory ──▶ worker thread ── Request ──▶ engine's thread ── Volume
//!    ▲                                  (pops, checks)                    │
//!    └──────── used ring, interrupt ◀──── in the queue's order ◀──────────┘
//! ```
//!
//! *Threads.* The protocol and the queues are those of the crate `vhost-user-backend`, which
//! blocks, so each export has threads of its own ([`server`]); they sleep but for requests. A
//! request is carried out on the engine's thread.
//!
//! *A process that ends.* The emulator connects again (`reconnect=` in QEMU), and begins where the
//! used ring ends. So requests are given back in the order in which they came: then those that are
//! not in the used ring are exactly those that were not answered, and they are made again. The
//! guest notices a pause. The next connection of an export waits until every request of the one
//! before has ended. A request that fails because its volume ends is not answered; the connection
//! is closed.
//!
//! *Trust.* Who may open the socket reads and writes the volume, and is a program like QEMU, which
//! a guest may have taken over. Everything that it and the guest say is checked (`request`).
//! Memory that it could shrink, so that this process dies of an access to it, is refused.
#![forbid(unsafe_code)]

mod backend;
mod config;
mod disk;
mod request;
pub mod server;

pub use disk::Limits;
