//! `weft lab run --out`, `--resume` and `--shard`, and `weft lab merge`: a run that goes on, or was
//! done in parts, gives the bytes of one run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use weft_testkit::{Need, Process, Scratch, command, have, run, skip, wait_until};

/// Eight cells, which take a second or so each in a test's build.
const MINE: &str = r#"title = "Mine"
source = "none: a test"
about = "A test."

[run]
kind = "recovery"
model = "st3300831as"
disk_mb = 60
requests = 1000
interval_ms = 500
repeats = 8
traces = [{ name = "web", workload = "pro-websearch", rate_milli = 100000 }]
cases = [{ name = "small", code = "raid5", disks = 3, unit_kib = 64, min_kib_s = 20000 }]
policies = [{ name = "MD", policy = { order = "ascending" } }, { name = "weft" }]
"#;

fn lab(args: &[&str], at: &Path) -> Command {
    let mut program = command(env!("CARGO_BIN_EXE_weft-lab"));
    program.current_dir(at).arg("lab").args(args);
    program
}

fn said(args: &[&str], at: &Path) -> String {
    String::from_utf8(run(&mut lab(args, at)).stdout).expect("text")
}

fn refused(args: &[&str], at: &Path) -> String {
    let output = lab(args, at).output().expect("start weft-lab");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    said
}

fn folder(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    fs::write(scratch.join("mine.toml"), MINE).expect("a file");
    scratch
}

/// The finished cells of a shard.
fn cells(part: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(part).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_none()).collect()
}

#[test]
fn a_run_that_was_interrupted_goes_on() {
    let scratch = folder("lab-resume");
    let at = scratch.path();
    let args = ["run", "mine.toml", "--csv", "--out", "my cells", "--threads", "1"];
    let log = scratch.join("log");
    let mut begun = lab(&args, at);
    begun
        .stderr(File::create(&log).expect("a file"))
        .stdout(File::create("/dev/null").expect("open"));
    let mut process = Process::spawn(&mut begun);
    let part = scratch.join("my cells/mine/1-of-1");
    wait_until("the first cell is finished", || !cells(&part).is_empty());
    process.signal(Signal::INT);
    assert_eq!(process.wait().code(), Some(130));
    let log = fs::read_to_string(&log).expect("a log");
    let again = "go on with: weft lab run mine.toml --csv --out 'my cells' --threads 1 --resume";
    assert!(log.contains("interrupted") && log.contains(again), "{log}");
    let finished = cells(&part).len();
    assert!((1..8).contains(&finished), "{finished} cells");

    // Not by accident, nor as another run.
    let other = refused(&args, at);
    assert!(other.contains("has cells of this run already; --resume goes on with it"), "{other}");
    let resume = [&args[..], &["--resume"]].concat();
    let seed = refused(&[&resume[..], &["--seed", "2"]].concat(), at);
    assert!(seed.contains("has cells of another run: --seed was 1, now it is 2"), "{seed}");
    let divide = refused(&[&resume[..], &["--divide", "2"]].concat(), at);
    assert!(divide.contains("--divide was 1, now it is 2"), "{divide}");
    fs::write(scratch.join("mine.toml"), MINE.replace("20000", "30000")).expect("a file");
    let changed = refused(&resume, at);
    assert!(changed.contains("the experiment's file has changed"), "{changed}");
    fs::write(scratch.join("mine.toml"), MINE).expect("a file");

    // Cells that are finished are not measured again, a damaged one is.
    let first = part.join("0");
    let whole = fs::read(&first).expect("a cell");
    let when = || fs::metadata(&first).expect("a cell").modified().expect("a time");
    let before = when();
    let gone_on = said(&resume, at);
    assert_eq!(when(), before, "measured again");
    assert_eq!(cells(&part).len(), 8);
    assert_eq!(gone_on, said(&["run", "mine.toml", "--csv"], at));
    fs::write(&first, &whole[..whole.len() / 2]).expect("damage");
    assert_eq!(gone_on, said(&resume, at));
    assert_eq!(fs::read(&first).expect("a cell"), whole);
    assert_eq!(gone_on, said(&["merge", "my cells", "--csv"], at), "a whole run merges alone");
}

