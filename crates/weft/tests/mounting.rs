//! A file system is mounted in the background, on links, over a dead mount, and its service ends
//! only when nothing uses it: what programs write never lands in the folder beneath.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS, has_said};
use rustix::process::Signal;
use weft_testkit::{Need, Process, command, have, unmount, wait_until};

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.contains(&format!(" {} fuse.weftfs ", at.display()))
}

/// Disks `d0` and `d1` with a file system that is not mounted.
fn unmounted(name: &str) -> Mounted {
    let mut mounted = Mounted::on_disks(name, 2, 64 << 20);
    mounted.unmount();
    mounted
}

/// `weft fs mount home ARGS .`, with its messages in `mount.log`.
fn serve(mounted: &Mounted, at: &str, args: &[&str]) -> Process {
    let mut mount = mounted.bench.command(&["fs", "mount", "home", at, "."]);
    let log = File::create(mounted.bench.path("mount.log")).expect("a file");
    let out = mounted.bench.path("serve.out");
    let said = File::create(&out).expect("a file");
    let process = Process::spawn(mount.args(args).stdout(said).stderr(log));
    // Then it listens for signals, too.
    wait_until("the mount", || has_said(&out));
    process
}

fn log(mounted: &Mounted) -> String {
    fs::read_to_string(mounted.bench.path("mount.log")).expect("a log")
}

#[test]
fn a_signal_waits_for_programs_and_names_them() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = unmounted("mount-drain");
    let mut service = serve(&mounted, "mnt", &["--stop-timeout", "10m"]);
    let mut open = File::create(mounted.at.join("file")).expect("made");
    open.write_all(b"before").expect("written");
    service.signal(Signal::HUP);
    wait_until("the hang-up", || log(&mounted).contains("stays mounted"));
    service.signal(Signal::TERM);
    wait_until("the user", || log(&mounted).contains("cannot stop yet"));
    assert!(log(&mounted).contains(&format!("({})", std::process::id())), "{}", log(&mounted));
    assert!(is_mounted(&mounted.at) && service.is_running());
    // By the open file and by path.
    open.write_all(b" and after").expect("written");
    fs::write(mounted.at.join("later"), "by path").expect("written");
    drop(open);
    assert!(service.wait().success(), "{}", log(&mounted));
    assert!(!is_mounted(&mounted.at));
    assert_eq!(fs::read_dir(&mounted.at).expect("a folder").count(), 0, "written beneath");
    mounted.mount_again();
    assert_eq!(fs::read(mounted.at.join("file")).expect("read"), b"before and after");
    assert_eq!(fs::read(mounted.at.join("later")).expect("read"), b"by path");
    mounted.ends_sound();
}

#[test]
fn when_its_time_is_up_what_was_written_is_kept_and_the_mount_returns_errors() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = unmounted("mount-timeout");
    let mut service = serve(&mounted, "mnt", &["--stop-timeout", "0s"]);
    let mut open = File::create(mounted.at.join("file")).expect("made");
    open.write_all(&[7; 1 << 20]).expect("in the kernel's memory");
    service.signal(Signal::TERM);
    assert!(service.wait().success(), "{}", log(&mounted));
    assert!(log(&mounted).contains("ALERT: stopped while"), "{}", log(&mounted));
    fs::write(mounted.at.join("later"), "by path").expect_err("nothing lands beneath");
    open.write_all(b"more").expect_err("nobody serves it");
    // The dead mount is replaced by a mount, although a program still has a file of it open.
    mounted.mount_again();
    assert!(fs::read(mounted.at.join("file")).expect("read") == [7; 1 << 20]);
    drop(open);
    mounted.ends_sound();
}

#[test]
fn a_mount_point_may_be_a_link_and_a_dead_mount_is_replaced() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = unmounted("mount-link");
    symlink("mnt", mounted.bench.path("link")).expect("linked");
    let mut service = serve(&mounted, "link", &[]);
    fs::write(mounted.at.join("file"), "one").expect("written");
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    assert!(!is_mounted(&mounted.at));
    // Its server is killed: the kernel's mount stays, dead.
    let service = serve(&mounted, "link", &[]);
    service.kill9();
    wait_until("it is dead", || fs::metadata(&mounted.at).is_err());
    let mut service = serve_again(&mounted, "link");
    assert_eq!(fs::read(mounted.at.join("file")).expect("read"), b"one");
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    mounted.bench.refused(&["fs", "mount", "home", "none", "."], 1);
    mounted.mount_again();
    mounted.ends_sound();
}

