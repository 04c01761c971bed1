//! The file system below a member is full: writes that find no space wait, and complete when space
//! is freed; the member is not failed for it, and the status shows what it needs. `create` reserves
//! the space of member files, so that this does not happen.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::Bench;
use weft_testkit::{LoopDevice, Mount, Need, Process, Scratch, command, have, run, wait_until};

/// A small file system of its own.
struct Small {
    mount: Mount,
    below: PathBuf,
    _device: LoopDevice,
    _scratch: Scratch,
}

fn small() -> Option<Small> {
    if !have(&[Need::Root, Need::Loop, Need::Tool("mkfs.ext4"), Need::Tool("qemu-io")]) {
        return None;
    }
    let scratch = Scratch::new("small");
    let image = scratch.file("image", 48 << 20);
    run(command("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
    let device = LoopDevice::attach(&image, false);
    let below = scratch.join("below");
    fs::create_dir(&below).expect("a mount point");
    let mount = Mount::new(device.path(), &below, "");
    Some(Small { mount, below, _device: device, _scratch: scratch })
}

fn client(bench: &Bench, commands: &[&str]) -> std::process::Command {
    let mut qemu = command("qemu-io");
    qemu.args(["-f", "raw", &bench.uri("t")]);
    for command in commands {
        qemu.args(["-c", command]);
    }
    qemu
}

#[track_caller]
fn must(bench: &Bench, commands: &[&str]) {
    let output = client(bench, commands).output().expect("start qemu-io");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!text.contains("failed") && output.status.success(), "{text}\n{}", bench.log());
}

/// Starts a write that is too long for the space under `d0`.
fn write_that_waits(bench: &Bench, len: &str) -> Process {
    let mut qemu = client(bench, &[&format!("write -P 2 4M {len}")]);
    let process = Process::spawn(qemu.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until("status to say that a disk wants space", || {
        bench.status("t")["slots"][0]["wants_room_bytes"].as_u64() > Some(0)
    });
    process
}

/// `raid5` with one sparse member on a file system that is full.
fn full_array(small: &Small) -> (Bench, String, PathBuf) {
    let mut bench = Bench::new("full");
    let d0 = crate::common::text(&small.below.join("d0"));
    bench.weft(&["create", "t", "--code", "raid5", "--sparse", "--size", "32M", &d0, "d1", "d2"]);
    let filler = small.below.join("filler");
    bench.serve(&[&d0, "d1", "d2"]);
    must(&bench, &["write -P 1 0 2M", "flush"]);
    // Until nothing more fits; but what the array needs to start is there already.
    let mut file = File::create(&filler).expect("a file");
    while file.write_all(&[1; 64 << 10]).and_then(|()| file.sync_all()).is_ok() {}
    (bench, d0, filler)
}

#[test]
fn writes_wait_for_space_and_for_nothing_else() {
    let Some(small) = small() else { return };
    let (mut bench, _, filler) = full_array(&small);
    let mut waiting = write_that_waits(&bench, "1M");
    let status = bench.status("t");
    assert_eq!(status["redundancy_remaining"], 1, "{status}");
    assert_eq!(status["slots"][0]["state"], "active", "{status}");
    let text = bench.weft(&["status", "t"]);
    assert!(text.contains("NO SPACE") && text.contains("weft fail t 0"), "{text}");
    assert!(text.contains("WRITES WAIT FOR SPACE") && !text.contains("healthy"), "{text}");
    let said = bench.refused(&["status", "--check"], 4);
    assert!(said.contains("writes wait for space: t") && said.contains("weft fail t 0"), "{said}");
    must(&bench, &["read -P 1 0 2M", "write -P 4 0 64k", "read -P 4 0 64k"]);
    assert!(waiting.is_running(), "{}", bench.log());
    fs::remove_file(&filler).expect("make room");
    wait_until("the write to end", || !waiting.is_running());
    must(&bench, &["flush", "read -P 2 4M 1M", "read -P 1 64k 1984k"]);
    assert_eq!(bench.status("t")["slots"][0]["wants_room_bytes"], 0);
    bench.weft(&["scrub", "t"]);
    bench.terminate();
    small.mount.unmount();
}

#[test]
fn a_member_without_space_can_be_failed() {
    let Some(small) = small() else { return };
    let (mut bench, ..) = full_array(&small);
    let mut waiting = write_that_waits(&bench, "24M");
    bench.weft(&["fail", "t", "0"]);
    wait_until("the write to end", || !waiting.is_running());
    must(&bench, &["flush", "read -P 2 4M 24M", "read -P 1 0 2M"]);
    bench.terminate();
    small.mount.unmount();
}

#[test]
fn after_a_kill_or_a_stop_everything_is_there_and_so_is_the_redundancy() {
    for kill in [true, false] {
        let Some(small) = small() else { return };
        let (mut bench, d0, filler) = full_array(&small);
        let waiting = write_that_waits(&bench, "24M");
        if kill {
            bench.kill9();
        } else {
            let text = bench.refused(&["stop"], 1);
            assert!(text.contains("waiting for space"), "{text}\n{}", bench.log());
        }
        drop(waiting);
        fs::remove_file(&filler).expect("make room");
        bench.serve(&[&d0, "d1", "d2"]);
        must(&bench, &["read -P 1 0 2M"]);
        assert_eq!(bench.status("t")["redundancy_remaining"], 1);
        bench.weft(&["fail", "t", "2"]);
        must(&bench, &["read -P 1 0 2M", "read 0 28M"]);
        bench.terminate();
        small.mount.unmount();
    }
}

#[test]
fn create_reserves_the_space_of_members_or_says_what_is_missing() {
    let Some(small) = small() else { return };
    let mut bench = Bench::new("reserved");
    let path = |name: &str| crate::common::text(&small.below.join(name));
    let (a, b) = (path("a"), path("b"));
    let text = bench.refused(&["create", "t", "--code", "raid1", "--size", "32M", &a, &b], 1);
    assert!(text.contains("more than is free") && text.contains("--sparse"), "{text}");
    assert!(!small.below.join("a").exists() && !small.below.join("b").exists(), "left behind");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "16M", &a, &b]);
    let reserved = |path: &str| fs::metadata(path).expect("a member").blocks() * 512 >= 16 << 20;
    assert!(reserved(&a) && reserved(&b), "holes");
    bench.serve(&[&a, &b]);
    // Zeros and discards give nothing back.
    must(&bench, &["write -P 1 0 4M", "discard 0 4M", "write -z 4M 4M", "flush"]);
    assert!(reserved(&a) && reserved(&b), "given back");
    let _ = fs::write(small.below.join("filler"), vec![1; 48 << 20]);
    must(&bench, &["write -P 2 0 13M", "flush", "read -P 2 0 13M"]);
    bench.terminate();
    bench.weft(&["create", "u", "--code", "raid1", "--sparse", "--size", "1G", "x", "y"]);
    let blocks = fs::metadata(bench.path("x")).expect("a member").blocks();
    assert!(blocks * 512 < 64 << 20, "{blocks} blocks of a sparse file");
    small.mount.unmount();
}
