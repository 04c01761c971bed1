//! A missing or bad disk does not stop an array that can run without it, and is used as soon as
//! possible.

use std::fs;
use std::os::unix::fs::FileExt as _;

use crate::common::Bench;
use weft_testkit::{LoopDevice, Need, have, wait_until};

fn arrays(name: &str) -> Bench {
    let bench = Bench::new(name);
    bench.weft(&["create", "t", "--code", "raid5", "--size", "8M", "d0", "d1", "d2"]);
    bench.weft(&["create", "u", "--code", "raid6", "--size", "8M", "e0", "e1", "e2", "e3", "e4"]);
    bench
}

/// The state of every array that is served, by name.
fn states(bench: &Bench) -> Vec<String> {
    let status = snapshot(bench);
    let arrays = status["arrays"].as_array().expect("arrays").iter();
    let text = |a: &serde_json::Value| {
        format!("{} {}", a["status"]["name"], a["status"]["state"]).replace('"', "")
    };
    arrays.map(text).collect()
}

fn snapshot(bench: &Bench) -> serde_json::Value {
    serde_json::from_str(&bench.weft(&["status", "--json"])).expect("JSON")
}

#[test]
fn what_was_named_and_is_not_there_stops_nothing() {
    let mut bench = arrays("named");
    fs::rename(bench.path("e2"), bench.path("hidden")).expect("hide a member");
    let file = fs::File::options().write(true).open(bench.path("e4")).expect("a member");
    file.write_all_at(&[0x55; 400 << 10], 16).expect("damage label and superblocks");
    let _ = bench.scratch.file("plain", 8 << 20);
    bench.serve(&[
        "d0",
        "d1",
        "d2",
        "e0",
        "e1",
        "e2",
        "e3",
        "e4",
        "plain",
        "/dev/gone",
        "nbd://127.0.0.1:1/x",
    ]);
    assert_eq!(states(&bench), ["t healthy", "u degraded"]);
    for what in ["e2", "e4", "plain", "/dev/gone", "nbd://127.0.0.1:1/x"] {
        let said = format!("{what} is not used");
        assert!(bench.log().lines().any(|l| l.contains("ALERT") && l.contains(&said)), "{what}");
        assert!(bench.weft(&["status"]).contains(&format!("{what}: NOT USED")), "{what}");
    }
    bench.refused(&["status", "--check"], 3);
    // It comes back later: what was written meanwhile is rebuilt.
    fs::rename(bench.path("hidden"), bench.path("e2")).expect("bring it back");
    bench.signal(rustix::process::Signal::HUP);
    bench.wait_for_log("is back in slot 2; 0 regions to rebuild");
    assert_eq!(bench.status("u")["slots"][2]["disk"], crate::common::text(&bench.path("e2")));
    // The one with the damaged superblocks is still missing.
    let said = bench.refused(&["rebuild", "u"], 1);
    assert!(said.contains("slot 4 of u is missing"), "{said}");
    assert_eq!(bench.status("u")["slots"][2]["state"], "active");
    bench.terminate();
}

#[test]
fn a_start_logs_the_labels_that_it_writes_again() {
    let mut bench = arrays("labels");
    let file = fs::File::options().write(true).open(bench.path("d1")).expect("a member");
    file.write_all_at(&[0; 4096], 0).expect("erase the label");
    bench.serve(&["d0", "d1", "d2"]);
    assert_eq!(states(&bench), ["t healthy"]);
    let alert =
        format!("ALERT: {} was damaged and is repaired", crate::common::text(&bench.path("d1")));
    bench.wait_for_log(&alert);
    bench.terminate();
    // Once: the next start finds nothing wrong.
    bench.serve(&["d0", "d1", "d2"]);
    bench.terminate();
    assert_eq!(bench.log().matches(&alert).count(), 1, "{}", bench.log());
}

