//! A write whose last bytes cannot be read from this process's memory.
//!
//! Some files act on the head of a message before they copy what follows it. A fault there then
//! leaves only what the head asks for.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd as _};

/// Writes `head`, and after it `missing` bytes from where there is no memory.
///
/// # Errors
/// `EFAULT` if the file accepts the head and looks at the bytes; otherwise as `writev`.
pub fn write_with_fault(file: impl AsFd, head: &[u8], missing: usize) -> Result<usize> {
    let parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: missing },
    ];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the kernel only reads the parts. The first one is a live slice; the second one is at
    // address 0, where nothing is mapped: the kernel checks addresses, and refuses this one.
    let written = unsafe { libc::writev(fd, parts.as_ptr(), 2) };
    usize::try_from(written).map_err(|_| Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn bytes_that_are_not_there_cannot_be_written() {
        let (ours, _theirs) = UnixDatagram::pair().expect("made");
        assert_eq!(write_with_fault(&ours, b"head", 0).ok(), Some(4));
        let error = write_with_fault(&ours, b"head", 1).expect_err("nothing is there");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
