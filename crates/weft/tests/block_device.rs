//! An array as a block device by FUSE and a loop device, with ext4 on it, while members fail and
//! are rebuilt, and while it grows. `ublk.rs` has the other way.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::Bench;
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, RingConfig};
use weft_testkit::{Guest, Mount, Need, Scratch, command, have, run, wait_until};

const NEEDS: [Need; 4] = [Need::Root, Need::Fuse, Need::Loop, Need::Tool("mkfs.ext4")];

/// An attached array; detached when the story ends, however it ends.
struct Attached {
    bench: Bench,
    device: PathBuf,
}

impl Attached {
    fn new(name: &str, code: &str, members: usize) -> Self {
        let mut bench = Bench::new(name);
        let members: Vec<String> = (0..members).map(|n| format!("d{n}")).collect();
        let mut create =
            vec!["create", "tank", "--code", code, "--size", "48M", "--head-room", "1M"];
        create.extend(members.iter().map(String::as_str));
        bench.weft(&create);
        bench.serve(&["."]);
        let device = bench.weft(&["attach", "tank", "--via", "fuse"]).trim().into();
        Self { bench, device }
    }

    /// Bytes of the device, as the kernel has it.
    fn size_bytes(&self) -> u64 {
        let size = Path::new("/sys/class/block").join(self.device.file_name().expect("a name"));
        let sectors = fs::read_to_string(size.join("size")).expect("read the size");
        sectors.trim().parse::<u64>().expect("a number") * 512
    }

    /// Adds a spare for the array to grow by.
    fn add(&self, spare: &str) {
        self.bench.weft(&["add", "tank", spare, "--size", "48M"]);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Mounts are dropped before; a daemon that is gone is no hindrance.
        let _ = self.bench.command(&["detach", "tank"]).status();
    }
}

/// Byte `i` of file `n`.
fn byte(i: usize, n: usize) -> u8 {
    (i * 31 + n).to_le_bytes()[0]
}

fn fill(folder: &Path, files: usize) {
    for n in 0..files {
        let bytes: Vec<u8> = (0..n * 1777 + 1).map(|i| byte(i, n)).collect();
        fs::write(folder.join(format!("f{n}")), bytes).expect("write a file");
    }
}

fn check(folder: &Path, files: usize) {
    for n in 0..files {
        let bytes = fs::read(folder.join(format!("f{n}"))).expect("read a file");
        assert!(bytes.len() == n * 1777 + 1, "f{n} has {} bytes", bytes.len());
        assert!((0..).zip(&bytes).all(|(i, b): (usize, _)| *b == byte(i, n)), "f{n} is wrong");
    }
}

