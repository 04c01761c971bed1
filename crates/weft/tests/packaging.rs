//! The Debian package has what it should have, its units and rules are sound, and its program tells
//! udev what it has to know.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::common::{Bench, text};
use weft_testkit::{Need, command, have, run, wait_until};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree")
}

/// Files of the package, without pages of the manual.
const FILES: [&str; 26] = [
    "/etc/weft/weft.toml",
    "/lib/systemd/system/weft-attach@.service",
    "/lib/systemd/system/weft.service",
    "/lib/udev/rules.d/64-weft.rules",
    "/usr/bin/weft",
    "/usr/sbin/fsck.weftfs",
    "/usr/sbin/mount.weftfs",
    "/usr/share/bash-completion/completions/weft",
    "/usr/share/doc/weft/CHANGELOG.md.gz",
    "/usr/share/doc/weft/administration.md",
    "/usr/share/doc/weft/arrays.md",
    "/usr/share/doc/weft/changelog.gz",
    "/usr/share/doc/weft/configuration.md",
    "/usr/share/doc/weft/consistency.md",
    "/usr/share/doc/weft/copyright",
    "/usr/share/doc/weft/daemon.md",
    "/usr/share/doc/weft/nbd.md",
    "/usr/share/doc/weft/plan.md",
    "/usr/share/doc/weft/rebuild.md",
    "/usr/share/doc/weft/reshape.md",
    "/usr/share/doc/weft/weftfs.md",
    "/usr/share/fish/vendor_completions.d/weft.fish",
    "/usr/share/zsh/vendor-completions/_weft",
    "/usr/share/lintian/overrides/weft",
    "/usr/share/man/man1/weft.1.gz",
    "/usr/share/man/man8/mount.weftfs.8.gz",
];

#[test]
fn the_package_has_its_files_and_nothing_of_this_machine() {
    if !have(&[Need::Tool("dpkg-deb")]) {
        return;
    }
    let bench = Bench::new("package");
    let mut make = command(text(&tree().join("package")));
    make.args(["--program", env!("CARGO_BIN_EXE_weft")]).env("CARGO_TARGET_DIR", bench.path("t"));
    let made = String::from_utf8(run(&mut make).stdout).expect("text");
    let package = made.trim();
    let listing = run(command("dpkg-deb").args(["--contents", package]));
    let listing = String::from_utf8(listing.stdout).expect("text");
    let mut files = BTreeSet::new();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[1], "root/root", "{line}");
        let name = fields[5].trim_start_matches('.');
        let (kind, others) = (fields[0].as_bytes()[0], fields[0].as_bytes()[8]);
        assert!(kind == b'l' || others != b'w', "others may write: {line}");
        if !name.ends_with('/') && !name.starts_with("/usr/share/man/man1/weft-") {
            files.insert(name.to_owned());
        }
    }
    files.remove("/usr/share/man/man8/fsck.weftfs.8.gz");
    assert_eq!(files, FILES.iter().map(|name| (*name).to_owned()).collect());
    assert!(listing.contains("/usr/share/man/man1/weft-fs-mount.1.gz"), "{listing}");
    assert!(listing.contains("./usr/sbin/mount.weftfs -> ../bin/weft"), "{listing}");
    let field = |name: &str| {
        let output = run(command("dpkg-deb").args(["--field", package, name]));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    // What is unpacked is what was packed.
    let root = bench.path("root");
    run(command("dpkg-deb").args(["--raw-extract", package, &text(&root)]));
    let sums = fs::read_to_string(root.join("DEBIAN/md5sums")).expect("sums");
    assert!(sums.contains("  usr/bin/weft\n") && sums.contains("  etc/weft/weft.toml\n"), "{sums}");
    run(command("md5sum").args(["--quiet", "-c", "DEBIAN/md5sums"]).current_dir(&root));
    for script in ["postinst", "prerm", "postrm"] {
        run(command("sh").arg("-n").arg(root.join("DEBIAN").join(script)));
    }
    // The configuration that is shipped, and the one with all that it suggests, are correct.
    let shipped = fs::read_to_string(root.join("etc/weft/weft.toml")).expect("a configuration");
    let all: Vec<&str> = (shipped.lines())
        .map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ')).unwrap_or(line))
        .collect();
    for (name, config) in [("shipped.toml", shipped.clone()), ("all.toml", all.join("\n"))] {
        fs::write(bench.path(name), config).expect("write");
        let _ = bench.weft(&["config", "check", name]);
    }
}

