//! The client as a disk: against our own server, and against nbdkit and qemu-nbd; what it does
//! when the server refuses, breaks, or is silent.

mod support;

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use support::{RamVolume, Served};
use weft_disk::{Class, Disk, DiskErrorKind, WriteOpts};
use weft_nbd::client::OpenError;
use weft_nbd::{NbdDisk, NbdOptions, ServerConfig};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, SECOND};
use weft_testkit::{Need, Process, Rng, Scratch, command, have, pattern, wait_until};

const MIB: usize = 1 << 20;

fn on_ring<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let future = test(rt.clone(), ring);
    rt.block_on(future);
}

async fn open(rt: &Rt, ring: &Ring, uri: &str) -> Result<NbdDisk, OpenError> {
    open_with(rt, ring, uri, NbdOptions::default()).await
}

async fn open_with(
    rt: &Rt,
    ring: &Ring,
    uri: &str,
    options: NbdOptions,
) -> Result<NbdDisk, OpenError> {
    NbdDisk::open(rt, ring, &uri.parse().expect("a good URI"), options).await
}

/// Fails fast: for tests in which the server breaks.
fn hasty() -> NbdOptions {
    NbdOptions {
        request_timeout: 300 * MILLISECOND,
        reconnect_attempts: 2,
        reconnect_pause: 5 * MILLISECOND,
        ..NbdOptions::default()
    }
}

async fn read(disk: &NbdDisk, offset: u64, len: usize) -> Buf {
    let (result, buf) = disk.read(offset, Buf::new(len), Class::User).await;
    result.expect("a read");
    buf
}

/// A random history against a model; several requests at a time.
async fn history(disk: NbdDisk, seed: u64, rounds: usize) {
    let sector = u64::from(disk.info().sector_bytes);
    let size = usize::try_from(disk.info().size_bytes).expect("a small disk");
    let mut model = vec![0; size];
    let zeroed = disk.write_zeroes(0, size as u64, WriteOpts::USER).await;
    zeroed.expect("the whole disk is zeroed");
    let mut rng = Rng::new(seed);
    for round in 0..rounds {
        // Disjoint parts of the disk, one operation each, all at once.
        let part = size / 4;
        let operations = (0..4).map(|index| {
            let longest = if rng.chance(1, 8) { part } else { 64 << 10 } as u64 / sector;
            let len = (1 + rng.below(longest)) * sector;
            let room = (part as u64 - len) / sector;
            let offset = (index * part) as u64 + rng.below(room + 1) * sector;
            (offset, len, rng.below(8), rng.next_u64())
        });
        let operations: Vec<_> = operations.collect();
        let futures = operations.iter().map(|(offset, len, kind, stream)| {
            let disk = &disk;
            async move {
                let bytes = usize::try_from(*len).expect("it fits");
                let opts = WriteOpts { class: Class::User, fua: stream.is_multiple_of(3) };
                match kind {
                    0..=3 => {
                        let data = Frozen::copy_from(&pattern::bytes(*stream, bytes));
                        disk.write(*offset, data, opts).await.expect("a write");
                        None
                    }
                    4 => {
                        disk.write_zeroes(*offset, *len, opts).await.expect("zeroes");
                        None
                    }
                    _ => Some(read(disk, *offset, bytes).await),
                }
            }
        });
        let answers = futures_util::future::join_all(futures).await;
        for ((offset, len, kind, stream), answer) in operations.into_iter().zip(answers) {
            let start = usize::try_from(offset).expect("it fits");
            let place = &mut model[start..start + usize::try_from(len).expect("it fits")];
            match (kind, answer) {
                (0..=3, _) => place.copy_from_slice(&pattern::bytes(stream, place.len())),
                (4, _) => place.fill(0),
                (_, Some(buf)) => assert!(*buf == *place, "round {round}: wrong data at {offset}"),
                (_, None) => panic!("a read gives data"),
            }
        }
        if round % 16 == 0 {
            disk.flush().await.expect("a flush");
        }
    }
    assert!(*read(&disk, 0, size).await == *model, "the whole disk is as the model has it");
}

#[test]
fn a_disk_of_our_own_server_keeps_what_is_written() {
    let served = Served::ram("disk", || RamVolume::new(8 * MIB));
    for uri in [served.uri("disk"), served.tcp_uri("")] {
        on_ring(|rt, ring| async move {
            let disk = open(&rt, &ring, &uri).await.expect("the server is there");
            assert_eq!((disk.info().size_bytes, disk.info().sector_bytes), (8 << 20, 512));
            history(disk, 1, 100).await;
        });
    }
    assert!(served.stop().iter().all(|event| !format!("{event:?}").contains("Some(")));
}

