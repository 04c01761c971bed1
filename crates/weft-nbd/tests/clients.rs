//! Third-party clients work with the server: libnbd's, QEMU's, fio's, and FUSE.

mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use support::{CLUSTER, RamVolume, Seen, Served};
use weft_nbd::ServerConfig;
use weft_testkit::{Need, Process, command, have, pattern, run, wait_until};

const MIB: usize = 1 << 20;

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn three_exports() -> Served {
    Served::start(ServerConfig::default(), |_, server| {
        let small = RamVolume { read_only: true, ..RamVolume::new(MIB) };
        server.add_export("warp", RamVolume::new(8 * MIB).served()).expect("new");
        server.add_export("weft of two words", small.served()).expect("new");
        server.add_export("kette", RamVolume::new(MIB + 4096).served()).expect("new");
    })
}

#[test]
fn nbdinfo_sees_all_that_is_offered() {
    if !have(&[Need::Tool("nbdinfo")]) {
        return;
    }
    let served = three_exports();
    let info = text(&run(command("nbdinfo").arg(served.uri("warp"))));
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 8388608 (8M)",
        "memory of a test",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_fua: true",
        "can_flush: true",
        "can_trim: true",
        "can_zero: true",
        "can_fast_zero: true",
        "can_df: true",
        "can_cache: false",
        "base:allocation",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line:?} is missing in:\n{info}");
    }
    let list = text(&run(command("nbdinfo").arg("--list").arg(served.tcp_uri(""))));
    for name in ["\"warp\"", "\"weft of two words\"", "\"kette\"", "is_read_only: true"] {
        assert!(list.contains(name), "{name} is missing in:\n{list}");
    }
    // The default export, and one that does not exist.
    let size = text(&run(command("nbdinfo").arg("--size").arg(served.tcp_uri(""))));
    assert_eq!(size.trim(), "8388608");
    let refused = command("nbdinfo").arg(served.uri("nix")).output().expect("nbdinfo runs");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("No such file or directory for export: nix"), "{said}");
}

#[test]
fn nbdcopy_moves_every_byte_in_and_out_and_keeps_holes() {
    if !have(&[Need::Tool("nbdcopy"), Need::Tool("nbdinfo")]) {
        return;
    }
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let served =
        Served::ram("disk", move || RamVolume { seen: theirs, ..RamVolume::new(48 * MIB) });
    let (source, back) = (served.dir().join("source"), served.dir().join("back"));
    let mut data = pattern::bytes(1, 48 * MIB);
    data[8 * MIB..24 * MIB].fill(0);
    fs::write(&source, &data).expect("write the source");
    run(command("nbdcopy").arg("--flush").arg(&source).arg(served.uri("disk")));
    run(command("nbdcopy").arg(served.tcp_uri("disk")).arg(&back));
    assert!(fs::read(&back).expect("read back") == data, "nbdcopy brought back other bytes");
    assert_eq!(seen.unaligned.load(Ordering::Relaxed), 0, "payloads land page-aligned");
    assert!(seen.flushes.load(Ordering::Relaxed) > 0);

    let map = text(&run(command("nbdinfo").arg("--map").arg(served.uri("disk"))));
    let hole = format!("{:>10}  {:>10}    3  hole,zero", 8 * MIB, 16 * MIB);
    assert!(map.contains(&hole), "{hole:?} is missing in:\n{map}");
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    if !have(&[Need::Tool("qemu-img")]) {
        return;
    }
    let served = Served::ram("disk", || RamVolume::new(16 * MIB));
    let (source, back) = (served.dir().join("source"), served.dir().join("back"));
    let mut data = pattern::bytes(2, 16 * MIB);
    data[4 * MIB..12 * MIB].fill(0);
    fs::write(&source, &data).expect("write the source");
    let raw = ["-f", "raw", "-O", "raw"];
    run(command("qemu-img").args(["convert", "-n"]).args(raw).arg(&source).arg(served.uri("disk")));
    run(command("qemu-img")
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(&source)
        .arg(served.tcp_uri("disk")));
    run(command("qemu-img").arg("convert").args(raw).arg(served.tcp_uri("disk")).arg(&back));
    assert!(fs::read(&back).expect("read back") == data);
    let map = ["map", "--output=json", "-f", "raw"];
    let map = text(&run(command("qemu-img").args(map).arg(served.uri("disk"))));
    assert!(map.contains("\"start\": 4194304, \"length\": 8388608"), "{map}");
}

