//! Untrustworthy servers as members: inconsistent replies end the connection, and never complete a
//! read with data that did not arrive; a silent server keeps no request for longer than its time
//! limit, in any state of the connection.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use weft_disk::{Class, Disk, DiskErrorKind, WriteOpts};
use weft_nbd::client::OpenError;
use weft_nbd::proto::{put_data_chunk_head, put_empty_chunk, put_simple_reply, wire::*};
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, SECOND};
use weft_testkit::Scratch;

/// Size of every export here, in bytes.
const SIZE: u64 = 1 << 20;

/// A server that does as its test wants. Its threads end with the process.
struct Script {
    uri: String,
    connections: Arc<AtomicUsize>,
    _scratch: Scratch,
}

impl Script {
    /// Runs `serve` for every connection, with its number from 0.
    fn start(serve: impl Fn(usize, UnixStream) + Clone + Send + 'static) -> Self {
        let scratch = Scratch::in_memory("bad-server");
        let path: PathBuf = scratch.join("s");
        let listener = UnixListener::bind(&path).expect("bind");
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (serve, number) = (serve.clone(), count.fetch_add(1, Ordering::Relaxed));
                thread::spawn(move || serve(number, stream));
            }
        });
        let uri = format!("nbd+unix:///disk?socket={}", path.display());
        Self { uri, connections, _scratch: scratch }
    }

    /// Answers each request, once the handshake is over, with what `answer` puts; `None` hangs up.
    fn answering(answer: impl Fn(&Asked) -> Option<Vec<u8>> + Clone + Send + 'static) -> Self {
        Self::start(move |_, mut stream| {
            if shake_hands(&mut stream).is_none() {
                return;
            }
            while let Some(asked) = Asked::receive(&mut stream) {
                match answer(&asked) {
                    Some(bytes) => {
                        if stream.write_all(&bytes).is_err() {
                            return;
                        }
                    }
                    None => return,
                }
            }
        })
    }
}

/// Keeps a connection open and says nothing.
fn hang(mut stream: UnixStream) {
    let mut sink = [0; 4096];
    while stream.read(&mut sink).is_ok_and(|len| len > 0) {}
}

/// The server's side, with structured replies, of a client's handshake.
fn shake_hands(stream: &mut UnixStream) -> Option<()> {
    let greeting = [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat();
    stream.write_all(&greeting).ok()?;
    stream.read_exact(&mut [0; 4]).ok()?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).ok()?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        let (option, len) = (number(8), number(12));
        stream.read_exact(&mut vec![0; len as usize]).ok()?;
        let mut reply = |kind: u32, data: &[u8]| {
            let len = u32::try_from(data.len()).expect("short");
            let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes()].concat();
            let tail = [&kind.to_be_bytes()[..], &len.to_be_bytes(), data].concat();
            stream.write_all(&[head, tail].concat()).ok()
        };
        match option {
            OPT_STRUCTURED_REPLY => reply(REP_ACK, &[])?,
            OPT_GO => {
                let flags = EXPORT_HAS_FLAGS | EXPORT_SEND_FLUSH | EXPORT_SEND_FUA;
                let export = [&[0, 0][..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat();
                reply(REP_INFO, &export)?;
                return reply(REP_ACK, &[]);
            }
            _ => reply(REP_ERR_UNSUP, &[])?,
        }
    }
}

/// A request as it came.
struct Asked {
    command: u16,
    cookie: u64,
    len: u32,
}

impl Asked {
    fn receive(stream: &mut UnixStream) -> Option<Self> {
        let mut head = [0; REQUEST_BYTES];
        stream.read_exact(&mut head).ok()?;
        let command = u16::from_be_bytes([head[6], head[7]]);
        let cookie = u64::from_be_bytes(head[8..16].try_into().expect("eight bytes"));
        let len = u32::from_be_bytes(head[24..28].try_into().expect("four bytes"));
        if command == CMD_WRITE {
            stream.read_exact(&mut vec![0; len as usize]).ok()?;
        }
        Some(Self { command, cookie, len })
    }
}

