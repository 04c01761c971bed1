//! A file system on several machines: what ties a process's part in the cluster (`weft-cluster`) to
//! its mount (`weft-fs`).
//!
//! ```text
//!   record: who is keeper, who is a member      disks
//!        │                                        ▲
//!   membership ──▶ Term: mounts node 0 ───────────┤
//!        │           └▶ Attendance: prepares and recovers nodes
//!        │                    ▲ MemoryWay
//!        │                    │ streams
//!        └───────▶ KeeperWay ─┘◀── a node's mount ┘
//! ```
//!
//! Nothing here knows sockets, threads or a command line. So the commands and the simulation of
//! whole clusters (`tests/clusters.rs`) run the same takeovers, in real and in virtual time.
#![forbid(unsafe_code)]

mod attendance;
mod labels;
mod node;
mod term;
mod ways;

use std::rc::Rc;

pub use attendance::{Attendance, name_of};
pub use node::{mount_when_ready, number_of};
pub use term::Term;
pub use ways::{Dial, KeeperWay, MemoryWay};

/// Takes a line of a log.
pub type Say = Rc<dyn Fn(&str)>;