#[test]
fn qemu_io_reads_writes_zeroes_discards_and_flushes() {
    if !have(&[Need::Tool("qemu-io")]) {
        return;
    }
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    let served =
        Served::ram("disk", move || RamVolume { seen: theirs, ..RamVolume::new(16 * MIB) });
    let mut qemu_io = command("qemu-io");
    qemu_io.args(["-f", "raw"]);
    for step in [
        "write -P 0xab 0 1M",
        "write -f -P 0xcd 1234 777",
        "read -P 0xab 0 1234",
        "read -P 0xcd 1234 777",
        "read -P 0xab 2011 1000",
        "write -z 64k 128k",
        "write -z -u 512k 256k",
        "read -P 0 64k 128k",
        "read -P 0xab 192k 320k",
        "discard 0 64k",
        "flush",
        "aio_write -P 0x11 2M 2M",
        "aio_write -P 0x22 4M 2M",
        "aio_flush",
        "read -P 0x11 2M 2M",
        "read -P 0x22 4M 2M",
        "read -P 0 15M 1M",
    ] {
        qemu_io.args(["-c", step]);
    }
    let said = text(&run(qemu_io.arg(served.uri("disk"))));
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    assert!(seen.fua.load(Ordering::Relaxed) >= 1 && seen.trims.load(Ordering::Relaxed) >= 1);
    assert!(seen.zeroes.load(Ordering::Relaxed) >= 2 && seen.flushes.load(Ordering::Relaxed) >= 1);
}

#[test]
fn read_only_and_bad_blocks_are_told_to_clients() {
    if !have(&[Need::Tool("qemu-io")]) {
        return;
    }
    let served = Served::start(ServerConfig::default(), |_, server| {
        let bad = RamVolume { bad_byte: Some(5000), ..RamVolume::new(MIB) };
        let fixed = RamVolume { read_only: true, ..RamVolume::new(MIB) };
        server.add_export("bad", bad.served()).expect("new");
        server.add_export("fixed", fixed.served()).expect("new");
    });
    let io = |name: &str, args: &[&str]| {
        let output = command("qemu-io")
            .args(["-f", "raw"])
            .args(args)
            .arg(served.uri(name))
            .output()
            .expect("qemu-io runs");
        text(&output) + &String::from_utf8_lossy(&output.stderr)
    };
    let denied = io("fixed", &["-c", "write 0 4k"]);
    assert!(denied.contains("read-only") || denied.contains("Permission"), "{denied}");
    assert!(io("bad", &["-c", "read 4k 4k"]).contains("Input/output error"));
    assert!(!io("bad", &["-c", "read 8k 4k"]).contains("error"));
    assert!(!io("fixed", &["-r", "-c", "read 0 4k"]).contains("error"));
}

#[test]
fn fio_verifies_what_it_wrote_over_several_connections() {
    if !have(&[Need::Tool("fio")]) {
        return;
    }
    let served = Served::ram("disk", || RamVolume::new(32 * MIB));
    for (block, depth, jobs) in [("4k", "32", "2"), ("3k", "8", "1"), ("1m", "8", "2")] {
        run(command("fio")
            .args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--verify=crc32c"])
            .args(["--size=16m", "--offset_increment=16m", "--verify_fatal=1"])
            .args([format!("--bs={block}"), format!("--iodepth={depth}")])
            .arg(format!("--numjobs={jobs}"))
            .arg(format!("--uri={}", served.uri("disk")))
            .current_dir(served.dir()));
    }
    let events = served.stop();
    assert!(events.len() >= 10, "{events:?}");
}

#[test]
fn a_file_system_image_works_through_nbdfuse() {
    if !have(&[Need::Tool("nbdfuse"), Need::Tool("fusermount3"), Need::Fuse]) {
        return;
    }
    let served = Served::ram("disk", || RamVolume::new(8 * MIB));
    let mount = served.dir().join("mount");
    fs::create_dir(&mount).expect("make the mount point");
    let mut fuse =
        Process::spawn(command("nbdfuse").arg(mount.join("disk")).arg(served.uri("disk")));
    // nbdfuse given FOLDER/FILE mounts on the folder.
    wait_until("the file of nbdfuse", || mount.join("disk").exists());
    let data = pattern::bytes(3, 5 * CLUSTER);
    let file = fs::OpenOptions::new().read(true).write(true).open(mount.join("disk"));
    let file = file.expect("open the file of nbdfuse");
    use std::os::unix::fs::FileExt;
    file.write_all_at(&data, 12_345).expect("write through FUSE");
    file.sync_all().expect("sync through FUSE");
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 12_345).expect("read through FUSE");
    assert!(back == data);
    drop(file);
    run(command("fusermount3").arg("-u").arg(&mount));
    assert!(fuse.wait().success());
}
