//! Output that cannot be written ends a command, quietly if its reader has gone, and never a
//! daemon.

use std::fs::File;
use std::io::{PipeWriter, Read as _};
use std::process::{Command, Output, Stdio};

use crate::common::Bench;
use rustix::process::Signal;
use weft_testkit::{Process, wait_until};

/// As a shell reports a program that ended by SIGPIPE.
const READER_GONE: i32 = 141;

/// A pipe without a reader.
fn closed_pipe() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("/dev/full")
}

#[track_caller]
fn run(command: &mut Command, code: i32) -> String {
    let Output { status, stderr, .. } = command.output().expect("start weft");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(code), "{command:?} printed\n{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// An answer that cannot be written, in both ways.
#[track_caller]
fn unread(bench: &Bench, args: &[&str]) {
    let said = run(bench.command(args).stdout(closed_pipe()), READER_GONE);
    assert_eq!(said, "", "weft {args:?}: no word about a reader that has seen enough");
    let said = run(bench.command(args).stdout(full()), 1);
    assert!(said.contains("standard output"), "weft {args:?} says nothing of it:\n{said}");
}

#[test]
fn commands_end_when_nobody_reads_their_answer() {
    let mut bench = Bench::new("unread");
    bench.weft(&["create", "t", "--code", "raid5", "--size", "16M", "d0", "d1", "d2"]);
    unread(&bench, &["create", "u", "--code", "raid1", "--size", "16M", "--dry-run", "e0", "e1"]);
    for args in [
        &["examine", "d0"][..],
        &["examine", "d0", "--json"],
        &["plan", "--disks", "6", "--size", "1T"],
        &["trace", "list"],
        &["lab", "list"],
        &["lab", "list", "--json"],
    ] {
        unread(&bench, args);
    }
    bench.serve(&["."]);
    unread(&bench, &["status"]);
    unread(&bench, &["status", "--json"]);
    unread(&bench, &["fail", "t", "d0", "--dry-run"]);
    unread(&bench, &["scrub", "t"]);
    bench.terminate();
}

#[test]
fn a_command_that_cannot_complain_still_gives_its_exit_code() {
    let bench = Bench::new("mute");
    for stderr in [Stdio::from(full()), Stdio::from(closed_pipe())] {
        let mut command = bench.command(&["examine", "nope"]);
        let status = command.stdout(Stdio::null()).stderr(stderr).status().expect("start weft");
        assert_eq!(status.code(), Some(1));
    }
}

#[test]
fn a_daemon_serves_on_when_its_log_and_its_output_cannot_be_written() {
    let bench = Bench::new("mute-daemon");
    bench.weft(&["create", "t", "--code", "raid5", "--size", "16M", "d0", "d1", "d2"]);
    let (mut reader, log) = std::io::pipe().expect("a pipe");
    let cases: [(&str, Stdio, Stdio); 3] = [
        ("full", full().into(), full().into()),
        ("closed", closed_pipe().into(), closed_pipe().into()),
        ("its reader goes", Stdio::null(), log.into()),
    ];
    for (n, (what, stdout, stderr)) in cases.into_iter().enumerate() {
        let mut serve = bench.command(&["serve", "."]);
        serve.stdout(stdout).stderr(stderr);
        let mut daemon = Process::spawn(&mut serve);
        // Holds the writing end of the pipe, which must close when the daemon ends.
        drop(serve);
        wait_until("the daemon to serve", || {
            assert!(daemon.is_running(), "{what}: the daemon ended");
            bench.command(&["status", "t"]).output().expect("start weft").status.success()
        });
        if n == 2 {
            let mut first = [0; 16];
            reader.read_exact(&mut first).expect("it logs something");
            assert!(first.starts_with(b"weft: t: "), "{first:?}");
            // `reader` is dropped here.
            reader = std::io::pipe().expect("a pipe").0;
        }
        // Both log lines.
        bench.weft(&["fail", "t", "d0"]);
        bench.weft(&["add", "t", &format!("s{n}"), "--size", "16M"]);
        bench.weft(&["rebuild", "t"]);
        std::fs::rename(bench.path(&format!("s{n}")), bench.path("d0")).expect("renamed");
        assert!(daemon.is_running(), "{what}: logging ended the daemon");
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().success(), "{what}: it ends in order");
    }
}
