//! Single arrays and disks are started, stopped, removed and erased while the daemon runs; a pause
//! is seen.

use std::path::Path;

use crate::common::Bench;

fn served(name: &str) -> Bench {
    let mut bench = Bench::new(name);
    bench.weft(&["create", "t", "--code", "raid5", "--size", "8M", "d0", "d1", "d2"]);
    bench.weft(&["create", "u", "--code", "raid1", "--size", "8M", "e0", "e1"]);
    bench.serve(&["d0", "d1", "d2", "e0", "e1"]);
    bench
}

#[test]
fn an_array_is_stopped_and_started_alone() {
    let mut bench = served("start-stop");
    bench.weft(&["add", "t", "s0", "--size", "8M"]);
    bench.weft(&["stop", "t"]);
    let said = bench.refused(&["status", "t"], 1);
    assert!(said.contains("stopped by command") && said.contains("weft start t"), "{said}");
    // This is no fault, and nothing starts the array behind the administrator's back.
    bench.weft(&["status", "--check"]);
    bench.signal(rustix::process::Signal::HUP);
    bench.wait_for_log("SIGHUP");
    assert!(bench.weft(&["status"]).contains("t: stopped"));
    let dry = bench.weft(&["start", "t", "--dry-run"]);
    assert!(dry.contains("would be started; nothing was changed"), "{dry}");
    assert!(bench.weft(&["status"]).contains("t: stopped"));
    // Also the disk is found that a command added.
    let started = bench.weft(&["start", "t", "--consistency", "bitmap", "--json"]);
    let started: serde_json::Value = serde_json::from_str(&started).expect("JSON");
    assert_eq!((&started["arrays"][0]["name"], &started["done"]), (&"t".into(), &true.into()));
    let status = bench.status("t");
    assert_eq!(
        (&status["state"], status["spares"].as_array().map(Vec::len)),
        (&"healthy".into(), Some(1))
    );
    assert_eq!(status["consistency"], "bitmap");
    let said = bench.refused(&["start", "t"], 1);
    assert!(said.contains("already being served"), "{said}");
    let said = bench.refused(&["start", "nope"], 1);
    assert!(said.contains("neither an array nor"), "{said}");
    bench.terminate();
}

#[test]
fn disks_that_the_daemon_was_not_told_of_are_started() {
    let mut bench = served("start-disks");
    bench.weft(&["create", "v", "--code", "raid1", "--size", "8M", "x0", "x1"]);
    let dry = bench.weft(&["start", "x0", "--dry-run"]);
    assert!(dry.contains("without slot 1"), "{dry}");
    bench.weft(&["start", "x0", "x1"]);
    assert_eq!(bench.status("v")["state"], "healthy");
    // One disk of two may be the older half.
    bench.weft(&["create", "w", "--code", "raid1", "--size", "8M", "y0", "y1"]);
    let said = bench.refused(&["start", "y0"], 1);
    assert!(said.contains("force"), "{said}");
    bench.weft(&["start", "y0", "--force-degraded"]);
    assert_eq!(bench.status("w")["state"], "degraded");
    bench.terminate();
}

#[test]
fn a_spare_is_removed_and_a_lost_member_forgotten() {
    let mut bench = served("remove");
    bench.weft(&["add", "t", "s0", "--size", "8M"]);
    let said = bench.refused(&["remove", "t", "d1"], 1);
    assert!(said.contains("weft replace") && said.contains("Nothing was changed"), "{said}");
    bench.weft(&["remove", "t", "s0", "--dry-run"]);
    assert_eq!(bench.status("t")["spares"].as_array().map(Vec::len), Some(1));
    bench.weft(&["remove", "t", "s0"]);
    assert_eq!(bench.status("t")["spares"].as_array().map(Vec::len), Some(0));
    let said = bench.refused(&["examine", "s0"], 1);
    assert!(said.contains("not a member"), "{said}");
    // It is free for another array.
    bench.weft(&["add", "u", "s0"]);
    bench.weft(&["fail", "t", "d1"]);
    bench.weft(&["remove", "t", "1"]);
    assert_eq!(bench.status("t")["slots"][1]["disk"], "");
    bench.terminate();
    bench.serve(&["d0", "d1", "d2", "e0", "e1", "s0"]);
    let status = bench.status("t");
    assert_eq!((&status["state"], &status["slots"][1]["disk"]), (&"degraded".into(), &"".into()));
    assert_eq!(bench.status("u")["spares"].as_array().map(Vec::len), Some(1));
    bench.terminate();
}

