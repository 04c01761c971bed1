//! Mount options, as a command line, `mount` and `/etc/fstab` have them. A read-only mount writes
//! nothing to the disks, also after a crash.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::io::Errno;
use weft_testkit::{Need, command, have, run, unmount, wait_until};

/// What `/proc/mounts` says of the mount.
fn kernel_options(at: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").expect("a list");
    let at = format!(" {} fuse.weftfs ", at.display());
    let line = mounts.lines().find_map(|line| line.split_once(&at));
    line.expect("it is mounted").1.to_owned()
}

fn mount_with(mounted: &mut Mounted, options: &[&str]) {
    let disks = mounted.disks.clone();
    let disks = disks.iter().map(String::as_str);
    mounted.mount(&options.iter().copied().chain(disks).collect::<Vec<_>>());
}

#[test]
fn a_read_only_mount_writes_nothing_to_the_disks() {
    if !have(&NEEDS) || !have(&[Need::Tool("mount")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-read-only", 3, 64 << 20);
    let at = |name: &str| mounted.at.join(name);
    fs::create_dir(at("folder")).expect("made");
    fs::write(at("gone"), vec![7; 1 << 20]).expect("written");
    let mut file = File::create_new(at("file")).expect("made");
    file.write_all(&[1; 3 << 20]).expect("written");
    file.sync_all().expect("synced");
    // A file that is to be deleted, and what the log alone has.
    let open = File::open(at("gone")).expect("there");
    fs::remove_file(at("gone")).expect("removed");
    File::open(&mounted.at).expect("there").sync_all().expect("synced");
    std::os::unix::fs::FileExt::write_all_at(&file, b"overwritten", 5000).expect("written");
    file.sync_all().expect("synced");
    mounted.kill9();
    drop((file, open));
    let contents = |mounted: &Mounted| -> Vec<Vec<u8>> {
        mounted.disks.iter().map(|disk| fs::read(disk).expect("read")).collect()
    };
    let before = contents(&mounted);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let is_read_only =
        |error: std::io::Error| assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    for options in [&["--read-only"][..], &["-o", "ro,noexec"]] {
        mount_with(&mut mounted, options);
        assert!(kernel_options(&place).starts_with("ro,"), "{}", kernel_options(&place));
        let read = fs::read(at("file")).expect("read");
        assert!(read.len() == 3 << 20 && &read[5000..5011] == b"overwritten");
        assert_eq!(fs::read_dir(&place).expect("a folder").count(), 2);
        mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
        assert_eq!(mounted.status()["read_only"], true);
        is_read_only(File::create_new(at("new")).expect_err("refused"));
        let said = mounted.bench.refused(&["fs", "scrub", "mnt"], 1);
        assert!(said.contains("read-only"), "{said}");
        // What the kernel lets pass the server refuses.
        let said = mounted.bench.refused(&["fs", "mount", "-o", "remount,rw", "home", "mnt"], 1);
        assert!(said.contains("was mounted read-only"), "{said}");
        run(command("mount").args(["-i", "-o", "remount,rw"]).arg(&place));
        is_read_only(File::create_new(at("new")).expect_err("refused"));
        is_read_only(fs::remove_file(at("file")).expect_err("refused"));
        let mut file = File::options().append(true).open(at("file")).expect("opened");
        is_read_only(file.write_all(b"x").expect_err("refused"));
        drop(file);
        let said = mounted.bench.refused(&["fs", "balance", "mnt"], 1);
        assert!(said.contains("read-only"), "{said}");
        mounted.unmount();
        assert!(contents(&mounted) == before, "something was written");
    }
    // Two of them are refused: one might write what the other reads.
    mount_with(&mut mounted, &["--read-only"]);
    fs::create_dir(mounted.bench.path("other")).expect("made");
    mounted.bench.refused(&["fs", "mount", "--read-only", "home", "other", "."], 1);
    mounted.unmount();
    mounted.mount_again();
    fs::write(at("new"), "written").expect("as before");
    mounted.ends_sound();
}

#[test]
fn options_reach_the_kernel_and_a_remount_changes_them() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-options", 3, 64 << 20);
    let place = mounted.at.clone();
    let has = |option: &str| kernel_options(&place).split([',', ' ']).any(|word| word == option);
    assert!(has("rw") && has("nosuid") && has("nodev") && !has("noexec"));
    mounted.unmount();
    mount_with(&mut mounted, &["-o", "suid,dev,noexec", "-o", "noatime"]);
    assert!(!has("nosuid") && !has("nodev") && has("noexec") && has("noatime"));
    let remount =
        |options: &str| mounted.bench.weft(&["fs", "mount", "-o", options, "home", "mnt"]);
    remount("remount,ro");
    assert!(has("ro") && has("nosuid") && !has("noexec"));
    File::create_new(place.join("new")).expect_err("it is read-only");
    remount("remount,rw,suid");
    assert!(has("rw") && !has("nosuid"));
    File::create_new(place.join("new")).expect("made");
    let said = mounted.bench.refused(&["fs", "mount", "-o", "nonsense", "home", "mnt"], 2);
    assert!(said.contains("unknown mount option 'nonsense'"), "{said}");
    mounted.ends_sound();
}

#[test]
fn times_of_access_are_kept_as_the_options_say() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-atime", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    fs::create_dir(at("folder")).expect("made");
    fs::write(at("file"), "x").expect("written");
    symlink("file", at("link")).expect("linked");
    let names = ["folder", "file", "link"];
    const LONG_AGO: i64 = 1_000_000_000;
    let time = Timespec { tv_sec: LONG_AGO, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    // With these options, what reading notes of the folder, the file and the link.
    let cases: [(&[&str], [bool; 3]); 4] = [
        (&[], [true; 3]),
        (&["-o", "noatime"], [false; 3]),
        (&["-o", "nodiratime"], [false, true, true]),
        (&["-o", "strictatime"], [true; 3]),
    ];
    for (options, expected) in cases {
        for name in names {
            utimensat(CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("set");
        }
        mounted.unmount();
        mount_with(&mut mounted, options);
        fs::read_dir(at("folder")).expect("a folder").for_each(|entry| drop(entry.expect("read")));
        assert_eq!(fs::read_to_string(at("file")).expect("read"), "x");
        assert_eq!(fs::read_link(at("link")).expect("read"), Path::new("file"));
        let accessed = |name: &str| fs::symlink_metadata(at(name)).expect("there").atime();
        assert_eq!(names.map(|name| accessed(name) > LONG_AGO), expected, "{options:?}");
    }
    mounted.ends_sound();
}

/// In a name space of its own, where `/sbin` has the helper.
const SCRIPT: &str = r#"
set -e
home=$PWD
trap 'umount -l "$home/mnt" 2>/dev/null || true' EXIT
mount --bind "$home/sbin" /usr/sbin
cd /
mount -t weftfs home "$home/mnt" -o "noexec,nofail,log=$home/helper.log,disk=$home"
grep " $home/mnt fuse.weftfs rw,noexec" /proc/mounts
echo one > "$home/mnt/file"
umount "$home/mnt"
echo "home $home/mnt weftfs nosuid,nofail,x-systemd.device-timeout=5,log=$home/helper.log,disk=$home 0 0" > "$home/fstab"
for turn in $(seq 600); do
  mount -T "$home/fstab" "$home/mnt" && break
  sleep 0.1
done
grep " $home/mnt fuse.weftfs rw,nosuid" /proc/mounts
cat "$home/mnt/file"
mount -T "$home/fstab" -o remount,ro "$home/mnt"
grep " $home/mnt fuse.weftfs ro," /proc/mounts
umount "$home/mnt"
"#;

#[test]
fn a_mount_waits_for_disks_that_are_missing() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-wait", 3, 64 << 20);
    fs::write(mounted.at.join("file"), "kept").expect("written");
    mounted.unmount();
    let folder = mounted.bench.path("disks");
    fs::create_dir(&folder).expect("a folder");
    for disk in &mounted.disks[..2] {
        let name = Path::new(disk).file_name().expect("a name");
        fs::rename(disk, folder.join(name)).expect("moved");
    }
    let folder = folder.to_str().expect("text").to_owned();
    // Without patience it is refused, or mounted without the disk.
    let refused = mounted.bench.refused(&["fs", "mount", "home", "mnt", &folder], 1);
    assert!(refused.contains("--degraded"), "{refused}");
    let (late, place) = (mounted.disks[2].clone(), format!("{folder}/late"));
    let comes = std::thread::spawn(move || {
        // Long enough for the first look, usually; the mount is right in any case.
        std::thread::sleep(std::time::Duration::from_secs(1));
        fs::rename(late, place).expect("moved");
    });
    mounted.mount(&["--wait", "10m", "--degraded", &folder]);
    comes.join().expect("it has come");
    let status = mounted.status();
    let disks = status["disks"].as_array().expect("disks");
    assert!(disks.len() == 3 && disks.iter().all(|disk| disk["lost"] == false), "{status}");
    assert_eq!(fs::read_to_string(mounted.at.join("file")).expect("read"), "kept");
    mounted.disks.clear();
    mounted.unmount();
}

#[test]
fn mount_and_fstab_know_it_by_its_helper() {
    let tools = ["unshare", "mount", "umount", "sh", "grep", "seq"].map(Need::Tool);
    if !have(&NEEDS) || !have(&tools) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-helper", 2, 64 << 20);
    mounted.unmount();
    fs::create_dir(mounted.bench.path("sbin")).expect("made");
    let helper = mounted.bench.path("sbin/mount.weftfs");
    symlink(env!("CARGO_BIN_EXE_weft"), &helper).expect("linked");
    let mut shell = command("unshare");
    shell.args(["--mount", "sh", "-c", SCRIPT]).current_dir(mounted.bench.scratch.path());
    let said = String::from_utf8(run(&mut shell).stdout).expect("text");
    assert!(said.contains("\none\n"), "{said}");
    // By itself, with the options of `mount`; it does nothing if it is asked to.
    let log = format!("log={}", crate::common::text(&mounted.bench.path("helper.log")));
    wait_until("the disks are free", || {
        let mut mount = command(crate::common::text(&helper));
        mount.args([
            "home",
            &crate::common::text(&mounted.at),
            "-n",
            "-o",
            &log,
            "-o",
            "rw,disk=.",
        ]);
        mount.current_dir(mounted.bench.scratch.path());
        mount.output().expect("started").status.success()
    });
    assert_eq!(fs::read_to_string(mounted.at.join("file")).expect("read"), "one\n");
    unmount(&mounted.at);
    run(command(crate::common::text(&helper)).args(["home", "/nowhere", "-f"]));
    wait_until("the server ends", || mounted.try_mount_again());
    mounted.ends_sound();
}