#[test]
fn shards_merge_and_what_does_not_fit_is_refused() {
    let scratch = folder("lab-shards");
    let at = scratch.path();
    let shard = |shard: &str, dir: &str, more: &[&str]| {
        let args = ["run", "mine.toml", "drc-table1", "--shard", shard, "--out", dir];
        said(&[&args[..], more].concat(), at)
    };
    let told = shard("1/3", "a", &[]);
    assert!(told.contains("shard 1/3: 4 cells in a") && told.contains("weft lab merge"), "{told}");
    shard("2/3", "b", &[]);
    let missing = refused(&["merge", "a", "b"], at);
    assert!(missing.contains("drc-table1: missing shards 3/3"), "{missing}");
    shard("3/3", "c", &[]);
    let double = refused(&["merge", "a", "b", "c", "a"], at);
    assert!(double.contains("shard 1/3 is there twice: "), "{double}");
    shard("3/3", "foreign", &["--seed", "2"]);
    let foreign = refused(&["merge", "a", "b", "foreign"], at);
    assert!(foreign.contains("are of different runs: --seed was 2, now it is 1"), "{foreign}");
    shard("1/2", "halves", &[]);
    let mixed = refused(&["merge", "a", "b", "halves"], at);
    assert!(mixed.contains("are of different runs: shard 1/3 and shard 1/2"), "{mixed}");
    fs::create_dir(scratch.join("empty")).expect("a folder");
    let empty = refused(&["merge", "a", "b", "c", "empty"], at);
    assert!(empty.contains("empty has no shard"), "{empty}");
    let nowhere = refused(&["merge", "nowhere"], at);
    assert!(nowhere.contains("nowhere: "), "{nowhere}");

    // In any order: the same bytes in every form.
    for form in [&["--json"][..], &["--csv"], &[]] {
        let whole = said(&[&["run", "mine.toml", "drc-table1"], form].concat(), at);
        assert_eq!(whole, said(&[&["merge", "c", "a", "b"], form].concat(), at), "{form:?}");
    }
    let page = ["merge", "a", "b", "c", "--page", "merged.html", "--svg", "merged"];
    said(&page, at);
    said(&["report", "mine.toml", "drc-table1", "--out", "whole.html", "--svg", "whole"], at);
    let read = |path: &str| fs::read(scratch.join(path)).expect("a file");
    assert_eq!(read("merged.html"), read("whole.html"));
    assert_eq!(read("merged/mine-1.svg"), read("whole/mine-1.svg"));

    // A shard that was cut short.
    fs::remove_file(scratch.join("b/mine/2-of-3/4")).expect("a cell");
    let short = refused(&["merge", "a", "b", "c"], at);
    let told = "7 of 8 cells are finished, 1 missing in b/mine/2-of-3: `weft lab run … --resume`";
    assert!(short.contains(told), "{short}");
    shard("2/3", "b", &["--resume"]);
    said(&["merge", "a", "b", "c"], at);
}

#[test]
fn wrong_shards_are_refused() {
    let scratch = folder("lab-bad-shards");
    for (args, why) in [
        (&["--shard", "0/3", "--out", "x"][..], "is no shard"),
        (&["--shard", "4/3", "--out", "x"], "is no shard"),
        (&["--shard", "3", "--out", "x"], "is no shard"),
        (&["--shard", "1/3"], "--out"),
        (&["--resume"], "--out"),
    ] {
        let output = lab(&[&["run", "mine.toml"], args].concat(), scratch.path()).output();
        let output = output.expect("start weft-lab");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{args:?}: {said}");
    }
}

#[test]
fn gnu_parallel_runs_shards() {
    if !have(&[Need::Tool("parallel")]) {
        return;
    }
    // Another program has the same name.
    let version = command("parallel").arg("--version").output().expect("start parallel");
    if !String::from_utf8_lossy(&version.stdout).contains("GNU parallel") {
        return skip("parallel is not GNU's");
    }
    let scratch = folder("lab-parallel");
    let mut parallel = command("parallel");
    parallel.current_dir(scratch.path()).env("HOME", scratch.path());
    parallel.args(["--halt", "now,fail=1", "--jobs", "2", env!("CARGO_BIN_EXE_weft-lab")]);
    parallel.args("lab run mine.toml --threads 1 --shard {}/3 --out cells ::: 1 2 3".split(' '));
    run(&mut parallel);
    let merged = said(&["merge", "cells", "--json"], scratch.path());
    assert_eq!(merged, said(&["run", "mine.toml", "--json"], scratch.path()));
}
