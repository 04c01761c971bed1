//! Suites that others have written find nothing wrong with a mounted weftfs, and neither does fsck
//! after them: pjdfstest (POSIX, call by call), fsx (random operations on a file), stress-ng (many
//! programs at once), fio (contents, while disks are lost and the daemon is killed), git and cargo
//! (a project).
//!
//! `WEFT_SUITES=N` makes those with a length N times as long.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::weftfs::{Mounted, NEEDS};
use crate::common::{quiet, text};
use weft_testkit::{Need, Process, Rng, command, have, run, skip, wait_until};

/// How many times as long as usual.
fn times() -> u64 {
    let times = std::env::var("WEFT_SUITES").ok().and_then(|times| times.parse().ok());
    times.unwrap_or(1)
}

/// Runs a suite to its end, but no longer than half an hour more than usual; returns what it
/// printed.
#[track_caller]
fn suite(command: &mut Command, out: &Path) -> String {
    let file = || File::options().append(true).create(true).open(out).expect("a file");
    let mut suite = Process::spawn(command.stdout(file()).stderr(file()));
    let status = suite.wait_for(Duration::from_secs(1800 * times()));
    let said = fs::read_to_string(out).unwrap_or_default();
    assert!(status.is_some_and(|status| status.success()), "{command:?}: {status:?}\n{said}");
    said
}

#[test]
fn pjdfstest_finds_every_call_as_posix_has_it() {
    if !have(&NEEDS) || !have(&[Need::Tool("pjdfstest")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-pjdfstest", 4, 256 << 20);
    let path = |name: &str| mounted.bench.path(name);
    fs::set_permissions(mounted.bench.scratch.path(), fs::Permissions::from_mode(0o755))
        .expect("set");
    // Another file system, for links that leave this one.
    fs::create_dir(path("other")).expect("made");
    let config = |remount: bool| {
        format!(
            "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\n\
             utime_now = {{}}\nstat_st_birthtime = {{}}\nsecondary_fs = \"{}\"\n\
             [settings]\nnaptime = 0.02\nallow_remount = {remount}\n\
             [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
            path("other").display()
        )
    };
    let pjdfstest = |remount, only: &[&str]| {
        fs::write(path("pjdfstest.toml"), config(remount)).expect("written");
        // On a short path, which no one else sees: names of sockets are short.
        let script = "mount --bind \"$1\" /mnt && shift && exec pjdfstest -p /mnt \"$@\"";
        let mut pjdfstest = command("unshare");
        pjdfstest.args(["--mount", "sh", "-c", script, "sh"]).arg(&mounted.at);
        pjdfstest.arg("-c").arg(path("pjdfstest.toml")).args(only);
        // Without a helper for `fuse`, which knows no servers that were started otherwise.
        let tools = format!("{}:{}", path("bin").display(), std::env::var("PATH").expect("set"));
        pjdfstest.env("PATH", tools).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
        let said = suite(&mut pjdfstest, &path(&format!("pjdfstest-{remount}.out")));
        let skipped = said.lines().filter(|line| line.ends_with("skipped"));
        let skipped = skipped.filter_map(|line| line.split_whitespace().next());
        let skipped: Vec<String> = skipped.map(str::to_owned).collect();
        let passed = said.lines().filter(|line| line.ends_with(" ok")).count();
        (passed, skipped)
    };
    fs::create_dir(path("bin")).expect("made");
    let mount = path("bin/mount");
    fs::write(&mount, "#!/bin/sh\nexec /usr/bin/mount -i \"$@\"\n").expect("written");
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755)).expect("set");
    // The suite leaves files open for writing, which keeps a file system from becoming read-only:
    // what needs that runs by itself.
    let (passed, skipped) = pjdfstest(false, &[]);
    // Links of a file are limited by room only, and pathconf says no number.
    let read_only = |name: &&String| !name.contains("::erofs_");
    assert_eq!(skipped.iter().filter(read_only).collect::<Vec<_>>(), ["link::link_count_max"]);
    assert!(passed > 380, "only {passed} passed");
    let (passed, left_out) = pjdfstest(true, &["erofs"]);
    assert_eq!((passed, left_out.len()), (skipped.len() - 1, 0), "{left_out:?}");
    mounted.ends_sound();
}

