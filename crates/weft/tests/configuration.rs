//! The configuration file: what is wrong is told with file, line and key; what is right is what
//! the daemon does.

use std::fs;

use crate::common::{Bench, text};

/// Wrong configurations, with the line, the key, and words of the reason.
const WRONG: [(&str, usize, &str, &str); 56] = [
    // What is no TOML.
    ("[serve\n", 1, "", "unclosed table"),
    ("[serve]\nwait = \n", 2, "", ""),
    ("[serve]\nwait = 30s\n", 2, "", ""),
    ("[serve]\nwait = \"30s\n", 2, "", "invalid basic string"),
    ("[serve]\nmembers = [\"/dev\"\n", 2, "", "unclosed array"),
    ("[serve]\nwait = \"1s\"\nwait = \"2s\"\n", 3, "", "duplicate key"),
    ("[serve]\n[serve]\n", 2, "", "duplicate key"),
    ("serve\n", 1, "", ""),
    ("[serve]\n\u{1}\n", 2, "", ""),
    ("[serve]\nlisten: \"127.0.0.1\"\n", 2, "", ""),
    // Tables.
    ("wait = \"30s\"\n", 1, "wait", "it belongs below a line [serve]"),
    ("members = [\"/dev\"]\n", 1, "members", "it belongs below a line [serve]"),
    ("\n[server]\n", 2, "server", "there are [serve] and [attach.ARRAY]"),
    ("[fs.home]\n", 1, "fs", "there are [serve] and [attach.ARRAY]"),
    ("serve = true\n", 1, "serve", "it must be a table"),
    ("[[serve]]\n", 1, "serve", "it must be a table"),
    ("[attach]\ntank = 4096\n", 2, "attach.tank", "it must be a table"),
    ("[attach]\nblock-size = 4096\n", 2, "attach.block-size", "it must be a table"),
    ("attach = \"tank\"\n", 1, "attach", "it must be a table"),
    ("[attach.\"a/b\"]\n", 1, "attach.a/b", "the name of an array"),
    ("[attach.\"\"]\n", 1, "attach.", "the name of an array"),
    // Keys.
    ("[serve]\n\nspeed = 3\n", 3, "serve.speed", "unknown key; there are allow-empty"),
    ("[serve]\ndisk_depth = 3\n", 2, "serve.disk_depth", "did you mean disk-depth?"),
    ("[serve]\nmember = [\"/dev\"]\n", 2, "serve.member", "did you mean members?"),
    ("[serve]\narray = [\"tank\"]\n", 2, "serve.array", "did you mean arrays?"),
    ("[serve]\nbackground = true\n", 2, "serve.background", "it is an option for one run"),
    ("[serve]\nlog = \"/x\"\n", 2, "serve.log", "it is an option for one run"),
    ("[serve]\nforce-degraded = true\n", 2, "serve.force-degraded", "for one run"),
    ("[serve]\nruntime-dir = \"/x\"\n", 2, "serve.runtime-dir", "for one run"),
    ("[serve]\nblock-size = 4096\n", 2, "serve.block-size", "unknown key"),
    ("[attach.tank]\ndelay = \"1s\"\n", 2, "attach.tank.delay", "unknown key; there are block"),
    // Types.
    ("[serve]\nmembers = \"/dev\"\n", 2, "serve.members", "give a list of texts"),
    ("[serve]\nmembers = [1.5]\n", 2, "serve.members", "not a number with a fraction"),
    ("[serve]\nmembers = [[\"/dev\"]]\n", 2, "serve.members", "not a list"),
    ("[serve]\narrays = 3\n", 2, "serve.arrays", "not a number"),
    ("[serve]\nread-only = \"yes\"\n", 2, "serve.read-only", "give true or false, not a text"),
    ("[serve]\nread-only = 1\n", 2, "serve.read-only", "give true or false"),
    ("[serve]\nwait = true\n", 2, "serve.wait", "give a text or a whole number"),
    ("[serve]\nwait = 1979-05-27\n", 2, "serve.wait", "not a date"),
    ("[serve]\nwait = { s = 3 }\n", 2, "serve.wait", "not a table"),
    ("[serve]\ndisk-depth = 0x40\n", 2, "serve.disk-depth", "give a decimal number"),
    // Values.
    ("[serve]\nmembers = [\"\"]\n", 2, "serve.members", "it is empty"),
    ("[serve]\nmembers = [\"dev\"]\n", 2, "serve.members", "'dev' is relative"),
    ("[serve]\nnbd-socket = \"nbd.sock\"\n", 2, "serve.nbd-socket", "is relative"),
    ("[serve]\nwait = \"soon\"\n", 2, "serve.wait", ""),
    ("[serve]\nwait = -3\n", 2, "serve.wait", ""),
    ("[serve]\ndisk-timeout = \"0s\"\n", 2, "serve.disk-timeout", "give at least 1s"),
    ("[serve]\ndisk-depth = 0\n", 2, "serve.disk-depth", "0 is not in 1..=1024"),
    ("[serve]\ndisk-depth = 5000\n", 2, "serve.disk-depth", "5000 is not in 1..=1024"),
    ("[serve]\nlisten = \"all\"\n", 2, "serve.listen", "give an IP address of this machine"),
    ("[serve]\nsocket-group = \"no-such\"\n", 2, "serve.socket-group", "no such group"),
    ("[serve]\ncache = 0\n", 2, "serve.cache", "a cache needs memory"),
    ("[attach.tank]\nblock-size = \"4 bytes\"\n", 2, "attach.tank.block-size", ""),
    // What does not go together.
    ("[serve]\nallow-remote = true\n", 2, "serve.allow-remote", "it needs the key listen"),
    ("[serve]\nlisten = \"0.0.0.0\"\n", 2, "serve.listen", "other machines can reach"),
    ("[serve]\ncache = \"1000TiB\"\n", 2, "serve.cache", "this machine has"),
];