#[test]
fn a_disk_is_wiped_if_it_is_told_twice_and_not_in_use() {
    let mut bench = served("wipe");
    let said = bench.refused(&["wipe", "d0", "--force"], 1);
    assert!(said.contains("in use"), "{said}");
    bench.weft(&["fail", "t", "d1"]);
    let before = std::fs::read(bench.path("d1")).expect("the disk");
    let said = bench.refused(&["wipe", "d1"], 1);
    assert!(said.contains("a member of array 't'") && said.contains("--force"), "{said}");
    bench.weft(&["wipe", "d1", "--dry-run"]);
    assert!(before == std::fs::read(bench.path("d1")).expect("the disk"), "it was changed");
    bench.weft(&["wipe", "d1", "--force"]);
    let said = bench.refused(&["examine", "d1"], 1);
    assert!(said.contains("not a member"), "{said}");
    assert!(bench.weft(&["wipe", "d1"]).contains("nothing to erase"));
    bench.weft(&["wipe", "d1", "--zero", "--force"]);
    assert!(std::fs::read(bench.path("d1")).expect("the disk").iter().all(|b| *b == 0));
    // All of them are looked at before one is touched.
    bench.refused(&["wipe", "--force", "d1", "d2"], 1);
    bench.weft(&["add", "t", "d1"]);
    bench.weft(&["rebuild", "t"]);
    bench.terminate();
    // Also without a daemon. Data of other programs is not erased.
    bench.weft(&["wipe", "e1", "--force"]);
    let foreign = bench.scratch.file("f", 8 << 20);
    std::fs::write(foreign, b"LUKS\xba\xbe and more").expect("a header");
    std::fs::File::options()
        .write(true)
        .open(bench.path("f"))
        .and_then(|f| f.set_len(8 << 20))
        .expect("grow");
    let said = bench.refused(&["wipe", "f", "--force"], 1);
    assert!(said.contains("LUKS") && said.contains("wipefs"), "{said}");
}

#[test]
fn a_pause_is_shown_and_explained() {
    let mut bench = served("pause");
    bench.weft(&["add", "t", "s0", "--size", "8M"]);
    let said = bench.weft(&["rebuild", "t", "pause"]);
    assert!(said.contains("resume"), "{said}");
    let shown = bench.weft(&["status", "t"]);
    assert!(
        shown.lines().nth(1).is_some_and(|line| line.contains("MAINTENANCE IS PAUSED")),
        "{shown}"
    );
    bench.weft(&["fail", "t", "d1"]);
    bench.wait_for_log("no spare is used while maintenance is paused");
    let shown = bench.weft(&["status", "t"]);
    assert!(
        shown.lines().nth(1).is_some_and(|line| line.contains("NO SPARE WILL BE USED")),
        "{shown}"
    );
    assert_eq!(bench.status("t")["paused"], true);
    let said = bench.refused(&["rebuild", "t"], 1);
    assert!(said.contains("paused") && said.contains("weft rebuild t resume"), "{said}");
    bench.weft(&["rebuild", "t", "resume"]);
    bench.weft(&["rebuild", "t"]);
    assert_eq!(bench.status("t")["state"], "healthy");
    assert!(!bench.weft(&["status", "t"]).contains("PAUSED"));
    bench.terminate();
}

#[test]
fn growing_says_how_many_spares_it_takes_and_can_be_followed() {
    let mut bench = Bench::new("growing");
    let create = ["create", "t", "--code", "raid5", "--spares", "2", "--size", "48M"];
    let disks = ["--head-room", "1M", "d0", "d1", "d2", "d3", "d4"];
    bench.weft(&[&create[..], &disks].concat());
    bench.serve(&["."]);
    let said = bench.refused(&["grow", "t"], 1);
    assert!(said.contains("t has 2 spares") && said.contains("--add N"), "{said}");
    assert_eq!(bench.status("t")["spares"].as_array().map(Vec::len), Some(2));
    let said = bench.refused(&["reshape", "t", "--unit", "3K"], 1);
    assert!(said.contains("power of two"), "{said}");
    bench.weft(&["rebuild", "t", "pause"]);
    bench.weft(&["grow", "t", "--add", "1", "--no-wait"]);
    let said = bench.refused(&["grow", "t"], 1);
    assert!(said.contains("a reshape of t is running"), "{said}");
    assert!(said.contains("weft reshape t --wait"), "{said}");
    bench.weft(&["rebuild", "t", "resume"]);
    bench.weft(&["reshape", "t", "--wait"]);
    let status = bench.status("t");
    assert_eq!(
        (&status["reshaping"], status["spares"].as_array().map(Vec::len)),
        (&false.into(), Some(1))
    );
    let said = bench.weft(&["reshape", "t", "--wait"]);
    assert!(said.contains("no reshape of t is running"), "{said}");
    bench.terminate();
}