fn on_ring<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let future = test(rt.clone(), ring);
    rt.block_on(future);
}

async fn open(rt: &Rt, ring: &Ring, uri: &str, options: NbdOptions) -> Result<NbdDisk, OpenError> {
    NbdDisk::open(rt, ring, &uri.parse().expect("a good URI"), options).await
}

/// A part of a reply: data (the byte that all of it is), or a hole.
#[derive(Debug, Clone, Copy)]
enum Part {
    Data(u64, usize, u8),
    Hole(u64, u32),
    /// A simple reply with all the data.
    Simple(usize, u8),
}

fn reply(cookie: u64, parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match *part {
            Part::Data(offset, len, byte) => {
                put_data_chunk_head(&mut bytes, cookie, offset, len, false);
                bytes.resize(bytes.len() + len, byte);
            }
            Part::Hole(offset, len) => {
                bytes.extend(CHUNK_MAGIC.to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(CHUNK_OFFSET_HOLE.to_be_bytes());
                bytes.extend(cookie.to_be_bytes());
                bytes.extend(12_u32.to_be_bytes());
                bytes.extend(offset.to_be_bytes());
                bytes.extend(len.to_be_bytes());
            }
            Part::Simple(len, byte) => {
                put_simple_reply(&mut bytes, cookie, None);
                bytes.resize(bytes.len() + len, byte);
            }
        }
    }
    put_empty_chunk(&mut bytes, cookie);
    bytes
}

