//! A modelled disk served to real clients: the bytes are right, and its accounts agree with what
//! the clients did and saw.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{Bench, have_fio_over_nbd};
use serde_json::Value;
use weft_testkit::{Guest, Need, Process, command, have, pattern, run, wait_until};

struct Served {
    process: Process,
    out: PathBuf,
    socket: PathBuf,
}

impl Served {
    fn start(bench: &Bench, args: &[&str]) -> Self {
        let (out, socket) = (bench.path("lab.out"), bench.path("lab.sock"));
        let mut lab = bench.command(&["--json", "lab", "disk", "--socket", "lab.sock"]);
        lab.args(args).stdout(File::create(&out).expect("a file for output"));
        let mut process = Process::spawn(&mut lab);
        wait_until("the disk to be served", || {
            assert!(process.is_running(), "it ended");
            std::fs::read_to_string(&out).is_ok_and(|text| text.contains("serving"))
        });
        Self { process, out, socket }
    }

    fn uri(&self, disk: &str) -> String {
        format!("nbd+unix:///{disk}?socket={}", self.socket.display())
    }

    /// Ends it; what each disk did.
    fn end(self) -> Vec<Value> {
        assert!(self.process.terminate().success());
        let text = std::fs::read_to_string(&self.out).expect("output");
        let last = text.lines().last().expect("accounts at the end");
        let all: Value = serde_json::from_str(last).expect("JSON");
        all["disks"].as_array().expect("disks").clone()
    }
}

fn number(stats: &Value, what: &str) -> u64 {
    stats[what].as_u64().unwrap_or_else(|| panic!("{what} is a count in {stats}"))
}

#[test]
fn a_copy_to_it_comes_back_from_memory_and_from_a_file() {
    if !have(&[Need::Tool("nbdcopy")]) {
        return;
    }
    let bench = Bench::new("lab-copy");
    let bytes = pattern::bytes(5, 24 << 20);
    std::fs::write(bench.path("data"), &bytes).expect("written");
    File::create(bench.path("disk")).and_then(|f| f.set_len(24 << 20)).expect("a file");
    let disk = bench.path("disk").display().to_string();
    let ways: [&[&str]; 2] = [
        &["--model", "850pro-256g", "--size", "24M", "--count", "2"],
        &["--model", "exos-x20", "--file", &disk],
    ];
    for args in ways {
        let served = Served::start(&bench, args);
        let uri = served.uri("d0");
        run(command("nbdcopy").arg("--flush").arg(bench.path("data")).arg(&uri));
        run(command("nbdcopy").arg(&uri).arg(bench.path("back")));
        assert!(std::fs::read(bench.path("back")).expect("read") == bytes, "{args:?}");
        let disks = served.end();
        let first = &disks[0];
        assert!(number(first, "written_bytes") + number(first, "zeroed_bytes") >= 24 << 20);
        assert!(number(first, "flushes") > 0 && number(first, "busy_ns") > 0);
        if let Some(second) = disks.get(1) {
            assert_eq!(number(second, "reads") + number(second, "writes"), 0);
        }
    }
    assert!(std::fs::read(bench.path("disk")).expect("read") == bytes, "not in the file");
}

