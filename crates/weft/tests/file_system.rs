//! weftfs as a user meets it: created on files, mounted, used by programs, killed, mounted without
//! a disk, rebuilt.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::Bench;
use crate::common::weftfs::{Mounted, NEEDS};
use rustix::process::Signal;
use serde_json::Value;
use weft_testkit::{Need, Process, have, wait_until};

const FILES: [(&str, &str); 4] =
    [("auto", "auto"), ("mirror", "raid1"), ("five", "raid5"), ("six", "raid6")];

fn contents(len: usize, version: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096 * 7 + version).to_le_bytes()[0]).collect()
}

/// A number of each disk in a status.
fn of_disks(status: &Value, name: &str) -> Vec<u64> {
    let disks = status["disks"].as_array().expect("disks").iter();
    disks.filter_map(|disk| disk[name].as_u64()).collect()
}

fn write_synced(path: &Path, contents: &[u8]) {
    fs::write(path, contents).expect("written");
    fs::File::open(path).and_then(|file| file.sync_all()).expect("on the disks");
}

fn set(at: &Path, redundancy: &str, bench: &Bench) {
    bench.weft(&["fs", "set", redundancy, at.to_str().expect("text")]);
}

#[test]
fn files_of_many_redundancies_survive_a_kill_and_a_lost_disk() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::new("weftfs");
    for (n, size) in [40, 40, 48, 64, 40].into_iter().enumerate() {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), size << 20);
    }
    for n in 5..7 {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), 24 << 20);
    }
    mounted.bench.weft(&["fs", "create", "home", "d0", "d1", "d2", "d3", "d4"]);
    mounted.bench.refused(&["fs", "create", "home", "d0", "d1"], 1);
    mounted.mount(&["d0", "d1", "d2", "d3", "d4"]);
    let at = mounted.at.clone();
    for (name, redundancy) in FILES {
        fs::write(at.join(name), contents(10, 0)).expect("written");
        set(&at.join(name), redundancy, &mounted.bench);
        fs::write(at.join(name), contents(1_000_003, 1)).expect("written");
    }
    // What programs do with files.
    fs::create_dir(at.join("folder")).expect("made");
    for n in 0..300 {
        fs::write(at.join(format!("folder/f{n}")), contents(n * 37, n)).expect("written");
    }
    for n in (0..300).step_by(3) {
        fs::remove_file(at.join(format!("folder/f{n}"))).expect("removed");
    }
    assert_eq!(fs::read_dir(at.join("folder")).expect("a folder").count(), 200);
    symlink("folder/f1", at.join("link")).expect("linked");
    fs::hard_link(at.join("folder/f2"), at.join("hard")).expect("linked");
    fs::rename(at.join("folder/f4"), at.join("moved")).expect("renamed");
    assert_eq!(fs::read(at.join("link")).expect("read"), contents(37, 1));
    assert_eq!(fs::metadata(at.join("hard")).expect("there").nlink(), 2);
    let mut options = fs::File::options();
    let sparse = options.read(true).write(true).create_new(true).open(at.join("sparse"));
    let sparse = sparse.expect("made");
    sparse.write_all_at(b"end", 5_000_000_000).expect("written");
    assert!(sparse.metadata().expect("there").blocks() < 100);
    sparse.sync_all().expect("synced");
    // What is not synced may be missing after a kill.
    for name in FILES.iter().map(|(name, _)| *name).chain(["moved"]) {
        let file = fs::File::open(at.join(name)).expect("there");
        file.sync_all().expect("synced");
    }
    mounted.kill9();
    mounted.mount(&["d4", "d3", "d2", "d1", "d0"]);
    let mut end = [1; 4];
    let sparse = fs::File::open(at.join("sparse")).expect("there");
    assert_eq!(sparse.read_at(&mut end, 4_999_999_999).expect("read"), 4);
    assert_eq!(end, *b"\0end");
    assert_eq!(fs::read(at.join("moved")).expect("read"), contents(4 * 37, 4));
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == contents(1_000_003, 1), "{name}");
    }
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    drop(sparse);
    mounted.unmount();
    mounted.bench.refused(&["fs", "mount", "home", "mnt", "d0", "d1", "d3", "d4"], 1);
    mounted.bench.refused(&["fs", "mount", "other", "mnt", "d0", "d1", "d2", "d3", "d4"], 1);
    let refused = mounted.bench.refused(&["fs", "mount", "other", "mnt", "."], 1);
    assert!(refused.contains("no disk of a file system 'other'"), "{refused}");
    mounted.mount(&["--degraded", "d0", "d1", "d3", "d4"]);
    for (name, _) in FILES {
        let file = fs::File::options().write(true).open(at.join(name)).expect("there");
        file.write_all_at(&contents(5000, 2), 70_001).expect("written");
        file.sync_all().expect("synced");
    }
    let mut wanted = contents(1_000_003, 1);
    wanted[70_001..75_001].copy_from_slice(&contents(5000, 2));
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == wanted, "{name} without a disk");
    }
    let report = mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    assert!(report.contains("[2]"), "{report}");
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.unmount();
    // The disks are found in their folder. The one that was lost has its label, and is left alone.
    mounted.bench.weft(&["fs", "create", "others", "--force", "d5", "d6"]);
    mounted.mount(&["."]);
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == wanted, "{name} rebuilt");
    }
    for command in ["status", "df"] {
        assert!(mounted.bench.weft(&["fs", command, "mnt"]).contains("left for raid6"));
    }
    mounted.unmount();
}

