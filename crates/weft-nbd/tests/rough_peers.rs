//! Clients that break the rules, stall or disappear harm only themselves, and the server releases
//! their resources (every test ends with a server that has no bytes in flight).

mod support;

use std::cell::Cell;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::raw::{Raw, faults};
use support::{RamVolume, Seen, Served};
use weft_nbd::proto::{Request, put_request, wire::*};
use weft_nbd::{Server, ServerConfig, ServerError};
use weft_rt::MILLISECOND;
use weft_rt::ring::{self, RingConfig};
use weft_testkit::{Rng, Scratch};

const MIB: usize = 1 << 20;

#[test]
fn wrong_requests_are_refused_and_the_connection_goes_on() {
    let served = Served::ram("disk", || RamVolume::new(MIB));
    let mut raw = Raw::new(&served);
    for (cookie, command, offset, len, error) in [
        (1, 77, 0, 0, 22),
        (2, CMD_READ, MIB as u64, 1, 22),
        (3, CMD_READ, u64::MAX, 1, 22),
        (4, CMD_READ, 0, u32::MAX, 22),
        (5, CMD_TRIM, 1, u32::MAX, 22),
        (6, CMD_WRITE_ZEROES, 1, u32::MAX, 28),
        (7, CMD_BLOCK_STATUS, 0, 512, 22),
        (8, CMD_FLUSH, 0, 1, 22),
        (9, CMD_READ, 0, 0, 0),
    ] {
        raw.send(command, cookie, offset, len);
        assert_eq!(raw.reply(), (cookie, error));
    }
    // The data of a refused write is taken off the wire.
    for len in [10, 40 << 20] {
        raw.send(CMD_WRITE, 10, MIB as u64 - 4, len);
        raw.0.write_all(&vec![7; len as usize]).expect("send data");
        assert_eq!(raw.reply(), (10, if len == 10 { 28 } else { 22 }));
    }
    raw.works();
    assert!(faults(&served.stop()).is_empty());
}

#[test]
fn a_write_is_refused_only_when_its_data_has_arrived() {
    let served = Served::start(ServerConfig::default(), |_, server| {
        let fixed = RamVolume { read_only: true, ..RamVolume::new(MIB) };
        server.add_export("disk", RamVolume::new(MIB).served()).expect("new");
        server.add_export("fixed", fixed.served()).expect("new");
    });
    for (export, offset, len, error) in [
        // Past the end, longer than any request may be, and to an export that takes none.
        ("disk", MIB as u64, 4096, 28),
        ("disk", u64::MAX, 4096, 28),
        ("disk", 0, 33 << 20, 22),
        ("fixed", 0, 4096, 1),
        ("fixed", 0, 33 << 20, 1),
    ] {
        let mut raw = Raw::of(&served, export);
        raw.send(CMD_WRITE, 5, offset, len);
        let (last, rest) = ([7; 1], vec![7; len as usize - 1]);
        raw.0.write_all(&rest).expect("nearly all of the data");
        raw.0.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let early = raw.0.read(&mut [0; 16]).expect_err("a reply before the data is there");
        assert_eq!(early.kind(), ErrorKind::WouldBlock);
        raw.0.set_read_timeout(None).expect("a socket");
        raw.0.write_all(&last).expect("the rest");
        assert_eq!(raw.reply(), (5, error), "{export} {offset} {len}");
        raw.send(CMD_READ, 6, 0, 8);
        assert_eq!((raw.reply(), raw.data(8).len()), ((6, 0), 8));
    }
    assert!(faults(&served.stop()).is_empty());
}

#[test]
fn requests_of_no_bytes_succeed_wherever_they_lie() {
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let served = Served::start(ServerConfig::default(), move |_, server| {
        let export = RamVolume { seen: theirs, ..RamVolume::new(MIB) };
        let fixed = RamVolume { read_only: true, ..RamVolume::new(MIB) };
        server.add_export("disk", export.served()).expect("new");
        server.add_export("fixed", fixed.served()).expect("new");
    });
    let mut raw = Raw::new(&served);
    let mut fixed = Raw::of(&served, "fixed");
    for offset in [0, 512, MIB as u64] {
        for command in [CMD_READ, CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
            raw.send(command, 1, offset, 0);
            assert_eq!(raw.reply(), (1, 0));
            fixed.send(command, 2, offset, 0);
            assert_eq!(fixed.reply(), (2, u32::from(command != CMD_READ)));
        }
    }
    raw.send(CMD_READ, 3, MIB as u64 + 1, 0);
    assert_eq!(raw.reply(), (3, 22));
    raw.works();
    served.stop();
    let asked = [&seen.reads, &seen.writes, &seen.trims, &seen.zeroes];
    let asked = asked.map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(asked, [1, 1, 0, 0], "an export is asked for bytes only");
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let served = Served::ram("disk", || RamVolume::new(MIB));
    let bystander = Raw::new(&served);
    let mut raw = Raw::new(&served);
    raw.0.write_all(&[0x55; 28]).expect("send nonsense");
    assert!(raw.at_end());
    let mut raw = Raw::new(&served);
    raw.send(CMD_WRITE, 1, 0, u32::MAX);
    assert_eq!(raw.reply(), (1, 22));
    assert!(raw.at_end());
    let mut http = Raw(Raw::dial(&served));
    http.0.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("send nonsense");
    http.data(18);
    assert!(http.at_end());
    bystander.works();
    let events = served.stop();
    assert_eq!(faults(&events).len(), 3, "{events:?}");
}

