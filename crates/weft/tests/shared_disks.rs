//! `weft disks`: a node that was fenced writes no more, a server that is killed forgets no fence,
//! and what is wrong is refused with a word that says what to do.

use std::fs;

use crate::common::Bench;
use rustix::process::Signal;
use weft_testkit::{Need, Process, have, wait_until};

/// Starts `weft disks serve` on a socket.
fn serve(bench: &Bench, disks: &[&str]) -> Process {
    let out = bench.path("disks.out");
    fs::write(&out, "").expect("a file");
    let mut command = bench.command(&["disks", "serve", "--socket", "disks.sock"]);
    command.args(disks).stdout(fs::File::create(&out).expect("a file"));
    let mut process = Process::spawn(&mut command);
    wait_until("the disks to be served", || {
        assert!(process.is_running(), "it ended");
        fs::read_to_string(&out).is_ok_and(|text| text.lines().count() == disks.len())
    });
    process
}

fn uri(bench: &Bench, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", crate::common::text(&bench.path("disks.sock")))
}

#[test]
fn a_fence_outlives_a_server_that_is_killed() {
    if !have(&[Need::Tool("qemu-io")]) {
        return;
    }
    let bench = Bench::new("shared-disks");
    let _ = bench.scratch.file("d0", 8 << 20);
    bench.weft(&["disks", "prepare", "d0"]);
    let server = serve(&bench, &["d0"]);
    let write = |export: &str| {
        let mut command = weft_testkit::command("qemu-io");
        command.args(["-f", "raw", "-c", "write -P 7 0 64k", &uri(&bench, export)]);
        command.output().expect("start qemu-io").status.success()
    };
    assert!(write("d0/home/alpha/5"));
    assert!(!write("d0"), "without a name it is read-only");
    bench.weft(&["disks", "fence", &uri(&bench, "d0"), "home", "alpha", "5"]);
    assert!(!write("d0/home/alpha/5") && !write("d0/home/alpha/4"));
    assert!(write("d0/home/alpha/6") && write("d0/home/beta/1"));

    server.kill9();
    let server = serve(&bench, &["d0"]);
    assert!(!write("d0/home/alpha/5"), "the disk remembers");
    assert!(write("d0/home/alpha/6"));
    server.signal(Signal::TERM);
    drop(server);

    // It moves to another file, as to another machine.
    fs::rename(bench.path("d0"), bench.path("moved")).expect("rename");
    let server = serve(&bench, &["d0=moved"]);
    assert!(!write("d0/home/alpha/5"), "the fence moves with the disk");
    assert!(server.terminate().success());
}

#[test]
fn wrong_requests_are_refused() {
    let bench = Bench::new("shared-disks-bad");
    let _ = bench.scratch.file("d0", 8 << 20);
    let _ = bench.scratch.file("small", 64 << 10);
    fs::write(bench.path("full"), vec![7; 8 << 20]).expect("a file");
    let cases: [(&[&str], i32, &str); 13] = [
        (&["serve", "d0"], 2, "--listen ADDR or --socket PATH"),
        (&["serve", "--socket", "s", "d0"], 1, "weft disks prepare"),
        (&["serve", "--socket", "s", "small"], 1, "too small"),
        (&["serve", "--socket", "s", "none"], 1, "none"),
        (&["serve", "--socket", "s", "full"], 1, "not prepared"),
        (&["serve", "--socket", "s", "nbd://127.0.0.1/x"], 2, "not on this machine"),
        (&["serve", "--socket", "s", "d0", "x/d0"], 2, "two disks are named d0"),
        (&["serve", "--socket", "s", "a b=d0"], 2, "is not a name"),
        (&["serve", "--listen", "0.0.0.0", "d0"], 2, "--allow-remote"),
        (&["prepare", "d0", "full"], 1, "--force"),
        (&["fence", "d0", "home", "alpha", "1"], 2, "nbd://HOST"),
        (&["fence", "nbd://127.0.0.1:1/d0", "home", "al/pha", "1"], 2, "is not a name"),
        (&["fence", "nbd://127.0.0.1:1/d0", "home", "alpha", "1"], 1, "may still write"),
    ];
    let before = fs::read(bench.path("full")).expect("a file");
    for (args, code, why) in cases {
        let said = bench.refused(&[&["disks"], args].concat(), code);
        assert!(said.contains(why), "weft disks {args:?} should say `{why}`, but says\n{said}");
    }
    assert!(before == fs::read(bench.path("full")).expect("a file"), "it was changed");
    assert!(fs::read(bench.path("d0")).expect("a file").iter().all(|byte| *byte == 0));
    bench.weft(&["disks", "prepare", "--force", "full", "d0"]);
    bench.refused(&["disks", "prepare", "d0"], 1);

    // Two clusters on one disk.
    let server = serve(&bench, &["d0"]);
    bench.weft(&["disks", "fence", &uri(&bench, "d0"), "home", "alpha", "1"]);
    let said = bench.refused(&["disks", "fence", &uri(&bench, "d0"), "other", "alpha", "1"], 1);
    assert!(said.contains("belongs to cluster home, not to other"), "{said}");
    let said = bench.refused(&["disks", "fence", &uri(&bench, "d1"), "home", "alpha", "1"], 1);
    assert!(said.contains("no disk d1"), "{said}");
    // One server a disk.
    let said = bench.refused(&["disks", "serve", "--socket", "s", "d0"], 1);
    assert!(said.contains("in use"), "{said}");
    drop(server);
}