#[test]
fn disks_come_and_go_while_files_are_used_and_a_scrub_repairs() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::new("weftfs-disks");
    for n in 0..5 {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), 40 << 20);
    }
    let small = mounted.bench.scratch.file("small", 12 << 20);
    mounted.bench.weft(&["fs", "create", "home", "d0", "d1", "d2", "d3"]);
    mounted.mount(&["d0", "d1", "d2", "d3"]);
    let at = mounted.at.clone();
    for (name, redundancy) in FILES {
        fs::write(at.join(name), contents(10, 0)).expect("written");
        set(&at.join(name), redundancy, &mounted.bench);
        fs::write(at.join(name), contents(1_000_003, 1)).expect("written");
    }
    let refused = mounted.bench.refused(&["fs", "remove", "mnt", "0"], 1);
    assert!(refused.contains("raid6, which needs more than the 3 disks"), "{refused}");
    let refused = mounted.bench.refused(&["fs", "add", "mnt", "d0"], 1);
    assert!(refused.contains("d0"), "{refused}");
    fs::write(&small, b"something").expect("written");
    fs::File::options().write(true).open(&small).expect("there").set_len(12 << 20).expect("cut");
    let refused = mounted.bench.refused(&["fs", "add", "mnt", "small"], 1);
    assert!(refused.contains("small holds"), "{refused}");
    mounted.bench.weft(&["fs", "add", "mnt", "d4"]);
    let report = mounted.bench.weft(&["fs", "remove", "mnt", "0", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["removed_disks"], serde_json::json!([0]), "{report}");
    for (name, _) in FILES {
        let file = fs::File::open(at.join(name)).expect("there");
        file.sync_all().expect("synced");
        assert!(fs::read(at.join(name)).expect("read") == contents(1_000_003, 1), "{name}");
    }
    mounted.bench.weft(&["fs", "scrub", "mnt"]);
    let status = mounted.status();
    let last_job = &status["last_job"]["job"];
    assert_eq!((of_disks(&status, "number"), last_job), (vec![1, 2, 3, 4], &"scrub".into()));
    mounted.unmount();
    // A rotten piece of a disk, behind its metadata.
    let rotten = fs::File::options().write(true).open(mounted.bench.path("d2")).expect("there");
    rotten.write_all_at(&vec![0x5a; 2 << 20], (8 << 20) + (64 << 10)).expect("written");
    mounted.mount(&["d4", "d3", "d2", "d1"]);
    let report = mounted.bench.refused(&["fs", "scrub", "mnt", "--json"], 3);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["bad_blocks"].as_u64() > Some(10), "{report}");
    assert_eq!(report["bad_blocks"], report["repaired_blocks"]);
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == contents(1_000_003, 1), "{name}");
    }
    mounted.unmount();
}