#[test]
fn a_read_is_whole_when_each_byte_has_come_once_and_not_before() {
    use Part::{Data, Hole, Simple};
    // A read of 4096 bytes at 8192; the bytes that a good reply gives, or none for a bad one.
    let cases: [(&'static [Part], Option<[u8; 4]>); 14] = [
        (&[Data(8192, 4096, 7)], Some([7; 4])),
        (&[Data(8192, 1024, 1), Data(9216, 3072, 2)], Some([1, 2, 2, 2])),
        (&[Data(11264, 1024, 3), Hole(9216, 2048), Data(8192, 1024, 1)], Some([1, 0, 0, 3])),
        // Twice the same: as many bytes as were asked for, but not all of them.
        (&[Data(8192, 2048, 1), Data(8192, 2048, 1)], None),
        (&[Data(8192, 2048, 1), Data(9216, 2048, 2)], None),
        (&[Data(9216, 2048, 1), Data(8192, 2048, 2)], None),
        (&[Hole(8192, 2048), Data(9216, 2048, 2)], None),
        (&[Data(8192, 2048, 1), Hole(8192, 2048)], None),
        (&[Data(8192, 4096, 1), Hole(8192, 1)], None),
        (&[Data(8192, 2048, 1), Simple(4096, 1)], None),
        // Short, empty, and outside.
        (&[Data(8192, 2048, 1), Data(11264, 1024, 1)], None),
        (&[Data(8192, 4096, 1), Hole(8192, 0)], None),
        (&[Data(4096, 4096, 1)], None),
        (&[Data(8192, 4096, 1), Data(12288, 4096, 1)], None),
    ];
    for (parts, expected) in cases {
        let server = Script::answering(move |asked| {
            assert_eq!((asked.command, asked.len), (CMD_READ, 4096));
            Some(reply(asked.cookie, parts))
        });
        let uri = server.uri.clone();
        on_ring(|rt, ring| async move {
            let options = NbdOptions { reconnect_attempts: 0, ..NbdOptions::default() };
            let disk = open(&rt, &ring, &uri, options).await.expect("it is there");
            // Memory that is used again holds what was in it.
            drop(Frozen::copy_from(&[0xee; 4096]));
            let (result, buf) = disk.read(8192, Buf::new(4096), Class::User).await;
            match expected {
                Some(quarters) => {
                    result.unwrap_or_else(|error| panic!("{parts:?}: {error}"));
                    for (quarter, byte) in buf.chunks(1024).zip(quarters) {
                        assert!(quarter.iter().all(|b| *b == byte), "{parts:?}");
                    }
                }
                None => {
                    // The last bytes of some replies break the rules only after the read is whole.
                    let failed = result.is_err() || {
                        let (next, _) = disk.read(8192, Buf::new(4096), Class::User).await;
                        next.is_err()
                    };
                    assert!(failed, "{parts:?}");
                    let why = disk.gone().expect("the disk is gone");
                    assert!(why.contains("broke the protocol"), "{parts:?}: {why}");
                }
            }
        });
    }
}

/// Reads and checks that the disk was given up: if nothing bounds the wait, this does not return.
async fn given_up(disk: &NbdDisk) {
    let (result, buf) = disk.read(0, Buf::new(4096), Class::User).await;
    assert_eq!(result.expect_err("nothing was answered").kind, DiskErrorKind::Gone);
    assert_eq!(buf.len(), 4096);
    let why = disk.gone().expect("the disk is gone");
    assert!(why.contains("did not answer in time"), "{why}");
    // From now on nothing waits.
    let (again, _) = disk.read(0, Buf::new(4096), Class::User).await;
    again.expect_err("it stays gone");
}

#[test]
fn a_server_that_says_nothing_at_all_is_given_up() {
    let server = Script::start(|_, stream| hang(stream));
    let uri = server.uri.clone();
    on_ring(|rt, ring| async move {
        let options = NbdOptions { connect_timeout: 200 * MILLISECOND, ..NbdOptions::default() };
        let refused = open(&rt, &ring, &uri, options).await.expect_err("nobody greets");
        assert!(matches!(refused, OpenError::TimedOut), "{refused}");
    });
}

#[test]
fn a_server_that_answers_no_request_is_asked_once() {
    let server = Script::start(|_, mut stream| {
        shake_hands(&mut stream);
        hang(stream);
    });
    let uri = server.uri.clone();
    on_ring(|rt, ring| async move {
        let options = NbdOptions {
            request_timeout: 300 * MILLISECOND,
            reconnect_attempts: 1000,
            reconnect_pause: MILLISECOND,
            // All but one wait for a place.
            requests_max: 1,
            ..NbdOptions::default()
        };
        for write in [false, true] {
            let disk = open(&rt, &ring, &uri, options).await.expect("it is there");
            let others = (0..4).map(|_| disk.read(8192, Buf::new(512), Class::User));
            let write = async {
                if write {
                    let data = Frozen::copy_from(&[1; 512]);
                    disk.write(0, data, WriteOpts::USER).await.expect_err("not answered");
                }
            };
            let others = futures_util::future::join_all(others);
            let (_, (), others) = futures_util::future::join3(given_up(&disk), write, others).await;
            assert!(others.iter().all(|(result, _)| result.is_err()));
        }
    });
    // One for each disk: what kept a request waiting for all its time gets no second chance.
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
}

#[test]
fn a_server_that_comes_back_silent_is_given_up() {
    // It hangs up at the first request, and never sends a greeting again.
    let server = Script::start(|number, mut stream| {
        if number > 0 {
            return hang(stream);
        }
        shake_hands(&mut stream);
        let _ = Asked::receive(&mut stream);
    });
    let uri = server.uri.clone();
    on_ring(|rt, ring| async move {
        let options = NbdOptions {
            connect_timeout: 3600 * SECOND,
            request_timeout: 500 * MILLISECOND,
            reconnect_pause: MILLISECOND,
            ..NbdOptions::default()
        };
        let disk = open(&rt, &ring, &uri, options).await.expect("it is there");
        given_up(&disk).await;
    });
}

#[test]
fn a_server_that_breaks_off_again_and_again_is_given_up() {
    let server = Script::answering(|_| {
        thread::sleep(Duration::from_millis(50));
        None
    });
    let uri = server.uri.clone();
    on_ring(|rt, ring| async move {
        let options = NbdOptions {
            request_timeout: SECOND,
            reconnect_attempts: 100_000,
            reconnect_pause: 0,
            ..NbdOptions::default()
        };
        let disk = open(&rt, &ring, &uri, options).await.expect("it is there");
        given_up(&disk).await;
    });
}
