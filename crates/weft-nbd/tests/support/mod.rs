//! A RAM export, and a server for it on a thread of its own.
#![allow(dead_code, reason = "each story uses some of it")]

pub mod raw;

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use weft_disk::{
    AllocationRange, DoneFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind, VolumeInfo,
};
use weft_nbd::server::Event;
use weft_nbd::{Export, Server, ServerConfig};
use weft_rt::ring::{self, Fd, RingConfig};
use weft_rt::{Buf, Frozen, Nanos, Rt};
use weft_testkit::Scratch;

/// Granularity of the allocation that a [`RamVolume`] reports, in bytes.
pub const CLUSTER: usize = 64 << 10;

/// What clients did to a [`RamVolume`], seen from the test's thread.
#[derive(Debug, Default)]
pub struct Seen {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub flushes: AtomicU64,
    pub trims: AtomicU64,
    pub zeroes: AtomicU64,
    pub fua: AtomicU64,
    /// Writes whose memory was not page-aligned.
    pub unaligned: AtomicU64,
    /// Trims and zeroes in progress, and how many there were at most.
    pub zeroing: AtomicU64,
    pub zeroing_max: AtomicU64,
}

/// A volume in memory.
pub struct RamVolume {
    pub bytes: RefCell<Vec<u8>>,
    pub allocated: RefCell<Vec<bool>>,
    pub align_bytes: u32,
    pub read_only: bool,
    /// Reads, writes, trims and zeroes that begin below `slow_below` take this long; 0: they
    /// complete at once.
    pub delay: Cell<Nanos>,
    pub slow_below: u64,
    /// Where trims and zeroes are cut.
    pub granularity: u64,
    pub rt: Option<Rt>,
    pub seen: Arc<Seen>,
    /// Reads of this byte fail.
    pub bad_byte: Option<u64>,
    /// A fault in the program: a read that begins here panics.
    pub panics_at: Option<u64>,
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a RAM export fits the address space")
}

impl RamVolume {
    pub fn new(size: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; size]),
            allocated: RefCell::new(vec![false; size.div_ceil(CLUSTER)]),
            align_bytes: 1,
            read_only: false,
            delay: Cell::new(0),
            slow_below: u64::MAX,
            granularity: 64 << 20,
            rt: None,
            seen: Arc::default(),
            bad_byte: None,
            panics_at: None,
        }
    }

    /// It as an export.
    pub fn served(self) -> Export {
        let read_only = self.read_only;
        Export { read_only, ..Export::new(Rc::new(self), "memory of a test") }
    }

    async fn pause(&self, offset: u64) {
        let slow = self.delay.get() > 0 && offset < self.slow_below;
        if let Some(rt) = self.rt.as_ref().filter(|_| slow) {
            rt.sleep(self.delay.get()).await;
        }
    }

    async fn zero(&self, offset: u64, len: u64, hole: bool) {
        let now = self.seen.zeroing.fetch_add(1, Ordering::Relaxed) + 1;
        self.seen.zeroing_max.fetch_max(now, Ordering::Relaxed);
        self.pause(offset).await;
        self.seen.zeroing.fetch_sub(1, Ordering::Relaxed);
        let range = index(offset)..index(offset + len);
        self.bytes.borrow_mut()[range.clone()].fill(0);
        if hole {
            let whole = range.start.div_ceil(CLUSTER)..range.end / CLUSTER;
            self.allocated.borrow_mut()[whole.start.min(whole.end)..whole.end].fill(false);
        }
    }
}

