//! Disks of a mounted file system that leave and come back, copies of them, and what commands say
//! of disks that cannot be used.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;

use crate::common::weftfs::{Mounted, NEEDS};
use crate::common::{Bench, text};
use weft_testkit::{LoopDevice, Need, have, wait_until};

/// Two files' bytes: of a redundancy that a lost disk takes, and of one that it does not.
fn stored(mounted: &Mounted) {
    for redundancy in ["none", "raid1"] {
        let folder = mounted.folder(redundancy, redundancy);
        for n in 0..8 {
            fs::write(folder.join(format!("{n}")), vec![n; 400_000]).expect("written");
        }
    }
    let root = File::open(mounted.at.join("none/0")).expect("there");
    root.sync_all().expect("synced");
}

#[track_caller]
fn assert_stored(mounted: &Mounted) {
    for redundancy in ["none", "raid1"] {
        for n in 0..8 {
            let file = mounted.at.join(redundancy).join(format!("{n}"));
            let found = fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            assert!(found == vec![n; 400_000], "{}", file.display());
        }
    }
}

#[test]
fn a_disk_that_was_failed_is_added_again_with_what_it_has() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("fs-back", 4, 64 << 20);
    let bench = &mounted.bench;
    assert!(bench.weft(&["fs", "rebuild", "mnt"]).contains("nothing to rebuild"));
    let json = bench.weft(&["fs", "rebuild", "mnt", "--json"]);
    assert!(json.contains("\"blocks\":0"), "{json}");
    stored(&mounted);
    // By its path, as commands of arrays take it.
    let refused = bench.refused(&["fs", "fail", "mnt", "d1"], 1);
    assert!(refused.contains("only disk 1 can give") && refused.contains("fs remove"), "{refused}");
    let refused = bench.refused(&["fs", "fail", "mnt", "d9"], 1);
    assert!(refused.contains("d9 is no disk") && refused.contains("fs status"), "{refused}");
    bench.weft(&["fs", "fail", "mnt", "d1", "--force"]);
    wait_until("the rebuild of what can be", || mounted.status()["last_job"]["job"] == "rebuild");
    let lost = (0..8).filter(|n| fs::read(mounted.at.join(format!("none/{n}"))).is_err()).count();
    assert!(lost > 0, "files of one copy are on every disk");
    fs::write(mounted.at.join("raid1/new"), "meanwhile").expect("written");
    // The file system has it open still.
    bench.weft(&["fs", "add", "mnt", "d1"]);
    assert_stored(&mounted);
    let said = bench.weft(&["fs", "rebuild", "mnt"]);
    assert!(said.contains("blocks were on disks that came back"), "{said}");
    assert_stored(&mounted);
    mounted.ends_sound();
}

#[test]
fn copies_of_all_disks_are_refused_beside_the_originals() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("fs-copies", 2, 64 << 20);
    let bench = &mounted.bench;
    for n in 0..2 {
        fs::copy(bench.path(&format!("d{n}")), bench.path(&format!("c{n}"))).expect("copied");
    }
    fs::create_dir(bench.path("other")).expect("made");
    let said = bench.refused(&["fs", "mount", "home", "other", "c0", "c1"], 1);
    assert!(said.contains("the same identity") && said.contains("mnt"), "{said}");
    let said = bench.refused(&["fs", "mount", "home", "other", "c0", "c0"], 2);
    assert!(said.contains("named twice"), "{said}");
    // One of them is no new disk either.
    let said = bench.refused(&["fs", "add", "mnt", "c1"], 1);
    assert!(said.contains("disk 1 of this file system, or a copy of it"), "{said}");
    mounted.ends_sound();
}

