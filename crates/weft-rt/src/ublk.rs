//! The kernel's ublk interface: its structures, and the commands that make and end block devices.
//!
//! ublk is a block device whose requests a process carries out. There are two files:
//!
//! * `/dev/ublk-control` takes the commands that add, start, stop and delete devices
//!   ([`Control`]). They wait – a start for the process that will serve, a deletion for the one
//!   that did – so they have a small ring of their own and belong on a helper thread.
//! * `/dev/ublkcN` hands out requests and takes results, as commands on the engine's ring
//!   ([`crate::ring::UblkChannel`]).
//!
//! *Recovery.* With [`flag::USER_RECOVERY`] a device stays when its process dies: its queue is
//! *quiesced*, and users wait. Another process takes it over between
//! [`Control::start_recovery`] and [`Control::end_recovery`]; with
//! [`flag::USER_RECOVERY_REISSUE`] the requests that the dead process had not answered are handed
//! out again.
//!
//! *Limits.* Linux 6.6 or later: earlier drivers oops or hang when a process dies.

mod abi;
mod control;

pub use abi::{
    Basic, Descriptor, DeviceInfo, DiscardLimits, Params, attribute, flag, io_flag, op, param,
    state,
};
pub(crate) use abi::{IO_COMMIT_AND_FETCH, IO_FETCH, IoCommand, RESULT_ABORT, RESULT_OK};
pub use control::{CONTROL_PATH, Control};
