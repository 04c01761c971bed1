//! docs/json.md says what `--json` prints: every key, of which type, in which unit, and every word.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use crate::schema::Schema;
use serde::Serialize;
use serde_json::Value;
use weft_array::{
    ArrayState, Consistency, JobKind, MemberState, Piggyback, RebuildOrder, RebuildPace, ScrubMode,
};
use weft_testkit::{Process, wait_until};

use crate::common::Bench;

fn document() -> Schema {
    Schema::read(include_str!("../../../docs/json.md"))
}

/// Commands with `--json`, and a document to hold what they print against.
struct Story {
    bench: Bench,
    schema: Schema,
}

impl Story {
    /// Runs a command that must end with `code`: its answer is as `table` says, if it gives one.
    #[track_caller]
    fn ends(&self, args: &[&str], code: i32, table: Option<&str>) -> Value {
        let output = self.bench.command(args).arg("--json").output().expect("start weft");
        let text = String::from_utf8(output.stdout).expect("output is text");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "weft {args:?} printed\n{text}{said}");
        let mut lines = text.lines().map(object);
        let answer = table.map(|table| {
            let answer = lines.next().unwrap_or_else(|| panic!("weft {args:?} printed nothing"));
            self.schema.check(table, &answer);
            answer
        });
        if code != 0 {
            let error = lines.next().unwrap_or_else(|| panic!("weft {args:?} says no error"));
            self.schema.check("Errors", &error);
            assert_eq!(error["error"]["code"], code, "weft {args:?}");
        }
        assert_eq!(lines.next(), None, "weft {args:?} printed more:\n{text}");
        answer.unwrap_or_default()
    }

    /// Runs a command that must succeed.
    #[track_caller]
    fn does(&self, args: &[&str], table: &str) -> Value {
        self.ends(args, 0, Some(table))
    }

    #[track_caller]
    fn status(&self) -> Value {
        self.does(&["status"], "weft status")
    }
}