/// The same when a mount, dead, is there already.
fn serve_again(mounted: &Mounted, at: &str) -> Process {
    let mut mount = mounted.bench.command(&["fs", "mount", "home", at, "."]);
    let out = mounted.bench.path("serve.out");
    let process = Process::spawn(mount.stdout(File::create(&out).expect("a file")));
    wait_until("the mount", || has_said(&out));
    assert!(fs::metadata(&mounted.at).is_ok() && is_mounted(&mounted.at));
    process
}

#[test]
fn in_the_background_the_command_returns_when_it_is_mounted() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = unmounted("mount-background");
    let log = mounted.bench.path("server.log").display().to_string();
    let mount = ["fs", "mount", "--background", "--log", &log, "home"];
    let said = mounted.bench.weft(&[&mount[..], &["mnt", "."]].concat());
    assert!(said.contains("file system 'home' is mounted on"), "{said}");
    assert!(is_mounted(&mounted.at));
    fs::write(mounted.at.join("file"), "one").expect("written");
    unmount(&mounted.at);
    // Its disks are free when the server has ended.
    wait_until("it is mounted again", || {
        let again = mounted.bench.command(&[&mount[..], &["mnt", ".", "--json"]].concat()).output();
        let again = again.expect("start weft");
        let text = String::from_utf8_lossy(&again.stdout).into_owned();
        if again.status.success() {
            assert!(text.contains("\"mounted\":\"home\""), "{text}");
        }
        again.status.success()
    });
    assert_eq!(fs::read(mounted.at.join("file")).expect("read"), b"one");
    // What goes wrong is told, with the exit code.
    let refused = mounted.bench.refused(&[&mount[..5], &["other", "mnt", "."]].concat(), 1);
    assert!(refused.contains("no disk of a file system 'other'"), "{refused}");
    unmount(&mounted.at);
    wait_until("the server ends", || mounted.try_mount_again());
    mounted.ends_sound();
}

#[test]
fn a_mount_in_the_background_says_for_which_disks_it_waits() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = unmounted("mount-waits");
    fs::rename(mounted.bench.path("d1"), mounted.bench.path("hidden")).expect("hide a disk");
    fs::create_dir(mounted.bench.path("disks")).expect("a folder");
    fs::rename(mounted.bench.path("d0"), mounted.bench.path("disks/d0")).expect("moved");
    let mount = ["fs", "mount", "--background", "--log", "log", "--wait", "1s"];
    let said = mounted.bench.refused(&[&mount[..], &["home", "mnt", "disks"]].concat(), 1);
    assert!(said.contains("waiting at most 1.0 s: "), "{said}");
    assert_eq!(said.matches("is missing").count(), 3, "the wait, the log, and the error: {said}");
    assert!(!is_mounted(&mounted.at));
}

/// Commands take the name of a mounted file system for its folder, and what is wrong is told with
/// what would be right.
#[test]
fn a_mounted_file_system_is_found_by_its_name() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::new("mount-name");
    let bench = &mounted.bench;
    let name = format!("named-{}", std::process::id());
    let _ = bench.scratch.files("d", 3, 64 << 20);
    let said = bench.refused(&["fs", "create", "d0", "d1", "d2"], 2);
    assert!(said.contains("the file system's name, but d0 is a disk"), "{said}");
    bench.weft(&["fs", "create", &name, "d0", "d1", "d2"]);
    let locks = || {
        let files = fs::read_dir("/run").expect("a folder").flatten();
        let is_ours = |file: &fs::DirEntry| {
            file.file_name().to_string_lossy().starts_with("weftfs-")
                && fs::read_to_string(file.path()).is_ok_and(|text| text.contains(&name))
        };
        files.filter(is_ours).count()
    };
    let mount = ["fs", "mount", "--background", "--log", "log", &name, "mnt", "d0", "d1", "d2"];
    bench.weft(&mount);
    assert_eq!(locks(), 1);
    let by_folder = bench.weft(&["fs", "df", "mnt"]);
    assert_eq!(bench.weft(&["fs", "df", &name]), by_folder);
    assert!(bench.weft(&["fs", "status", &name]).contains(&format!("file system '{name}'")));
    let said = bench.refused(&["fs", "status", "no-such-name"], 1);
    assert!(said.contains("no file system of this name"), "{said}");
    assert!(said.contains(&format!("{name} on {}", mounted.at.display())), "{said}");
    let said = bench.refused(&["fs", "fail", &name, "17"], 1);
    assert!(said.contains("no disk 17: the disks are 0, 1, 2"), "{said}");
    // What a disk belongs to that is in use.
    for taken in [&["create", "t", "--code", "raid1", "d0", "d1"][..], &["fs", "create", "x", "d0"]]
    {
        let said = bench.refused(taken, 1);
        assert!(said.contains(&format!("it is a disk of the file system '{name}'")), "{said}");
    }
    unmount(&mounted.at);
    wait_until("the lock goes", || locks() == 0);
    let said = bench.refused(&["fs", "status", &name], 1);
    assert!(said.contains("no file system of this name"), "{said}");
    mounted.at = mounted.bench.path("mnt");
}