#[test]
fn large_requests_are_cut_to_what_the_server_takes() {
    let config = ServerConfig { bytes_per_connection: 128 << 10, ..ServerConfig::default() };
    let served = Served::bounded(config, || RamVolume {
        align_bytes: 4096,
        ..RamVolume::new(8 * MIB + 512)
    });
    let uri = served.uri("disk");
    on_ring(|rt, ring| async move {
        let disk = open(&rt, &ring, &uri).await.expect("the server is there");
        assert_eq!((disk.info().size_bytes, disk.info().sector_bytes), (8 << 20, 4096));
        history(disk, 2, 40).await;
    });
}

#[test]
fn disks_of_nbdkit_and_qemu_nbd_keep_what_is_written() {
    if !have(&[Need::Tool("nbdkit"), Need::Tool("qemu-nbd")]) {
        return;
    }
    let scratch = Scratch::in_memory("nbd");
    let socket = |name: &str| scratch.join(name);
    let file = scratch.join("image");
    fs::write(&file, vec![0; 8 * MIB]).expect("make an image");
    let kit = |name: &str, args: &[&str]| {
        let mut nbdkit = command("nbdkit");
        nbdkit.args(["--foreground", "--unix"]).arg(socket(name)).args(args);
        Process::spawn(&mut nbdkit)
    };
    let _servers = [
        kit("k1", &["memory", "size=8M"]),
        // Without structured replies; without FUA and zeroes; with small payloads.
        kit("k2", &["--no-sr", "memory", "size=8M"]),
        kit("k3", &["--filter=nozero", "--filter=fua", "memory", "size=8M"]),
        kit("k4", &["--filter=blocksize-policy", "memory", "size=8M", "blocksize-maximum=64K"]),
        Process::spawn(
            command("qemu-nbd")
                .args(["--format=raw", "--persistent", "--export-name=disk", "--socket"])
                .arg(socket("q1"))
                .arg(&file),
        ),
    ];
    for (name, export) in [("k1", ""), ("k2", "any"), ("k3", ""), ("k4", ""), ("q1", "disk")] {
        let path = socket(name);
        wait_until("a server's socket", || path.exists());
        let uri = format!("nbd+unix:///{export}?socket={}", path.display());
        on_ring(|rt, ring| async move {
            let disk = open(&rt, &ring, &uri).await.expect("the server is there");
            assert_eq!(disk.info().fast_zeroes, name != "k3");
            history(disk, 3, 60).await;
        });
    }
}

#[test]
fn what_the_server_refuses_has_its_kind() {
    let served = Served::start(weft_nbd::ServerConfig::default(), |_, server| {
        let bad = RamVolume { bad_byte: Some(5000), ..RamVolume::new(MIB) };
        let fixed = RamVolume { read_only: true, ..RamVolume::new(MIB) };
        server.add_export("bad", bad.served()).expect("new");
        server.add_export("fixed", fixed.served()).expect("new");
    });
    let uris = [served.uri("bad"), served.uri("fixed"), served.uri("nix")];
    on_ring(|rt, ring| async move {
        let [bad, fixed, missing] = uris;
        let disk = open(&rt, &ring, &bad).await.expect("it is there");
        let (result, buf) = disk.read(4096, Buf::new(4096), Class::User).await;
        let error = result.expect_err("the byte is bad");
        assert_eq!((error.kind, buf.len()), (DiskErrorKind::Medium, 4096));
        assert!(error.to_string().contains("this byte is bad"), "{error}");
        assert_eq!(read(&disk, 8192, 512).await.len(), 512);
        for (offset, len) in [(1, 512), (0, 100), (1 << 20, 512), (u64::MAX - 511, 512)] {
            let (result, _) = disk.read(offset, Buf::new(len), Class::User).await;
            assert_eq!(result.expect_err("no such place").kind, DiskErrorKind::Invalid);
        }
        assert!(matches!(open(&rt, &ring, &fixed).await, Err(OpenError::ReadOnly)));
        let options = NbdOptions { read_only: true, ..NbdOptions::default() };
        let disk = open_with(&rt, &ring, &fixed, options).await.expect("read-only");
        assert_eq!(read(&disk, 0, 512).await.len(), 512);
        let zeros = Frozen::copy_from(&[0; 512]);
        assert!(disk.write(0, zeros, WriteOpts::USER).await.is_err());
        disk.flush().await.expect("nothing to flush");
        let refused = open(&rt, &ring, &missing).await.expect_err("there is none").to_string();
        assert!(refused.contains("no export of this name"), "{refused}");
        let nobody = "nbd+unix:///?socket=/nonexistent/socket";
        assert!(matches!(open(&rt, &ring, nobody).await, Err(OpenError::Io(_))));
    });
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // On a machine with much other work a quick answer takes its time.
    let is_quick = |patience| a_server_that_never_answers_for(patience);
    assert!([300 * MILLISECOND, 3 * SECOND, 30 * SECOND, 300 * SECOND].into_iter().any(is_quick));
}

