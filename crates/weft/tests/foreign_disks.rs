//! No command takes a disk that holds data unless it is forced, whether or not the data is
//! recognised.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::Bench;
use weft_testkit::{LoopDevice, Mount, Need, Rng, command, have, run};

const BYTES: u64 = 320 << 20;

/// Puts `bytes` at `offset` of a file of `size` zeros.
fn file_with(bench: &Bench, name: &str, size: u64, offset: u64, bytes: &[u8]) {
    let path = bench.scratch.file(name, size);
    let file = File::options().write(true).open(path).expect("a file");
    file.write_all_at(bytes, offset).expect("write");
}

/// `create` and `add` refuse the disk `name`, say `what` it holds, and change nothing.
#[track_caller]
fn is_refused(bench: &Bench, name: &str, what: &str) {
    let whole = || {
        let path = bench.path(name);
        (fs::metadata(&path).expect("the disk").len() < BYTES)
            .then(|| fs::read(path).expect("read"))
    };
    let before = whole();
    for args in [
        &["create", "new", "--code", "raid1", name, "blank"][..],
        &["create", "new", "--code", "raid1", "--dry-run", name, "blank"],
        &["add", "tank", name],
        &["replace", "tank", "0", name],
    ] {
        let said = bench.refused(args, 1);
        assert!(said.contains(what) && said.contains("--force"), "weft {args:?} says {said}");
    }
    assert!(before == whole(), "{name} was changed");
}

fn served(name: &str) -> Bench {
    let mut bench = Bench::new(name);
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "8M", "m0", "m1"]);
    bench.serve(&["m0", "m1"]);
    let _ = bench.scratch.file("blank", 8 << 20);
    bench
}

#[test]
fn data_that_is_not_recognised_is_not_taken() {
    let bench = served("unrecognised");
    let mut random = vec![0; 16 << 20];
    Rng::new(7).fill(&mut random);
    fs::write(bench.path("random"), &random).expect("a random file");
    is_refused(&bench, "random", "data that is not recognised");
    // One byte at the very start, at the end, and anywhere in a sparse file.
    for (name, offset) in [("first", 0), ("last", (64 << 20) - 1), ("middle", 21_346_789)] {
        file_with(&bench, name, 64 << 20, offset, b"x");
        is_refused(&bench, name, "data that is not recognised");
    }
    // Zeros that were written are no data.
    fs::write(bench.path("zeros"), vec![0; 16 << 20]).expect("zeros");
    bench.weft(&["create", "new", "--code", "raid1", "zeros", "blank"]);
}

