//! The ring moves bytes of files and sockets, owns what the kernel uses, and is bounded.

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weft_rt::ring::{self, Fd, RWF_DSYNC, Ring, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt};

const SMALL: RingConfig = RingConfig { disk_ops_max: 4, socket_ops_max: 8, command_ops_max: 0 };

fn start(config: RingConfig) -> (Rt, Ring) {
    ring::start(config).expect("this machine has io_uring")
}

fn temp_file(len: u64) -> Fd {
    let file: File = rustix::fs::open(
        std::env::temp_dir(),
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::RUSR,
    )
    .expect("an unnamed file can be made")
    .into();
    file.set_len(len).expect("it can grow");
    Fd::from(OwnedFd::from(file))
}

fn pair() -> (Fd, Fd) {
    let (a, b) = std::os::unix::net::UnixStream::pair().expect("a socket pair can be made");
    (Fd::from(OwnedFd::from(a)), Fd::from(OwnedFd::from(b)))
}

/// Polls a future once, as a task that then loses interest.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn what_is_written_is_read() {
    let (rt, ring) = start(SMALL);
    rt.block_on(async move {
        let fd = temp_file(1 << 20);
        let data = Frozen::copy_from(&[7; 10_000]);
        let written = ring.write_at(&fd, data, 4096, RWF_DSYNC).await.expect("write");
        assert_eq!(written, 10_000);
        ring.fdatasync(&fd).await.expect("fdatasync");
        ring.fsync(&fd).await.expect("fsync");
        let (result, buf) = ring.read_at(&fd, Buf::zeroed(20_000), 0).await;
        assert_eq!(result.expect("read"), 20_000);
        assert!(buf[..4096].iter().chain(&buf[14_096..]).all(|b| *b == 0));
        assert!(buf[4096..14_096].iter().all(|b| *b == 7));
        let (result, _) = ring.read_at(&fd, Buf::new(4096), 1 << 20).await;
        assert_eq!(result.expect("read at the end"), 0);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        ring.fallocate(&fd, punch.bits(), 0, 1 << 20).await.expect("punch");
        let (_, buf) = ring.read_at(&fd, buf, 0).await;
        assert!(buf.iter().all(|b| *b == 0));
        assert_eq!(ring.in_flight(), 0);
    });
}

/// Buffers of all sizes, more than the registered memory holds, whole and in parts: each request
/// moves the bytes of its own buffer and of no other.
#[test]
fn registered_and_other_memory_carry_the_same_bytes() {
    const LEN_MAX: usize = 256 << 10;
    let (rt, ring) = start(SMALL);
    rt.block_on(async move {
        let fd = temp_file(LEN_MAX as u64);
        let mut held = Vec::new();
        for turn in 0..400_usize {
            let len = (512 << (turn % 10)).min(LEN_MAX);
            let mut data = Buf::new(len);
            let pattern = (0..253_u8).cycle().skip(turn % 253);
            data.iter_mut().zip(pattern).for_each(|(byte, n)| *byte = n);
            let mut back = Buf::zeroed(len);
            let rest = back.split_off(len / 2);
            let data = data.freeze();
            let (half, end) = (data.slice(0, len / 2), data.slice(len / 2, len - len / 2));
            let at = (len / 2) as u64;
            ring.write_at(&fd, end, at, 0).await.expect("write");
            ring.write_at(&fd, half, 0, RWF_DSYNC).await.expect("write");
            let (first, back) = ring.read_at(&fd, back, 0).await;
            let (second, rest) = ring.read_at(&fd, rest, at).await;
            assert_eq!(first.expect("read") + second.expect("read"), len);
            assert!(back.iter().chain(rest.iter()).eq(data.iter()), "turn {turn}, {len} bytes");
            held.push((data, turn));
        }
        for (data, turn) in held {
            assert!(data.iter().zip(turn..).all(|(byte, n)| usize::from(*byte) == n % 253));
        }
    });
}

