//! Clients that hold places and memory without making progress lose them to those that do, and
//! never stop the others. The tests measure no time: the good client completes while the bad ones
//! are still connected.

mod support;

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use support::raw::{Raw, faults};
use support::{RamVolume, Seen, Served};
use weft_nbd::ServerConfig;
use weft_nbd::proto::{Request, put_request, wire::*};
use weft_nbd::server::Event;
use weft_rt::{MILLISECOND, Nanos, SECOND};
use weft_testkit::wait_until;

const MIB: usize = 1 << 20;

/// 4 MiB of memory in all: 64 KiB for each client, and 3 MiB that they share, one of them for
/// requests up to a MiB.
fn small() -> ServerConfig {
    ServerConfig {
        connections_max: 16,
        bytes_per_connection: 2 * MIB,
        bytes_total: 4 * MIB,
        // Far longer than a test: a client that blocks no other is never disconnected.
        handshake_timeout: 3600 * SECOND,
        stall_timeout: 3600 * SECOND,
        stall_timeout_contended: 100 * MILLISECOND,
        pool_patience: 300 * MILLISECOND,
        ..ServerConfig::default()
    }
}

/// Tries with waits that are so many times as long, until one holds: on a machine with much other
/// work a client that works is slow, and a server may take it for one that stalls.
fn with_patience(test: impl Fn(Nanos)) {
    for times in [1, 10] {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(times))).is_ok() {
            return;
        }
    }
    test(100);
}

/// The same server, whose waits are so many times as long.
fn patient(times: Nanos, config: ServerConfig) -> ServerConfig {
    ServerConfig {
        stall_timeout_contended: times * config.stall_timeout_contended,
        pool_patience: times * config.pool_patience,
        ..config
    }
}

/// Clients that between them want all that is shared, and never take a byte of the answers.
fn deaf(served: &Served, count: usize) -> Vec<Raw> {
    let mut clients: Vec<Raw> = (0..count).map(|_| Raw::new(served)).collect();
    for client in &mut clients {
        for cookie in 0..4 {
            client.send(CMD_READ, cookie, 0, 2 << 20);
        }
    }
    clients
}

/// Clients that announce large writes; each sends `sent` bytes of them.
fn owing(served: &Served, count: usize, sent: usize) -> Vec<Raw> {
    let mut clients: Vec<Raw> = (0..count).map(|_| Raw::new(served)).collect();
    for client in &mut clients {
        client.send(CMD_WRITE, 1, 0, 2 << 20);
        client.0.write_all(&vec![7; sent]).expect("part of the data");
    }
    clients
}

/// A read, a write and a read of it, of this many bytes.
fn works_with(client: &mut Raw, len: usize) {
    let size = u32::try_from(len).expect("short");
    client.send(CMD_WRITE, 1, 0, size);
    client.0.write_all(&vec![9; len]).expect("the data");
    assert_eq!(client.reply(), (1, 0));
    client.send(CMD_READ, 2, 0, size);
    assert_eq!(client.reply(), (2, 0));
    assert!(client.data(len).iter().all(|byte| *byte == 9));
}

#[test]
fn small_requests_never_wait_for_what_others_hold() {
    // No client is ever disconnected here.
    let config = ServerConfig { pool_patience: 3600 * SECOND, ..small() };
    let served = Served::bounded(config, || RamVolume::new(4 * MIB));
    let mut bad = deaf(&served, 6);
    bad.extend(owing(&served, 6, 4096));
    let mut good = Raw::new(&served);
    for _ in 0..100 {
        works_with(&mut good, 64 << 10);
    }
    drop(bad);
    let events = served.stop();
    assert!(!faults(&events).iter().any(|why| why.contains("other clients waited")), "{events:?}");
}