/// A line: an object that begins with the version.
#[track_caller]
fn object(line: &str) -> Value {
    assert!(line.starts_with("{\"weft_json\":1"), "{line}");
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// Tables of file systems: `file_system.rs` has them, as root.
fn is_of_file_systems(row: &str) -> bool {
    ["weft fs ", "weft demo fs:", "weft demo cluster:", "Fs job:"]
        .iter()
        .any(|table| row.starts_with(table))
}

/// What is described and not brought about here: what needs root and loop devices, an experiment of
/// minutes, and a state that lasts for the moment of a change.
const NOT_BROUGHT_ABOUT: &[&str] = &[
    "Superblock: succeeds",
    "Superblock: succeeds.active",
    "Superblock: succeeds.seq",
    "Superblock: unreplayed",
    "weft attach: array",
    "weft attach: block_bytes",
    "weft attach: device",
    "weft attach: link",
    "weft attach: via",
    "weft detach: array",
    "weft detach: devices",
    "weft disks reserve: disk",
    "weft disks reserve: epoch",
    "weft lab run: figures[].panels[].series[].points[].range.high",
    "weft lab run: figures[].panels[].series[].points[].range.low",
    "weft lab run: figures[].traces[].generated",
    "weft lab run: figures[].traces[].name",
    "weft lab run: figures[].traces[].requests",
    "weft status: arrays[].block_device.link",
    "weft status: arrays[].block_device.path",
    "weft status: arrays[].block_device.size_bytes",
    "weft status: arrays[].block_device.user",
    "weft status: arrays[].block_device.via",
    "weft status: dead_devices[].array",
    "weft status: dead_devices[].device",
    "weft status: dead_devices[].user",
    "weft status: dead_devices[].via",
];

#[test]
fn what_commands_print_is_what_the_document_says() {
    let mut story = Story { bench: Bench::new("json"), schema: document() };
    administration(&mut story);
    offline(&story);
    workloads(&story);
    modelled_disk(&story);
    shared_disks(&story);
    let mut unseen = story.schema.unseen();
    unseen.retain(|row| !is_of_file_systems(row));
    let excused: BTreeSet<String> = NOT_BROUGHT_ABOUT.iter().map(ToString::to_string).collect();
    let missing: Vec<&String> = unseen.difference(&excused).collect();
    assert!(missing.is_empty(), "described, but nothing prints it: {missing:#?}");
    let stale: Vec<&String> = excused.difference(&unseen).collect();
    assert!(stale.is_empty(), "brought about after all: {stale:#?}");
}

/// Arrays from their creation to their end.
fn administration(story: &mut Story) {
    story.bench.members(9, 16 << 20);
    let _ = story.bench.scratch.file("dlarge", 24 << 20);
    fs::write(story.bench.path("dnoise"), vec![7; 16 << 20]).expect("a file");
    let create = ["create", "t", "--code", "raid5", "d0", "d1", "d2"];
    story.does(&[&create[..], &["--dry-run"]].concat(), "weft create");
    story.does(&create, "weft create");
    let other = ["create", "u", "--code", "raid1", "--spares", "1", "--force"];
    story.does(&[&other[..], &["d3", "dlarge", "dnoise"]].concat(), "weft create");
    let grows = ["create", "z", "--code", "raid5", "--size", "16M", "--head-room", "1M"];
    story.bench.weft(&[&grows[..], &["z0", "z1", "z2"]].concat());
    story.ends(&["create", "t", "--code", "raid9", "d8"], 2, None);
    story.ends(&["create", "t"], 2, None);
    story.ends(&["status"], 5, None);

    // Members of which too few are left, and a disk that cannot be used.
    let bench = &mut story.bench;
    bench.weft(&["create", "gone", "--code", "raid5", "d5", "d6", "d7"]);
    fs::remove_file(bench.path("d5")).expect("remove a member");
    fs::remove_file(bench.path("d6")).expect("remove a member");
    bench.serve(&["--json", "."]);
    let announced = fs::read_to_string(bench.path("serve.out")).expect("what it said");
    announced.lines().for_each(|line| story.schema.check("weft serve", &object(line)));
    let first = story.status();
    assert_eq!(first["not_started"][0]["name"], "gone", "{first:#}");
    story.ends(&["status", "--check"], 4, Some("weft status"));
    story.ends(&["fail", "t", "d9"], 1, None);
    story.does(&["examine", "d3"], "weft examine");

    let generate = ["trace", "generate", "uniform", "--reads", "20", "--requests", "400"];
    story.bench.weft(&[&generate[..], &["--volume", "16M", "-o", "load.csv"]].concat());
    let uri = story.bench.uri("t");
    let replay = ["replay", "--trace", "load.csv", "--closed", "4", "--interval", "0.01"];
    let replay = [&replay[..], &["--overwrite", "--verify", &uri]].concat();
    let found = story.does(&replay, "weft replay");
    assert_ne!(found["outcome"]["verified"]["blocks_right"], 0, "{found:#}");

    // The I/O of each disk, also of one that failed.
    let io = |disk: usize| story.status()["arrays"][0]["disks"][disk]["io"].clone();
    assert!(io(1)["written_bytes"].as_u64() > Some(100 << 10), "{}", io(1));
    assert_eq!((&io(1)["read_errors"], &io(1)["timeouts"]), (&0.into(), &0.into()));
    let shown = story.bench.weft(&["status", "t", "--io"]);
    assert!(shown.contains("in flight") && shown.contains("/d2  "), "{shown}");

    let drill = ["drill", "t", "--fail", "d1", "--before", "1s", "--for", "5s"];
    let drilled = story.does(&drill, "weft drill");
    assert_ne!(drilled["rebuilt_bytes"], 0, "{drilled:#}");
    story.ends(&["drill", "t", "--fail", "d9"], 1, None);
    story.ends(&["drill", "t", "--fail", "d1", "--for", "0s"], 2, None);

    // A rebuild and a replacement while they go on.
    story.does(&["rebuild", "t", "--order", "popularity", "--slice", "7"], "Rebuild policy");
    let set = ["throttle", "t", "--min", "0", "--max", "2M", "--latency", "20ms"];
    story.does(&set, "weft throttle");
    assert_eq!(story.status()["arrays"][0]["status"]["throttle"]["latency_us"], 20_000);
    story.does(&["throttle", "t", "--latency", "off"], "weft throttle");
    story.does(&["fail", "t", "d1", "--dry-run"], "weft fail");
    story.does(&["fail", "t", "d1"], "weft fail");
    assert!(io(1)["written_bytes"].as_u64() > Some(100 << 10), "forgotten: {}", io(1));
    story.does(&["examine", "d2"], "weft examine");
    story.does(&["add", "t", "d4", "--dry-run"], "weft add");
    story.does(&["add", "t", "d4"], "weft add");
    wait_until("the rebuild to begin", || {
        !story.status()["arrays"][0]["status"]["rebuild"].is_null()
    });
    let reads = ["replay", "--trace", "load.csv", "--closed", "4", "--reads-only", &uri];
    story.bench.weft(&reads);
    story.status();
    story.does(&["rebuild", "t", "pause"], "weft rebuild pause");
    story.does(&["rebuild", "t", "resume"], "weft rebuild pause");
    story.does(&["throttle", "t", "--max", "unlimited"], "weft throttle");
    story.does(&["cache", "t"], "weft cache");
    story.does(&["cache", "t", "--size", "1M"], "weft cache");
    story.status();
    story.does(&["rebuild", "t"], "weft rebuild");
    story.does(&["throttle", "t", "--max", "2M"], "weft throttle");
    story.does(&["replace", "t", "d0", "d8", "--force", "--no-wait"], "weft replace");
    story.status();
    story.does(&["examine", "d2"], "weft examine");
    story.does(&["fail", "t", "d8"], "weft fail");
    story.does(&["throttle", "t", "--max", "unlimited"], "weft throttle");

    // Scrubs: one running, one that finds mismatches, and the text for both.
    story.ends(&["scrub", "u", "status"], 1, None);
    story.does(&["throttle", "t", "--max", "1M"], "weft throttle");
    story.does(&["scrub", "t", "--no-wait"], "weft scrub");
    story.does(&["examine", "d2"], "weft examine");
    story.does(&["scrub", "t", "status"], "Scrub");
    story.does(&["scrub", "t", "cancel"], "weft scrub");
    story.does(&["stop", "t"], "weft stop");
    corrupt(story);
    story.does(&["start", "t", "--dry-run"], "weft start");
    story.does(&["start", "t"], "weft start");
    let found = story.ends(&["scrub", "t"], 3, Some("Scrub"));
    assert_ne!(found["places"][0], Value::Null, "{found:#}");
    story.does(&["scrub", "t", "--repair"], "Scrub");
    story.does(&["examine", "d2"], "weft examine");

    // Larger disks.
    for disk in ["z0", "z1", "z2"] {
        let file = File::options().write(true).open(story.bench.path(disk)).expect("a member");
        file.set_len(17 << 20).expect("enlarge");
    }
    story.does(&["grow", "z", "--size", "max", "--dry-run"], "weft grow --size");

    // A reshape in progress.
    let uri = story.bench.uri("z");
    let fill = ["replay", "--trace", "load.csv", "--closed", "4", "--overwrite", &uri];
    story.bench.weft(&fill);
    story.does(&["add", "z", "z3", "--size", "16M"], "weft add");
    story.does(&["throttle", "z", "--max", "100K"], "weft throttle");
    story.does(&["grow", "z", "--dry-run"], "weft reshape");
    story.does(&["reshape", "z", "--no-wait"], "weft reshape");
    let told = story.does(&["examine", "z0"], "weft examine");
    assert_eq!(told["disks"][0]["superblock"]["reshape"]["slots"], 4, "{told:#}");
    assert_eq!(story.status()["arrays"][2]["status"]["state"], "reshaping");
    story.does(&["reshape", "z", "--back", "--no-wait"], "weft reshape");
    let told = story.does(&["examine", "z0"], "weft examine");
    assert_eq!(told["disks"][0]["superblock"]["reshape"]["slots"], 3, "{told:#}");

    story.does(&["fail", "t", "d4"], "weft fail");
    story.does(&["remove", "t", "1", "--dry-run"], "weft remove");
    fs::remove_file(story.bench.path("d3")).expect("delete a file that is in use");
    wait_until("the daemon to miss it", || {
        let arrays = &story.status()["arrays"];
        arrays[1]["vanished"].as_array().is_some_and(|gone| !gone.is_empty())
    });
    story.does(&["remove", "u", "dnoise"], "weft remove");
    story.does(&["stop"], "weft stop");

    // More is missing than the code survives.
    fs::remove_file(story.bench.path("d0")).expect("remove a member");
    story.bench.serve(&["--force-degraded", "d2", "d4"]);
    let lost = story.status();
    assert_ne!(lost["arrays"][0]["status"]["unreadable"][0], Value::Null, "{lost:#}");
    story.bench.terminate();
}

/// Changes a byte of data of array `t`, which is stopped.
fn corrupt(story: &Story) {
    let told = story.does(&["examine", "d2"], "weft examine");
    let begin = told["disks"][0]["superblock"]["area"]["data_offset_bytes"].as_u64();
    let begin = begin.expect("an offset");
    let member = File::options().read(true).write(true).open(story.bench.path("d2"));
    let member = member.expect("a member");
    let mut bytes = vec![0; 8 << 20];
    member.read_exact_at(&mut bytes, begin).expect("read");
    let at = bytes.iter().position(|byte| *byte != 0).expect("something was written");
    member.write_all_at(&[bytes[at] ^ 1], begin + at as u64).expect("write");
}

/// Commands that need no daemon.
fn offline(story: &Story) {
    let bench = &story.bench;
    // A new member, one that is damaged, one of another program, and none.
    bench.weft(&["create", "n", "--code", "raid1", "--size", "8M", "n0", "n1"]);
    story.does(&["examine", "n0"], "weft examine");
    let member = File::options().write(true).open(bench.path("n1")).expect("a member");
    member.write_all_at(&[0x55; 64], 16).expect("damage the label");
    story.does(&["examine", "n1"], "weft examine");
    member.write_all_at(&[0x55; 400 << 10], 16).expect("damage label and superblocks");
    story.ends(&["examine", "n0", "n1"], 1, Some("weft examine"));
    let member = File::options().write(true).open(bench.path("n0")).expect("a member");
    member.write_all_at(&[0x55; 512 << 10], 4096).expect("damage the superblocks");
    story.ends(&["examine", "n0"], 1, Some("weft examine"));
    let foreign = bench.scratch.file("foreign", 8 << 20);
    let file = File::options().write(true).open(&foreign).expect("a file");
    file.write_all_at(&[0x53, 0xef], 1080).expect("the mark of ext4");
    story.ends(&["examine", "foreign"], 1, Some("weft examine"));
    let disks = bench.scratch.files("fs", 3, 64 << 20);
    let disks: Vec<String> = disks.iter().map(|disk| crate::common::text(disk)).collect();
    bench.weft(&["fs", "create", "home", &disks[0], &disks[1], &disks[2]]);
    story.does(&["examine", &disks[0]], "weft examine");
    story.ends(&["examine", "none"], 1, None);
    story.does(&["udev", &disks[0]], "weft udev");
    story.does(&["udev", "--announce", &disks[0]], "weft udev --announce");
    fs::write(bench.path("weft.toml"), "[serve]\nwait = \"1s\"\n").expect("a file");
    story.does(&["config", "check", "weft.toml"], "weft config check");
    story.does(&["completions", "bash"], "weft completions");
    story.does(&["man", "man"], "weft man");
    story.does(&["wipe", "n1", "--dry-run"], "weft wipe");
    story.ends(&["wipe", "n1"], 1, None);
    story.does(&["wipe", "n1", "--force"], "weft wipe");

    let disks = ["plan", "--disks", "6", "--size", "4T", "--code", "raid6"];
    let goals = ["--mttdl", "10y", "--capacity", "1T", "--monte-carlo", "100"];
    story.does(&[&disks[..], &goals].concat(), "weft plan");
    let none = bench.refused(&[&disks[..], &["--capacity", "1P", "--json"]].concat(), 1);
    story.schema.check("weft plan", &object(none.trim_end()));
    story.does(&["simulate", "--runs", "1"], "weft simulate");
    fs::create_dir(bench.path("tree")).expect("a folder");
    fs::write(bench.path("tree/file"), vec![3; 5000]).expect("a file");
    let dir = crate::common::text(&bench.path("scene"));
    story.does(&["demo", "--tree", "tree", "--limit", "1M", "--dir", &dir], "weft demo");
    story.does(&["lab", "list"], "weft lab list");
    story.does(&["lab", "show", "drc-table1"], "weft lab show");
    story.does(&["lab", "run", "drc-table1"], "weft lab run");
    let shard = ["lab", "run", "drc-table1", "--out", "cells", "--shard"];
    story.does(&[&shard[..], &["1/2"]].concat(), "weft lab run --shard");
    story.does(&[&shard[..], &["2/2"]].concat(), "weft lab run --shard");
    story.does(&["lab", "merge", "cells"], "weft lab run");
    story.does(&["lab", "report", "drc-table1", "--out", "page.html"], "weft lab report");
}

fn shared_disks(story: &Story) {
    let _ = story.bench.scratch.file("shared0", 4 << 20);
    story.does(&["disks", "prepare", "shared0"], "weft disks prepare");
    let uri =
        format!("nbd+unix:///shared0?socket={}", crate::common::text(&story.bench.path("s.sock")));
    for expected in [0, 1] {
        let serve = ["disks", "serve", "--socket", "s.sock", "shared0", "--json"];
        let out = story.bench.path("shared.out");
        let mut command = story.bench.command(&serve);
        command.stdout(File::create(&out).expect("a file"));
        let mut process = Process::spawn(&mut command);
        let text = || fs::read_to_string(&out).unwrap_or_default();
        wait_until("the disk to be served", || {
            assert!(process.is_running(), "it ended");
            text().contains('\n')
        });
        let served = object(text().trim_end());
        story.schema.check("weft disks serve", &served);
        assert_eq!(served["refused"].as_array().map(Vec::len), Some(expected), "{served}");
        story.does(&["disks", "fence", &uri, "home", "alpha", "7"], "weft disks fence");
        assert!(process.terminate().success());
    }
    story.ends(&["disks", "fence", &uri, "home", "alpha", "7"], 1, None);
}

fn workloads(story: &Story) {
    story.does(&["trace", "list"], "weft trace list");
    let generate = ["trace", "generate", "financial1", "--requests", "100", "-o", "fin.csv"];
    story.does(&generate, "weft trace generate");
    story.does(&["trace", "convert", "fin.csv", "-o", "again.csv"], "weft trace generate");
    story.does(&["trace", "info", "fin.csv"], "weft trace info");
    story.ends(&["trace", "info", "none.csv"], 1, None);
    let modelled = ["replay", "--trace", "fin.csv", "--reads-only", "--model", "850pro-256g"];
    story.does(&[&modelled[..], &["--interval", "1"]].concat(), "weft replay");
}

fn modelled_disk(story: &Story) {
    story.does(&["lab", "disk", "--list"], "weft lab disk --list");
    let out = story.bench.path("lab.out");
    let mut lab =
        story.bench.command(&["lab", "disk", "--model", "850pro-256g", "--socket", "lab.sock"]);
    lab.arg("--json").stdout(File::create(&out).expect("a file")).stderr(Stdio::null());
    let mut process = Process::spawn(&mut lab);
    let text = || fs::read_to_string(&out).unwrap_or_default();
    wait_until("the disk to be served", || {
        assert!(process.is_running(), "it ended");
        text().contains("serving")
    });
    assert!(process.terminate().success());
    let text = text();
    let lines: Vec<Value> = text.lines().map(object).collect();
    let [announced, told] = lines.as_slice() else { panic!("{text}") };
    story.schema.check("weft serve", announced);
    story.schema.check("weft lab disk", told);
}

/// The words of all values of a type, as JSON has them.
fn words<T: Serialize>(all: &[T]) -> BTreeSet<String> {
    let word = |value| match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        other => panic!("not a word: {other:?}"),
    };
    all.iter().map(word).collect()
}

