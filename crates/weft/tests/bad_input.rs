//! Every wrong request is refused with a reason and an exit code, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;

use crate::common::Bench;
use rustix::fs::XattrFlags;

/// The bytes of all members, to see that nothing was changed.
fn contents(bench: &Bench) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(bench.scratch.path()).expect("the scratch folder").flatten();
    let members = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with('d'));
    let read = |entry: fs::DirEntry| {
        let bytes = fs::read(entry.path()).expect("a member");
        (entry.file_name().to_string_lossy().into_owned(), bytes)
    };
    members.map(read).collect()
}

/// The command is refused, says why, and changes no member.
#[track_caller]
fn refused(bench: &Bench, args: &[&str], code: i32, why: &str) {
    let before = contents(bench);
    let said = bench.refused(args, code);
    assert!(said.contains(why), "weft {args:?} should say `{why}`, but says\n{said}");
    assert!(before == contents(bench), "weft {args:?} changed a member");
}

#[test]
fn create_refuses_what_makes_no_array() {
    let bench = Bench::new("bad-create");
    let d = bench.members(4, 8 << 20);
    let _ = bench.scratch.file("dsmall", 64 << 10);
    let create = |code: &str, more: &[&str]| -> Vec<String> {
        ["create", "t", "--code", code].iter().chain(more).map(ToString::to_string).collect()
    };
    let cases: [(&str, &[&str], i32, &str); 14] = [
        ("raid6", &["d0", "d1", "d2"], 1, "raid6"),
        ("raid7", &["d0", "d1", "d2"], 2, "raid7"),
        ("drc-g:5,2,1", &["d0", "d1", "d2", "d3"], 2, "drc-g:5,2,1"),
        ("raid5", &["d0", "d1", "dsmall"], 1, "dsmall"),
        ("raid5", &["d0", "d1", "none"], 1, "none"),
        ("raid5", &["d0", "d1", "d1"], 2, "d1 is given twice"),
        ("raid5", &["d0", "d1", "./d1"], 2, "./d1 is given twice (as d1, too)"),
        ("raid5", &["d0", "d1", "/dev/null"], 1, "/dev/null"),
        ("raid5", &["d0", "d1", "nbd://127.0.0.1:1/x"], 1, "nbd://127.0.0.1:1/x"),
        ("raid5", &["d0", "d1", "nbd:nonsense"], 1, "nbd:nonsense"),
        ("raid5", &["--unit", "3000", "d0", "d1", "d2"], 1, "power of two"),
        ("raid5", &["--unit", "much", "d0", "d1", "d2"], 2, "not a size"),
        ("raid5", &["--spares", "4", "d0", "d1", "d2", "d3"], 1, "spares"),
        ("raid0", &["--consistency", "ppl", "d0", "d1"], 1, "ppl"),
    ];
    for (code, more, exit, why) in cases {
        let args = create(code, more);
        refused(&bench, &args.iter().map(String::as_str).collect::<Vec<_>>(), exit, why);
    }
    refused(&bench, &["create", "a/b", "--code", "raid1", "d0", "d1"], 2, "cannot be the name");
    refused(
        &bench,
        &["create", "t", "--code", "raid5", "--algorithm", "up", "d0", "d1", "d2"],
        2,
        "up",
    );
    // A file that was made for a create that then failed is removed again.
    refused(&bench, &["create", "t", "--code", "raid6", "--size", "8M", "new0", "d0"], 1, "raid6");
    assert!(!bench.path("new0").exists(), "the file of a failed create is still there");

    bench.weft(&["create", "t", "--code", "raid5", &d[0], &d[1], &d[2]]);
    refused(&bench, &["create", "u", "--code", "raid1", "d0", "d3"], 1, "--force");
    bench.weft(&["create", "u", "--code", "raid1", "--force", "d0", "d3"]);
}