#[test]
fn requests_up_to_a_mib_do_not_wait_behind_long_ones() {
    let config = ServerConfig { pool_patience: 3600 * SECOND, ..small() };
    let served = Served::bounded(config, || RamVolume::new(4 * MIB));
    let bad = deaf(&served, 12);
    let mut good = Raw::new(&served);
    for _ in 0..10 {
        works_with(&mut good, MIB);
    }
    drop(bad);
    served.stop();
}

#[test]
fn writes_that_are_only_announced_hold_up_nobody() {
    let config = ServerConfig { pool_patience: 3600 * SECOND, ..small() };
    let served = Served::bounded(config, || RamVolume::new(4 * MIB));
    let mut bad = owing(&served, 14, 0);
    let mut good = Raw::new(&served);
    for _ in 0..10 {
        works_with(&mut good, MIB);
    }
    // They may still send what they owe.
    for client in &mut bad {
        client.0.write_all(&vec![1; 2 << 20]).expect("all of the data");
        assert_eq!(client.reply(), (1, 0));
    }
    served.stop();
}

#[test]
fn large_requests_get_the_memory_of_clients_that_stall() {
    for stalled in ["deaf", "owing", "both"] {
        with_patience(|times| large_requests(stalled, times));
    }
}

/// Some clients stall, and one has large requests.
fn large_requests(stalled: &str, times: Nanos) {
    let served = Served::bounded(patient(times, small()), || RamVolume::new(4 * MIB));
    let mut bad = if stalled == "owing" { Vec::new() } else { deaf(&served, 6) };
    if stalled != "deaf" {
        bad.extend(owing(&served, 8, 100_000));
    }
    let mut idle = Raw::new(&served);
    let mut good = Raw::new(&served);
    for _ in 0..10 {
        works_with(&mut good, 2 << 20);
    }
    // The client that held nothing stays connected.
    works_with(&mut idle, 4096);
    drop(bad);
    let events = served.stop();
    let why = faults(&events);
    assert!(why.iter().any(|fault| fault.contains("other clients waited")), "{events:?}");
}

#[test]
fn a_client_that_is_known_to_work_does_not_wait_for_those_that_stall() {
    // 11.7 MiB that they share, of which 7.8 are for long requests; nobody is disconnected.
    let config = ServerConfig { bytes_total: 16 * MIB, pool_patience: 3600 * SECOND, ..small() };
    let served = Served::bounded(config, || RamVolume::new(4 * MIB));
    let mut good = Raw::new(&served);
    for _ in 0..8 {
        works_with(&mut good, MIB);
    }
    let mut bad = deaf(&served, 6);
    bad.extend(owing(&served, 6, 4096));
    for _ in 0..10 {
        works_with(&mut good, 2 << 20);
    }
    drop(bad);
    let events = served.stop();
    assert!(!faults(&events).iter().any(|why| why.contains("other clients waited")), "{events:?}");
}

#[test]
fn who_makes_progress_keeps_its_memory_however_long_others_wait() {
    with_patience(others_wait_for_long);
}

/// The export is slow: memory is held for long, and no client is to blame.
fn others_wait_for_long(times: Nanos) {
    let config = ServerConfig { pool_patience: 20 * MILLISECOND, ..small() };
    let config = ServerConfig { stall_timeout_contended: 20 * MILLISECOND, ..config };
    let config = patient(times, config);
    let delay = times * 300 * MILLISECOND;
    let slow = move || RamVolume { delay: Cell::new(delay), ..RamVolume::new(4 * MIB) };
    let served = Served::bounded(config, slow);
    let mut clients: Vec<Raw> = (0..8).map(|_| Raw::new(&served)).collect();
    for client in &mut clients {
        client.send(CMD_READ, 1, 0, 1 << 20);
    }
    let read = |mut client: Raw| {
        std::thread::spawn(move || {
            assert_eq!(client.reply(), (1, 0));
            client.data(MIB);
        })
    };
    let threads: Vec<_> = clients.into_iter().map(read).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it is served"));
    assert!(faults(&served.stop()).is_empty());
}