#[test]
fn a_member_that_failed_is_given_back_by_command() {
    let mut bench = arrays("given-back");
    bench.serve(&["d0", "d1", "d2"]);
    bench.weft(&["fail", "t", "d1"]);
    bench.signal(rustix::process::Signal::HUP);
    bench.wait_for_log("d1 is not used: t is running without it");
    let d1 = crate::common::text(&bench.path("d1"));
    let hint = bench.weft(&["status"]);
    assert!(hint.contains(&format!("`weft add t {d1}` takes it back")), "{hint}");
    let dry = bench.weft(&["add", "t", &d1, "--dry-run"]);
    assert!(dry.contains("can go back in slot 1") && dry.contains("nothing was changed"), "{dry}");
    assert_eq!(bench.status("t")["slots"][1]["state"], "missing");
    let said = bench.weft(&["add", "t", &d1]);
    assert!(said.contains("is back in slot 1: only regions written since"), "{said}");
    bench.weft(&["rebuild", "t"]);
    assert_eq!(bench.status("t")["state"], "healthy");
    // Forgotten, it is a stranger.
    bench.weft(&["fail", "t", "d1"]);
    bench.weft(&["remove", "t", "1"]);
    let said = bench.refused(&["add", "t", &d1], 1);
    assert!(said.contains("--force"), "{said}");
    let said = bench.weft(&["add", "t", &d1, "--force"]);
    assert!(said.contains("added as a spare"), "{said}");
    bench.weft(&["rebuild", "t"]);
    assert_eq!(bench.status("t")["state"], "healthy");
    // A member that was absent at a start is taken back automatically at the next.
    bench.terminate();
    bench.serve(&["d0", "d2"]);
    assert_eq!(states(&bench), ["t degraded"]);
    bench.terminate();
    bench.serve(&["d0", "d1", "d2"]);
    bench.wait_for_log("is back in slot 1; 0 regions to rebuild");
    wait_until("it to be whole", || states(&bench) == ["t healthy"]);
    bench.terminate();
}

#[test]
fn an_array_whose_members_come_later_is_started_then() {
    let mut bench = arrays("later");
    for n in ["e0", "e1", "e2"] {
        fs::rename(bench.path(n), bench.path(&format!("hidden-{n}"))).expect("hide a member");
    }
    bench.serve(&["d0", "d1", "d2", "e0", "e1", "e2", "e3", "e4"]);
    assert_eq!(states(&bench), ["t healthy"]);
    assert!(bench.weft(&["status"]).contains("u: NOT STARTED"));
    bench.refused(&["status", "--check"], 4);
    for n in ["e0", "e1", "e2"] {
        fs::rename(bench.path(&format!("hidden-{n}")), bench.path(n)).expect("bring it back");
    }
    // By itself.
    wait_until("the array to be started", || states(&bench) == ["t healthy", "u healthy"]);
    bench.weft(&["status", "--check"]);
    bench.terminate();
}

#[test]
fn wait_gives_slow_disks_time() {
    let mut bench = arrays("slow");
    let (hidden, there) = (bench.path("away/e1"), bench.path("e1"));
    fs::create_dir(bench.path("away")).expect("a folder");
    fs::rename(&there, &hidden).expect("hide a member");
    let mut look = bench.command(&["status"]);
    let late = std::thread::spawn(move || {
        // Not before the array that is complete is served.
        wait_until("the other array", || {
            let shown = look.output().expect("weft status").stdout;
            let shown = String::from_utf8_lossy(&shown).into_owned();
            shown.contains("t: can lose") && shown.contains("waiting for slot 1")
        });
        fs::rename(hidden, there).expect("bring it back");
    });
    bench.serve(&["--wait", "10m", "."]);
    late.join().expect("the disk came");
    assert_eq!(states(&bench), ["t healthy", "u healthy"]);
    bench.terminate();
    // Without it the array starts without the member, and when time is up, too.
    fs::rename(bench.path("e1"), bench.path("away/e1")).expect("hide a member");
    bench.serve(&["--wait", "1s", "."]);
    assert_eq!(states(&bench), ["t healthy", "u degraded"]);
    bench.terminate();
}

#[test]
fn of_copies_the_member_at_its_place_is_used() {
    let mut bench = arrays("copies");
    fs::copy(bench.path("d1"), bench.path("d1.bak")).expect("copy a member");
    bench.serve(&["."]);
    assert_eq!(states(&bench), ["t healthy", "u healthy"]);
    assert!(bench.log().contains("d1.bak is not used: it is a copy of"), "{}", bench.log());
    bench.terminate();
    // An older copy is left out wherever it stands.
    fs::rename(bench.path("d1"), bench.path("elsewhere")).expect("rename");
    fs::rename(bench.path("d1.bak"), bench.path("d1")).expect("rename");
    bench.serve(&["."]);
    assert_eq!(states(&bench), ["t healthy", "u healthy"]);
    let slots = bench.status("t")["slots"].to_string();
    assert!(slots.contains("elsewhere"), "{slots}");
    bench.terminate();
}

