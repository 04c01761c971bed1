//! Disks on an NBD server in the test, with faults.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind, VolumeInfo};
use weft_nbd::{Export, Server, ServerConfig};
use weft_rt::ring::{self, Fd, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt};
use weft_testkit::Scratch;

const DISK_BYTES: usize = 24 << 20;
/// Label and superblocks are before this.
const METADATA_BYTES: u64 = 512 << 10;
/// No disk.
pub const NONE: usize = usize::MAX;

/// Faults that the test's thread injects into the disks.
#[derive(Debug)]
pub struct Faults {
    /// Writes to superblocks take this many milliseconds.
    pub delay_ms: AtomicU64,
    /// This disk answers nothing but errors.
    pub failed: AtomicUsize,
    /// This disk answers nothing.
    pub hung: AtomicUsize,
    /// Counts the daemon's deaths: writes that were under way then are not carried out.
    pub deaths: AtomicU64,
}

/// A disk in memory.
struct SlowHead {
    number: usize,
    rt: Rt,
    bytes: RefCell<Vec<u8>>,
    faults: Arc<Faults>,
}

impl SlowHead {
    async fn check(&self) -> Result<(), VolumeError> {
        while self.faults.hung.load(Ordering::SeqCst) == self.number {
            self.rt.sleep(5 * MILLISECOND).await;
        }
        let failed = self.faults.failed.load(Ordering::SeqCst) == self.number;
        let error = || VolumeError::new(VolumeErrorKind::Failed, "failed by the test");
        if failed { Err(error()) } else { Ok(()) }
    }

    async fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let deaths = self.faults.deaths.load(Ordering::SeqCst);
        if offset < METADATA_BYTES {
            let delay = self.faults.delay_ms.load(Ordering::SeqCst);
            self.rt.sleep(delay * MILLISECOND).await;
        }
        self.check().await?;
        if self.faults.deaths.load(Ordering::SeqCst) == deaths {
            let start = usize::try_from(offset).expect("inside the disk");
            self.bytes.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

impl Volume for SlowHead {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { align_bytes: 1, block_bytes: 1, fast_zeroes: false }
    }

    fn size_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }

    fn read(&self, offset: u64, mut buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            let start = usize::try_from(offset).expect("inside the disk");
            let len = buf.len();
            buf.copy_from_slice(&self.bytes.borrow()[start..start + len]);
            (self.check().await, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { self.store(offset, &data).await })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(self.check())
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(self.check())
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: bool, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move {
            self.store(offset, &vec![0; usize::try_from(len).expect("inside the disk")]).await
        })
    }
}

/// The server of the disks, on a thread of its own.
pub struct Disks {
    socket: PathBuf,
    pub faults: Arc<Faults>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    // Last: the socket is in it.
    _scratch: Scratch,
}

impl Disks {
    pub fn start(count: usize) -> Self {
        let scratch = Scratch::in_memory("slow");
        let socket = scratch.join("s");
        let (stop, told) = UnixStream::pair().expect("a pair of sockets");
        let (ready, started) = mpsc::channel();
        let (failed, hung) = (AtomicUsize::new(NONE), AtomicUsize::new(NONE));
        let (delay_ms, deaths) = (AtomicU64::new(0), AtomicU64::new(0));
        let faults = Arc::new(Faults { delay_ms, failed, hung, deaths });
        let (path, shared) = (socket.clone(), faults.clone());
        let thread = std::thread::spawn(move || {
            let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
            let server = Server::new(&rt, &ring, ServerConfig::default());
            for number in 0..count {
                let bytes = RefCell::new(vec![0; DISK_BYTES]);
                let disk = SlowHead { number, rt: rt.clone(), bytes, faults: shared.clone() };
                let export = Export::new(Rc::new(disk), "");
                server.add_export(&format!("m{number}"), export).expect("a good export");
            }
            server.listen_unix(&path, None).expect("listen on a fresh path");
            ready.send(()).expect("the test waits");
            rt.clone().block_on(async move {
                let told = Fd::from(OwnedFd::from(told));
                let _ = ring.recv(&told, Buf::new(1), 0).await;
                server.shutdown().await;
            });
        });
        started.recv().expect("the server starts");
        Self { socket, faults, stop: Some(stop), thread: Some(thread), _scratch: scratch }
    }

    pub fn uris(&self, count: usize) -> Vec<String> {
        let socket = self.socket.display();
        (0..count).map(|n| format!("nbd+unix:///m{n}?socket={socket}")).collect()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|end| end.is_ok()), "the server");
    }
}
