//! An array on RAM disks served over NBD, compared with nbdkit's memory plugin: fio's nbd engine,
//! Unix sockets, in turns.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use weft_array::Consistency;
use weft_bench::{Contestant, Race, Row, Table, fill, make, ram_disks};
use weft_nbd::{Export, Server, ServerConfig};
use weft_rt::Buf;
use weft_rt::ring::{self, Fd, RingConfig};
use weft_testkit::{Need, Process, Scratch, command, have, run, wait_until};

const SIZE_MIB: u64 = 256;
const ROUNDS: usize = 5;

/// The load for both: fio's arguments, and the target ratio.
const SHAPES: [(&str, [&str; 3], Option<f64>); 4] = [
    ("4 KiB random reads, depth 32", ["--rw=randread", "--bs=4k", "--iodepth=32"], Some(0.9)),
    ("1 MiB reads, depth 8", ["--rw=read", "--bs=1m", "--iodepth=8"], Some(1.0)),
    ("4 KiB random writes, depth 32", ["--rw=randwrite", "--bs=4k", "--iodepth=32"], None),
    ("1 MiB writes, depth 8", ["--rw=write", "--bs=1m", "--iodepth=8"], None),
];

/// Serves a raid6 of 4+2 until `stop` is closed.
fn serve(socket: &Path, stop: UnixStream) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let server = Server::new(&rt, &ring, ServerConfig::default());
    let (rt2, socket) = (rt.clone(), socket.to_owned());
    rt.block_on(async move {
        let disks = ram_disks(6, SIZE_MIB / 4 + 48);
        let array = make(&rt2, "raid6", Consistency::Ppl, disks).await;
        fill(&array).await;
        let export = Export::new(Rc::new(array.clone()), "");
        server.add_export("array", export).expect("a good export");
        server.listen_unix(&socket, None).expect("listens");
        let stop = Fd::from(OwnedFd::from(stop));
        let _ = ring.recv(&stop, Buf::new(1), 0).await;
        server.shutdown().await;
        array.stop().await.expect("stopped");
    });
}

/// Bytes per second that fio reaches.
fn fio(uri: &str, args: &[&str]) -> f64 {
    let output = run(command("fio")
        .args(["--name=bench", "--ioengine=nbd", "--time_based", "--output-format=terse"])
        .args([format!("--size={SIZE_MIB}m"), "--runtime=1".into(), format!("--uri={uri}")])
        .args(args)
        .current_dir(std::env::temp_dir()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields: Vec<&str> = text.lines().last().unwrap_or_default().split(';').collect();
    // Terse format 3: bandwidth in KiB/s of reads and of writes.
    let kib = |field: usize| fields[field].parse::<f64>().expect("a number of fio");
    (kib(6) + kib(47)) * 1024.0
}

fn main() {
    if !have(&[Need::Tool("fio"), Need::Tool("nbdkit")]) {
        return;
    }
    let scratch = Scratch::in_memory("bench-nbd");
    let socket = scratch.join("w");
    let (told, stop) = UnixStream::pair().expect("a socket pair");
    let thread = {
        let socket = socket.clone();
        std::thread::spawn(move || serve(&socket, told))
    };
    let kit = scratch.join("k");
    let mut start = command("nbdkit");
    start.args(["--foreground", "--unix"]).arg(&kit);
    let nbdkit = Process::spawn(start.arg("memory").arg(format!("size={SIZE_MIB}M")));
    wait_until("the servers' sockets", || socket.exists() && kit.exists());
    let ours = format!("nbd+unix:///array?socket={}", socket.display());
    let theirs = format!("nbd+unix:///?socket={}", kit.display());
    fio(&theirs, &["--rw=write", "--bs=1m", "--iodepth=8"]);
    let table = Table::new(
        "An array on RAM disks over NBD, compared with nbdkit's memory plugin",
        "raid6 of 4+2 with policy ppl against plain memory; fio's nbd engine, one connection.",
    );
    for (what, args, target) in SHAPES {
        let mut contestants: [Contestant<'_>; 2] =
            [Box::new(|| fio(&ours, &args)), Box::new(|| fio(&theirs, &args))];
        let race = Race::run(ROUNDS, &mut contestants);
        table.row(&Row {
            what: what.into(),
            weft: format!("{:.0} MB/s", race.rate(0) / 1e6),
            peer: format!("nbdkit {:.0} MB/s", race.rate(1) / 1e6),
            ratio: Some(race.ratio(0, 1)),
            target,
        });
    }
    drop((stop, nbdkit));
    thread.join().expect("the server ends well");
}