#[test]
fn half_open_handshakes_and_unused_connections_make_room() {
    let served = Served::bounded(small(), || RamVolume::new(MIB));
    let mut used: Vec<Raw> = (0..3).map(|_| Raw::new(&served)).collect();
    used.iter_mut().for_each(|client| works_with(client, 512));
    let half_open: Vec<_> = (0..60).map(|_| Raw::dial(&served)).collect();
    let mut late: Vec<Raw> = (0..13).map(|_| Raw::new(&served)).collect();
    for client in used.iter_mut().chain(&mut late) {
        works_with(client, 512);
    }
    // Now all places are taken by clients that use them.
    let mut refused = Raw(Raw::dial(&served));
    assert!(refused.at_end());
    for client in used.iter_mut().chain(&mut late) {
        works_with(client, 512);
    }
    drop(half_open);
    let events = served.stop();
    assert!(events.contains(&Event::Refused));
    let displaced =
        faults(&events).iter().filter(|why| why.contains("had sent no request")).count();
    assert_eq!(displaced, 60, "{events:?}");
}

#[test]
fn too_many_clients_are_turned_away() {
    let config = ServerConfig { connections_max: 2, ..ServerConfig::default() };
    let served = Served::bounded(config, || RamVolume::new(MIB));
    let (mut one, mut two) = (Raw::new(&served), Raw::new(&served));
    works_with(&mut one, 512);
    works_with(&mut two, 512);
    let mut three = Raw(Raw::dial(&served));
    assert!(three.at_end());
    one.works();
    two.works();
    assert!(served.stop().contains(&Event::Refused));
}

#[test]
fn clients_that_stall_for_long_are_cut_off_although_nobody_waits() {
    with_patience(some_stall_for_long);
}

/// Some clients stall in their handshake, in a write and in a read.
fn some_stall_for_long(times: Nanos) {
    let config = ServerConfig {
        handshake_timeout: times * 400 * MILLISECOND,
        stall_timeout: times * 400 * MILLISECOND,
        ..ServerConfig::default()
    };
    let served = Served::bounded(config, || RamVolume::new(8 * MIB));
    let mut silent = Raw(Raw::dial(&served));
    let mut owing = Raw::new(&served);
    owing.send(CMD_WRITE, 1, 0, 2 << 20);
    let mut deaf = deaf(&served, 1).remove(0);
    let idle = Raw::new(&served);
    silent.data(18);
    assert!(silent.at_end() && owing.at_end());
    wait_until("the deaf client to be cut off", || {
        let mut bytes = Vec::new();
        let flush = Request { flags: 0, command: CMD_FLUSH, cookie: 99, offset: 0, len: 0 };
        put_request(&mut bytes, &flush);
        deaf.0.write_all(&bytes).is_err()
    });
    idle.works();
    let events = served.stop();
    let cut = faults(&events).iter().filter(|fault| fault.contains("too long")).count();
    assert_eq!(cut, 3, "{events:?}");
}

/// Trims and zeroes that take long, and what was seen of them.
fn slow_zeroes(config: ServerConfig) -> (Served, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let served = Served::bounded(config, move || RamVolume {
        delay: Cell::new(2 * MILLISECOND),
        granularity: 4096,
        seen: theirs,
        ..RamVolume::new(4 * MIB)
    });
    (served, seen)
}

fn pieces(seen: &Seen) -> u64 {
    seen.trims.load(Ordering::Relaxed) + seen.zeroes.load(Ordering::Relaxed)
}