#[test]
fn every_word_is_listed() {
    let schema = document();
    let lists = |rows: &[(&str, &str)], words: BTreeSet<String>| {
        for (table, path) in rows {
            assert_eq!(schema.row(table, path).words, words, "docs/json.md, {table}: {path}");
        }
    };
    // A value that is added here does not compile until it is listed there, too.
    let states = |state: ArrayState| match state {
        ArrayState::Healthy
        | ArrayState::Resyncing
        | ArrayState::Replacing
        | ArrayState::Reshaping
        | ArrayState::Degraded
        | ArrayState::Rebuilding
        | ArrayState::Broken
        | ArrayState::Stopped => state,
    };
    let all = [
        ArrayState::Healthy,
        ArrayState::Resyncing,
        ArrayState::Replacing,
        ArrayState::Reshaping,
        ArrayState::Degraded,
        ArrayState::Rebuilding,
        ArrayState::Broken,
        ArrayState::Stopped,
    ];
    lists(&[("Array", "state")], words(&all.map(states)));
    let members = |state: MemberState| match state {
        MemberState::Active
        | MemberState::Failed
        | MemberState::Missing
        | MemberState::Rebuilding => state,
    };
    let all =
        [MemberState::Active, MemberState::Failed, MemberState::Missing, MemberState::Rebuilding];
    lists(&[("Array", "slots[].state")], words(&all.map(members)));
    let kinds = |kind: JobKind| match kind {
        JobKind::Rebuild
        | JobKind::Replace
        | JobKind::Resync
        | JobKind::Scrub
        | JobKind::Reshape => kind,
    };
    let all =
        [JobKind::Rebuild, JobKind::Replace, JobKind::Resync, JobKind::Scrub, JobKind::Reshape];
    lists(&[("Array", "jobs[].kind")], words(&all.map(kinds)));
    let policies = |policy: Consistency| match policy {
        Consistency::Ppl | Consistency::Bitmap | Consistency::None => policy,
    };
    let all = [Consistency::Ppl, Consistency::Bitmap, Consistency::None].map(policies);
    let of_array = ("weft create", "array.consistency");
    lists(&[("Array", "consistency"), ("Superblock", "consistency"), of_array], words(&all));
    let modes = |mode: ScrubMode| match mode {
        ScrubMode::Check | ScrubMode::Repair => mode,
    };
    let all = words(&[ScrubMode::Check, ScrubMode::Repair].map(modes));
    lists(
        &[("Scrub", "mode"), ("Superblock", "scrub.mode"), ("Superblock", "last_scrub.mode")],
        all,
    );
    lists(&[("Rebuild policy", "order")], words(RebuildOrder::ALL));
    lists(&[("Rebuild policy", "pace")], words(RebuildPace::ALL));
    lists(&[("Rebuild policy", "piggyback")], words(Piggyback::ALL));
}

/// The name of a number that is not a plain count ends with its unit.
#[test]
fn sizes_and_times_have_their_unit_in_the_name() {
    for (table, key) in document().keys() {
        let name = key.rsplit(['.', ']']).next().unwrap_or(key);
        let unit = ["bytes", "offset", "length", "size", "time", "duration", "seconds"];
        let bare = unit.iter().any(|word| name == *word || name.ends_with(&format!("_{word}")));
        let with_unit = name.ends_with("_bytes") && name != "bytes";
        assert!(!bare || with_unit, "docs/json.md, {table}: `{key}` says no unit");
    }
}