#[test]
fn errors_are_the_kernels() {
    let (rt, ring) = start(SMALL);
    rt.block_on(async move {
        let closed = Fd::from(OwnedFd::from(File::open("/").expect("the root opens")));
        let (result, buf) = ring.read_at(&closed, Buf::new(512), 0).await;
        assert_eq!(result.expect_err("a directory").kind(), std::io::ErrorKind::IsADirectory);
        assert_eq!(buf.len(), 512);
        let refused = ring.connect_unix("/nonexistent/socket".as_ref()).await;
        assert_eq!(refused.expect_err("nothing there").kind(), std::io::ErrorKind::NotFound);
    });
}

/// Far more requests than slots: they wait in line and all end.
#[test]
fn more_requests_than_slots_wait_their_turn() {
    let (rt, ring) = start(SMALL);
    let most = Rc::new(Cell::new(0));
    let (rt2, most2) = (rt.clone(), most.clone());
    rt.block_on(async move {
        let fd = temp_file(4096 * 300);
        let tasks: Vec<_> = (0..300u64)
            .map(|i| {
                let (ring, fd, most) = (ring.clone(), fd.clone(), most2.clone());
                rt2.spawn(async move {
                    let byte = u8::try_from(i % 251).expect("small");
                    let data = Frozen::copy_from(&[byte; 4096]);
                    ring.write_at(&fd, data, i * 4096, 0).await.expect("write");
                    most.set(most.get().max(ring.in_flight()));
                    let (result, buf) = ring.read_at(&fd, Buf::new(4096), i * 4096).await;
                    assert_eq!(result.expect("read"), 4096);
                    assert!(buf.iter().all(|b| *b == byte));
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    assert!((2..=4).contains(&most.get()), "in flight at most: {}", most.get());
}

/// The buffer of a dropped read must not be reused before the kernel has written into it. The
/// read waits on a socket whose peer speaks only later, which makes the danger certain.
#[test]
fn a_dropped_receive_keeps_its_memory_until_it_is_over() {
    let (rt, ring) = start(SMALL);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let (near, far) = pair();
        for _ in 0..50 {
            let buf = Buf::zeroed(4096);
            let address = buf.as_ptr().addr();
            assert!(poll_once(ring.recv(&near, buf, 0)).is_pending());
            let other = Buf::zeroed(4096);
            assert_ne!(other.as_ptr().addr(), address, "memory of an operation in flight");
            ring.send(&far, Frozen::copy_from(b"late")).await.expect("send");
            assert!(other.iter().all(|b| *b == 0));
            rt2.sleep(MILLISECOND / 10).await;
            drop(other);
            // The bytes that the cancelled receive did not take are still in the stream.
            let (result, _) = ring.recv(&near, Buf::new(4096), 0).await;
            assert_eq!(result.expect("receive"), 4);
        }
        while ring.in_flight() > 0 {
            rt2.sleep(MILLISECOND / 10).await;
        }
    });
}

#[test]
fn dropped_disk_operations_run_on_and_free_their_slots() {
    let (rt, ring) = start(SMALL);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let fd = temp_file(1 << 20);
        for i in 0..100u64 {
            let data = Frozen::copy_from(&[9; 4096]);
            let _ = poll_once(ring.write_at(&fd, data, i * 4096, 0));
            let _ = poll_once(ring.read_at(&fd, Buf::new(4096), 0));
            while ring.in_flight() > 0 {
                rt2.yield_now().await;
            }
        }
        let (result, buf) = ring.read_at(&fd, Buf::new(4096 * 100), 0).await;
        assert_eq!(result.expect("read"), 4096 * 100);
        assert!(buf.iter().all(|b| *b == 9), "a started write ends");
    });
}

#[test]
fn a_dropped_accept_closes_what_it_accepted_or_leaves_it_to_the_next() {
    let (rt, ring) = start(SMALL);
    rt.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let listener = Fd::from(OwnedFd::from(listener));
        assert!(poll_once(ring.accept(&listener)).is_pending());
        let client = ring.connect_tcp(address).await.expect("connect");
        let server = ring.accept(&listener).await.expect("accept");
        ring.send(&server, Frozen::copy_from(b"hello")).await.expect("send");
        let (result, buf) = ring.recv_full(&client, Buf::new(5), 0).await;
        assert_eq!((result.expect("receive"), &buf[..]), (5, &b"hello"[..]));
    });
}