/// fio reads back what it wrote; the disk counts the requests that fio made; and fio was never
/// answered earlier than the model says. (How much later depends on the machine.)
#[test]
fn its_accounts_agree_with_what_a_client_saw() {
    if !have_fio_over_nbd() {
        return;
    }
    let bench = Bench::new("lab-fio");
    let served = Served::start(&bench, &["--model", "st3146807fc", "--size", "64M"]);
    let mut fio = command("fio");
    fio.args(["--name=v", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8"]);
    fio.args(["--size=64M", "--number_ios=400", "--verify=crc32c", "--verify_fatal=1"]);
    fio.args(["--randseed=3", "--output-format=json", &format!("--uri={}", served.uri("d0"))]);
    let output = run(fio.current_dir(bench.scratch.path()).stderr(Stdio::null()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = text.find('{').expect("JSON");
    let seen: Value = serde_json::from_str(&text[start..]).expect("fio prints JSON");
    let disks = served.end();
    let (stats, job) = (&disks[0], &seen["jobs"][0]);
    for (kind, count, total) in [("read", "reads", "read_ns"), ("write", "writes", "write_ns")] {
        let requests = job[kind]["total_ios"].as_u64().expect("a count");
        assert!(requests > 0, "fio did not {kind}");
        assert_eq!(number(stats, count), requests, "{kind}: {stats}");
        let by_model = number(stats, total) as f64 / requests as f64;
        let by_fio = job[kind]["lat_ns"]["mean"].as_f64().expect("a mean");
        assert!(by_fio >= by_model, "{kind}: fio waited {by_fio} ns, the model says {by_model}");
    }
    let requests = number(stats, "reads") + number(stats, "writes") + number(stats, "flushes");
    let waited = ["read_ns", "write_ns", "flush_ns"].map(|what| number(stats, what));
    let depth = stats["mean_depth"].as_f64().expect("a mean");
    let expected = waited.iter().sum::<u64>() as f64 / number(stats, "elapsed_ns") as f64;
    assert!(requests > 0 && (depth - expected).abs() < 1e-6, "{depth} {expected}");
}

#[test]
fn what_cannot_be_served_is_refused_with_a_way_out() {
    let bench = Bench::new("lab-bad");
    let unknown = bench.refused(&["lab", "disk", "--model", "st506", "--socket", "s"], 2);
    assert!(unknown.contains("wd10eals") && unknown.contains("--list"), "{unknown}");
    let nowhere = bench.refused(&["lab", "disk", "--model", "wd10eals"], 2);
    assert!(nowhere.contains("--socket"), "{nowhere}");
    let remote = ["lab", "disk", "--model", "wd10eals", "--listen", "0.0.0.0:0"];
    assert!(bench.refused(&remote, 2).contains("--allow-remote"));
    let files =
        ["lab", "disk", "--model", "wd10eals", "--socket", "s", "--count", "2", "--file", "a"];
    assert!(bench.refused(&files, 2).contains("1 files for 2 disks"));
    let missing = ["lab", "disk", "--model", "wd10eals", "--socket", "s", "--file", "nothing"];
    assert!(bench.refused(&missing, 1).contains("nothing"));
    let tiny = ["lab", "disk", "--model", "exos-x20", "--socket", "s", "--size", "512"];
    assert!(bench.refused(&tiny, 2).contains("4096"));
    bench.refused(&["lab", "disk"], 2);
    let text = bench.weft(&["lab", "disk", "--list"]);
    for name in ["st3300831as", "850pro-256g", "exos-x20", "data sheet"] {
        assert!(text.contains(name), "{text}");
    }
    let json: Value =
        serde_json::from_str(&bench.weft(&["lab", "disk", "--list", "--json"])).expect("JSON");
    assert_eq!(json["models"].as_array().map(Vec::len), Some(7));
}

/// Linux's own RAID-5 runs on modelled disks; what it says that it wrote is what the disks counted.
#[test]
fn real_linux_md_runs_on_modelled_disks() {
    if !have(&[Need::Root, Need::Fuse, Need::Tool("fio")]) {
        return;
    }
    let bench = Bench::new("lab-md");
    let Some(guest) = Guest::find(bench.scratch.path()) else {
        return;
    };
    let mnt = bench.path("mnt").display().to_string();
    let args = ["--model", "st3146807fc", "--size", "64M", "--count", "3", "--mount", &mnt];
    let served = Served::start(&bench, &args);
    std::fs::write(bench.path("data"), pattern::bytes(9, 3 << 20)).expect("written");
    let disks = (0..3).map(|n| bench.path(&format!("mnt/d{n}/disk")).display().to_string());
    let guest = disks.fold(guest, |guest, disk| guest.disk(&disk));
    let said = guest.run(
        "mdadm --create /dev/md0 --run --level=5 -n3 --assume-clean -c 64 /dev/vd[a-c]
         dd if=data of=/dev/md0 bs=64k oflag=direct
         dd if=/dev/md0 of=back bs=64k count=48 iflag=direct
         mdadm --stop /dev/md0
         cat /proc/diskstats",
    );
    let said = said.success();
    let same = std::fs::read(bench.path("back")).expect("read")
        == std::fs::read(bench.path("data")).expect("read");
    assert!(same, "MD read what it had not written");
    let disks = served.end();
    for (stats, name) in disks.iter().zip(["vda", "vdb", "vdc"]) {
        let line = said.lines().find(|line| line.split_whitespace().nth(2) == Some(name));
        let fields: Vec<&str> = line.expect("counted by the kernel").split_whitespace().collect();
        let kernel = |field: usize| fields[field].parse::<u64>().expect("a count");
        // Its driver hands on a request page by page, and flushes not at all: what agrees is bytes.
        assert_eq!(number(stats, "written_bytes"), kernel(9) * 512, "{name}: {line:?} {stats}");
        // Before it boots, the program that is the kernel reads each file's head.
        assert!(number(stats, "read_bytes") >= kernel(5) * 512, "{name}: {line:?} {stats}");
    }
}