#[test]
fn an_image_that_was_cut_short_is_said_to_be() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("fs-short", 4, 64 << 20);
    stored(&mounted);
    mounted.unmount();
    let image = File::options().write(true).open(mounted.bench.path("d2")).expect("an image");
    image.set_len(60 << 20).expect("cut");
    let mount = ["fs", "mount", "home", "mnt", "d0", "d1", "d2", "d3"];
    let said = mounted.bench.refused(&mount, 1);
    assert!(said.contains("d2: it is too short") && said.contains("--degraded"), "{said}");
    // Where it is looked for as well.
    let said = mounted.bench.refused(&["fs", "mount", "home", "mnt", "."], 1);
    assert!(said.contains("d2: left out: it is too short"), "{said}");
    assert!(said.contains("is missing") && said.contains("--degraded"), "{said}");
    let said = mounted.bench.refused(&["fs", "mount", "home", "mnt", ".", "--json"], 1);
    assert!(said.contains("\"hint\":\"`--degraded`"), "{said}");
    mounted.mount(&["--degraded", "d0", "d1", "d2", "d3"]);
    let file = fs::read(mounted.at.join("raid1/3")).expect("it has another copy");
    assert!(file == vec![3; 400_000]);
    let said = mounted.bench.refused(&["fs", "add", "mnt", "d2"], 1);
    assert!(said.contains("too short"), "{said}");
    // It is as long again, and the end of it is lost.
    image.set_len(64 << 20).expect("longer");
    mounted.bench.weft(&["fs", "add", "mnt", "d2"]);
    mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    assert_stored(&mounted);
    mounted.bench.weft(&["fs", "scrub", "mnt"]);
    mounted.unmount();
}

#[test]
fn an_image_that_is_cut_short_while_it_is_used_is_named() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("fs-cut", 4, 64 << 20);
    stored(&mounted);
    let image = File::options().write(true).open(mounted.bench.path("d2")).expect("an image");
    image.set_len(60 << 20).expect("cut");
    fs::write(mounted.at.join("more"), vec![1; 4 << 20]).expect("written");
    File::open(mounted.at.join("more")).expect("there").sync_all().expect("synced");
    let said = mounted.bench.refused(&["fs", "status", "mnt", "--check"], 3);
    assert!(said.contains("disk 2 is lost (") && said.contains("shorter"), "{said}");
    mounted.unmount();
}

#[test]
fn a_write_protected_disk_is_refused_or_left_out() {
    if !have(&NEEDS) || !have(&[Need::Loop, Need::Tool("losetup")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("fs-protected", 4, 64 << 20);
    stored(&mounted);
    mounted.unmount();
    let protected = LoopDevice::read_only(&mounted.bench.path("d3"));
    let device = text(protected.path());
    let disks = ["d0", "d1", "d2", &device];
    let mount = [&["fs", "mount", "home", "mnt"][..], &disks].concat();
    let said = mounted.bench.refused(&mount, 1);
    assert!(said.contains("write-protected") || said.contains("ead-only"), "{said}");
    mounted.mount(&[&["--degraded"][..], &disks].concat());
    let lost: Vec<_> = mounted.status()["disks"].as_array().expect("disks").clone();
    assert!(lost.iter().all(|disk| disk["lost"] == (disk["number"] == 3)), "{lost:?}");
    fs::write(mounted.at.join("raid1/new"), "meanwhile").expect("written");
    let said = mounted.bench.refused(&["fs", "add", "mnt", &device], 1);
    assert!(said.contains("write-protected") || said.contains("ead-only"), "{said}");
    drop(protected);
    mounted.bench.weft(&["fs", "add", "mnt", "d3"]);
    mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    assert_stored(&mounted);
    mounted.ends_sound();
}

#[test]
fn commands_say_what_they_need() {
    let bench = Bench::new("fs-needs");
    drop(bench.scratch.files("d", 2, 24 << 20));
    let said = bench.refused(&["fs", "create", "home", "d0", "d0", "d1"], 2);
    assert!(said.contains("d0 is named twice"), "{said}");
    std::os::unix::fs::symlink("d1", bench.path("same")).expect("a link");
    let said = bench.refused(&["fs", "create", "home", "d0", "d1", "same"], 2);
    assert!(said.contains("same is named twice"), "{said}");
    for command in ["df", "fail", "remove", "rebuild", "fsck"] {
        let help = bench.weft(&["fs", command, "--help"]);
        assert!(help.contains("Example") && help.contains(&format!("weft fs {command} /mnt")));
    }
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("fs-nobody", 2, 64 << 20);
    // Others may see the folder, and the program.
    let program = std::env::temp_dir().join(format!("weft-fs-nobody-{}", std::process::id()));
    fs::copy(env!("CARGO_BIN_EXE_weft"), &program).expect("copied");
    for args in [&["status", "/"][..], &["mount", "home", "/", "/dev/null"]] {
        let mut command = std::process::Command::new(&program);
        command.arg("fs").args(args).uid(65534).gid(65534);
        let output = command.output().expect("started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected =
            if args[0] == "mount" { "mounting needs root" } else { "no weft file system" };
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    fs::remove_file(&program).expect("removed");
    mounted.ends_sound();
}