#[test]
fn headers_of_other_programs_are_named() {
    let bench = served("headers");
    let headers: [(&str, u64, &[u8]); 8] = [
        ("Ceph", 0, b"bluestore block device\n"),
        ("VMFS", 1 << 20, b"\x0d\xd0\x01\xc0"),
        ("BitLocker", 0, b"\xeb\x58\x90-FVE-FS-"),
        ("LUKS", 16 << 10, b"SKUL\xba\xbe"),
        ("Stratis", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
        ("DRBD", (8 << 20) - 4096 + 60, b"\x83\x74\x02\x6d"),
        ("firmware RAID", (8 << 20) - 1024, b"Intel Raid ISM Cfg Sig. "),
        ("BeFS", 32, b"BFS1"),
    ];
    for (n, (what, offset, magic)) in headers.into_iter().enumerate() {
        let name = format!("h{n}");
        file_with(&bench, &name, 8 << 20, offset, magic);
        is_refused(&bench, &name, what);
    }
}

/// The formats of real programs are recognised; uses those that are installed.
#[test]
fn what_mkfs_writes_is_named() {
    if !have(&[Need::Tool("mkfs.ext4"), Need::Tool("mkswap")]) {
        return;
    }
    let bench = served("mkfs");
    let tools: [(&str, &[&str], &str); 19] = [
        ("mkfs.ext4", &["-q", "-F"], "ext2/3/4"),
        ("mkswap", &[], "swap"),
        ("mkfs.xfs", &["-q"], "XFS"),
        ("mkfs.btrfs", &["-q"], "btrfs"),
        ("mkfs.vfat", &[], "FAT"),
        ("mkfs.ntfs", &["-q", "-F", "-Q"], "NTFS"),
        ("mkfs.exfat", &[], "exFAT"),
        ("mkfs.f2fs", &["-q"], "F2FS"),
        ("mkfs.nilfs2", &["-q"], "NILFS2"),
        ("mkfs.jfs", &["-q"], "JFS"),
        ("mkfs.reiserfs", &["-q", "-ff"], "ReiserFS"),
        ("mkudffs", &[], "UDF"),
        ("mkfs.minix", &[], "Minix"),
        ("mkfs.bfs", &[], "BFS"),
        (
            "cryptsetup",
            &[
                "luksFormat",
                "-q",
                "--pbkdf-force-iterations=4",
                "--pbkdf-memory=32",
                "--key-file=key",
            ],
            "LUKS",
        ),
        ("make-bcache", &["-B"], "bcache"),
        ("sgdisk", &["-n", "1:0:0"], "GPT"),
        ("parted", &["-s", "mklabel", "msdos", "mkpart", "primary", "1M", "9M"], "MBR"),
        ("pvcreate", &["-q"], "LVM"),
    ];
    fs::write(bench.path("key"), "secret").expect("a key");
    for (n, (tool, args, what)) in tools.into_iter().enumerate() {
        let name = format!("f{n}");
        let path = bench.scratch.file(&name, BYTES);
        let made = match tool {
            // Programs that take the device before their arguments, or only block devices.
            "parted" => run_if_there(tool, &[&["-s", &name], &args[1..]].concat(), &bench, None),
            "pvcreate" => run_if_there(tool, args, &bench, Some(&path)),
            _ => run_if_there(tool, &[args, &[&name]].concat(), &bench, None),
        };
        if made {
            is_refused(&bench, &name, what);
        }
        fs::remove_file(path).expect("remove it");
    }
}

/// Runs `tool`, on a loop device over `device` if that is given; false if it is not installed.
fn run_if_there(tool: &str, args: &[&str], bench: &Bench, device: Option<&Path>) -> bool {
    let look = format!("PATH=$PATH:/sbin:/usr/sbin command -v {tool}");
    let looked = Command::new("sh").args(["-c", &look]).output().expect("a shell");
    let is_there = looked.status.success();
    if !is_there || device.is_some() && !have(&[Need::Root, Need::Loop]) {
        eprintln!("{tool} is not asked");
        return false;
    }
    let device = device.map(|file| LoopDevice::attach(file, false));
    let mut command = command(tool);
    command.args(args).current_dir(bench.scratch.path());
    if let Some(device) = &device {
        command.arg(device.path());
    }
    run(&mut command);
    true
}

#[test]
fn a_block_device_is_judged_by_its_bytes() {
    if !have(&[Need::Root, Need::Loop]) {
        return;
    }
    let bench = Bench::new("judged");
    let (one, two) = (bench.scratch.file("a", 64 << 20), bench.scratch.file("b", 64 << 20));
    File::options()
        .write(true)
        .open(&one)
        .expect("open")
        .write_all_at(b"x", (64 << 20) - 9)
        .expect("write");
    let devices = [LoopDevice::attach(&one, false), LoopDevice::attach(&two, false)];
    let paths = devices.each_ref().map(|device| crate::common::text(device.path()));
    let create = ["create", "t", "--code", "raid1", &paths[0], &paths[1]];
    let said = bench.refused(&create, 1);
    assert!(said.contains("not recognised"), "{said}");
    bench.weft(&[&create[..], &["--force"]].concat());
}

#[test]
fn a_disk_in_use_is_never_taken_even_by_force() {
    let mut bench = Bench::new("in-use");
    let mut far = Bench::new("in-use-far");
    far.weft(&["create", "lun", "--code", "raid1", "--size", "24M", "a", "b"]);
    far.serve(&["."]);
    // The same remote disk under two names: nothing but its contents tells that it is one.
    let remote = far.uri("lun");
    let other_name = remote.replace("/run/nbd.sock", "/run/./nbd.sock");
    bench.weft(&[
        "create", "t", "--code", "raid1", "--size", "8M", "--spares", "2", "m0", "m1", "m2",
        &remote,
    ]);
    bench.weft(&["create", "u", "--code", "raid1", "--size", "8M", "u0", "u1"]);
    bench.serve(&["m0", "m1", "m2", "u0", "u1", &remote]);
    let before = bench.status("t");
    for (array, disk, what) in [
        ("t", &*other_name, "a spare of t"),
        ("u", &other_name, "a spare of t"),
        ("u", "m2", "a spare of t"),
        ("u", "m0", "a member of t"),
        ("t", "u1", "a member of u"),
    ] {
        let said = bench.refused(&["add", array, disk, "--force"], 1);
        assert!(
            said.contains(what) && said.contains("in use"),
            "add {array} {disk} --force says {said}"
        );
    }
    let said = bench.refused(&["replace", "u", "0", &other_name, "--force"], 1);
    assert!(said.contains("a spare of t"), "{said}");
    assert_eq!(before, bench.status("t"), "the array has changed");
    bench.terminate();
    far.terminate();
}

#[test]
fn a_file_under_a_loop_device_is_in_use_by_any_name() {
    if !have(&[Need::Root, Need::Loop, Need::Tool("mkfs.ext4")]) {
        return;
    }
    let bench = served("under-loop");
    let image = bench.scratch.file("image", 64 << 20);
    run(command("mkfs.ext4").arg("-q").arg(&image));
    let device = LoopDevice::attach(&image, false);
    fs::create_dir(bench.path("mnt")).expect("a folder");
    let mount = Mount::new(device.path(), &bench.path("mnt"), "");
    fs::write(bench.path("mnt/precious"), "all of it").expect("write a file");
    fs::hard_link(&image, bench.path("hard")).expect("a link");
    std::os::unix::fs::symlink(&image, bench.path("soft")).expect("a link");
    let name = crate::common::text(device.path());
    for disk in ["image", "hard", "soft"] {
        for args in [
            &["create", "new", "--code", "raid1", "--force", "blank", disk][..],
            &["create", "new", "--code", "raid1", "--force", "--dry-run", "blank", disk],
            &["add", "tank", disk, "--force"],
            &["add", "tank", disk, "--force", "--dry-run"],
            &["replace", "tank", "0", disk, "--force"],
            &["wipe", disk, "--force"],
        ] {
            let said = bench.refused(args, 1);
            assert!(said.contains("in use") && said.contains(&name), "weft {args:?} says {said}");
        }
    }
    mount.unmount();
    run(command("e2fsck").arg("-fn").arg(device.path()));
    drop(device);
    // Blank as before: nothing was written to it either.
    bench.weft(&[
        "create",
        "new",
        "--code",
        "raid1",
        "--dry-run",
        "blank",
        "other",
        "--size",
        "8M",
    ]);
    // The other way round: a served member, reached by a loop device.
    let device = LoopDevice::attach(&bench.path("m0"), false);
    let name = crate::common::text(device.path());
    let said = bench.refused(&["create", "new", "--code", "raid1", "--force", "blank", &name], 1);
    assert!(said.contains("in use"), "{said}");
    bench.weft(&["status", "tank", "--check"]);
}

#[test]
fn a_disk_that_takes_no_writes_is_noticed_before_any_is_written() {
    if !have(&[Need::Root, Need::Loop]) {
        return;
    }
    let bench = Bench::new("no-writes");
    let mut full = vec![0; 16 << 20];
    Rng::new(9).fill(&mut full);
    fs::write(bench.path("full"), &full).expect("a file");
    let device = LoopDevice::read_only(&bench.scratch.file("fixed", 16 << 20));
    let name = crate::common::text(device.path());
    for more in [&["--force"][..], &["--force", "--dry-run"]] {
        let args = [&["create", "t", "--code", "raid1", "full", &name], more].concat();
        let said = bench.refused(&args, 1);
        assert!(said.contains(&name) && said.contains("write-protected"), "{said}");
        assert!(fs::read(bench.path("full")).expect("read") == full, "it was written");
    }
}

#[test]
fn disks_of_a_weft_file_system_are_known_everywhere() {
    let bench = served("own-fs");
    let disks = bench.scratch.files("f", 3, 64 << 20);
    let disks: Vec<String> = disks.iter().map(|disk| crate::common::text(disk)).collect();
    bench.weft(&["fs", "create", "home", &disks[0], &disks[1], &disks[2]]);
    let disk = &*disks[0];
    is_refused(&bench, disk, "a disk of a weft file system");
    let said = bench.weft(&["examine", disk]);
    assert!(said.contains("disk 0 of the weft file system home"), "{said}");
    let said =
        bench.weft(&["create", "n", "--code", "raid1", "--force", "--dry-run", disk, "blank"]);
    assert!(said.contains("loses a disk of a weft file system"), "{said}");
    let replay = ["replay", "--workload", "financial1", "--requests", "9", "--overwrite", disk];
    let said = bench.refused(&replay, 1);
    assert!(said.contains("weft file system home"), "{said}");
    let said = bench.refused(&["wipe", disk], 1);
    assert!(said.contains("weft file system home"), "{said}");
    bench.weft(&["examine", disk]);
    bench.weft(&["wipe", "--force", disk]);
    let said = bench.refused(&["examine", disk], 1);
    assert!(!said.contains("weft file system"), "{said}");
    bench.weft(&["wipe", "--force", "--zero", &disks[1]]);
    assert!(fs::read(&disks[1]).expect("read").iter().all(|byte| *byte == 0));
    bench.weft(&["create", "n", "--code", "raid1", &disks[1], "blank"]);
}