#[test]
fn wrong_configurations_are_told_with_file_line_and_key() {
    let bench = Bench::new("configuration");
    let file = bench.path("weft.toml");
    let mut failed = Vec::new();
    for (config, line, key, why) in WRONG {
        fs::write(&file, config).expect("write");
        let said = bench.refused(&["config", "check", &text(&file)], 1);
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        let begins = format!("weft: {}:{line}: {key}", file.display());
        let first = said.lines().next().unwrap_or_default();
        if !first.starts_with(&begins) || !first[begins.len()..].contains(why) {
            failed.push(format!("{config}\n  expected {begins}…{why}\n  printed  {first}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn files_that_are_none_are_refused() {
    let bench = Bench::new("no-configuration");
    let check = |name: &str| bench.refused(&["config", "check", &text(&bench.path(name))], 1);
    assert!(check("absent.toml").contains("absent.toml: No such file"));
    fs::create_dir(bench.path("folder.toml")).expect("a folder");
    assert!(check("folder.toml").contains("it is not a file"));
    fs::write(bench.path("bytes.toml"), b"# \n\n\xff\n").expect("write");
    assert!(check("bytes.toml").contains("bytes.toml:3: it is not UTF-8"));
    let huge = "#".repeat((1 << 20) + 1);
    fs::write(bench.path("huge.toml"), huge).expect("write");
    assert!(check("huge.toml").contains("larger than 1 MiB"));
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let bench = Bench::new("all-wrong");
    fs::write(bench.path("weft.toml"), "[serve]\nspeed = 3\nwait = true\n").expect("write");
    fs::create_dir(bench.path("weft.d")).expect("a folder");
    fs::write(bench.path("weft.d/50-x.toml"), "[serve]\n\nmembers = [\"x\"]\n").expect("write");
    let said = bench.refused(&["config", "check", &text(&bench.path("weft.toml"))], 1);
    for place in ["weft.toml:2: serve.speed", "weft.toml:3: serve.wait", "50-x.toml:3: serve.mem"] {
        assert!(said.contains(place), "{place} in {said}");
    }
    let serve = bench.refused(&["serve", "--config", &text(&bench.path("weft.toml"))], 1);
    assert!(serve.contains("weft.toml:2: serve.speed"), "{serve}");
}

#[test]
fn drop_ins_come_later_and_the_command_line_last() {
    let bench = Bench::new("drop-ins");
    let write = |name: &str, text: &str| fs::write(bench.path(name), text).expect("write");
    fs::create_dir(bench.path("weft.d")).expect("a folder");
    write("weft.toml", "[serve]\nmembers = [\"/srv/a\"]\nwait = \"30s\"\nread-only = true\n");
    write("weft.d/20.toml", "[serve]\nwait = \"2m\"\nread-only = false\nmembers = [\"/b\"]\n");
    write("weft.d/10.toml", "[serve]\nwait = \"1m\"\narrays = [\"tank\"]\ndisk-depth = 1_000\n");
    write("weft.d/.30.toml", "wrong");
    write("weft.d/30.toml~", "wrong");
    let config = text(&bench.path("weft.toml"));
    let said = bench.weft(&["config", "check", &config]);
    let line = said.lines().last().expect("a line");
    assert_eq!(line, "weft serve --array=tank --disk-depth=1000 /srv/a /b --wait=2m");
    let said = bench.weft(&["--json", "config", "check", &config]);
    let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(3), "{said}");
    // The option of the command line is the one that is looked at.
    let said = bench.refused(&["serve", "--config", &config, "--nbd-socket", &"x".repeat(200)], 2);
    assert!(said.contains("too long for a socket"), "{said}");
}

#[test]
fn the_daemon_does_what_the_configuration_says() {
    let mut bench = Bench::new("configured");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    bench.weft(&["create", "other", "--code", "raid1", "--size", "8M", "e0", "e1"]);
    let config = format!(
        "[serve]\nmembers = [\"{}\"]\narrays = [\"tank\"]\nread-only = true\ncache = \"1MiB\"\n",
        bench.scratch.path().display()
    );
    fs::write(bench.path("weft.toml"), config).expect("write");
    bench.serve(&["--config", "weft.toml"]);
    let status: serde_json::Value =
        serde_json::from_str(&bench.weft(&["status", "--json"])).expect("JSON");
    let arrays = status["arrays"].as_array().expect("arrays");
    assert_eq!(arrays.len(), 1, "{status}");
    assert_eq!(arrays[0]["read_only"], true, "{status}");
    assert_eq!(arrays[0]["cache"]["max_bytes"], 1 << 20, "{status}");
    bench.terminate();
}

#[test]
fn the_document_lists_every_key() {
    let bench = Bench::new("keys");
    let file = bench.path("weft.toml");
    let document = include_str!("../../../docs/configuration.md");
    let mut missing = Vec::new();
    for table in ["serve", "attach.tank"] {
        fs::write(&file, format!("[{table}]\nspeed = 1\n")).expect("write");
        let said = bench.refused(&["config", "check", &text(&file)], 1);
        let keys = said.lines().next().and_then(|line| line.split_once("there are "));
        let (_, keys) = keys.expect("the keys");
        missing.extend(
            keys.split(", ")
                .filter(|key| !document.contains(&format!("| `{key}` |")))
                .map(str::to_owned),
        );
    }
    assert!(missing.is_empty(), "not in docs/configuration.md: {missing:?}");
}