/// As systemd starts and stops it.
#[test]
fn a_service_says_when_it_is_mounted_and_unmounts_when_it_is_told_to_end() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-service", 2, 24 << 20);
    mounted.unmount();
    let socket = UnixDatagram::bind(mounted.bench.path("notify")).expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(600))).expect("set");
    let mut mount = mounted.bench.command(&["fs", "mount", "home", "mnt", "."]);
    mount.env("NOTIFY_SOCKET", mounted.bench.path("notify")).stdout(Stdio::null());
    let mut service = Process::spawn(&mut mount);
    let mut said = [0; 100];
    let len = socket.recv(&mut said).expect("it says something");
    assert_eq!(&said[..len], b"READY=1");
    write_synced(&mounted.at.join("file"), &contents(100_000, 1));
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    assert!(!mounted.at.join("file").exists(), "it is unmounted");
    mounted.mount(&["."]);
    assert!(fs::read(mounted.at.join("file")).expect("read") == contents(100_000, 1));
    mounted.unmount();
}

/// That they are is a test of `weft-fuse/src/awake.rs`: whether requests follow closely enough
/// depends on what else runs here.
#[test]
fn processors_that_were_kept_awake_may_sleep_afterwards() {
    const DEVICE: &str = "/dev/cpu_dma_latency";
    if !have(&[&NEEDS[..], &[Need::File(DEVICE)]].concat()) {
        return;
    }
    let tolerated_us = || fs::read(DEVICE).expect("readable");
    let before = tolerated_us();
    let mut mounted = Mounted::on_disks("weftfs-awake", 2, 24 << 20);
    mounted.unmount();
    mounted.mount(&["--awake", "."]);
    for n in 0..500 {
        fs::write(mounted.at.join(format!("file{n}")), contents(100, n)).expect("written");
    }
    wait_until("they may sleep", || tolerated_us() == before);
    for n in 0..500 {
        let path = mounted.at.join(format!("file{n}"));
        assert!(fs::read(path).expect("read") == contents(100, n));
    }
    mounted.unmount();
    assert_eq!(tolerated_us(), before);
}

/// A rebuild starts automatically, and what a kill has interrupted goes on.
#[test]
fn jobs_begin_by_themselves() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-jobs", 5, 120 << 20);
    let wanted = contents(60 << 20, 1);
    write_synced(&mounted.at.join("file"), &wanted);
    let free_bytes = |status: &Value| of_disks(status, "free_bytes").iter().sum::<u64>();
    mounted.bench.weft(&["fs", "fail", "mnt", "1"]);
    wait_until("it is rebuilt", || of_disks(&mounted.status(), "number") == [0, 2, 3, 4]);
    wait_until("the job has ended", || mounted.status()["last_job"]["job"] == "rebuild");
    // A follower that starts late learns how it ended.
    let report = mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    assert!(report.contains("[1]"), "{report}");
    let free = free_bytes(&mounted.status());
    mounted.bench.weft(&["fs", "set", "--background", "raid1", "mnt/file"]);
    mounted.kill9();
    mounted.mount(&["."]);
    wait_until("the file is laid out", || mounted.status()["last_job"]["job"] == "set");
    assert!(fs::read(mounted.at.join("file")).expect("read") == wanted);
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    // A copy instead of a third of it for parity.
    let more = (20 << 20) * 2;
    let taken = free - free_bytes(&mounted.status());
    assert!(taken.abs_diff(more) < 1 << 20, "{taken} of {more} bytes");
    mounted.unmount();
}

/// It goes on where it was, and its report counts all blocks once.
#[test]
fn a_scrub_goes_on_after_a_kill() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-scrub", 4, 300 << 20);
    set(&mounted.at, "raid1", &mounted.bench);
    for n in 0..6 {
        write_synced(&mounted.at.join(format!("file{n}")), &contents(50 << 20, n));
    }
    let has_ended = |status: &Value| status["last_job"]["job"] == "scrub";
    let mut scrub = mounted.bench.command(&["fs", "scrub", "mnt"]);
    let mut scrub = scrub.stderr(Stdio::null()).spawn().expect("start weft");
    wait_until("much is read", || {
        let status = mounted.status();
        assert!(!has_ended(&status), "{status}");
        status["job"]["done_blocks"].as_u64()
            > status["job"]["total_blocks"].as_u64().map(|n| n / 8)
    });
    mounted.kill9();
    assert!(!scrub.wait().expect("it ends").success());
    mounted.mount(&["."]);
    wait_until("the scrub has ended", || has_ended(&mounted.status()));
    // Each of the two copies.
    assert_eq!(mounted.status()["last_job"]["blocks"], 6 * 2 * (50 << 20) / 4096);
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.unmount();
}