#[test]
fn systemd_finds_no_fault_with_the_units() {
    if !have(&[Need::Tool("systemd-analyze")]) {
        return;
    }
    let bench = Bench::new("units");
    for unit in ["weft.service", "weft-attach@.service"] {
        let from = tree().join("packaging/systemd").join(unit);
        let unit_text = fs::read_to_string(from).expect("a unit");
        // The program is not installed here.
        let text = unit_text.replace("/usr/bin/weft", env!("CARGO_BIN_EXE_weft"));
        let text = text.replace("Documentation=man", "#Documentation=man");
        fs::write(bench.path(unit), text).expect("write");
    }
    let mut verify = command("systemd-analyze");
    verify.args([
        "verify",
        "--recursive-errors=no",
        "./weft.service",
        "./weft-attach@tank.service",
    ]);
    fs::copy(bench.path("weft-attach@.service"), bench.path("weft-attach@tank.service"))
        .expect("copy");
    let output = run(verify.current_dir(bench.scratch.path()));
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = complaints.lines().filter(|line| line.contains("weft")).collect();
    assert!(ours.is_empty(), "{complaints}");
}

#[test]
fn udev_learns_what_a_disk_is() {
    let mut bench = Bench::new("udev");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    let of = |bench: &Bench, disk: &str| bench.weft(&["udev", disk]);
    let properties = of(&bench, "d0");
    let value = |name: &str| {
        let line = properties.lines().find(|line| line.starts_with(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} in {properties}")).split_once('=').expect("=").1
    };
    assert_eq!(value("ID_FS_TYPE"), "weft_member");
    assert_eq!(value("ID_FS_USAGE"), "raid");
    assert_eq!(value("ID_FS_LABEL"), "tank");
    let other = of(&bench, "d1");
    assert!(other.contains(&format!("ID_FS_UUID={}\n", value("ID_FS_UUID"))), "{other}");
    assert!(!other.contains(value("ID_FS_UUID_SUB")), "{other}");
    for n in 0..3 {
        let _ = bench.scratch.file(&format!("f{n}"), 64 << 20);
    }
    bench.weft(&["fs", "create", "home", "f0", "f1", "f2"]);
    let properties = of(&bench, "f1");
    assert!(properties.contains("ID_FS_TYPE=weftfs_member\n"), "{properties}");
    assert!(properties.contains("ID_FS_LABEL=home\n"), "{properties}");
    // Nothing is said of other disks.
    for (name, bytes) in
        [("zeros", vec![0; 1 << 20]), ("text", vec![b'x'; 1 << 20]), ("short", vec![])]
    {
        fs::write(bench.path(name), bytes).expect("write");
        assert_eq!(bench.refused(&["udev", name], 1), "", "{name}");
    }
    assert!(bench.refused(&["udev", "absent"], 1).contains("No such file"));
    // Without a daemon an announcement is no error.
    assert_eq!(bench.weft(&["udev", "--announce", "d0"]), "");
    bench.serve(&["d0", "d1"]);
    assert_eq!(bench.weft(&["udev", "--announce", "d0"]), "");
    bench.terminate();
}

#[test]
fn members_that_are_announced_start_their_array() {
    let bench = Bench::new("announced");
    fs::create_dir(bench.path("disks")).expect("a folder");
    bench.weft(&["create", "tank", "--code", "raid5", "--size", "16M", "d0", "d1", "d2"]);
    let log = fs::File::create(bench.path("serve.log")).expect("a file");
    let mut serve = bench.command(&["serve", "--allow-empty", "disks"]);
    let daemon = weft_testkit::Process::spawn(serve.stderr(log));
    bench.wait_for_log("no array yet");
    for disk in ["d0", "d1", "d2"] {
        fs::rename(bench.path(disk), bench.path("disks").join(disk)).expect("moved");
        let _ = bench.weft(&["udev", "--announce", &format!("disks/{disk}")]);
    }
    wait_until("the array to start", || {
        bench.command(&["status", "tank"]).output().expect("started").status.success()
    });
    // All of it: it did not start with two of three members.
    assert_eq!(bench.status("tank")["state"], "healthy", "{}", bench.log());
    assert!(daemon.terminate().success());
}

#[test]
fn systemd_is_told_that_the_daemon_is_alive_and_what_it_serves() {
    let mut bench = Bench::new("watchdog");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    let socket = bench.path("notify.sock");
    let systemd = UnixDatagram::bind(&socket).expect("bind");
    let (socket, period) = (text(&socket), "300000");
    bench.serve_with(&["d0", "d1"], &[("NOTIFY_SOCKET", &socket), ("WATCHDOG_USEC", period)]);
    let mut pending = BTreeSet::from(["READY=1", "STATUS=tank: healthy"]);
    let mut signs = 0;
    let mut message = [0; 4096];
    while !pending.is_empty() || signs < 5 {
        let len = systemd.recv(&mut message).expect("received");
        let told = String::from_utf8_lossy(&message[..len]).into_owned();
        pending.remove(&*told);
        signs += usize::from(told == "WATCHDOG=1");
    }
    bench.terminate();
}

#[test]
fn a_program_and_mail_are_told_what_happens() {
    let mut bench = Bench::new("events");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    let program = bench.path("on-event");
    let script = "#!/bin/sh\nprintf '%s|' \"$@\" >>events; echo \"$WEFT_MESSAGE\" >>events\n";
    fs::write(&program, script).expect("write");
    run(command("chmod").arg("755").arg(&program));
    bench.serve(&["d0", "d1", "--program", &text(&program)]);
    bench.weft(&["fail", "tank", "d1"]);
    let events = || fs::read_to_string(bench.path("events")).unwrap_or_default();
    wait_until("the event", || events().contains("Fail|tank|"));
    let d1 = text(&bench.path("d1"));
    assert!(events().contains(&format!("Fail|tank|{d1}|slot 1 ({d1}) failed")), "{}", events());
    wait_until("the other event", || events().contains("DegradedArray|tank|"));
    bench.weft(&["add", "tank", "d1"]);
    wait_until("the rebuild", || events().contains("RebuildFinished|tank|"));
    wait_until("the member", || events().contains(&format!("SpareActive|tank|{d1}|")));
    bench.terminate();
    assert!(
        bench.refused(&["serve", "d0", "--program", "/absent"], 1).contains("/absent: No such")
    );
    assert!(bench.refused(&["serve", "d0", "--mail", "a b"], 2).contains("give a mail address"));
}

#[test]
fn what_is_set_at_run_time_survives_a_restart() {
    let mut bench = Bench::new("survives");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    bench.serve(&["d0", "d1", "--cache", "4MiB"]);
    let cache = |bench: &Bench| -> serde_json::Value {
        serde_json::from_str(&bench.weft(&["cache", "tank", "--json"])).expect("JSON")
    };
    assert_eq!(cache(&bench)["cache"]["max_bytes"], 4 << 20, "{}", cache(&bench));
    bench.weft(&["cache", "tank", "--size", "2MiB", "--policy", "vdf-arc"]);
    bench.weft(&["throttle", "tank", "--min", "3MB/s", "--max", "50MB/s", "--latency", "20ms"]);
    let throttle = bench.status("tank")["throttle"].clone();
    for ended in ["in order", "killed"] {
        match ended {
            "in order" => bench.terminate(),
            _ => bench.kill9(),
        }
        bench.serve(&["d0", "d1", "--cache", "4MiB"]);
        let now = cache(&bench);
        assert_eq!(now["cache"]["max_bytes"], 2 << 20, "{ended}: {now}");
        assert_eq!(now["cache"]["policy"], "vdf-arc", "{ended}: {now}");
        assert_eq!(bench.status("tank")["throttle"], throttle, "{ended}");
    }
    bench.weft(&["cache", "tank", "--size", "off"]);
    bench.terminate();
    bench.serve(&["d0", "d1", "--cache", "4MiB"]);
    assert!(cache(&bench)["cache"].is_null(), "{}", cache(&bench));
    bench.terminate();
}

#[test]
fn attach_waits_for_its_array() {
    if !have(&[Need::Root, Need::Fuse, Need::Loop]) {
        return;
    }
    let mut bench = Bench::new("attach-waits");
    // A name of its own: /dev/weft is the machine's, where another `tank` may be attached.
    let name = format!("waits-{}", std::process::id());
    bench.weft(&["create", &name, "--code", "raid1", "--size", "8M", "d0", "d1"]);
    let mut attach = bench.command(&["attach", "--wait", "60s", &name]);
    let out = fs::File::create(bench.path("attached")).expect("a file");
    let mut attach = weft_testkit::Process::spawn(attach.stdout(out));
    bench.serve(&["d0", "d1"]);
    assert!(attach.wait().success());
    let device = fs::read_to_string(bench.path("attached")).expect("text");
    assert_eq!(bench.weft(&["udev", device.trim()]), format!("WEFT_ARRAY={name}\n"));
    bench.weft(&["detach", &name]);
    bench.terminate();
}
