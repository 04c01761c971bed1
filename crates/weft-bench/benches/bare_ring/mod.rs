//! The peer of all arrays on files: a bare io_uring.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Memory for requests that bypass the page cache: a program's own, not registered with the kernel.
#[repr(align(4096))]
#[derive(Clone)]
struct Page(#[expect(dead_code, reason = "only the kernel looks at it")] [u8; 4096]);

/// One request to come: file, offset in bytes, whether it writes.
pub type Request = (usize, u64, bool);

/// Files opened past the page cache.
pub fn open(paths: &[PathBuf]) -> Vec<File> {
    let open = |path: &PathBuf| open_direct(path);
    paths.iter().map(open).collect()
}

fn open_direct(path: &Path) -> File {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags).open(path).expect("the file opens")
}

/// Carries out requests of `len` bytes, `depth` at a time, until there are no more; returns their
/// number and how long that took.
pub fn drive(
    files: &[File],
    len: usize,
    depth: usize,
    mut requests: impl FnMut() -> Option<Request>,
) -> (u64, Duration) {
    let entries = u32::try_from(depth.next_power_of_two()).expect("a small depth");
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let mut ring: IoUring = builder.build(entries).expect("a ring");
    let pages = len.div_ceil(size_of::<Page>());
    let mut bufs: Vec<Vec<Page>> = vec![vec![Page([0; 4096]); pages]; depth];
    let bytes = u32::try_from(len).expect("a short request");
    let mut entry = |index: usize| -> Option<squeue::Entry> {
        let (file, offset, write) = requests()?;
        let fd = types::Fd(files[file].as_raw_fd());
        let memory = bufs[index].as_mut_ptr().cast::<u8>();
        Some(if write {
            opcode::Write::new(fd, memory, bytes).offset(offset).build().user_data(index as u64)
        } else {
            opcode::Read::new(fd, memory, bytes).offset(offset).build().user_data(index as u64)
        })
    };
    let start = Instant::now();
    let (mut done, mut flying) = (0, 0);
    let mut free: Vec<usize> = (0..depth).collect();
    loop {
        while let Some(index) = free.pop() {
            let Some(entry) = entry(index) else { break };
            // SAFETY: buffer and file outlive the ring's last completion, awaited below.
            unsafe { ring.submission().push(&entry) }.expect("as many entries as the depth");
            flying += 1;
        }
        if flying == 0 {
            return (done, start.elapsed());
        }
        ring.submit_and_wait(1).expect("submits");
        for completion in ring.completion() {
            let completion: cqueue::Entry = completion;
            assert_eq!(completion.result(), bytes.cast_signed(), "a whole transfer");
            free.push(usize::try_from(completion.user_data()).expect("an index"));
            flying -= 1;
            done += 1;
        }
    }
}