/// Two disks are full. A third has room, which mirrors can use only when others have some.
#[test]
fn files_are_spread_over_a_disk_that_joins() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-balance", 2, 64 << 20);
    let _ = mounted.bench.scratch.file("d2", 64 << 20);
    set(&mounted.at, "raid1", &mounted.bench);
    let wanted = contents(4 << 20, 1);
    let mut count = 0;
    loop {
        let file = mounted.at.join(format!("file{count}"));
        if fs::write(&file, &wanted).and_then(|()| fs::File::open(&file)?.sync_all()).is_err() {
            let _ = fs::remove_file(&file);
            break;
        }
        count += 1;
    }
    assert!(count > 5, "{count} files");
    let said = mounted.bench.weft(&["fs", "add", "mnt", "d2"]);
    assert!(said.contains("`weft fs balance mnt` spreads the files"), "{said}");
    let said = mounted.bench.weft(&["fs", "balance", "mnt"]);
    assert!(said.contains("blocks moved to disks with more room"), "{said}");
    let free = of_disks(&mounted.status(), "free_bytes");
    let (most, least) = (free.iter().max().expect("disks"), free.iter().min().expect("disks"));
    assert!(most - least <= most / 16, "{free:?}");
    for n in 0..2 {
        write_synced(&mounted.at.join(format!("more{n}")), &wanted);
    }
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.kill9();
    mounted.mount(&["."]);
    for n in 0..count {
        let file = mounted.at.join(format!("file{n}"));
        assert!(fs::read(file).expect("read") == wanted, "file {n}");
    }
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.unmount();
}