/// Some requests are answered long after `patience`. Returns whether the others were within.
fn a_server_that_never_answers_for(patience: Nanos) -> bool {
    let hasty = move || NbdOptions { request_timeout: patience, ..hasty() };
    let never = move || RamVolume { delay: Cell::new(8 * patience), ..RamVolume::new(MIB) };
    let served = Served::start(
        weft_nbd::ServerConfig { shutdown_grace: MILLISECOND, ..Default::default() },
        move |rt, server| {
            let export = RamVolume { rt: Some(rt.clone()), slow_below: 4096, ..never() };
            server.add_export("disk", export.served()).expect("new");
        },
    );
    let uri = served.uri("disk");
    let is_quick = Rc::new(Cell::new(false));
    let answer = is_quick.clone();
    // The server's thread checks that nothing is in flight, which is not so here: it is asked
    // to stop only after the slow requests have ended.
    on_ring(|rt, ring| async move {
        let disk = open_with(&rt, &ring, &uri, hasty()).await.expect("it is there");
        // Others go on until a request has taken too long.
        let (slow, quick) = futures_util::future::join(
            disk.read(0, Buf::new(512), Class::User),
            disk.read(8192, Buf::new(512), Class::User),
        )
        .await;
        assert_eq!(slow.0.expect_err("it never comes").kind, DiskErrorKind::Gone);
        answer.set(quick.0.is_ok());
        let why = disk.gone().expect("the disk is gone");
        assert_eq!(why, "the server did not answer in time");
        let disk = open_with(&rt, &ring, &uri, hasty()).await.expect("it is there");
        let data = Frozen::copy_from(&[1; 512]);
        let lost = disk.write(0, data, WriteOpts::USER_FUA).await.expect_err("it never comes");
        assert_eq!(lost.kind, DiskErrorKind::Gone);
        let why = disk.gone().expect("the disk is gone");
        assert!(why.contains("did not answer in time, with writes in flight"), "{why}");
        let (after, _) = disk.read(8192, Buf::new(512), Class::User).await;
        assert_eq!(after.expect_err("it stays gone").kind, DiskErrorKind::Gone);
        rt.sleep(8 * patience + 100 * MILLISECOND).await;
    });
    is_quick.get()
}

struct Kit {
    socket: std::path::PathBuf,
    file: std::path::PathBuf,
    process: Option<Process>,
}

impl Kit {
    fn new(dir: &Path) -> Self {
        let (socket, file) = (dir.join("k"), dir.join("image"));
        fs::write(&file, pattern::bytes(4, MIB)).expect("make an image");
        let mut kit = Self { socket, file, process: None };
        kit.start();
        kit
    }

    fn start(&mut self) {
        let mut nbdkit = command("nbdkit");
        nbdkit.args(["--foreground", "--unix"]).arg(&self.socket).arg("file").arg(&self.file);
        self.process = Some(Process::spawn(&mut nbdkit));
        wait_until("nbdkit's socket", || self.socket.exists());
    }