#[test]
fn long_trims_and_zeroes_are_cut_into_pieces_and_count_as_data_does() {
    let (served, seen) = slow_zeroes(small());
    let mut raw = Raw::new(&served);
    raw.send(CMD_WRITE, 1, 0, 1 << 20);
    raw.0.write_all(&vec![5; MIB]).expect("the data");
    assert_eq!(raw.reply(), (1, 0));
    // Neither end is at a piece's.
    raw.send(CMD_WRITE_ZEROES, 2, 1000, 40_000);
    assert_eq!(raw.reply(), (2, 0));
    assert_eq!(seen.zeroes.load(Ordering::Relaxed), 11);
    raw.send(CMD_READ, 3, 0, 64 << 10);
    assert_eq!(raw.reply(), (3, 0));
    let bytes = raw.data(64 << 10);
    let is_zero = |at: usize| (1000..41_000).contains(&at);
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if is_zero(at) { 0 } else { 5 }));

    // The pool has room for one of these.
    let mut clients: Vec<Raw> = (0..8).map(|_| Raw::new(&served)).collect();
    for client in &mut clients {
        for cookie in 0..4 {
            client.send(CMD_TRIM, cookie, 0, 2 << 20);
        }
    }
    wait_until("trims to be under way", || seen.trims.load(Ordering::Relaxed) > 50);
    let most = seen.zeroing_max.load(Ordering::Relaxed);
    assert_eq!(most, 1, "pieces at the same time");
    drop(clients);
    served.stop();
}

#[test]
fn trims_and_zeroes_of_a_client_that_vanished_end_and_give_its_place_back() {
    let config = ServerConfig { connections_max: 2, ..small() };
    let (served, seen) = slow_zeroes(config);
    // Together these would take 8 seconds a client; all places are taken.
    for _ in 0..2 {
        let mut gone = Raw::new(&served);
        for cookie in 0..8 {
            gone.send(CMD_WRITE_ZEROES, cookie, 0, 2 << 20);
        }
    }
    // A new client is accepted as soon as the others are disconnected.
    wait_until("a place", || {
        let mut raw = Raw(Raw::dial(&served));
        let mut greeting = [0; 1];
        std::io::Read::read(&mut raw.0, &mut greeting).is_ok_and(|len| len == 1)
    });
    let begun = pieces(&seen);
    Raw::new(&served).works();
    served.stop();
    // The 16 requests are of 512 pieces each.
    assert!(begun < 4000, "{begun} pieces were begun");
}

#[test]
fn clients_that_take_no_answers_do_not_hold_up_the_end() {
    let config = ServerConfig { shutdown_grace: 3600 * SECOND, ..small() };
    let served = Served::bounded(config, || RamVolume::new(4 * MIB));
    let bad = deaf(&served, 4);
    Raw::new(&served).works();
    served.stop();
    drop(bad);
}

#[test]
fn trims_and_zeroes_end_when_the_server_stops() {
    let config = ServerConfig { shutdown_grace: 3600 * SECOND, ..small() };
    let (mut served, seen) = slow_zeroes(config);
    let mut raw = Raw::new(&served);
    raw.send(CMD_TRIM, 1, 0, 4 << 20);
    wait_until("the trim to be under way", || pieces(&seen) > 3);
    served.begin_stop();
    // The error says that only part was done.
    assert_eq!(raw.reply(), (1, 108));
    assert!(raw.at_end());
    served.stop();
    assert!(pieces(&seen) < 1024, "the trim went on to its end");
}

/// The server has less memory for a client than one block of the export has.
#[test]
fn a_request_for_which_there_is_too_little_memory_in_all_is_refused() {
    let config = ServerConfig { bytes_per_connection: 2 << 10, ..small() };
    let served = Served::bounded(config, || RamVolume { align_bytes: 4096, ..RamVolume::new(MIB) });
    let mut client = Raw::new(&served);
    client.send(CMD_READ, 1, 0, 4096);
    let (cookie, error) = client.reply();
    assert!(cookie == 1 && error != 0, "{error}");
    client.send(CMD_WRITE, 2, 0, 4096);
    client.0.write_all(&[7; 4096]).expect("the data");
    let (cookie, error) = client.reply();
    assert!(cookie == 2 && error != 0, "{error}");
    client.send(CMD_TRIM, 3, 0, 4096);
    assert_eq!(client.reply(), (3, 0));
    served.stop();
}
