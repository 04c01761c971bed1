//! The file system below a member is full: writes fail and say so, nothing that was written is
//! lost, the member is not thrown out for it, and when there is room again the array goes on.

mod common;

use std::fs;

use common::Bench;
use weft_testkit::{LoopDevice, Mount, Need, Scratch, command, have, run};

#[test]
fn a_full_file_system_below_fails_writes_and_nothing_else() {
    if !have(&[Need::Root, Need::Loop, Need::Tool("mkfs.ext4"), Need::Tool("qemu-io")]) {
        return;
    }
    // In this order: the daemon must be gone before the file system below it.
    let scratch = Scratch::new("small");
    let image = scratch.file("image", 48 << 20);
    run(command("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
    let device = LoopDevice::attach(&image, false);
    let below = scratch.join("below");
    fs::create_dir(&below).expect("a mount point");
    let mount = Mount::new(device.path(), &below, "");
    let mut bench = Bench::new("full");
    let small = common::text(&below.join("d0"));
    bench.weft(&["create", "t", "--code", "raid5", "--size", "32M", &small, "d1", "d2"]);
    let filler = below.join("filler");
    // Until nothing more fits; but what the array needs to start is there already.
    let _ = fs::write(&filler, vec![1; 32 << 20]);
    bench.serve(&[&small, "d1", "d2"]);
    let uri = bench.uri("t");
    let client = |commands: &[&str]| {
        let mut qemu = command("qemu-io");
        qemu.args(["-f", "raw", &uri]);
        for command in commands {
            qemu.args(["-c", command]);
        }
        let output = qemu.output().expect("start qemu-io");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let said = client(&["write -P 1 0 2M", "flush", "write -P 2 4M 24M"]);
    assert!(said.contains("No space left"), "{said}\n{}", bench.log());
    let status = bench.status("t");
    assert_eq!(status["redundancy_remaining"], 1, "{status}");
    assert!(!client(&["read -P 1 0 2M"]).contains("failed"), "{}", bench.log());
    fs::remove_file(&filler).expect("make room");
    let said = client(&["write -P 3 4M 8M", "flush", "read -P 3 4M 8M", "read -P 1 0 2M"]);
    assert!(!said.contains("failed"), "{said}\n{}", bench.log());
    bench.weft(&["scrub", "t"]);
    bench.terminate();
    mount.unmount();
}
