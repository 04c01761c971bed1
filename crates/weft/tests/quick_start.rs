//! What the README shows about arrays works as it stands there: its quick start is pasted into a
//! shell, on files in place of devices, and `weft plan` recommends the code that it takes.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::Bench;
use weft_testkit::{Need, command, have};

const README: &str = include_str!("../../../README.md");

/// The block of the README that creates an array.
fn block() -> &'static str {
    let block = README.split("```").find(|block| block.contains("weft create tank"));
    block.and_then(|block| block.strip_prefix("sh\n")).expect("a block")
}

/// Detaches and stops when the test ends, however it ends.
struct Ended(Bench);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = command("umount").arg(self.0.path("mnt")).output();
        let _ = self.0.command(&["detach", "tank"]).output();
        let _ = self.0.command(&["stop"]).output();
    }
}

#[test]
fn the_quick_start_of_arrays_works_when_it_is_pasted() {
    let tools = [Need::Tool("mkfs.ext4"), Need::Tool("sh")];
    if !have(&[Need::Root, Need::Fuse, Need::Loop]) || !have(&tools) {
        return;
    }
    let ended = Ended(Bench::new("quick-start"));
    let bench = &ended.0;
    for folder in ["dev", "mnt"] {
        fs::create_dir(bench.path(folder)).expect("a folder");
    }
    for name in ('b'..='i').chain(['x', 'y']) {
        let _ = bench.scratch.file(&format!("dev/sd{name}"), 128 << 20);
    }
    let script = block()
        .replace("/dev/sd", "dev/sd")
        .replace("--background /dev", "--background dev")
        .replace("/mnt", "./mnt")
        .replace("--fail sdd", "--fail sdd --before 1s --for 1s");
    // The program under test is the one that the shell finds.
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_weft")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = command("sh");
    shell.args(["-e", "-c", &script]).current_dir(bench.scratch.path());
    shell.env("PATH", format!("{}:{path}", folder.display()));
    shell.env("WEFT_RUNTIME_DIR", bench.path("run"));
    let output = shell.output().expect("started");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{script}\n{said}");
    for line in ["tank: can lose 2 more disks", "slot 1 is now dev/sdy", "tank: 0 mismatches"] {
        assert!(said.contains(line), "`{line}` in\n{said}");
    }
    let status = bench.status("tank");
    assert_eq!(status["slots"].as_array().map(Vec::len), Some(8), "{status}");
    // The daemon is in a session of its own, and its messages are in its log.
    assert!(bench.weft(&["stop"]).contains("stopped cleanly"));
    let log = fs::read_to_string(bench.path("run/serve.log")).expect("a log");
    assert!(log.contains("stopped"), "{log}");
}

#[test]
fn the_quick_start_takes_the_code_that_the_plan_recommends() {
    let bench = Bench::new("quick-plan");
    let plan = block().lines().next().and_then(|line| line.split('#').next()).expect("a line");
    let args: Vec<&str> = plan.trim().split(' ').skip(1).collect();
    let said = bench.weft(&args);
    let create = block().lines().find(|line| line.starts_with("weft create")).expect("a line");
    let code = create.split_once("--code ").and_then(|(_, rest)| rest.split(' ').next());
    let code = code.expect("a code");
    assert!(said.contains(&format!("Take {code}:")), "{said}");
}

#[test]
fn a_daemon_that_cannot_serve_in_the_background_says_why() {
    let bench = Bench::new("background-fails");
    let said = bench.refused(&["serve", "--background", "nothing-here"], 1);
    assert!(said.contains("nothing-here"), "{said}");
    bench.refused(&["status"], 5);
    bench.weft(&["create", "t", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    let said = bench.weft(&["serve", "--background", "--log", "log", "d0", "d1"]);
    assert!(said.contains("serving t at"), "{said}");
    let said = bench.refused(&["serve", "--background", "--log", "log", "d0", "d1"], 1);
    assert!(!said.is_empty());
    bench.weft(&["stop"]);
}

/// Members are missing: the command tells which, and for how long it waits, and ends.
#[test]
fn a_daemon_that_waits_in_the_background_says_for_what() {
    let bench = Bench::new("background-waits");
    bench.weft(&["create", "t", "--code", "raid5", "--size", "8M", "d0", "d1", "d2"]);
    let hidden = bench.path("hidden");
    fs::rename(bench.path("d1"), &hidden).expect("hide a member");
    fs::rename(bench.path("d2"), bench.path("hidden2")).expect("hide a member");
    let said = bench.refused(&["serve", "--background", "d0"], 1);
    assert!(said.contains("t is not started: ") && said.contains("--wait"), "{said}");
    bench.refused(&["status"], 5);
    let begun = Instant::now();
    let said = bench.refused(&["serve", "--background", "--wait", "2s", "d0", "d1"], 1);
    assert!(begun.elapsed() >= Duration::from_secs(2), "it waits");
    assert!(said.contains("waiting for slot 1") && said.contains("d1"), "{said}");
    assert!(said.contains("for at most 2.0 s") && said.contains("after 2.0 s"), "{said}");
    bench.refused(&["status"], 5);
    let said = bench.refused(&["serve", "--background", "--wait", "1s", "nowhere"], 1);
    assert!(said.contains("waiting for members") || said.contains("nowhere"), "{said}");
    // One that comes in time.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            fs::rename(&hidden, bench.path("d1")).expect("bring it back");
        });
        // The third one does not come, and the array can run without it.
        let said = bench.weft(&["serve", "--background", "--wait", "5s", "d0", "d1", "d2"]);
        assert!(said.contains("serving t at"), "{said}");
    });
    bench.weft(&["stop"]);
    fs::rename(bench.path("d1"), &hidden).expect("hide a member");
    // It may wait for ever, and the command returns.
    let said = bench.weft(&["serve", "--background", "--allow-empty", "d0"]);
    assert!(said.contains("no array yet"), "{said}");
    assert!(bench.weft(&["status"]).contains("t: NOT STARTED"));
    bench.weft(&["stop"]);
}

#[test]
fn the_status_in_the_page_about_arrays_is_what_is_printed() {
    let mut bench = Bench::new("status-page");
    let members = ["d0", "d1", "d2", "d3", "d4", "d5", "d6"];
    let create = ["create", "tank", "--code", "drc-g:4,2,1", "--size", "96M"];
    bench.weft(&[&create[..], &members].concat());
    bench.serve(&["."]);
    bench.weft(&["fail", "tank", "d2"]);
    let said =
        bench.weft(&["status"]).replace(&crate::common::text(bench.scratch.path()), "/srv/weft");
    let page = include_str!("../../../docs/arrays.md");
    let (_, shown) = page.split_once("$ weft status\n").expect("an example");
    let (shown, _) = shown.split_once("  …\n").expect("it is cut");
    assert!(
        shown.lines().count() > 3 && said.starts_with(shown),
        "{shown}is shown, but it is\n{said}"
    );
}