#[test]
fn a_write_protected_member_is_absent_with_the_reason_and_comes_back() {
    if !have(&[Need::Root, Need::Loop]) {
        return;
    }
    let mut bench = arrays("read-only");
    let device = LoopDevice::read_only(&bench.path("e3"));
    let path = crate::common::text(device.path());
    let members = ["d0", "d1", "d2", "e0", "e1", "e2", "e4", &path];
    bench.serve(&members);
    assert_eq!(states(&bench), ["t healthy", "u degraded"]);
    let is_explained = || {
        let status = bench.weft(&["status"]);
        let said = format!("{path}: NOT USED\n  the device is write-protected");
        assert!(status.contains(&said), "{status}");
        let slot = bench.status("u")["slots"][3].clone();
        assert_eq!(slot["state"], "missing", "{slot}");
    };
    is_explained();
    bench.refused(&["status", "--check"], 3);
    // The next scan says the same.
    bench.signal(rustix::process::Signal::HUP);
    bench.wait_for_log("SIGHUP");
    std::thread::sleep(std::time::Duration::from_millis(300));
    is_explained();
    let said = bench.refused(&["add", "u", &path], 1);
    assert!(said.contains("write-protected"), "{said}");
    // Once it takes writes, it is back, with what it missed.
    bench.terminate();
    drop(device);
    bench.serve(&["."]);
    bench.wait_for_log("slot 3 rebuilt");
    wait_until("it to be whole", || states(&bench) == ["t healthy", "u healthy"]);
    bench.terminate();
}

#[test]
fn an_array_whose_members_are_all_write_protected_says_so() {
    if !have(&[Need::Root, Need::Loop]) {
        return;
    }
    let mut bench = arrays("all-read-only");
    let devices = ["d0", "d1", "d2"].map(|name| LoopDevice::read_only(&bench.path(name)));
    let paths = devices.each_ref().map(|device| crate::common::text(device.path()));
    let serve = ["serve", &paths[0], &paths[1], &paths[2]];
    let said = bench.refused(&serve, 1);
    assert!(said.contains("write-protected") && said.contains("--read-only"), "{said}");
    bench.serve(&["--read-only", &paths[0], &paths[1], &paths[2]]);
    assert_eq!(states(&bench), ["t healthy"]);
    bench.terminate();
}

#[test]
fn two_arrays_of_one_name_do_not_stop_the_others() {
    let mut bench = arrays("names");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "8M", "x0", "x1"]);
    bench.serve(&["."]);
    assert_eq!(states(&bench), ["u healthy"]);
    let said = bench.refused(&["start", "t"], 1);
    assert!(said.contains("several arrays are named t"), "{said}");
    let status = snapshot(&bench);
    let found = status["not_started"].as_array().expect("a list");
    assert_eq!(found.len(), 2, "{status}");
    let id = found[0]["id"].as_str().expect("an id");
    bench.weft(&["start", id]);
    assert_eq!(states(&bench), ["t healthy", "u healthy"]);
    let other = found[1]["id"].as_str().expect("an id");
    let said = bench.refused(&["start", other], 1);
    assert!(said.contains("weft stop t"), "{said}");
    bench.terminate();
}

/// `raid5` of three with a spare; members `d0` … `d3`.
fn with_spare(name: &str) -> Bench {
    let bench = Bench::new(name);
    let create = ["create", "t", "--code", "raid5", "--spares", "1", "--size", "8M"];
    bench.weft(&[&create[..], &["d0", "d1", "d2", "d3"]].concat());
    bench
}

/// The array is whole, and its spare was not needed.
#[track_caller]
fn is_whole(bench: &Bench) {
    let status = bench.status("t");
    let spares = status["spares"].as_array().map(Vec::len);
    assert_eq!((&status["state"], spares), (&"healthy".into(), Some(1)), "{status}");
    bench.weft(&["status", "--check"]);
}

/// Brings `hidden` back as `name` as soon as status says that the array waits for it.
fn comes_late(bench: &Bench, name: &str) -> std::thread::JoinHandle<()> {
    let (hidden, there) = (bench.path(&format!("away-{name}/{name}")), bench.path(name));
    fs::create_dir(hidden.parent().expect("a folder")).expect("a folder");
    fs::rename(&there, &hidden).expect("hide a member");
    let mut look = bench.command(&["status"]);
    let log = bench.path("serve.log");
    std::thread::spawn(move || {
        wait_until("the array to wait", || {
            let shown = look.output().expect("weft status").stdout;
            let logged = fs::read_to_string(&log).unwrap_or_default();
            String::from_utf8_lossy(&shown).contains("waiting for slot 1")
                || logged.contains("waiting for slot 1")
        });
        fs::rename(hidden, there).expect("bring it back");
    })
}

