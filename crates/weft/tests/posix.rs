//! What programs expect of a file system, call by call, where the suites of others do not look:
//! names and files without any, holes and pages that the kernel has not written yet, large folders,
//! several writers.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, Timespec,
    Timestamps, fallocate, fcntl_lock, flock, linkat, openat, renameat_with, seek, statvfs,
};
use rustix::io::Errno;
use weft_testkit::{Need, command, have, run, wait_until};

/// Free bytes, when all that was written has its place.
fn free_bytes(mounted: &Mounted) -> u64 {
    let root = File::open(&mounted.at).expect("there");
    root.sync_all().expect("synced");
    let disks = mounted.status()["disks"].clone();
    disks.as_array().expect("disks").iter().filter_map(|disk| disk["free_bytes"].as_u64()).sum()
}

fn made(at: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).open(at).expect("made")
}

#[test]
fn names_move_change_places_and_end_and_files_live_without_them() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-names", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
    let links = |name: &str| fs::metadata(at(name)).expect("there").nlink();
    fs::write(at("a"), "a").expect("written");
    fs::write(at("b"), "b").expect("written");
    fs::create_dir_all(at("folder/in")).expect("made");
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "c", RenameFlags::NOREPLACE).expect("moved");
    rename("b", "c", RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(fs::read_to_string(at("b")).expect("read"), "a");
    assert_eq!(rename("b", "none", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    assert_eq!(rename("b", "c", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE), Err(Errno::INVAL));
    // A file and a folder; the links of the folders that they are in agree.
    rename("c", "folder/in", RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(fs::read_to_string(at("folder/in")).expect("read"), "b");
    assert!(at("c").is_dir() && links("folder") == 2 && links(".") == 4);
    assert_eq!(rename("folder", "folder/x", RenameFlags::empty()), Err(Errno::INVAL));
    symlink("x".repeat(4095), at("long")).expect("linked");
    assert_eq!(fs::read_link(at("long")).expect("read").as_os_str().len(), 4095);

    // A file that never had a name gets one; one that had its last does not.
    let unnamed = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        File::from(openat(CWD, &place, flags, Mode::from_raw_mode(0o640)).expect("made"))
    };
    let link = |file: &File, name: &str| {
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, own, CWD, at(name), AtFlags::SYMLINK_FOLLOW)
    };
    let file = unnamed();
    (&file).write_all(b"without a name").expect("written");
    assert_eq!(file.metadata().expect("there").nlink(), 0);
    link(&file, "named").expect("linked");
    file.sync_all().expect("synced");
    let gone = made(&at("gone"));
    fs::remove_file(at("gone")).expect("removed");
    assert_eq!(link(&gone, "again"), Err(Errno::NOENT));
    // What has no name when everything dies goes, and its space comes back.
    let before = free_bytes(&mounted);
    for file in [&gone, &unnamed()] {
        file.write_all_at(&vec![7; 5 << 20], 0).expect("written");
        file.sync_all().expect("synced");
    }
    gone.sync_all().expect("synced");
    assert!(free_bytes(&mounted) < before - (5 << 20));
    let mut byte = [0];
    assert_eq!(gone.read_at(&mut byte, (5 << 20) - 1).expect("read"), 1);
    mounted.kill9();
    drop((file, gone));
    mounted.mount_again();
    assert_eq!(fs::read_to_string(at("named")).expect("read"), "without a name");
    assert!(links("named") == 1 && !at("gone").exists() && at("c").is_dir());
    assert_eq!(free_bytes(&mounted), before);
    mounted.ends_sound();
}

/// Bytes that are data by SEEK_DATA and SEEK_HOLE.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(from) => {
                at = seek(file, SeekFrom::Hole(from)).expect("every file ends with a hole");
                found.push((from, at));
            }
            Err(Errno::NXIO) => return found,
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn holes_are_where_nothing_was_written_even_if_the_kernel_has_not_told() {
    if !have(&NEEDS) || !have(&[Need::Tool("tar")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-holes", 4, 64 << 20);
    let at = |name: &str| mounted.at.join(name);
    const FAR: u64 = (1 << 40) + (1 << 39);
    let sparse = made(&at("sparse"));
    sparse.write_all_at(b"first", 0).expect("written");
    sparse.write_all_at(b"last", FAR + 4096).expect("written");
    // The kernel has all of it, and the server nothing.
    assert_eq!(data(&sparse), [(0, 4096), (FAR + 4096, FAR + 4100)]);
    sparse.write_all_at(b"between", 1 << 30).expect("written");
    assert_eq!(seek(&sparse, SeekFrom::Data(4096)), Ok(1 << 30));
    assert_eq!(seek(&sparse, SeekFrom::Data(FAR + 4100)), Err(Errno::NXIO));
    sparse.sync_all().expect("synced");
    let three = [(0, 4096), (1 << 30, (1 << 30) + 4096), (FAR + 4096, FAR + 4100)];
    assert_eq!(data(&sparse), three);
    assert!(sparse.metadata().expect("there").blocks() < 100);
    sparse.write_all_at(b"again", 8192).expect("written");
    assert_eq!(seek(&sparse, SeekFrom::Hole(0)), Ok(4096));
    drop(sparse);
    let sparse = File::open(at("sparse")).expect("there");
    assert_eq!(data(&sparse)[..2], [(0, 4096), (8192, 12288)]);

    // More seeks at once than the server takes requests.
    let (sender, receiver) = std::sync::mpsc::channel();
    let all = Arc::new(Barrier::new(300));
    for n in 0..300 {
        let (file, sender, all) = (made(&at(&format!("f{n}"))), sender.clone(), all.clone());
        std::thread::spawn(move || {
            file.write_all_at(b"some", 4096 * n).expect("written");
            all.wait();
            let found = data(&file);
            drop(file);
            sender.send((n, found)).expect("waited for");
        });
    }
    for _ in 0..300 {
        let (n, found) = receiver.recv_timeout(Duration::from_secs(600)).expect("a seek hangs");
        assert_eq!(found, [(4096 * n, 4096 * n + 4)]);
    }
    // A backup of a file that a program has not closed.
    let open = made(&at("open"));
    open.write_all_at(&[7; 80_000], 0).expect("written");
    let tar = |args: &[&str]| run(command("tar").args(args).current_dir(&mounted.at)).stdout;
    tar(&["--sparse", "-cf", "archive", "open"]);
    assert!(tar(&["-xOf", "archive", "open"]) == [7; 80_000], "zeros in the backup");

    let file = made(&at("punched"));
    file.write_all_at(&[9; 100_000], 0).expect("written");
    let call = |flags, from, len| fallocate(&file, flags, from, len);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    call(punch, 4096, 8192).expect("punched");
    assert_eq!(data(&file), [(0, 4096), (12_288, 100_000)]);
    call(punch, 20_001, 10).expect("punched");
    call(FallocateFlags::ZERO_RANGE, 99_000, 2000).expect("zeroed");
    let mut wanted = vec![9; 101_000];
    for zeros in [4096..12_288, 20_001..20_011, 99_000..101_000] {
        wanted[zeros].fill(0);
    }
    assert!(fs::read(at("punched")).expect("read") == wanted);
    // What is not offered is refused, and changes nothing.
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(call(flags, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    assert!(fs::read(at("punched")).expect("read") == wanted);
    drop((file, open, sparse));
    mounted.ends_sound();
}

#[test]
fn a_large_folder_is_read_to_its_end_while_it_is_emptied() {
    if !have(&NEEDS) {
        return;
    }
    let files = if std::env::var_os("WEFT_SUITES").is_some() { 100_000 } else { 25_000 };
    let mounted = Mounted::on_disks("weftfs-large-folder", 3, 16 << 30);
    let folder = mounted.at.join("folder");
    fs::create_dir(&folder).expect("made");
    for n in 0..files {
        File::create_new(folder.join(n.to_string())).expect("made");
    }
    // One reader removes a third of it meanwhile, another one begins before.
    let mut other = fs::read_dir(&folder).expect("a folder");
    let mut seen: Vec<String> = Vec::new();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("read").file_name();
    seen.extend(other.by_ref().take(1000).map(|entry| name(entry).into_string().expect("text")));
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(&folder).expect("a folder") {
        let name = name(entry).into_string().expect("text");
        let n: usize = name.parse().expect("a number");
        assert!(all.insert(n), "{n} twice");
        if n.is_multiple_of(3) {
            fs::remove_file(folder.join(name)).expect("removed");
        }
    }
    assert_eq!(all.len(), files);
    seen.extend(other.map(|entry| name(entry).into_string().expect("text")));
    let unique: BTreeSet<usize> = seen.iter().map(|name| name.parse().expect("a number")).collect();
    assert_eq!(unique.len(), seen.len(), "a name twice");
    assert!(
        (0..files).filter(|n| !n.is_multiple_of(3)).all(|n| unique.contains(&n)),
        "a name is missing"
    );
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), files - files.div_ceil(3));
    mounted.ends_sound();
}

#[test]
fn programs_append_lock_and_keep_times_and_see_the_room() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-programs", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let appends = |n: u32| {
        let script =
            format!("for i in $(seq 1000); do echo {n} $i; done >> {}", at("log").display());
        command("sh").args(["-c", &script]).spawn().expect("started")
    };
    for mut child in [1, 2, 3].map(appends) {
        assert!(child.wait().expect("waited").success());
    }
    let log = fs::read_to_string(at("log")).expect("read");
    for n in 1..=3 {
        let lines = log.lines().filter_map(|line| line.strip_prefix(&format!("{n} ")));
        assert!(lines.eq((1..=1000).map(|i: u32| i.to_string())), "lines of {n}");
    }
    assert_eq!(log.lines().count(), 3000);
    // flock is of an open file, fcntl of a process.
    let (one, two) = (made(&at("lock")), made(&at("lock")));
    flock(&one, FlockOperation::LockExclusive).expect("locked");
    assert_eq!(flock(&two, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    flock(&one, FlockOperation::Unlock).expect("unlocked");
    fcntl_lock(&one, FlockOperation::LockExclusive).expect("locked");
    fcntl_lock(&two, FlockOperation::NonBlockingLockExclusive).expect("the same process");

    let times = Timestamps {
        last_access: Timespec { tv_sec: -2, tv_nsec: 499_999_999 },
        last_modification: Timespec { tv_sec: 5_000_000_000, tv_nsec: 7 },
    };
    rustix::fs::futimens(&one, &times).expect("set");
    one.sync_all().expect("synced");
    drop((one, two));
    mounted.unmount();
    mounted.mount_again();
    let there = fs::metadata(at("lock")).expect("there");
    let found = [there.atime(), there.atime_nsec(), there.mtime(), there.mtime_nsec()];
    assert_eq!(found, [-2, 499_999_999, 5_000_000_000, 7]);

    let before = statvfs(&place).expect("there");
    assert_eq!((before.f_namemax, before.f_frsize), (255, 4096));
    assert!(before.f_bavail <= before.f_bfree && before.f_bfree < before.f_blocks);
    let large = made(&at("large"));
    large.write_all_at(&vec![1; 8 << 20], 0).expect("written");
    large.sync_all().expect("synced");
    let after = statvfs(&place).expect("there");
    assert!(before.f_bfree - after.f_bfree >= 2048, "8 MiB of 4 KiB");
    drop(large);
    mounted.ends_sound();
}

/// Runs a script as a user who owns nothing, in a folder.
fn as_nobody(at: &Path, script: &str) -> std::process::Output {
    let mut sh = command("setpriv");
    sh.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    sh.current_dir(at).output().expect("started")
}

#[test]
fn users_set_only_what_is_theirs_and_see_only_what_they_may() {
    use rustix::fs::{XattrFlags, setxattr};
    if !have(&NEEDS) || !have(&[Need::Tool("setpriv"), Need::Tool("python3")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-users", 3, 64 << 20);
    let at = |name: &str| mounted.at.join(name);
    let file = at("file");
    fs::write(&file, "of root").expect("written");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("set");
    let set = |name: &str, flags: u32| {
        setxattr(&file, name, b"raid1", XattrFlags::from_bits_retain(flags))
    };
    for name in ["system.x", "weft.x", "x"] {
        assert_eq!(set(name, 0), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(set("user.", 0), Err(Errno::INVAL));
    set("trusted.x", 0).expect("set");
    // It must not exist, and it must.
    assert_eq!(set("user.x", 3), Err(Errno::NODATA));
    set("user.x", 1).expect("set");
    assert_eq!(set("user.x", 3), Err(Errno::EXIST));
    let python = |expression: &str| {
        let script = format!("python3 -c 'import os; print({expression})'");
        let output = as_nobody(&mounted.at, &script);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let names = python("os.listxattr(\"file\")");
    assert!(names.contains("user.x") && !names.contains("trusted"), "{names}");
    // Whoever may write a file may note something with it, and not say where it lies.
    let said = python("os.setxattr(\"file\", \"user.y\", b\"y\")");
    assert_eq!(said, "None\n");
    let said = python("os.setxattr(\"file\", \"user.weft.redundancy\", b\"none\")");
    assert!(said.contains("PermissionError"), "{said}");
    let said = python("os.setxattr(\"file\", \"system.y\", b\"y\")");
    assert!(said.contains("Errno 95"), "{said}");
    rustix::fs::chown(&file, Some(rustix::fs::Uid::from_raw(65534)), None).expect("set");
    let said = python("os.setxattr(\"file\", \"user.weft.redundancy\", b\"raid1\")");
    assert_eq!(said, "None\n");
    // A capability stands for ownership.
    rustix::fs::chown(&file, Some(rustix::fs::Uid::ROOT), None).expect("set");
    let mut other = command("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    other.args(["--inh-caps=+fowner", "--ambient-caps=+fowner", "sh", "-c"]);
    let set = "import os; os.setxattr(\"file\", \"user.weft.redundancy\", b\"raid5\")";
    other.arg(format!("python3 -c '{set}'"));
    run(other.current_dir(&mounted.at));
    mounted.ends_sound();
}

#[test]
fn readers_of_a_folder_end_whatever_they_rename() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-readdir", 3, 64 << 20);
    let folder = mounted.at.join("folder");
    fs::create_dir(&folder).expect("made");
    for n in 0..600 {
        File::create_new(folder.join(n.to_string())).expect("made");
    }
    let mut seen = 0;
    for entry in fs::read_dir(&folder).expect("a folder") {
        let at = entry.expect("read").path();
        let other = folder.join("other");
        fs::rename(&at, &other).expect("renamed");
        fs::rename(&other, &at).expect("renamed");
        // A new file in its place.
        File::create_new(&other).expect("made");
        fs::rename(&other, &at).expect("replaced");
        seen += 1;
        assert!(seen <= 600, "it does not end");
    }
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 600);
    mounted.ends_sound();
}

#[test]
fn what_replaces_contents_without_fsync_is_whole_after_a_crash() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-replaced", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let (old, new) = (vec![1; 50_000], vec![2; 60_000]);
    for name in ["renamed", "rewritten", "open"] {
        fs::write(at(name), &old).expect("written");
    }
    let folder = File::open(&place).expect("there");
    rustix::fs::syncfs(&folder).expect("synced");
    fs::write(at("new"), &new).expect("written");
    fs::rename(at("new"), at("renamed")).expect("renamed");
    fs::write(at("rewritten"), &new).expect("written");
    // The kernel still has what it is to hold.
    let file = made(&at("new"));
    file.write_all_at(&new, 0).expect("written");
    fs::rename(at("new"), at("open")).expect("renamed");
    // The kernel closes files after the program has gone on.
    mounted.has_answered_all();
    folder.sync_all().expect("synced");
    mounted.kill9();
    drop((file, folder));
    mounted.mount_again();
    for name in ["renamed", "rewritten", "open"] {
        assert!(fs::read(at(name)).expect("read") == new, "{name}");
    }
    mounted.ends_sound();
}

#[test]
fn long_requests_can_be_killed_and_hold_up_nobody() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-long", 3, 2 << 30);
    let at = |name: &str| mounted.at.join(name);
    let mut children = Vec::new();
    for n in 0..250 {
        let place = at(&format!("reserved{n}"));
        let mut child = command("fallocate");
        children.push(child.args(["-l", "16M"]).arg(place).spawn().expect("started"));
    }
    let mut large =
        command("fallocate").args(["-l", "1G"]).arg(at("large")).spawn().expect("started");
    wait_until("it has begun", || at("large").exists());
    for n in 0..20 {
        let _ = fs::metadata(at(&format!("nothing{n}")));
    }
    assert!(large.try_wait().expect("known").is_none(), "looks waited until it had ended");
    for child in children.iter_mut().chain([&mut large]) {
        child.kill().expect("there");
    }
    for child in children.iter_mut().chain([&mut large]) {
        child.wait().expect("ended");
    }
    let reserved = fs::metadata(at("large")).expect("there").blocks() * 512;
    assert!(reserved < 1 << 30, "it went on to its end");
    // A search for a hole takes a negative offset for one behind the end.
    let file = made(&at("file"));
    file.write_all_at(b"some", 0).expect("written");
    assert_eq!(seek(&file, SeekFrom::Data(u64::MAX)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Hole(u64::MAX)), Err(Errno::NXIO));
    drop(file);
    mounted.ends_sound();
}

#[test]
fn an_empty_file_that_is_written_has_blocks_at_once() {
    if !have(&NEEDS) || !have(&[Need::Tool("tar")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-blocks", 3, 64 << 20);
    let at = |name: &str| mounted.at.join(name);
    let tar = |args: &[&str]| run(command("tar").args(args).current_dir(&mounted.at)).stdout;
    fs::write(at("cut"), vec![1; 80_000]).expect("written");
    fs::write(at("empty"), "").expect("written");
    for name in ["new", "cut", "empty"] {
        let mut options = File::options();
        let open = options.write(true).create(true).truncate(name == "cut").open(at(name));
        let open = open.expect("opened");
        // The kernel keeps these attributes.
        let _ = fs::metadata(at(name)).expect("there");
        open.write_all_at(&[7; 80_000], 0).expect("written");
        assert!(fs::metadata(at(name)).expect("there").blocks() > 0, "{name}");
        tar(&["--sparse", "-cf", "archive", name]);
        assert!(tar(&["-xOf", "archive", name]) == [7; 80_000], "zeros in the backup of {name}");
    }
    mounted.ends_sound();
}
