//! The doorbell: how a wake from another thread ends the ring's sleep.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd, written to at most once between two looks of the ring.
pub(super) struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, rung: AtomicBool::new(false) })
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Called from any thread, after the thing to be noticed has been made visible.
    pub(super) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow, since it is at most 1: a failure here can only be a
            // descriptor that other code closed.
            rustix::io::write(&self.fd, &1u64.to_ne_bytes()).expect("the doorbell can be rung");
        }
    }

    /// The ring has read the eventfd; the owner looks for work after this. That look also finds
    /// work whose ring came between the read and this call, since both swap the same atomic.
    pub(super) fn answered(&self) {
        self.rung.swap(false, Ordering::AcqRel);
    }
}