#[test]
fn streams_carry_messages_of_many_parts() {
    let (rt, ring) = start(SMALL);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let path = std::env::temp_dir().join(format!("weft-ring-{}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("bind");
        let listener = Fd::from(OwnedFd::from(listener));
        let (ring2, path2) = (ring.clone(), path.clone());
        let client = rt2.spawn(async move { ring2.connect_unix(&path2).await.expect("connect") });
        let server = ring.accept(&listener).await.expect("accept");
        let client = client.await;
        std::fs::remove_file(&path).expect("remove");

        let mut expected = Vec::new();
        let mut parts = Vec::new();
        for i in 0..200usize {
            let bytes = vec![u8::try_from(i).expect("small"); i * 37 % 9000];
            expected.extend_from_slice(&bytes);
            parts.push(Frozen::copy_from(&bytes));
        }
        let len = expected.len();
        let ring2 = ring.clone();
        let sender = rt2.spawn(async move {
            let parts = ring2.send_parts(&server, parts).await.expect("send");
            assert!(parts.is_empty());
            ring2.shutdown(&server, ring::Shutdown::Write).await.expect("shutdown");
        });
        ring.poll_readable(&client).await.expect("poll");
        let (result, buf) = ring.recv_full(&client, Buf::new(len + 10), 0).await;
        assert_eq!(result.expect("receive"), len);
        assert_eq!(buf[..len], expected[..]);
        sender.await;
        let (result, _) = ring.recv(&client, Buf::new(10), 0).await;
        assert_eq!(result.expect("the end"), 0);
    });
}

#[test]
fn cancelling_ends_what_waits_on_a_descriptor() {
    let (rt, ring) = start(SMALL);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let (near, _far) = pair();
        let (ring2, near2) = (ring.clone(), near.clone());
        let reader = rt2.spawn(async move { ring2.recv(&near2, Buf::new(16), 0).await.0 });
        rt2.yield_now().await;
        ring.cancel(&near);
        let error = reader.await.expect_err("cancelled");
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(ring.in_flight(), 0);
    });
}

#[test]
fn other_threads_can_wake_a_parked_executor() {
    let (rt, _ring) = start(SMALL);
    for _ in 0..100 {
        let (thread_in, flag) = std::sync::mpsc::channel::<Waker>();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let done2 = done.clone();
        let thread = std::thread::spawn(move || {
            let waker = flag.recv().expect("a waker comes");
            done2.store(true, std::sync::atomic::Ordering::Release);
            waker.wake();
        });
        rt.block_on(std::future::poll_fn(move |cx| {
            if done.load(std::sync::atomic::Ordering::Acquire) {
                return Poll::Ready(());
            }
            // A second send after the thread has ended is of no interest.
            let _ = thread_in.send(cx.waker().clone());
            Poll::Pending
        }));
        thread.join().expect("the thread ends");
    }
}

#[test]
fn sleeping_takes_at_least_as_long_as_asked() {
    let (rt, _ring) = start(SMALL);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let before = rt2.now();
        rt2.sleep(3 * MILLISECOND).await;
        assert!(rt2.now() - before >= 3 * MILLISECOND);
    });
}

/// Dropping everything with operations in flight must neither hang nor free what the kernel uses.
#[test]
fn a_ring_with_operations_in_flight_can_be_dropped() {
    for _ in 0..20 {
        let (rt, ring) = start(SMALL);
        let (near, _far) = pair();
        let fd = temp_file(1 << 20);
        rt.block_on(async move {
            assert!(poll_once(ring.recv(&near, Buf::new(64), 0)).is_pending());
            let _ = poll_once(ring.read_at(&fd, Buf::new(1 << 20), 0));
        });
    }
}

#[test]
fn impossible_bounds_are_refused() {
    for slots in [0, 40_000] {
        let config = RingConfig { disk_ops_max: slots, socket_ops_max: 0, command_ops_max: 0 };
        let error = ring::start(config).expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}