/// What the README shows, as a user pastes it, on files.
#[test]
fn what_the_readme_shows_works_when_it_is_pasted() {
    if !have(&NEEDS) || !have(&[Need::Tool("sh")]) {
        return;
    }
    let mounted = Mounted::new("mount-readme");
    let _ = mounted.bench.scratch.files("d", 6, 64 << 20);
    let _ = mounted.bench.scratch.files("x", 1, 64 << 20);
    let readme = include_str!("../../../README.md");
    let block = readme.split("```").find(|block| block.contains("weft fs create"));
    let block = block.and_then(|block| block.strip_prefix("sh\n")).expect("a block");
    let script = block
        .replace("weft fs", &format!("{} fs", env!("CARGO_BIN_EXE_weft")))
        .replace("mount --background home", "mount --background --log server.log home")
        .replace("/dev/sd[b-g]", "d[0-5]")
        .replace("/dev/sdx", "x0")
        .replace(
            "--background --log server.log home /mnt",
            "--background --log server.log home /mnt .",
        )
        .replace("/mnt", "./mnt");
    let mut shell = command("sh");
    shell.args(["-e", "-c", &script]).current_dir(mounted.bench.scratch.path());
    let output = shell.output().expect("started");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{script}\n{said}");
    assert!(!is_mounted(&mounted.at), "{said}");
}

#[test]
fn syncfs_waits_for_the_disks_if_the_kernel_passes_it_on() {
    if !have(&NEEDS) || !have(&[Need::Loop]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-syncfs", 3, 64 << 20);
    mounted.unmount();
    let disks = mounted.disks.clone();
    let args: Vec<&str> =
        ["-o", "syncfs"].into_iter().chain(disks.iter().map(String::as_str)).collect();
    let placeholders = || {
        let devices = fs::read_dir("/sys/block").expect("a folder").flatten();
        let backing = devices.map(|device| device.path().join("loop/backing_file"));
        backing
            .filter_map(|of| fs::read_to_string(of).ok())
            .filter(|of| of.contains("memfd:weftfs"))
            .count()
    };
    let before = placeholders();
    mounted.mount(&args);
    assert_eq!(placeholders(), before + 1);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read");
    let own = mounts.lines().find(|line| line.contains(&*mounted.at.to_string_lossy()));
    assert!(own.is_some_and(|line| line.contains("fuseblk.weftfs /dev/loop")), "{own:?}");
    // More than one that a kernel without it would write in time.
    fs::create_dir_all(mounted.at.join("a/b")).expect("made");
    fs::write(mounted.at.join("a/b/file"), vec![7; 3 << 20]).expect("written");
    rustix::fs::syncfs(File::open(&mounted.at).expect("there")).expect("synced");
    let requests = mounted.status()["requests"].to_string();
    mounted.kill9();
    wait_until("the device is gone", || placeholders() == before);
    mounted.mount(&args);
    if requests.contains("syncfs") {
        let read = fs::read(mounted.at.join("a/b/file")).expect("it is there");
        assert!(read == vec![7; 3 << 20]);
    } else {
        eprintln!("this kernel does not pass syncfs on");
    }
    mounted.bench.weft(&["fs", "mount", "-o", "remount,noexec", "home", "mnt"]);
    mounted.ends_sound();
    wait_until("the device is gone", || placeholders() == before);
}
