//! Building the ring with the best mode that this kernel grants.

use std::io;

use io_uring::IoUring;

use crate::arena::{self, Arena};

/// Which of the ring's registered buffers the arena is.
pub(super) const ARENA_INDEX: u16 = 0;

/// Entries of the submission queue. It is emptied at each turn and whenever it is full, so it
/// need not hold every slot.
const SUBMISSION_ENTRIES: u32 = 256;

/// The kernel's own limit of completion queue entries.
const COMPLETION_ENTRIES_MAX: u32 = 65_536;

/// How the kernel delivers completions to us; best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Only inside our own calls (DEFER_TASKRUN, SINGLE_ISSUER, COOP_TASKRUN; Linux 6.1).
    Deferred,
    /// At our next call of any kind, with no interruption (COOP_TASKRUN; Linux 5.19).
    Cooperative,
    /// At any time, by interrupting the thread (Linux 5.11).
    Plain,
}

pub(super) fn build(slots: u32) -> io::Result<(IoUring, Mode)> {
    // One completion for each slot, one for its cancellation, and some for the doorbell.
    let completions = slots.saturating_mul(2).saturating_add(64);
    if slots == 0 || completions > COMPLETION_ENTRIES_MAX {
        let most = COMPLETION_ENTRIES_MAX / 2 - 32;
        let text = format!("a ring has 1 to {most} operations in flight, not {slots}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut refusal = None;
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Plain] {
        match try_mode(mode, completions) {
            Ok(uring) => return check_features(uring).map(|uring| (uring, mode)),
            // EINVAL: unknown flags; every other refusal would meet the next mode as well.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = Some(error),
            Err(error) => return Err(explain(error)),
        }
    }
    Err(explain(refusal.unwrap_or_else(|| io::ErrorKind::Unsupported.into())))
}

fn try_mode(mode: Mode, completions: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    let completions = completions.next_power_of_two();
    builder.setup_cqsize(completions);
    match mode {
        Mode::Deferred => {
            builder.setup_single_issuer().setup_defer_taskrun();
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        }
        Mode::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        }
        Mode::Plain => {}
    }
    // The kernel wants no more submission entries than completion entries.
    builder.build(SUBMISSION_ENTRIES.min(completions))
}

/// Registers the arena with the ring; `None` if there is none or the kernel refuses (for example,
/// too little locked memory allowed): then every buffer is pinned for each request.
pub(super) fn register_arena(uring: &IoUring) -> Option<&'static Arena> {
    let arena = arena::open()?;
    // SAFETY: the arena is never unmapped, and its bytes are only given to requests as blocks that
    // these own.
    unsafe { uring.submitter().register_buffers(&[arena.iovec()]) }.ok()?;
    Some(arena)
}

fn check_features(uring: IoUring) -> io::Result<IoUring> {
    let params = uring.params();
    if params.is_feature_ext_arg() && params.is_feature_nodrop() {
        return Ok(uring);
    }
    Err(explain(io::ErrorKind::Unsupported.into()))
}

fn explain(error: io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "it is disabled: check sysctl kernel.io_uring_disabled and the container's policy"
        }
        Some(libc::ENOSYS) => {
            "this kernel or container does not have it: Linux 5.11 or later is needed"
        }
        Some(libc::ENOMEM) => "too little locked memory: raise `ulimit -l`",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files: raise `ulimit -n`",
        _ => "Linux 5.11 or later is needed",
    };
    io::Error::new(error.kind(), format!("cannot set up io_uring: {error}; {hint}"))
}