/// What follows a job that is cancelled fails, and nothing needs attention.
#[test]
fn a_removal_is_cancelled() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-cancel", 5, 200 << 20);
    let refused = mounted.bench.refused(&["fs", "cancel", "mnt"], 1);
    assert!(refused.contains("no job is running"), "{refused}");
    let wanted = contents(400 << 20, 1);
    write_synced(&mounted.at.join("file"), &wanted);
    // It may come to its end before the command that cancels it has begun. Then the disk joins
    // again.
    let remove = loop {
        let of_it = |disk: &Value| disk["name"].as_str().is_some_and(|name| name.ends_with("/d1"));
        let disks = mounted.status()["disks"].clone();
        let disk = disks.as_array().expect("disks").iter().find(|disk| of_it(disk));
        let Some(disk) = disk else {
            mounted.bench.weft(&["fs", "add", "--force", "mnt", "d1"]);
            mounted.bench.weft(&["fs", "balance", "mnt"]);
            continue;
        };
        let mut remove =
            mounted.bench.command(&["fs", "remove", "mnt", &disk["number"].to_string()]);
        let mut remove = remove.stderr(Stdio::piped()).spawn().expect("start weft");
        wait_until("it has begun", || {
            let has_ended = remove.try_wait().expect("known").is_some();
            has_ended || mounted.status()["job"]["job"] == "remove"
        });
        let cancel = mounted.bench.command(&["fs", "cancel", "mnt", "--json"]).output();
        let said = cancel.expect("start weft").stdout;
        let remove = remove.wait_with_output().expect("it ends");
        if !remove.status.success() {
            let said: Value = serde_json::from_slice(&said).expect("JSON");
            assert_eq!(said["job"], "remove");
            break remove;
        }
    };
    let why = String::from_utf8_lossy(&remove.stderr);
    assert!(remove.status.code() == Some(1) && why.contains("it was cancelled"), "{why}");
    let status = mounted.bench.weft(&["fs", "status", "mnt", "--check", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["last_job"]["cancelled"], true);
    let leaving = status["disks"].as_array().expect("disks").iter();
    assert!(leaving.clone().count() == 5 && leaving.clone().all(|disk| disk["leaving"] == false));
    // Nothing goes on with it.
    mounted.kill9();
    mounted.mount(&["."]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let status = mounted.status();
    assert!(status["job"].is_null() && status["last_job"].is_null(), "{status}");
    assert!(fs::read(mounted.at.join("file")).expect("read") == wanted);
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.unmount();
}

/// What is described and not brought about: a job shows for as long as it runs.
const NOT_BROUGHT_ABOUT: [&str; 8] = [
    "Fs job: cancelled",
    "Fs job: error",
    "weft fs cancel: job",
    "weft fs status: job.disk",
    "weft fs status: job.done_blocks",
    "weft fs status: job.job",
    "weft fs status: job.lacking_blocks",
    "weft fs status: job.total_blocks",
];

#[test]
fn what_commands_for_file_systems_print_is_what_the_document_says() {
    if !have(&NEEDS) {
        return;
    }
    let schema = crate::schema::Schema::read(include_str!("../../../docs/json.md"));
    let mut mounted = Mounted::new("weftfs-json");
    for n in 0..5 {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), 24 << 20);
    }
    let told = |mounted: &Mounted, args: &[&str], code: i32, table: &str| {
        let output = mounted.bench.command(args).arg("--json").output().expect("start weft");
        let text = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(code), "weft {args:?} printed\n{text}");
        let answer = serde_json::from_str(text.lines().next().unwrap_or_default());
        let answer: serde_json::Value = answer.unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(answer["weft_json"], 1, "{text}");
        schema.check(table, &answer);
        assert_eq!(text.lines().count(), 1 + usize::from(answer["error"].is_null() && code == 1));
        answer
    };
    let create = ["fs", "create", "home", "d0", "d1", "d2"];
    told(&mounted, &create, 0, "weft fs create");
    mounted.mount(&["d0", "d1", "d2", "--json"]);
    let said = fs::read_to_string(mounted.bench.path("mount.out")).expect("what it said");
    schema.check("weft fs mount", &serde_json::from_str(&said).expect("JSON"));
    let status = told(&mounted, &["fs", "status", "mnt"], 0, "weft fs status");
    assert!(status["last_job"].is_null(), "{status}");
    let left = told(&mounted, &["fs", "df", "mnt"], 0, "weft fs df");
    assert_eq!(left["space"], status["space"]);
    told(&mounted, &["fs", "set", "raid1", "mnt"], 0, "weft fs set");
    write_synced(&mounted.at.join("file"), &contents(1_000_000, 1));
    let set = told(&mounted, &["fs", "set", "raid5", "mnt/file"], 0, "weft fs set");
    assert_eq!((&set["blocks"], &set["background"]), (&245.into(), &false.into()));
    told(&mounted, &["fs", "set", "--background", "raid1", "mnt/file"], 0, "weft fs set");
    wait_until("the file has its redundancy", || mounted.status()["job"].is_null());
    assert_eq!(mounted.status()["last_job"]["job"], "set");
    told(&mounted, &["fs", "status", "mnt", "--check"], 0, "weft fs status");
    told(&mounted, &["fs", "add", "mnt", "d3"], 0, "weft fs add");
    told(&mounted, &["fs", "balance", "mnt"], 0, "Fs job");
    told(&mounted, &["fs", "grow", "mnt"], 1, "Errors");
    let larger = fs::File::options().write(true).open(mounted.bench.path("d1")).expect("a disk");
    larger.set_len(32 << 20).expect("enlarged");
    let status = told(&mounted, &["fs", "status", "mnt"], 0, "weft fs status");
    assert_eq!(status["disks"][1]["unused_bytes"], 8 << 20, "{status}");
    let grown = told(&mounted, &["fs", "grow", "mnt"], 0, "weft fs grow");
    assert_eq!((&grown["disks"][0], &grown["gained_bytes"]), (&1.into(), &(8 << 20).into()));
    told(&mounted, &["fs", "grow", "mnt", "1"], 1, "Errors");
    told(&mounted, &["fs", "remove", "mnt", "0"], 0, "Fs job");
    // As long as a file needs it, the disk stays.
    let needy = mounted.folder("needy", "raid0").join("file");
    write_synced(&needy, &contents(1_000_000, 1));
    let loss = told(&mounted, &["fs", "fail", "mnt", "1", "--dry-run"], 3, "weft fs fail");
    assert_eq!(loss["files"], 1, "{loss}");
    mounted.bench.refused(&["fs", "fail", "mnt", "1"], 1);
    told(&mounted, &["fs", "fail", "mnt", "1", "--force"], 0, "weft fs fail");
    wait_until("a rebuild ended", || mounted.status()["last_job"]["job"] == "rebuild");
    let status = told(&mounted, &["fs", "status", "mnt", "--check"], 3, "weft fs status");
    let attention = status["attention"].as_array().expect("a list");
    let starts =
        |n: usize, with: &str| attention[n].as_str().is_some_and(|it| it.starts_with(with));
    assert!(starts(0, "disk 1 is lost") && starts(1, "1 files have blocks"), "{attention:?}");
    let files = mounted.status()["inodes"].clone();
    fs::remove_file(&needy).expect("removed");
    // The kernel lets go of it later.
    wait_until("the file is deleted", || mounted.status()["inodes"] != files);
    told(&mounted, &["fs", "rebuild", "mnt"], 0, "Fs job");
    told(&mounted, &["fs", "status", "mnt", "--check"], 0, "weft fs status");
    told(&mounted, &["fs", "remove", "mnt", "9"], 1, "Errors");
    // It was refused before it was a job: nothing needs attention.
    let status = told(&mounted, &["fs", "status", "mnt", "--check"], 0, "weft fs status");
    assert_eq!(status["last_job"]["job"], "rebuild", "{status}");
    told(&mounted, &["fs", "cancel", "mnt"], 1, "Errors");
    told(&mounted, &["fs", "scrub", "mnt"], 0, "Fs job");
    told(&mounted, &["fs", "fsck", "mnt", "--data"], 0, "weft fs fsck");
    mounted.unmount();
    // Both copies of a file's blocks are lost: fsck says so.
    for disk in ["d2", "d3"] {
        let disk = fs::File::options().write(true).open(mounted.bench.path(disk)).expect("there");
        disk.write_all_at(&vec![0x5a; 4 << 20], (8 << 20) + (64 << 10)).expect("written");
    }
    mounted.mount(&["d2", "d3"]);
    let found = told(&mounted, &["fs", "fsck", "mnt", "--data"], 3, "weft fs fsck");
    assert!(found["findings"].as_u64() > Some(0), "{found}");
    mounted.unmount();
    let tree = mounted.bench.path("tree");
    fs::create_dir(&tree).expect("a folder");
    fs::write(tree.join("a"), contents(100_000, 2)).expect("written");
    let dir = mounted.bench.path("demo");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let demo = ["demo", "fs", "--tree", &text(&tree), "--limit", "1M", "--dir", &text(&dir)];
    told(&mounted, &demo, 0, "weft demo fs");
    let unseen = schema.unseen();
    // What commands for clusters print, their own tests look at.
    let of_clusters = [
        "weft fs keeper:",
        "weft fs evict:",
        "weft fs status --cluster:",
        "weft fs status: nodes[].",
    ];
    let is_ours = |row: &&String| {
        let is_any = |of: &[&str]| of.iter().any(|of| row.starts_with(of));
        is_any(&["weft fs ", "weft demo fs:", "Fs job"]) && !is_any(&of_clusters)
    };
    let unseen: Vec<&str> = unseen.iter().filter(is_ours).map(String::as_str).collect();
    assert_eq!(unseen, NOT_BROUGHT_ABOUT, "described, and nothing prints it, or the reverse");
}

