//! Descriptors that systemd passes to the processes that it starts (`sd_listen_fds(3)`): those that
//! an earlier process gave to it to keep.

use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first of them.
const FIRST: RawFd = 3;
/// More than any process is passed.
const COUNT_MAX: RawFd = 4096;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors that were passed to this process, with their names. To be called before
/// the process opens anything; from the second call on there are none.
pub fn take() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
    let own = RawFd::try_from(std::process::id()).ok();
    if own.is_none() || number("LISTEN_PID") != own || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, COUNT_MAX);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    (FIRST..FIRST + count).zip(names).filter_map(|(fd, name)| Some((name, own_fd(fd)?))).collect()
}

/// `None` if there is no such descriptor.
fn own_fd(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: it is not used beyond this line; if it is not open, the kernel says so.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    // SAFETY: it is open, and by the convention of the variables above it was passed to this
    // process for it to own. Each number is taken once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Programs that are started from here must not keep it open.
    fcntl_setfd(&fd, FdFlags::CLOEXEC).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn without_systemd_there_are_none() {
        assert!(take().is_empty());
    }

    #[test]
    fn only_what_is_open_is_owned() {
        let file = std::fs::File::open("/dev/null").expect("opened");
        let (open, closed) = (OwnedFd::from(file), RawFd::MAX - 1);
        assert!(own_fd(closed).is_none());
        let number = open.as_raw_fd();
        std::mem::forget(open);
        assert_eq!(own_fd(number).map(|fd| fd.as_raw_fd()), Some(number));
    }
}