    fn kill(&mut self) {
        self.process.take().expect("it runs").kill9();
        fs::remove_file(&self.socket).expect("remove the socket");
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

#[test]
fn a_server_that_comes_back_is_used_only_if_nothing_can_have_been_lost() {
    if !have(&[Need::Tool("nbdkit")]) {
        return;
    }
    let scratch = Scratch::in_memory("nbd");
    let mut kit = Kit::new(scratch.path());
    on_ring(|rt, ring| async move {
        let options = NbdOptions { reconnect_pause: 20 * MILLISECOND, ..NbdOptions::default() };
        let disk = open_with(&rt, &ring, &kit.uri(), options).await.expect("it is there");
        pattern::check(4, 0, &read(&disk, 0, 4096).await);

        // Flushed, and written with FUA: all of it is durable.
        let data = Frozen::copy_from(&pattern::bytes(5, 4096));
        disk.write(0, data.clone(), WriteOpts::USER).await.expect("a write");
        disk.flush().await.expect("a flush");
        disk.write(4096, data.clone(), WriteOpts::USER_FUA).await.expect("a write");
        kit.kill();
        kit.start();
        pattern::check(5, 0, &read(&disk, 4096, 4096).await);
        assert_eq!(disk.gone(), None);

        // Not flushed.
        disk.write(0, data.clone(), WriteOpts::USER).await.expect("a write");
        kit.kill();
        kit.start();
        let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
        assert_eq!(result.expect_err("gone").kind, DiskErrorKind::Gone);
        let why = disk.gone().expect("the disk is gone");
        assert!(why.contains("with writes that were not flushed"), "{why}");

        // Opened anew, it works; without a server it is given up after some attempts.
        let few = NbdOptions { request_timeout: 600 * SECOND, ..hasty() };
        let disk = open_with(&rt, &ring, &kit.uri(), few).await.expect("it is there");
        pattern::check(5, 0, &read(&disk, 0, 4096).await);
        kit.kill();
        let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
        assert_eq!(result.expect_err("gone").kind, DiskErrorKind::Gone);

        // Another disk of the same size, or the same one set back: what was read or written before
        // is not there.
        kit.start();
        let disk = open_with(&rt, &ring, &kit.uri(), options).await.expect("it is there");
        let image = fs::read(&kit.file).expect("the image");
        disk.write(4096, Frozen::copy_from(&pattern::bytes(7, 4096)), WriteOpts::USER_FUA)
            .await
            .expect("a write");
        kit.kill();
        fs::write(&kit.file, image).expect("an image of before");
        kit.start();
        let (result, _) = disk.read(8192, Buf::new(4096), Class::User).await;
        let error = result.expect_err("gone").to_string();
        assert!(error.contains("another disk"), "{error}");
        kit.kill();

        // Larger, with what was there before: the same disk, and more of it.
        kit.start();
        let disk = open_with(&rt, &ring, &kit.uri(), options).await.expect("it is there");
        let before = read(&disk, 0, 4096).await;
        kit.kill();
        let image = fs::OpenOptions::new().write(true).open(&kit.file).expect("the image");
        let larger = 3 * MIB as u64;
        image.set_len(larger).expect("enlarged");
        kit.start();
        assert_eq!(read(&disk, 0, 4096).await[..], before[..]);
        assert_eq!((disk.info().size_bytes, disk.size_now()), (MIB as u64, larger));
        let last = larger - 4096;
        disk.write(last, Frozen::copy_from(&pattern::bytes(9, 4096)), WriteOpts::USER_FUA)
            .await
            .expect("a write to what is new");
        pattern::check(9, 0, &read(&disk, last, 4096).await);
        // Smaller again: not the disk it was.
        kit.kill();
        image.set_len(larger - MIB as u64).expect("cut short");
        kit.start();
        let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
        let error = result.expect_err("gone").to_string();
        assert!(error.contains("different export"), "{error}");
        kit.kill();

        // Larger, and nothing tells whether it is the same disk.
        kit.start();
        let disk = open_with(&rt, &ring, &kit.uri(), options).await.expect("it is there");
        kit.kill();
        fs::write(&kit.file, vec![0; 3 * MIB]).expect("make another image");
        kit.start();
        let (result, _) = disk.read(0, Buf::new(4096), Class::User).await;
        let error = result.expect_err("gone").to_string();
        assert!(error.contains("different export"), "{error}");
    });
}

#[test]
fn a_disk_that_is_dropped_says_goodbye() {
    let served = Served::ram("disk", || RamVolume::new(MIB));
    let uri = served.uri("disk");
    on_ring(|rt, ring| async move {
        let disk = open(&rt, &ring, &uri).await.expect("it is there");
        assert_eq!(read(&disk, 0, 512).await.len(), 512);
        drop(disk);
        while rt.live_tasks() > 2 {
            rt.sleep(MILLISECOND).await;
        }
    });
    let events = served.stop();
    let clean = weft_nbd::server::Event::Disconnected { connection: 1, fault: None };
    assert!(events.contains(&clean), "{events:?}");
}

#[test]
fn payloads_of_reads_and_writes_are_counted_once() {
    let seen = std::sync::Arc::new(support::Seen::default());
    let theirs = seen.clone();
    let served = Served::ram("disk", move || RamVolume { seen: theirs, ..RamVolume::new(MIB) });
    let uri = served.uri("disk");
    on_ring(|rt, ring| async move {
        let disk = open(&rt, &ring, &uri).await.expect("it is there");
        for len in [512, 4096, 64 << 10, MIB] {
            let data = Frozen::copy_from(&pattern::bytes(6, len));
            disk.write(0, data, WriteOpts::USER_FUA).await.expect("a write");
            pattern::check(6, 0, &read(&disk, 0, len).await);
        }
        disk.discard(0, 4096).await.expect("a discard");
    });
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&seen.reads), count(&seen.writes), count(&seen.fua)), (4, 4, 4));
    assert_eq!((count(&seen.trims), count(&seen.unaligned)), (1, 0));
}