#[test]
fn space_is_reserved_and_files_are_copied_without_passing_through_programs() {
    use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::new("weftfs-copies");
    for n in 0..3 {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), 32 << 20);
    }
    mounted.bench.weft(&["fs", "create", "home", "d0", "d1", "d2"]);
    mounted.mount(&["d0", "d1", "d2"]);
    let open = |name: &str| {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).open(mounted.at.join(name)).expect("made")
    };
    let (from, to) = (open("from"), open("to"));
    let bytes = contents(3_000_000, 1);
    from.write_all_at(&bytes, 0).expect("written");
    let (mut at, mut to_at) = (1000, 5000);
    while at < bytes.len() as u64 {
        let copied = copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), bytes.len());
        assert!(copied.expect("copied") > 0);
    }
    let found = fs::read(mounted.at.join("to")).expect("read");
    assert!(found[..5000] == [0; 5000] && found[5000..] == bytes[1000..], "{}", found.len());
    let reserved = open("reserved");
    fallocate(&reserved, FallocateFlags::KEEP_SIZE, 0, 1 << 20).expect("reserved");
    assert_eq!(reserved.metadata().expect("there").blocks(), 2048, "before it is written");
    reserved.sync_all().expect("synced");
    let there = reserved.metadata().expect("there");
    assert_eq!((there.len(), there.blocks()), (0, 2048));
    fallocate(&reserved, FallocateFlags::empty(), 0, 100_000).expect("reserved");
    assert_eq!(fs::read(mounted.at.join("reserved")).expect("read"), vec![0; 100_000]);
    fallocate(&reserved, FallocateFlags::empty(), 0, 1 << 40).expect_err("there is no room");
    drop((from, to, reserved));
    mounted.unmount();
}