#[test]
fn ext4_lives_through_failures_and_rebuilds() {
    if !have(&NEEDS) {
        return;
    }
    let attached = Attached::new("ext4", "drc-g:4,2,1", 7);
    let (bench, device) = (&attached.bench, &attached.device);
    run(command("mkfs.ext4").arg("-q").arg(device));
    let at = bench.path("mnt");
    fs::create_dir(&at).expect("a mount point");
    let mount = Mount::new(device, &at, "");
    fill(&at, 200);
    bench.weft(&["fail", "tank", "d1"]);
    fill(&at, 300);
    run(&mut command("sync"));
    bench.weft(&["add", "tank", "spare", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    check(&at, 300);

    // A device in use is not removed.
    let said = bench.refused(&["detach", "tank"], 1);
    assert!(said.contains("mounted on"), "{said}");
    let said = bench.refused(&["stop"], 1);
    assert!(said.contains("attached"), "{said}");
    let said = bench.refused(&["attach", "tank"], 1);
    assert!(said.contains("attached already"), "{said}");

    for n in 0..150 {
        fs::remove_file(at.join(format!("f{n}"))).expect("remove a file");
    }
    run(command("fstrim").arg(&at));
    bench.weft(&["replace", "tank", "d5", "spare2", "--size", "48M"]);
    mount.unmount();
    run(command("e2fsck").arg("-fn").arg(device));
    let mount = Mount::new(device, &at, "ro");
    assert!(!at.join("f10").exists() && at.join("f299").exists());
    mount.unmount();
    bench.weft(&["scrub", "tank"]);
    bench.weft(&["detach", "tank"]);
    let said = bench.refused(&["detach", "tank"], 1);
    assert!(said.contains("not attached") && said.contains("nothing to detach"), "{said}");
    assert!(said.contains("`weft attach tank`"), "{said}");
    assert!(!bench.path("run/attach/tank").exists(), "the mount point is still there");
    bench.weft(&["stop"]);
}

#[test]
fn a_mounted_device_grows_with_its_array() {
    if !have(&NEEDS) {
        return;
    }
    let attached = Attached::new("grow", "raid5", 3);
    let (bench, device) = (&attached.bench, &attached.device);
    let size = || bench.status("tank")["size_bytes"].as_u64().expect("a size");
    let before = size();
    assert_eq!(attached.size_bytes(), before);
    run(command("mkfs.ext4").arg("-q").arg(device));
    let at = bench.path("mnt");
    fs::create_dir(&at).expect("a mount point");
    let mount = Mount::new(device, &at, "");
    fill(&at, 150);
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let uri = bench.uri("tank").parse().expect("the daemon's URI");
    let client = rt.clone().block_on(async move {
        NbdDisk::open(&rt, &ring, &uri, NbdOptions::default()).await.expect("connect")
    });

    // Its new size is there when all of it has moved, and not before.
    attached.add("g0");
    bench.weft(&["throttle", "tank", "--max", "1M"]);
    bench.weft(&["grow", "tank", "--no-wait"]);
    fill(&at, 200);
    assert_eq!(bench.status("tank")["reshaping"], true);
    assert_eq!((attached.size_bytes(), size()), (before, before));
    bench.weft(&["throttle", "tank", "--max", "unlimited"]);
    wait_until("the reshape ends", || bench.status("tank")["reshaping"] == false);
    let after = size();
    assert!(after > before * 5 / 4, "{before} became {after}");
    wait_until("the device grows", || attached.size_bytes() == after);
    fill(&at, 250);
    let said = bench.weft(&["status", "tank"]);
    assert!(said.contains("1 NBD connection has an earlier size"), "{said}");
    drop(client);

    // Once more, followed to its end, which says what is left to do.
    attached.add("g1");
    let said = bench.weft(&["grow", "tank"]);
    assert!(said.contains("gets the new size"), "{said}");
    let after = size();
    wait_until("the device grows", || attached.size_bytes() == after);
    check(&at, 250);
    mount.unmount();
    run(command("e2fsck").arg("-fn").arg(device));
    let mount = Mount::new(device, &at, "ro");
    check(&at, 250);
    mount.unmount();
    bench.weft(&["scrub", "tank"]);
}

/// On-line, and with an older kernel than most machines': to resize a mounted ext4 takes a
/// capability that containers lack.
#[test]
fn ext4_is_enlarged_while_it_is_mounted() {
    let programs = ["mkfs.ext4", "resize2fs", "e2fsck", "losetup"];
    let host = Scratch::new("grow-guest");
    let Some(guest) = Guest::find(host.path()).filter(|_| have(&programs.map(Need::Tool))) else {
        return;
    };
    let guest = programs.iter().fold(guest, |guest, program| guest.program(program));
    let guest = guest.program(env!("CARGO_BIN_EXE_weft"));
    println!("{}", guest.run(ENLARGED).success());
}

const ENLARGED: &str = "\
modprobe fuse
modprobe loop
modprobe ext4
export WEFT_RUNTIME_DIR=/run/weft
mkdir /tmp/disks /tmp/mnt
cd /tmp/disks
weft create tank --code raid5 --size 32M --head-room 1M d0 d1 d2
weft serve . >/tmp/serve 2>&1 &
until grep -q serving /tmp/serve; do sleep 0.1; done
dev=$(weft attach tank --via fuse)
mkfs.ext4 -q $dev
mount $dev /tmp/mnt
dd if=/dev/urandom of=/tmp/data bs=1M count=36
cp /tmp/data /tmp/mnt/before
cp /tmp/data /tmp/mnt/full 2>/dev/null && exit 1
rm /tmp/mnt/full
before=$(blockdev --getsize64 $dev)
weft add tank g0 --size 32M
weft grow tank
until [ $(blockdev --getsize64 $dev) -gt $before ]; do sleep 0.1; done
resize2fs $dev
cp /tmp/data /tmp/mnt/after
cmp /tmp/data /tmp/mnt/before
umount /tmp/mnt
mount $dev /tmp/mnt
cmp /tmp/data /tmp/mnt/before
cmp /tmp/data /tmp/mnt/after
umount /tmp/mnt
e2fsck -fn $dev
weft scrub tank
weft detach tank
weft stop
";

#[test]
fn fio_finds_every_byte_while_disks_fail() {
    if !have(&NEEDS) || !have(&[Need::Tool("fio")]) {
        return;
    }
    let attached = Attached::new("fio", "raid6", 6);
    let bench = &attached.bench;
    let mut fio = command("fio");
    fio.args([
        "--name=v",
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--ioengine=libaio",
        "--direct=1",
    ]);
    fio.args([
        "--iodepth=16",
        "--size=48M",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
    ]);
    fio.args(["--rate=24M", "--randseed=7", "--filename"]).arg(&attached.device);
    fio.stdout(std::process::Stdio::null()).current_dir(bench.scratch.path());
    let mut fio = fio.spawn().expect("start fio");
    bench.weft(&["fail", "tank", "d0"]);
    bench.weft(&["replace", "tank", "d3", "spare0", "--size", "48M", "--no-wait"]);
    bench.weft(&["add", "tank", "spare1", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    bench.weft(&["fail", "tank", "d4"]);
    assert!(fio.wait().expect("wait for fio").success(), "fio found wrong bytes, or I/O failed");
    bench.weft(&["add", "tank", "spare2", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    bench.weft(&["scrub", "tank"]);
}

#[test]
fn a_dead_daemon_gives_errors_not_hangs_and_can_be_cleaned_up() {
    if !have(&NEEDS) {
        return;
    }
    let mut attached = Attached::new("dead", "raid5", 3);
    let device = attached.device.clone();
    attached.bench.kill9();
    let read = || {
        let mut dd = crate::common::quiet("dd");
        dd.arg(format!("if={}", device.display())).args([
            "of=/dev/null",
            "bs=4096",
            "count=1",
            "iflag=direct",
        ]);
        dd.status().expect("start dd")
    };
    wait_until("the device to fail", || !read().success());
    attached.bench.weft(&["detach", "tank"]);
    // The same array again, intact.
    attached.bench.serve(&["."]);
    let device = attached.bench.weft(&["attach", "tank", "--via", "fuse", "--block-size", "4096"]);
    assert!(device.starts_with("/dev/loop"), "{device}");
    attached.bench.weft(&["detach", "tank"]);
    attached.bench.terminate();
}

#[test]
fn an_array_that_is_served_read_only_is_a_device_that_takes_no_writes() {
    if !have(&NEEDS) {
        return;
    }
    let mut attached = Attached::new("read-only", "raid5", 3);
    fs::create_dir(attached.bench.path("mnt")).expect("a folder");
    run(command("mkfs.ext4").arg("-q").arg(&attached.device));
    {
        let mount = Mount::new(&attached.device, &attached.bench.path("mnt"), "defaults");
        fill(mount.path(), 5);
    }
    attached.bench.weft(&["detach", "tank"]);
    attached.bench.terminate();
    attached.bench.serve(&["--read-only", "."]);
    attached.device = attached.bench.weft(&["attach", "tank", "--via", "fuse"]).trim().into();
    let name = attached.device.file_name().expect("a name");
    let ro = fs::read_to_string(Path::new("/sys/class/block").join(name).join("ro"));
    assert_eq!(ro.expect("read the state").trim(), "1");
    let mount = Mount::new(&attached.device, &attached.bench.path("mnt"), "ro");
    check(mount.path(), 5);
    drop(mount);
    // Some kernels refuse only the write.
    let opened = fs::OpenOptions::new().write(true).open(&attached.device);
    let written = opened.and_then(|mut device| device.write_all(&[0; 4096]));
    written.expect_err("it takes no writes");
}