impl Volume for RamVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            align_bytes: self.align_bytes,
            block_bytes: self.align_bytes,
            fast_zeroes: false,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn zeroes_end(&self, offset: u64) -> u64 {
        offset - offset % self.granularity + self.granularity
    }

    fn read(&self, offset: u64, mut buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            self.pause(offset).await;
            self.seen.reads.fetch_add(1, Ordering::Relaxed);
            assert!(self.panics_at != Some(offset), "a fault in the program");
            let range = offset..offset + buf.len() as u64;
            if self.bad_byte.is_some_and(|bad| range.contains(&bad)) {
                let error = VolumeError::new(VolumeErrorKind::Unreadable, "this byte is bad");
                return (Err(error), buf);
            }
            let range = index(range.start)..index(range.end);
            buf.copy_from_slice(&self.bytes.borrow()[range]);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move {
            self.pause(offset).await;
            self.seen.writes.fetch_add(1, Ordering::Relaxed);
            self.seen.fua.fetch_add(fua.into(), Ordering::Relaxed);
            let aligned = data.as_ptr().addr().is_multiple_of(4096);
            self.seen.unaligned.fetch_add((!aligned).into(), Ordering::Relaxed);
            let start = index(offset);
            self.bytes.borrow_mut()[start..][..data.len()].copy_from_slice(&data);
            if !data.is_empty() {
                let clusters = start / CLUSTER..=(start + data.len() - 1) / CLUSTER;
                self.allocated.borrow_mut()[clusters].fill(true);
            }
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        self.seen.flushes.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        self.seen.trims.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.zero(offset, len, true).await;
            Ok(())
        })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _fua: bool,
        may_trim: bool,
    ) -> DoneFuture<'_, VolumeError> {
        self.seen.zeroes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.zero(offset, len, may_trim).await;
            Ok(())
        })
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<AllocationRange>, VolumeError> {
        let (mut at, end) = (index(offset), index(offset + len));
        let mut extents = Vec::new();
        while at < end {
            let next = ((at / CLUSTER + 1) * CLUSTER).min(end);
            let hole = !self.allocated.borrow()[at / CLUSTER];
            extents.push(AllocationRange { len: (next - at) as u64, hole });
            at = next;
        }
        Ok(extents)
    }
}

/// A server on its own thread, on a Unix socket in a folder of its own and on a TCP port of the
/// loopback; stopped by [`Served::stop`] or by drop.
pub struct Served {
    pub socket: PathBuf,
    pub tcp: SocketAddr,
    scratch: Scratch,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Vec<Event>>>,
}

impl Served {
    /// Serves what `make` adds.
    pub fn start(config: ServerConfig, make: impl FnOnce(&Rt, &Server) + Send + 'static) -> Self {
        let scratch = Scratch::in_memory("nbd");
        let socket = scratch.path().join("s");
        let (stop, told) = UnixStream::pair().expect("a pair of sockets");
        let (ready, started) = mpsc::channel();
        let path = socket.clone();
        let thread = std::thread::spawn(move || {
            let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
            let server = Server::new(&rt, &ring, config);
            let events = Rc::new(RefCell::new(Vec::new()));
            let log = events.clone();
            server.on_event(move |event| log.borrow_mut().push(event));
            make(&rt, &server);
            server.listen_unix(&path, None).expect("listen on a fresh path");
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            ready.send(server.listen_tcp(any).expect("listen on loopback")).expect("test waits");
            rt.clone().block_on(async move {
                let told = Fd::from(OwnedFd::from(told));
                let _ = ring.recv(&told, Buf::new(1), 0).await;
                server.shutdown().await;
                assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
            });
            events.take()
        });
        let tcp = started.recv().expect("the server starts");
        Self { socket, tcp, scratch, stop: Some(stop), thread: Some(thread) }
    }

    /// Serves one export as `name`.
    pub fn ram(name: &'static str, make: impl FnOnce() -> RamVolume + Send + 'static) -> Self {
        Self::start(ServerConfig::default(), move |rt, server| {
            let mut export = make();
            export.rt = Some(rt.clone());
            server.add_export(name, export.served()).expect("a good export");
        })
    }

    /// A folder of this test.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// The URI of an export over the Unix socket.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    /// The URI of an export over TCP.
    pub fn tcp_uri(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.tcp)
    }

    /// Asks the server to stop, and does not wait.
    pub fn begin_stop(&mut self) {
        self.stop = None;
    }

    /// Serves one export as `disk` within other bounds.
    pub fn bounded(
        config: ServerConfig,
        make: impl FnOnce() -> RamVolume + Send + 'static,
    ) -> Self {
        Self::start(config, move |rt, server| {
            let export = RamVolume { rt: Some(rt.clone()), ..make() };
            server.add_export("disk", export.served()).expect("a good export");
        })
    }

    /// Stops the server; everything must have been released. Gives what happened.
    pub fn stop(mut self) -> Vec<Event> {
        self.begin_stop();
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("the server ends well")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server's thread panicked");
        }
    }
}
