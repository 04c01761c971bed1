//! Misbehaving clients of the daemon, over NBD and on its control socket, harm neither the daemon
//! nor the other clients.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use crate::common::Bench;
use weft_nbd::proto::wire::{CMD_DISC, CMD_READ, CMD_WRITE, OPT_EXPORT_NAME, OPTION_MAGIC};
use weft_nbd::proto::{Request, put_request};
use weft_testkit::{Process, wait_until};

/// A connection to the array `t`, with its size in bytes.
fn connect(bench: &Bench) -> (UnixStream, u64) {
    let mut stream = UnixStream::connect(bench.path("run/nbd.sock")).expect("the server listens");
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OPT_EXPORT_NAME.to_be_bytes());
    hello.extend([0, 0, 0, 1, b't']);
    stream.write_all(&hello).expect("say hello");
    let mut export = [0; 10];
    stream.read_exact(&mut export).expect("size and flags");
    (stream, u64::from_be_bytes(export[..8].try_into().expect("eight bytes")))
}

fn send(stream: &mut UnixStream, command: u16, offset: u64, len: u32) {
    let mut bytes = Vec::new();
    put_request(&mut bytes, &Request { flags: 0, command, cookie: 1, offset, len });
    stream.write_all(&bytes).expect("send a request");
}

fn error_of(stream: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).expect("a reply");
    u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
}

#[test]
fn a_read_of_nothing_at_the_end_is_answered() {
    // The data of five members of 64 MiB is whole regions: the end lies in none.
    let mut bench = Bench::new("empty-read");
    bench.members(5, 64 << 20);
    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2", "d3", "d4"]);
    for more in [&[][..], &["--read-only"]] {
        bench.serve(&[more, &["d0", "d1", "d2", "d3", "d4"]].concat());
        let (mut stream, size) = connect(&bench);
        for offset in [size, 0, size / 2] {
            send(&mut stream, CMD_READ, offset, 0);
            assert_eq!(error_of(&mut stream), 0);
        }
        send(&mut stream, CMD_DISC, 0, 0);
        assert_eq!(bench.status("t")["state"], "healthy");
        bench.terminate();
    }
}

#[test]
fn idle_control_connections_make_room_for_commands() {
    let mut bench = Bench::new("idle-control");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    let path = bench.path("run/control.sock");
    let mut watch = bench.command(&["status", "t", "--json", "--watch=0.2"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("start weft");
    let mut looks = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut look = || looks.next().expect("it goes on").expect("a line");
    look();
    let mut idle: Vec<UnixStream> = Vec::new();
    for n in 0..100 {
        let mut stream = UnixStream::connect(&path).expect("connect");
        if n % 2 == 0 {
            // Some have begun to ask.
            stream.write_all(b"{\"version\"").expect("write");
        }
        idle.push(stream);
    }
    // Who only watches is not among those that have to go.
    for _ in 0..5 {
        assert!(look().contains("healthy"));
    }
    watch.kill().expect("end it");
    watch.wait().expect("it has ended");
    for _ in 0..5 {
        assert_eq!(bench.status("t")["state"], "healthy");
    }
    assert!(bench.log().contains("to make room"), "{}", bench.log());
    // The youngest of them still has its place.
    let last = idle.last_mut().expect("there are some");
    last.write_all(b"0\n").expect("write");
    let mut answer = String::new();
    BufReader::new(last).read_line(&mut answer).expect("an answer");
    assert!(answer.contains("did not understand"), "{answer}");
    bench.terminate();
}

#[test]
fn refused_and_cut_off_clients_are_in_the_log() {
    let mut bench = Bench::new("nbd-log");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    let mut rude = UnixStream::connect(bench.path("run/nbd.sock")).expect("the server listens");
    rude.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("send nonsense");
    wait_until("the log to tell", || bench.log().contains("broke the protocol"));
    bench.terminate();
}

#[test]
fn the_socket_is_its_users_or_a_groups() {
    let mut bench = Bench::new("socket-group");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    let own = fs::metadata(bench.scratch.path()).expect("the scratch folder");
    // Root may give it to any group, others to their own.
    let (group, number) = match own.uid() {
        0 => ("daemon".to_owned(), 1),
        _ => (own.gid().to_string(), own.gid()),
    };
    let seen = |bench: &Bench, name: &str| {
        let data = fs::metadata(bench.path(name)).expect("it is there");
        (data.gid(), data.permissions().mode() & 0o777)
    };
    bench.serve(&["d0", "d1"]);
    assert_eq!(seen(&bench, "run/nbd.sock").1, 0o600);
    assert_eq!(seen(&bench, "run").1, 0o700);
    bench.terminate();

    bench.serve(&["--socket-group", &group, "d0", "d1"]);
    assert_eq!(seen(&bench, "run/nbd.sock"), (number, 0o660));
    assert_eq!(seen(&bench, "run"), (number, 0o710));
    assert_eq!(seen(&bench, "run/control.sock").1, 0o600);
    bench.terminate();

    // A socket elsewhere leaves the folders as they are.
    bench.serve(&["--socket-group", &group, "--nbd-socket", "shared.sock", "d0", "d1"]);
    assert_eq!(seen(&bench, "shared.sock"), (number, 0o660));
    bench.terminate();
    let said = bench.refused(&["serve", "--socket-group", "no-such-group", "d0", "d1"], 2);
    assert!(said.contains("/etc/group has no such group"), "{said}");
}

#[test]
fn the_period_of_a_watch_may_follow_a_blank() {
    let mut bench = Bench::new("watch-period");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    for args in [&["status", "t", "--watch", "0.1"][..], &["status", "--watch", "0.1"]] {
        let mut watch = bench.command(args);
        let mut watch = watch.stdout(Stdio::piped()).spawn().expect("start weft");
        let lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
        let looks = lines.map(|line| line.expect("text")).filter(|line| line.starts_with("t: "));
        assert_eq!(looks.take(3).count(), 3);
        watch.kill().expect("end it");
        watch.wait().expect("it has ended");
    }
}

/// Ctrl-C ends the command that follows a job, and not the job.
#[test]
fn a_follower_that_is_interrupted_tells_that_the_job_continues() {
    let mut bench = Bench::new("interrupted");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "32M", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    let (mut stream, _) = connect(&bench);
    for n in 0..8 {
        send(&mut stream, CMD_WRITE, n << 20, 1 << 20);
        stream.write_all(&[7; 1 << 20]).expect("the data");
        assert_eq!(error_of(&mut stream), 0);
    }
    bench.weft(&["throttle", "t", "--max", "512K"]);
    let (out, log) = (bench.path("scrub.out"), bench.path("scrub.log"));
    let mut scrub = bench.command(&["scrub", "t"]);
    scrub.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
    let mut scrub = Process::spawn(&mut scrub);
    let is_running = || bench.status("t")["scrub"]["running"] == true;
    wait_until("the scrub", is_running);
    // The follower asks several times a second: it is past its first look.
    std::thread::sleep(Duration::from_millis(500));
    scrub.signal(rustix::process::Signal::INT);
    assert_eq!(scrub.wait().code(), Some(130));
    let said = fs::read_to_string(&log).expect("messages");
    assert!(said.contains("the scrub of t continues in the background"), "{said}");
    assert!(said.contains("`weft scrub t wait` follows it"), "{said}");
    assert!(is_running());
    bench.weft(&["throttle", "t", "--max", "unlimited"]);
    bench.weft(&["scrub", "t", "cancel"]);
}