/// The whole way of an administrator: all disks are replaced by larger ones, the last of them is
/// enlarged while it is used, and then the array uses them.
#[test]
fn an_array_uses_larger_disks() {
    let mut bench = Bench::new("larger");
    let create = ["create", "t", "--code", "raid5", "--spares", "1", "--size", "8M"];
    bench.weft(&[&create[..], &["d0", "d1", "d2", "s0"]].concat());
    bench.serve(&["."]);
    let said = bench.refused(&["grow", "t", "--size", "max"], 1);
    assert!(said.contains("nothing to gain") && said.contains("8 MiB"), "{said}");
    let fill = |name: &str, bytes: usize| {
        std::fs::write(bench.path(name), vec![b'a'; bytes]).expect("a file");
    };
    fill("data", 4 << 20);
    let qemu = crate::common::quiet("sh")
        .args([
            "-c",
            &format!("nbdcopy {} '{}'", crate::common::text(&bench.path("data")), bench.uri("t")),
        ])
        .status();
    let copied = qemu.is_ok_and(|status| status.success());
    for (old, new) in [("d0", "n0"), ("d1", "n1")] {
        let said = bench.weft(&["replace", "t", old, new, "--size", "20M"]);
        assert!(!said.contains("more on each member"), "{said}");
    }
    std::fs::File::options()
        .write(true)
        .open(bench.path("d2"))
        .and_then(|file| file.set_len(16 << 20))
        .expect("enlarge");
    let status = bench.weft(&["status", "t"]);
    assert!(status.contains("8 MiB more on each member: `weft grow t --size max`"), "{status}");
    let before = bench.status("t");
    assert_eq!(before["unused_member_bytes"], 8 << 20, "{before}");
    let said = bench.refused(&["grow", "t", "--size", "18M"], 1);
    assert!(said.contains("the smallest,") && said.contains("d2, has 16 MiB"), "{said}");
    let said = bench.refused(&["grow", "t", "--size", "4M"], 1);
    assert!(said.contains("weft shrink"), "{said}");
    let said = bench.refused(&["grow", "t", "--size", "most"], 2);
    assert!(said.contains("max"), "{said}");
    bench.refused(&["grow", "t", "--size", "max", "--add", "1"], 2);
    let said = bench.weft(&["grow", "t", "--size", "max", "--dry-run"]);
    assert!(said.contains("8 MiB of each disk become 16 MiB"), "{said}");
    assert!(
        said.contains("s0 is too small then") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(bench.status("t")["size_bytes"], before["size_bytes"], "a dry run changed it");
    bench.weft(&["grow", "t", "--size", "max"]);
    bench.wait_for_log("16 MiB of each disk are used now");
    let after = bench.status("t");
    assert_eq!(after["member_bytes"], 16 << 20, "{after}");
    assert_eq!(after["unused_member_bytes"], 0, "{after}");
    let size = |status: &serde_json::Value| status["size_bytes"].as_u64().expect("a size");
    assert_eq!(size(&after), size(&before) + (16 << 20));
    let shown = bench.weft(&["status", "t"]);
    assert!(shown.contains("s0  TOO SMALL: 16 MiB of each member are used"), "{shown}");
    assert!(bench.refused(&["status", "--check"], 3).contains("weft remove t"));
    let said = bench.refused(&["add", "t", "s1", "--size", "8M"], 1);
    assert!(said.contains("too small"), "{said}");
    bench.weft(&["remove", "t", "s0"]);
    bench.weft(&["status", "--check"]);
    // The next start knows it.
    bench.terminate();
    bench.serve(&["."]);
    assert_eq!(size(&bench.status("t")), size(&after));
    let examined = bench.weft(&["examine", "n0", "--json"]);
    let examined: serde_json::Value = serde_json::from_str(&examined).expect("JSON");
    let superblock = &examined["disks"][0]["superblock"];
    let of = |key: &str| superblock[key].as_u64().unwrap_or_else(|| panic!("{key}: {superblock}"));
    let data = superblock["area"]["data_offset_bytes"].as_u64().expect("an offset");
    assert_eq!(data + of("rows") * of("unit_bytes"), 16 << 20);
    if copied {
        let uri = bench.uri("t");
        let back = crate::common::text(&bench.path("back"));
        let ok = crate::common::quiet("nbdcopy").args([&uri, &back]).status();
        assert!(ok.is_ok_and(|status| status.success()));
        let bytes = std::fs::read(bench.path("back")).expect("the copy");
        assert!(
            bytes[..4 << 20].iter().all(|b| *b == b'a') && bytes[4 << 20..].iter().all(|b| *b == 0)
        );
    }
    bench.terminate();
}

#[test]
fn a_device_that_is_not_there_is_not_made() {
    let mut bench = served("no-device");
    for args in
        [&["add", "t", "/dev/weft-none"][..], &["add", "t", "/dev/weft-none", "--size", "8M"]]
    {
        let said = bench.refused(args, 1);
        assert!(said.contains("lsblk") && !said.contains("create a file"), "{said}");
        assert!(!Path::new("/dev/weft-none").exists(), "a file was made");
    }
    bench.terminate();
}