#[test]
fn any_conversation_at_all_leaves_the_server_well() {
    let served = Served::ram("disk", || RamVolume::new(MIB));
    let mut rng = Rng::new(11);
    let mut hello = 3u32.to_be_bytes().to_vec();
    for (option, data) in [(8u32, &b""[..]), (3, b""), (7, b"\0\0\0\x04disk\0\0")] {
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(option.to_be_bytes());
        hello.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
        hello.extend(data);
    }
    for command in [CMD_READ, CMD_WRITE_ZEROES, CMD_TRIM, CMD_FLUSH, CMD_READ] {
        let len = if command == CMD_FLUSH { 0 } else { 4096 };
        put_request(&mut hello, &Request { flags: 0, command, cookie: 1, offset: 0, len });
    }
    for _ in 0..400 {
        let mut bytes = hello.clone();
        for _ in 0..rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).expect("an index");
            match rng.below(3) {
                0 => bytes[at] = u8::try_from(rng.below(256)).expect("a byte"),
                1 => bytes[at] ^= 1 << rng.below(8),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let mut stream = Raw::dial(&served);
        // The server may hang up before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    Raw::new(&served).works();
    served.stop();
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_write_has_written_nothing() {
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let served = Served::ram("disk", move || RamVolume { seen: theirs, ..RamVolume::new(4 * MIB) });
    for sent in [0, 10, 5000, MIB] {
        let mut raw = Raw::new(&served);
        raw.send(CMD_WRITE, 1, 0, 2 << 20);
        raw.0.write_all(&vec![7; sent]).expect("send part of the data");
        drop(raw);
    }
    Raw::new(&served).works();
    let events = served.stop();
    assert_eq!(seen.writes.load(Ordering::Relaxed), 1, "only the good client has written");
    assert_eq!(faults(&events).len(), 4, "{events:?}");
}

#[test]
fn a_client_that_vanishes_with_requests_in_flight_releases_them() {
    let served = Served::ram("disk", || RamVolume {
        delay: Cell::new(30 * MILLISECOND),
        ..RamVolume::new(4 * MIB)
    });
    for _ in 0..4 {
        let mut raw = Raw::new(&served);
        for cookie in 0..8 {
            raw.send(CMD_READ, cookie, 0, 1 << 20);
        }
    }
    served.stop();
}

#[test]
fn answers_come_in_the_order_in_which_they_are_ready() {
    let served = Served::ram("disk", || RamVolume {
        delay: Cell::new(400 * MILLISECOND),
        slow_below: 4096,
        ..RamVolume::new(MIB)
    });
    let mut raw = Raw::new(&served);
    raw.send(CMD_READ, 1, 0, 8);
    raw.send(CMD_READ, 2, 4096, 8);
    assert_eq!((raw.reply(), raw.data(8).len()), ((2, 0), 8));
    assert_eq!((raw.reply(), raw.data(8).len()), ((1, 0), 8));
}

#[test]
fn goodbye_and_shutdown_wait_for_what_is_in_flight() {
    let slow = || RamVolume { delay: Cell::new(400 * MILLISECOND), ..RamVolume::new(MIB) };
    let mut served = Served::ram("disk", slow);
    let mut leaving = Raw::new(&served);
    leaving.send(CMD_READ, 1, 0, 8);
    leaving.send(CMD_DISC, 2, 0, 0);
    assert_eq!((leaving.reply(), leaving.data(8).len()), ((1, 0), 8));
    assert!(leaving.at_end());

    let mut staying = Raw::new(&served);
    staying.send(CMD_WRITE, 1, 0, 4);
    staying.0.write_all(b"weft").expect("send data");
    // A reply to something later shows that the write was begun.
    staying.send(CMD_FLUSH, 2, 0, 0);
    assert_eq!(staying.reply(), (2, 0));
    served.begin_stop();
    assert_eq!(staying.reply(), (1, 0));
    assert!(staying.at_end());
    assert!(faults(&served.stop()).is_empty());
}

#[test]
fn a_client_that_repeats_requests_gets_no_error_from_a_server_that_stops() {
    // The second request waits until the first one, which is slow, has ended.
    let config = ServerConfig { requests_per_connection: 1, ..ServerConfig::default() };
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let server = Server::new(&rt, &ring, config);
    let slow = RamVolume { delay: Cell::new(300 * MILLISECOND), ..RamVolume::new(MIB) };
    let slow = RamVolume { rt: Some(rt.clone()), ..slow };
    server.add_export("disk", slow.served()).expect("new");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let number = server.serve(ours.into()).expect("room for it");
    let client = std::thread::spawn(move || {
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        for cookie in [1, 2] {
            let read = Request { flags: 0, command: CMD_READ, cookie, offset: 0, len: 8 };
            put_request(&mut hello, &read);
        }
        theirs.write_all(&hello).expect("send");
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).expect("the server closes");
        all
    });
    rt.clone().block_on(async move {
        while server.bytes_in_flight() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        server.shutdown().await;
        server.until_ended(number).await;
    });
    let all = client.join().expect("the client ends");
    // Greeting, size and flags, the reply to the first request and its data.
    assert_eq!(all.len(), 18 + 10 + 16 + 8, "{all:?}");
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    let config = ServerConfig { shutdown_grace: 20 * MILLISECOND, ..ServerConfig::default() };
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let scratch = Scratch::in_memory("nbd");
    let path = scratch.join("s");
    let server = Server::new(&rt, &ring, config);
    let never = RamVolume { delay: Cell::new(u64::MAX / 4), ..RamVolume::new(MIB) };
    let never = RamVolume { rt: Some(rt.clone()), ..never };
    server.add_export("disk", never.served()).expect("new");
    server.listen_unix(&path, None).expect("listen");
    let client = std::thread::spawn(move || {
        let mut stream = UnixStream::connect(path).expect("the server listens");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        put_request(
            &mut hello,
            &Request { flags: 0, command: CMD_READ, cookie: 1, offset: 0, len: 8 },
        );
        stream.write_all(&hello).expect("send");
        stream.read_to_end(&mut Vec::new())
    });
    let cut = rt.clone().block_on(async move {
        while server.bytes_in_flight() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        server.shutdown().await
    });
    assert_eq!(cut, 1);
    drop(client.join().expect("the client ends"));
}

#[test]
fn an_export_can_be_taken_away_from_its_clients() {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let scratch = Scratch::in_memory("nbd");
    let path = scratch.join("s");
    let server = Server::new(&rt, &ring, ServerConfig::default());
    server.add_export("a", RamVolume::new(MIB).served()).expect("new");
    server.add_export("b", RamVolume::new(MIB).served()).expect("new");
    let twice = server.add_export("a", RamVolume::new(MIB).served());
    assert!(matches!(twice, Err(ServerError::Duplicate(_))));
    server.listen_unix(&path, None).expect("listen");
    let client = std::thread::spawn(move || {
        let mut stream = UnixStream::connect(&path).expect("the server listens");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend([0, 0, 0, 1, 0, 0, 0, 1, b'a']);
        stream.write_all(&hello).expect("send");
        stream.read_to_end(&mut Vec::new()).expect("the server closes")
    });
    rt.clone().block_on(async move {
        while server.connections_to("a") == 0 {
            rt.sleep(MILLISECOND).await;
        }
        assert!(server.remove_export("a").await && !server.remove_export("a").await);
        assert_eq!((server.connections_to("a"), server.connections()), (0, 0));
        server.shutdown().await;
    });
    assert_eq!(client.join().expect("the client ends"), 28);
}

#[test]
fn socket_files_are_private_replaced_when_stale_and_removed() {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let scratch = Scratch::in_memory("nbd");
    let path = scratch.join("s");
    let server = || Server::new(&rt, &ring, ServerConfig::default());
    // What a dead server leaves behind.
    drop(UnixListener::bind(&path).expect("bind"));
    let first = server();
    first.listen_unix(&path, None).expect("a stale socket is replaced");
    let meta = fs::metadata(&path).expect("the socket exists");
    assert!(meta.file_type().is_socket() && meta.permissions().mode() & 0o777 == 0o600);
    let shared = server();
    let at = scratch.join("g");
    let own = fs::metadata(scratch.path()).expect("a folder").gid();
    shared.listen_unix(&at, Some(own)).expect("users can give files to their own group");
    let meta = fs::metadata(&at).expect("the socket exists");
    assert_eq!((meta.gid(), meta.permissions().mode() & 0o777), (own, 0o660));
    rt.block_on(async move { shared.shutdown().await });
    let second = server();
    assert!(matches!(second.listen_unix(&path, None), Err(ServerError::InUse(_))));
    rt.block_on(async move { first.shutdown().await });
    assert!(!path.exists(), "the socket's file is removed");
    fs::write(&path, "precious").expect("write a file");
    assert!(matches!(second.listen_unix(&path, None), Err(ServerError::NotASocket(_))));
    assert_eq!(fs::read(&path).expect("it is still there"), b"precious");
    let long = scratch.join("x".repeat(120));
    assert!(matches!(second.listen_unix(&long, None), Err(ServerError::Listen { .. })));
    rt.block_on(async move { second.shutdown().await });
}