#[test]
fn a_member_that_comes_late_costs_no_spare() {
    let mut bench = with_spare("late");
    let late = comes_late(&bench, "d1");
    bench.serve(&["."]);
    late.join().expect("the disk came");
    is_whole(&bench);
    // By command.
    bench.weft(&["stop", "t"]);
    fs::remove_file(bench.path("serve.log")).expect("forget what was logged");
    fs::remove_dir(bench.path("away-d1")).expect("remove a folder");
    bench.terminate();
    bench.serve(&["."]);
    bench.weft(&["stop", "t"]);
    let late = comes_late(&bench, "d1");
    bench.weft(&["start", "t"]);
    late.join().expect("the disk came");
    is_whole(&bench);
    // Who cannot wait says so.
    bench.weft(&["stop", "t"]);
    fs::rename(bench.path("d1"), bench.path("away-d1/d1")).expect("hide a member");
    bench.weft(&["start", "t", "--wait", "0s"]);
    bench.weft(&["rebuild", "t"]);
    assert_eq!(bench.status("t")["spares"].as_array().map(Vec::len), Some(0));
    bench.terminate();
}

#[test]
fn disks_are_found_by_their_labels_whatever_their_names_are() {
    if !have(&[Need::Root, Need::Loop]) {
        return;
    }
    let mut bench = with_spare("moved");
    let devices = ["d0", "d1", "d2", "d3"].map(|name| LoopDevice::attach(&bench.path(name), false));
    let paths = devices.each_ref().map(|device| crate::common::text(device.path()));
    // Two of the names lead to nothing, as after a start of the machine.
    bench.serve(&[&paths[0], &paths[3], "/dev/gone1", "/dev/gone2"]);
    let status = bench.status("t");
    let spares = status["spares"].as_array().map(Vec::len);
    assert_eq!((&status["state"], spares), (&"healthy".into(), Some(1)), "{status}");
    assert_eq!(status["slots"][2]["disk"], paths[2]);
    // By command, from one disk.
    bench.weft(&["stop", "t"]);
    bench.weft(&["start", &paths[1]]);
    assert_eq!(bench.status("t")["state"], "healthy");
    bench.terminate();
}

#[test]
fn an_array_with_too_few_members_is_waited_for() {
    let mut bench = Bench::new("too-few");
    let said = bench.weft(&["create", "m", "--code", "raid1", "--size", "8M", "m0", "m1"]);
    assert!(said.contains("--force-degraded"), "{said}");
    fs::rename(bench.path("m1"), bench.path("hidden")).expect("hide a member");
    bench.serve_waiting(&["m0", "m1"]);
    bench.wait_for_log("only 1 of 2 active members were found");
    bench.wait_for_log("add --force-degraded if");
    assert!(bench.weft(&["status"]).contains("m: NOT STARTED"));
    bench.refused(&["status", "--check"], 4);
    fs::rename(bench.path("hidden"), bench.path("m1")).expect("bring it back");
    wait_until("the array to be started", || states(&bench) == ["m healthy"]);
    bench.terminate();
}

#[test]
fn names_are_bytes_and_are_shown_on_one_line() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut bench = Bench::new("names-of-bytes");
    let folder = "a\nt: can lose 9 more disks";
    fs::create_dir(bench.path(folder)).expect("a folder");
    let disk = |name: &str| format!("{folder}/{name}");
    let disks = ["e0", "e1", "e2"].map(disk);
    bench
        .weft(&["create", "t", "--code", "raid5", "--size", "8M", &disks[0], &disks[1], &disks[2]]);
    let odd = bench.path(folder).join(std::ffi::OsStr::from_bytes(b"m\xff1"));
    fs::rename(bench.path(&disks[1]), &odd).expect("rename a member");
    bench.serve(&[folder]);
    let status = bench.weft(&["status"]);
    for text in [&status, &bench.log()] {
        assert!(!text.contains("\nt: can lose 9"), "{text}");
        assert!(text.contains("/a\\nt: can lose 9 more disks/m\\xff1"), "{text}");
        assert!(text.contains("its name is not UTF-8"), "{text}");
    }
    assert!(status.contains("/a\\nt: can lose 9 more disks/e0"), "{status}");
    bench.refused(&["status", "--check"], 3);
    bench.terminate();
}

/// Of two arrays with one name the next start would serve neither.
#[test]
fn a_name_that_is_served_is_not_given_to_another_array() {
    let mut bench = arrays("same-name");
    bench.serve(&["d0", "d1", "d2"]);
    let create = ["create", "t", "--code", "raid1", "--size", "8M", "n0", "n1"];
    let said = bench.refused(&create, 1);
    assert!(said.contains("an array named t is being served"), "{said}");
    assert!(said.contains("choose another name"), "{said}");
    assert!(!bench.path("n0").exists(), "nothing was changed");
    // What it belongs to that is in use is told.
    let said = bench.refused(&["create", "v", "--code", "raid1", "d0", "d1"], 1);
    assert!(said.contains("it is a member of the array 't'"), "{said}");
    bench.weft(&[&create[..], &["--force"]].concat());
    bench.terminate();
}