#[test]
fn serve_refuses_what_is_no_array() {
    let bench = Bench::new("bad-serve");
    bench.members(9, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2"]);
    bench.weft(&["create", "u", "--code", "raid1", "d3", "d4"]);
    bench.weft(&["create", "t", "--code", "raid1", "d5", "d6"]);
    refused(&bench, &["serve", "d8"], 1, "not a member");
    refused(&bench, &["serve", "--disk-depth", "0", "d0"], 2, "1..=1024");
    refused(&bench, &["serve", "none"], 1, "none");
    refused(&bench, &["serve", "d0", "d1", "d2", "d5", "d6"], 1, "two arrays are named t");
    refused(&bench, &["serve", "--array", "w", "d3", "d4"], 1, "no member of an array w");
    refused(&bench, &["serve", "--listen", "0.0.0.0:0", "d3", "d4"], 2, "--allow-remote");
    refused(&bench, &["serve", "--listen", "nowhere", "d3", "d4"], 2, "nowhere");
    refused(&bench, &["serve", "--config", "none.toml"], 1, "No such file");
    // A copy of a member is not another member. If neither is in its place, it is unclear which is
    // right.
    fs::copy(bench.path("d3"), bench.path("d7")).expect("copy a member");
    fs::rename(bench.path("d3"), bench.path("d9")).expect("rename a member");
    refused(&bench, &["serve", "d9", "d4", "d7"], 1, "cop");
    refused(&bench, &["examine", "d8"], 1, "not a member");
}

#[test]
fn a_damaged_or_unknown_superblock_is_not_touched() {
    let mut bench = Bench::new("damaged");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    let file = fs::File::options().write(true).open(bench.path("d0")).expect("a member");
    file.write_all_at(&[0x55; 400 << 10], 16).expect("damage label and superblocks");
    drop(file);
    let before = contents(&bench);
    bench.serve_waiting(&["d0", "d1"]);
    bench.wait_for_log("d0 is not used");
    bench.terminate();
    assert!(before == contents(&bench), "a member was changed");
    refused(&bench, &["examine", "d0"], 1, "d0");
}

#[test]
fn the_daemon_refuses_what_would_lose_data() {
    let mut bench = Bench::new("bad-manage");
    bench.members(5, 8 << 20);
    let _ = bench.scratch.file("dsmall", 64 << 10);
    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2"]);
    bench.weft(&["create", "u", "--code", "raid1", "--size", "8M", "x0", "x1"]);
    bench.serve(&["d0", "d1", "d2"]);
    let refused = |args: &[&str], code: i32, why: &str| {
        let before = bench.status("t");
        let said = bench.refused(args, code);
        assert!(said.contains(why), "weft {args:?} should say `{why}`, but says\n{said}");
        assert_eq!(before["slots"], bench.status("t")["slots"], "weft {args:?} changed the array");
    };
    refused(&["fail", "t", "d9"], 1, "no member d9");
    refused(&["fail", "t", "3"], 1, "no member 3");
    refused(&["fail", "nope", "0"], 1, "no array nope");
    refused(&["add", "t", "none"], 1, "none");
    refused(&["add", "t", "dsmall"], 1, "dsmall");
    refused(&["add", "t", "d0"], 1, "d0");
    refused(&["add", "t", "x0"], 1, "member of array 'u'");
    refused(&["replace", "t", "7", "d3"], 1, "no member 7");
    refused(&["rebuild", "nope"], 1, "no array nope");
    refused(&["scrub", "t", "status"], 1, "has not been scrubbed yet");
    refused(&["rebuild", "t", "--order", "random"], 2, "popularity");
    refused(&["rebuild", "t", "--half-life", "soon"], 2, "give seconds");
    refused(&["throttle", "t", "--min", "2M", "--max", "1M"], 2, "--min");
    refused(&["throttle", "t", "--max", "0"], 2, "pause");
    refused(&["attach", "nope"], 1, "");
    refused(&["detach", "t"], 1, "");
    let second = bench.refused(&["serve", "x0", "x1"], 1);
    assert!(second.contains("already runs"), "{second}");
    let stolen = bench.refused(&["create", "v", "--code", "raid1", "--force", "d0", "d3"], 1);
    assert!(stolen.contains("d0"), "{stolen}");

    bench.weft(&["fail", "t", "d1"]);
    let refused = |args: &[&str], why: &str| {
        let said = bench.refused(args, 1);
        assert!(said.contains(why), "weft {args:?} should say `{why}`, but says\n{said}");
    };
    refused(&["fail", "t", "d0"], "would lose data");
    refused(&["fail", "t", "d1"], "missing");
    refused(&["rebuild", "t"], "no spare");
    bench.refused(&["status", "--check"], 3);
    let error = bench.refused(&["fail", "t", "d0", "--json"], 1);
    let error: serde_json::Value = serde_json::from_str(&error).expect("errors are JSON too");
    assert_eq!(error["error"]["code"], 1);
    // A copy takes nothing away: also a member that cannot be spared is replaced.
    bench.weft(&["replace", "t", "d0", "d3"]);
    let disk = bench.status("t")["slots"][0]["disk"].clone();
    assert!(disk.as_str().is_some_and(|disk| disk.ends_with("d3")), "{disk}");
    bench.terminate();
}

#[test]
fn a_stale_member_is_left_out_and_said_so() {
    let mut bench = Bench::new("stale");
    bench.members(3, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2"]);
    bench.serve(&["d0", "d1", "d2"]);
    bench.weft(&["fail", "t", "d1"]);
    bench.terminate();
    bench.serve(&["d0", "d1", "d2"]);
    assert!(bench.log().contains("d1 is not used"), "{}", bench.log());
    assert_eq!(bench.status("t")["state"], "degraded");
    bench.terminate();
}

#[test]
fn no_daemon_is_a_code_of_its_own() {
    let bench = Bench::new("no-daemon");
    for args in [&["status"][..], &["fail", "t", "0"], &["scrub", "t"], &["stop"]] {
        let said = bench.refused(args, 5);
        assert!(said.contains("weft serve"), "{said}");
    }
}

#[test]
fn a_client_that_speaks_another_language_is_answered_and_others_go_on() {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;

    let mut bench = Bench::new("rough");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    let connect = || UnixStream::connect(bench.path("run/control.sock")).expect("connect");
    for (line, why) in [
        ("nonsense\n", "did not understand"),
        ("{\"version\":99,\"request\":\"?\"}\n", "version 1"),
        ("{\"version\":1,\"request\":{\"explode\":{}}}\n", "did not understand"),
        ("{\"version\":1,\"request\":{\"attach\":{\"array\":\"t\"}}}\n", "FUSE channel"),
    ] {
        let mut stream = connect();
        stream.write_all(line.as_bytes()).expect("write");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("read");
        assert!(answer.contains("error") && answer.contains(why), "{line} was answered {answer}");
    }
    // One that vanishes in the middle of a request.
    connect().write_all(b"{\"version\"").expect("write");
    assert_eq!(bench.status("t")["state"], "healthy");
    bench.terminate();
}

/// A mistake: the command, the exit code, the expected message, and the expected hint.
type Mistake = (&'static str, i32, &'static str, &'static str);

#[track_caller]
fn answered(bench: &Bench, mistakes: &[Mistake]) {
    for (typed, code, wrong, next) in mistakes {
        // Two quotes are an empty argument, as in a shell.
        let words = typed.split(' ').map(|word| if word == "''" { "" } else { word });
        let args: Vec<&str> = words.collect();
        let said = bench.refused(&args, *code);
        let both = said.contains(wrong) && said.contains(next);
        assert!(both, "weft {typed} should say `{wrong}` and `{next}`, but says\n{said}");
        // The JSON error says the same, as one object.
        let told = bench.refused(&[&["--json"], &args[..]].concat(), *code);
        let told = told.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        let told: serde_json::Value = serde_json::from_str(told).expect("an object");
        assert_eq!(told["error"]["code"], *code, "weft --json {typed}");
        assert!(told["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{told}");
    }
}

#[test]
fn a_mistake_is_answered_with_what_is_wrong_and_what_to_do_next() {
    let mut bench = Bench::new("mistakes");
    bench.members(6, 16 << 20);
    let _ = bench.scratch.file("tiny", 64 << 10);
    fs::create_dir(bench.path("folder")).expect("a folder");
    bench.weft(&["create", "one", "--code", "raid1", "--size", "8M", "m0", "m1"]);
    let before = contents(&bench);
    answered(
        &bench,
        &[
            ("crate t", 2, "unrecognized subcommand 'crate'", "'create'"),
            ("create t --code raid9 d0 d1 d2", 2, "--code: unknown code 'raid9'", "→ `weft create"),
            ("create t --code lrc:5,2,1 d0 d1", 2, "--code: lrc:5,2,1: L must divide K", "→ "),
            ("create t --code raid5 d0", 1, "needs at least 2 slots", "→ each slot needs a member"),
            ("create --code raid5 d0 d1 d2", 2, "but d0 is a disk", "→ give the array's name"),
            ("create t --code raid5 --size -5 n0 n1", 2, "`-5` is not a size", "20TB or 20TiB"),
            ("create t --code raid5 --spares x d0 d1", 2, "--spares", "give a whole number"),
            ("create t --code raid5 --unit 5G d0 d1", 2, "too large for a unit", "16M"),
            ("create t --code raid5 --unit 5000 d0 d1", 1, "4.8 KiB (5000 bytes)", "power of two"),
            ("create t --code raid5 d0 d1 none", 1, "none: no such file", "`--size 10G`"),
            ("create t --code raid5 d0 http://x/y", 2, "not a disk's address", "→ write nbd://"),
            ("create t --code raid5 d0 folder", 1, "neither a regular file", "→ name a block dev"),
            ("create t --code raid5 d0 tiny", 1, "64 KiB is too small: at least", "→ use larger"),
            ("create t --code raid5 --size 8M no/n0 d0", 1, "create no/n0", "→ create its folder"),
            ("create t --code raid1 m0 d0", 1, "m0 is a member of array 'one'", "--force"),
            ("examine none", 1, "none: No such file", "→ check the name\n"),
            ("wipe none", 1, "none: No such file", "→ check the name\n"),
            ("wipe m0", 1, "not erased", "--force erases"),
            ("serve none", 1, "none: No such file", "→ check the name, and that"),
            ("serve --wait soon m0 m1", 2, "`soon` is not a time", "such as 30s"),
            ("status", 5, "no daemon answers", "→ start one with `weft serve"),
            ("detach one", 1, "not attached", "→ `weft status` lists"),
            ("rebuild one --half-life -3", 2, "--half-life", "give seconds, such as 10"),
            ("throttle one --max fast", 2, "`fast` is not a rate", "50MB/s"),
            ("throttle one --max -5", 2, "`-5` is not a rate", "50MB/s"),
            ("simulate --runs 0", 2, "'--runs <M>'", "give 1 or more"),
            ("replay --workload zipf none", 1, "none: no such file", "→ check the name"),
            ("trace generate zipf --json", 2, "--json needs --output", "`--output FILE --json`"),
            ("trace info none", 1, "none: No such file", "→ check the name"),
            ("lab run nope", 2, "no experiment is named 'nope'", "→ `weft lab list`"),
        ],
    );
    // A disk that can be read is shown, regardless of the others.
    let said = bench.refused(&["examine", "none", "m0"], 1);
    assert!(said.contains("slot 0 of one (active)") && said.contains("none: No such"), "{said}");
    assert!(before == contents(&bench), "a mistake changed a member");

    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2"]);
    bench.weft(&["create", "u", "--code", "raid1", "--spares", "1", "d3", "d4", "d5"]);
    bench.serve(&["d0", "d1", "d2", "d3", "d4", "d5"]);
    bench.weft(&["throttle", "t", "--min", "1G"]);
    answered(
        &bench,
        &[
            ("status nope", 1, "no array nope is being served", "→ served arrays: t, u"),
            ("status t --watch 0", 2, "'[SECONDS]'", "from 0.1 to 86400"),
            ("status t 5", 2, "--watch", ""),
            ("status t --watch=1 2", 2, "the period of --watch is given twice", ""),
            ("status --watch nope", 1, "no array nope is being served", ""),
            ("status --watch=0", 2, "'--watch[=<SECONDS>]'", "from 0.1 to 86400"),
            ("fail t ''", 2, "the member's name is empty", ""),
            ("fail t d9", 1, "no member d9", "→ give a slot, 0 to 2"),
            ("fail u d5", 1, "d5 is a spare of u, not a member", "→ `weft remove u d5`"),
            ("replace u d5 m0", 1, "d5 is a spare of u", "→ `weft remove u d5`"),
            ("remove t d0", 1, "in use in slot 0", "→ `weft replace t 0 NEWDISK`"),
            ("add t none", 1, "none: no such file", "`--size 10G`"),
            ("add t d1", 1, "d1 is in use: it is a member of t", "→ choose another disk"),
            ("add t tiny", 1, "it has 64 KiB, and the array's members need", "MiB"),
            ("add t m0", 1, "holds a member of array 'one'", "--force overwrites"),
            ("wipe d0", 1, "it is in use, by a weft daemon", "→ end what uses it"),
            ("scrub t status", 1, "t has not been scrubbed yet", "→ `weft scrub t`"),
            (
                "scrub t wait --repair",
                2,
                "--repair applies only when a scrub is started",
                "→ `weft scrub",
            ),
            ("throttle t --max 1K", 1, "1 KiB/s, is below the minimum, 1 GiB/s", "→ give both"),
            ("throttle t --max 0", 2, "would never end", "`weft rebuild ARRAY pause`"),
            ("start t", 1, "t is already being served", "→ `weft status t`"),
            ("start none", 1, "neither an array nor a member", "→ `weft status` lists"),
            ("serve m0 m1", 1, "a daemon already runs", "→ stop it with `weft stop`"),
        ],
    );
    bench.weft(&["fail", "t", "d1"]);
    answered(
        &bench,
        &[
            ("fail t d0", 1, "the array would lose data", "→ add a disk"),
            ("fail t d1", 1, "slot 1 is already missing", "→ `weft status`"),
            ("rebuild t", 1, "there is no spare", "→ add a disk: `weft add t DISK`"),
            ("status --check", 3, "redundancy is reduced: t", "`weft add t DISK`"),
        ],
    );
    bench.terminate();
}

/// Other file systems would keep what they are told as an attribute, and the command would seem to
/// work.
#[test]
fn commands_are_refused_where_no_weft_file_system_is_mounted() {
    let bench = Bench::new("weftfs-elsewhere");
    fs::create_dir(bench.path("folder")).expect("made");
    fs::write(bench.path("folder/file"), "kept").expect("written");
    // As a copy of a file has it.
    let flags = XattrFlags::empty();
    let _ =
        rustix::fs::setxattr(bench.path("folder/file"), "user.weft.redundancy", b"raid5", flags);
    let attributes = |name: &str| {
        let mut names = vec![0; 1000];
        let len = rustix::fs::listxattr(bench.path(name), &mut names[..]).unwrap_or(0);
        names.truncate(len);
        let mut value = [0; 100];
        let redundancy =
            rustix::fs::getxattr(bench.path(name), "user.weft.redundancy", &mut value[..]);
        (names, redundancy.map(|len| value[..len].to_vec()).ok())
    };
    let before = ["folder", "folder/file"].map(attributes);
    let disk = bench.scratch.file("d0", 24 << 20).display().to_string();
    for args in [
        &["status", "folder"][..],
        &["df", "folder"],
        &["set", "raid1", "folder/file"],
        &["set", "raid1", "folder"],
        &["set", "--background", "raid1", "folder/file"],
        &["fail", "folder", "1"],
        &["add", "folder", &disk],
        &["remove", "folder", "1"],
        &["rebuild", "folder"],
        &["balance", "folder"],
        &["scrub", "folder"],
        &["cancel", "folder"],
        &["fsck", "folder"],
    ] {
        refused(&bench, &[&["fs"], args].concat(), 1, "no weft file system is mounted");
    }
    assert_eq!(["folder", "folder/file"].map(attributes), before);
    // Without names of disks it is looked for where devices are.
    let args = ["fs", "mount", "weft-nowhere", "folder"];
    refused(&bench, &args, 1, "no disk of a file system 'weft-nowhere' was found");
}
