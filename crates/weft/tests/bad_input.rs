//! Everything that can be asked wrongly is refused: with a reason, an exit code, and nothing
//! changed.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;

use common::Bench;

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
    refused(&bench, &["serve", "d0"], 1, "t");
    refused(&bench, &["serve", "d0", "d1", "d2", "d5", "d6"], 1, "two arrays are called t");
    refused(&bench, &["serve", "--array", "w", "d3", "d4"], 1, "no member of an array w");
    refused(&bench, &["serve", "--listen", "0.0.0.0:0", "d3", "d4"], 2, "--allow-remote");
    refused(&bench, &["serve", "--listen", "nowhere", "d3", "d4"], 2, "nowhere");
    refused(&bench, &["serve"], 2, "required");
    // A copy of a member is no other member. Where neither is at its place, nobody can know which.
    fs::copy(bench.path("d3"), bench.path("d7")).expect("copy a member");
    fs::rename(bench.path("d3"), bench.path("d9")).expect("rename a member");
    refused(&bench, &["serve", "d9", "d4", "d7"], 1, "cop");
    refused(&bench, &["examine", "d8"], 1, "not a member");
}

#[test]
fn a_damaged_or_unknown_superblock_is_not_touched() {
    let bench = Bench::new("damaged");
    bench.members(2, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid1", "d0", "d1"]);
    let file = fs::File::options().write(true).open(bench.path("d0")).expect("a member");
    file.write_all_at(&[0x55; 64], 16).expect("damage the label");
    drop(file);
    refused(&bench, &["serve", "d0", "d1"], 1, "d0");
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
    refused(&["scrub", "t", "status"], 1, "not scrubbed");
    refused(&["rebuild", "t", "--order", "random"], 2, "popularity");
    refused(&["rebuild", "t", "--half-life", "soon"], 2, "give seconds");
    refused(&["throttle", "t", "--min", "2M", "--max", "1M"], 2, "--min");
    refused(&["throttle", "t", "--max", "0"], 2, "pauses");
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
    assert!(bench.log().contains("d1 is left out"), "{}", bench.log());
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
