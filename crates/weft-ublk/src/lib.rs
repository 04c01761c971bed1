//! A volume as a ublk block device: one that outlives the process that serves it.
//!
//! The kernel's ublk driver passes the requests of `/dev/ublkbN` to a process and takes its
//! answers, on the process's own io_uring. When the process dies, the device stays and its users
//! wait: the next process takes it over ([`device::Starting`]) and is handed the unanswered
//! requests again. Users notice a pause and no error. That is sound for any [`Volume`] that keeps
//! what it has acknowledged when only the process dies, as weft's arrays do: their data is on the
//! members before a write is answered.
//!
//! *Identity.* Numbers of devices are given again, and other programs make ublk devices, too. So
//! each device carries a tag in the kernel, made from the volume's identity ([`device::tag_of`]).
//! The tag lives exactly as long as the device; no file can be lost, or outdated. Only devices with
//! the right tag are taken over, listed or removed.
//!
//! *Threads.* Commands that add, start, stop and delete devices wait for the thread that serves
//! ([`device`]; call it from a helper thread). Requests are served on the engine's thread
//! ([`session`]).
//!
//! *Limits.* Linux 6.6 or later; root. Before Linux 6.16 a device in use cannot get another size.
//! Block limits are powers of two: a stripe of any other size cannot be told.
//!
//! [`Volume`]: weft_disk::Volume

#![forbid(unsafe_code)]

pub mod device;
pub mod limits;
pub mod session;