#[test]
fn fsx_reads_what_it_wrote_whatever_the_redundancy() {
    if !have(&NEEDS) || !have(&[Need::Tool("fsx")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-fsx", 5, 128 << 20);
    let config = mounted.bench.path("fsx.toml");
    let weights = "close_open = 1\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\ninvalidate = 1\n\
        truncate = 3\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\npunch_hole = 3\nsendfile = 2\n\
        posix_fadvise = 2\ncopy_file_range = 5\n";
    fs::write(&config, format!("flen = 600000\n[opsize]\nmax = 80000\n[weights]\n{weights}"))
        .expect("written");
    std::thread::scope(|scope| {
        for (seed, redundancy) in ["auto", "raid0", "raid1", "raid5", "raid6"].iter().enumerate() {
            let file = mounted.folder(redundancy, redundancy).join("file");
            let mut fsx = command("fsx");
            let (seed, count) = (seed + 1, 1500 * times());
            fsx.arg("-f").arg(&config).args(["-S", &seed.to_string(), "-N", &count.to_string()]);
            fsx.arg("-P").arg(mounted.bench.scratch.path()).arg(file);
            let out = mounted.bench.path(&format!("fsx-{redundancy}.out"));
            scope.spawn(move || suite(&mut fsx, &out));
        }
    });
    mounted.ends_sound();
}

/// What has no place here: other file systems (`binderfs`, `bind-mount`, `procfs`), no file at all
/// (`eventfd`), all file systems of the machine (`io`: sync), and what FUSE has not (`fiemap`,
/// `verity`).
const LEFT_OUT: &str = "binderfs,bind-mount,procfs,eventfd,io,fiemap,verity";

#[test]
fn stress_ng_finds_no_fault_with_many_programs_at_once() {
    if !have(&NEEDS) || !have(&[Need::Tool("stress-ng")]) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-stress", 4, 1 << 30);
    let mut stress = command("stress-ng");
    stress.args(["--class", "filesystem", "--exclude", LEFT_OUT, "--all", "1", "--verify"]);
    stress.args(["--timeout", &(4 * times()).to_string(), "--temp-path"]).arg(&mounted.at);
    for what in ["hdd", "iomix", "fallocate", "sync-file"] {
        stress.args([&format!("--{what}-bytes"), "16M"]);
    }
    suite(&mut stress, &mounted.bench.path("stress.out"));
    assert_eq!(fs::read_dir(&mounted.at).expect("a folder").count(), 0);
    mounted.ends_sound();
}

fn fio(folder: &Path, name: &str, more: &[&str]) -> Command {
    let mut fio = command("fio");
    fio.args([&format!("--name={name}"), "--rw=randwrite", "--bsrange=1k-64k", "--size=12M"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--ioengine=psync", "--randseed=7"]);
    // Its notes lie beside the mount.
    fio.arg(format!("--directory={}", folder.display())).args(["--fsync=16", "--fallocate=none"]);
    fio.args(more);
    fio
}

#[test]
fn fio_verifies_every_block_while_a_disk_is_lost_and_rebuilt() {
    if !have(&NEEDS) || !have(&[Need::Tool("fio")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-fio", 6, 128 << 20);
    let loops = format!("--loops={}", 2 * times());
    std::thread::scope(|scope| {
        let run: Vec<_> = ["raid1", "raid5", "raid6"]
            .map(|redundancy| {
                let folder = mounted.folder(redundancy, redundancy);
                let mut fio = fio(&folder, redundancy, &["--do_verify=1", &loops]);
                fio.current_dir(mounted.bench.scratch.path());
                let out = mounted.bench.path(&format!("fio-{redundancy}.out"));
                scope.spawn(move || suite(&mut fio, &out))
            })
            .into();
        for disk in [1, 4] {
            wait_until("blocks on the disk", || {
                let status = mounted.status();
                let mut disks = status["disks"].as_array().expect("disks").iter();
                let at = disks.find(|at| at["number"] == disk).expect("it is there");
                let bytes = |what: &str| at[what].as_u64().expect("a number");
                bytes("data_bytes") - bytes("free_bytes") > 1 << 20
            });
            mounted.bench.weft(&["fs", "fail", "mnt", &disk.to_string()]);
            std::thread::sleep(Duration::from_millis(200));
            let report = mounted.bench.weft(&["fs", "rebuild", "mnt", "--json"]);
            let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
            assert_eq!(report["removed_disks"], serde_json::json!([disk]), "{report}");
            assert!(report["blocks"].as_u64() > Some(0), "{report}");
        }
        run.into_iter().for_each(|run| drop(run.join().expect("a suite")));
    });
    mounted.disks.retain(|disk| !disk.ends_with(['1', '4']));
    mounted.ends_sound();
}

/// Writes numbered versions of blocks to a file, and syncs each, until the file system is gone.
/// Returns which version of each block was synced last, and which was being written.
fn write_until_gone(path: &Path, seed: u64, stop: &AtomicBool) -> Vec<(u32, u32)> {
    let file = File::options().read(true).write(true).open(path).expect("there");
    let blocks = file.metadata().expect("there").len() / 4096;
    let mut versions = vec![(0, 0); usize::try_from(blocks).expect("few")];
    let mut rng = Rng::new(seed);
    for version in 1_u32.. {
        let n = rng.index(versions.len());
        versions[n].1 = version;
        let contents = version.to_le_bytes().repeat(1024);
        let written = file.write_all_at(&contents, 4096 * n as u64);
        if written.and_then(|()| file.sync_data()).is_err() || stop.load(Ordering::Relaxed) {
            return versions;
        }
        versions[n].0 = version;
    }
    versions
}

#[test]
fn what_was_synced_survives_every_kill_and_fio_finds_its_blocks() {
    if !have(&NEEDS) || !have(&[Need::Tool("fio")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-killed", 5, 128 << 20);
    let folders = ["raid1", "raid5", "raid6"].map(|name| mounted.folder(name, name));
    let scratch = mounted.bench.scratch.path().to_owned();
    for round in 0..2 + 2 * (times() - 1) {
        let ours = |folder: &Path| folder.join("ours");
        for folder in &folders {
            let file = File::create(ours(folder)).expect("made");
            file.write_all_at(&vec![0; 256 * 4096], 0).expect("written");
            file.sync_all().expect("synced");
            let round = format!("--randseed={}", 10 + round);
            let mut fio = fio(folder, "all", &["--do_verify=0", "--end_fsync=1", &round]);
            run(fio.current_dir(&scratch));
        }
        let stop = AtomicBool::new(false);
        let versions = std::thread::scope(|scope| {
            let write = |folder: &std::path::PathBuf| {
                let (path, stop) = (ours(folder), &stop);
                scope.spawn(move || write_until_gone(&path, round, stop))
            };
            let writers = folders.each_ref().map(write);
            let mut more = quiet("fio");
            more.args(["--name=more", "--rw=randwrite", "--bsrange=1k-256k", "--size=8M"]);
            // In a thread: a process of its own would leave the group, and outlive what is dropped.
            more.args(["--thread", "--time_based", "--runtime=60", "--fallocate=none"]);
            more.arg("--directory");
            let more = Process::spawn(more.arg(&folders[1]).current_dir(&scratch));
            std::thread::sleep(Duration::from_millis(700 + 300 * (round % 4)));
            mounted.kill9();
            stop.store(true, Ordering::Relaxed);
            drop(more);
            writers.map(|writer| writer.join().expect("a writer"))
        });
        mounted.mount_again();
        for (folder, versions) in folders.iter().zip(versions) {
            let found = fs::read(ours(folder)).expect("read");
            assert!(versions.iter().any(|(synced, _)| *synced > 0), "nothing was synced");
            for (n, (synced, written)) in versions.into_iter().enumerate() {
                for word in found[4096 * n..][..4096].chunks_exact(4) {
                    let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
                    let fine = word == synced || word == written;
                    assert!(fine, "{folder:?}, block {n}: {word}, not {synced} or {written}");
                }
            }
            let round = format!("--randseed={}", 10 + round);
            run(fio(folder, "all", &["--verify_only", &round]).current_dir(&scratch));
        }
        mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    }
    mounted.ends_sound();
}

#[test]
fn git_keeps_a_project_there_and_cargo_builds_it() {
    if !have(&NEEDS) || !have(&[Need::Tool("git"), Need::Tool("cargo")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-git", 4, 1 << 30);
    let at = mounted.at.join("weft");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join(".git").exists() {
        return skip("weft's source is no repository here");
    }
    let git = |args: &[&str]| {
        let mut git = command("git");
        git.args([
            "-c",
            "safe.directory=*",
            "-c",
            "user.name=weft",
            "-c",
            "user.email=weft@localhost",
        ]);
        git.args(args);
        run(&mut git)
    };
    let (root, place) = (text(&root), text(&at));
    git(&["clone", "--quiet", "--no-local", &root, &place]);
    for round in 0..2 {
        git(&["-C", &place, "fsck", "--full", "--strict", "--no-progress"]);
        let status = git(&["-C", &place, "status", "--porcelain"]).stdout;
        assert!(status.is_empty(), "{}", String::from_utf8_lossy(&status));
        if round == 0 {
            mounted.unmount();
            mounted.mount_again();
        }
    }
    // A crate that needs few others.
    let mut cargo = command("cargo");
    cargo.args(["test", "--offline", "--locked", "-p", "weft-gf", "--test", "field"]);
    cargo.current_dir(&at);
    cargo.env("CARGO_TARGET_DIR", mounted.at.join("target")).env_remove("RUSTFLAGS");
    let said = suite(&mut cargo, &mounted.bench.path("cargo.out"));
    assert!(said.contains("test result: ok"), "{said}");
    git(&["-C", &place, "gc", "--quiet"]);
    git(&["-C", &place, "fsck", "--full", "--no-progress"]);
    mounted.ends_sound();
}
