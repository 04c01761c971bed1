//! Small durable overwrites of a RAID-5 file on a node of a cluster: with its log on the disks, and
//! with early commits in the keeper's memory. Disks are models, the network has a round trip of a
//! fixed time, and what processors do takes none: all of it is in virtual time, and the same on
//! each machine.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rates for people, and sizes of a benchmark"
)]

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use weft_disk::{Disk, IoFuture};
use weft_fs::{
    AccessTimes, BLOCK_BYTES, Connector, CreateOptions, Fs, Ino, KeeperServer, Kind,
    META_CACHE_BYTES, MountOptions, NewFile, ROOT, Redundancy, RemoteMetadata, Stream, Time,
    create, memory_stream,
};
use weft_model::{Contents, Model, ModelDisk, ModelOptions};
use weft_random::Rng;
use weft_rt::{Frozen, MICROSECOND, Nanos, Rt, SECOND, Schedule, virtual_rt};
use weft_token::NodeId;

const MODELS: [&str; 4] = ["exos-x20", "wd10eals", "850pro-256g", "990pro-2t"];
const ROUND_TRIPS: [Nanos; 2] = [100 * MICROSECOND, 1000 * MICROSECOND];
const DISKS: usize = 4;
const DISK_BYTES: u64 = 2 << 30;
const FILE_BLOCKS: u64 = 16 << 10;
const WRITES: u64 = 5000;
const ID: [u8; 16] = [7; 16];
const NOW: Time = Time { s: 1_700_000_000, ns: 0 };

/// One end of a connection, to which what was sent comes later.
struct Distant {
    rt: Rt,
    stream: Rc<dyn Stream>,
    delay: Nanos,
}

impl Stream for Distant {
    fn read(&self) -> IoFuture<'_, io::Result<Vec<u8>>> {
        Box::pin(async {
            let read = self.stream.read().await;
            self.rt.sleep(self.delay).await;
            read
        })
    }

    fn write(&self, bytes: Vec<u8>) -> IoFuture<'_, io::Result<()>> {
        self.stream.write(bytes)
    }

    fn close(&self) {
        self.stream.close();
    }
}

/// The way to the keeper.
struct Way {
    rt: Rt,
    server: KeeperServer,
    delay: Nanos,
}

impl Connector for Way {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let distant = |stream| -> Rc<dyn Stream> {
                Rc::new(Distant { rt: self.rt.clone(), stream, delay: self.delay })
            };
            let (near, far) = memory_stream();
            let (server, far) = (self.server.clone(), distant(far));
            drop(self.rt.spawn(async move { server.serve(far).await }));
            Ok(distant(near))
        })
    }
}

fn mounting() -> MountOptions {
    MountOptions {
        degraded: false,
        stale: false,
        read_only: false,
        access_times: AccessTimes::None,
        cache_bytes: 256 << 20,
        meta_cache_bytes: META_CACHE_BYTES,
        nonce: 1,
        now: NOW,
        host: None,
        clock: None,
    }
}

fn disk(rt: &Rt, model: &'static Model, number: usize) -> Rc<dyn Disk> {
    let options = ModelOptions {
        name: Some(format!("d{number}")),
        size_bytes: Some(DISK_BYTES),
        contents: Contents::Kept,
        seed: number as u64,
        ..ModelOptions::default()
    };
    ModelDisk::open(rt, model, options)
}

/// A file system on new disks, mounted by its keeper and by a node, and a file of it.
async fn node(rt: &Rt, model: &'static Model, delay: Nanos) -> (Fs, Fs, Ino) {
    let disks: Vec<Rc<dyn Disk>> = (0..DISKS).map(|number| disk(rt, model, number)).collect();
    let options = CreateOptions {
        name: "home".into(),
        redundancy: Redundancy::Auto,
        slice_bytes: None,
        force: false,
        id: ID,
        now: NOW,
    };
    create(rt, &disks, &options).await.expect("created");
    let server: Rc<Cell<Option<KeeperServer>>> = Rc::default();
    let (clock, opened) = (rt.clone(), server.clone());
    let keeper = move |array| {
        let (rt, opened) = (clock.clone(), opened.clone());
        async move {
            let server = KeeperServer::open(&rt, array, ID, META_CACHE_BYTES).await?;
            opened.set(Some(server.clone()));
            let node = NodeId { number: 0, epoch: 1 };
            Ok(RemoteMetadata { node, way: Rc::new(Way { rt, server, delay: 0 }) })
        }
    };
    let fs_0 = Fs::mount_with_keeper(rt, &disks, mounting(), keeper).await.expect("mounted");
    let server = server.take().expect("the keeper runs");
    fs_0.serve_nodes(&server, &[]);
    let way = Rc::new(Way { rt: rt.clone(), server, delay });
    let metadata = RemoteMetadata { node: NodeId { number: 1, epoch: 2 }, way };
    let fs = Fs::mount_node(rt, &disks, mounting(), metadata).await.expect("mounted");
    let mode = Kind::File.mode() | 0o644;
    let new = NewFile { mode, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    let (ino, _) = fs.make(ROOT, b"file", new).await.expect("made");
    for block in (0..FILE_BLOCKS).step_by(256) {
        let bytes = Frozen::zeros(256 * BLOCK_BYTES as usize);
        fs.write(ino, block * BLOCK_BYTES, bytes).await.expect("written");
    }
    fs.sync().await.expect("synced");
    (fs_0, fs, ino)
}

/// Writes a second that were made durable one by one, until all of them are on the disks; the
/// median of what one takes, and the most, in microseconds.
fn rate(model: &'static Model, round_trip: Nanos, is_early: bool) -> (f64, Nanos, Nanos) {
    let rt = virtual_rt(Schedule::Fifo);
    let inner = rt.clone();
    let rate = rt.block_on(async move {
        let rt = inner;
        let (fs_0, fs, ino) = node(&rt, model, round_trip / 2).await;
        if is_early {
            fs.begin_early_commits().await.expect("it is no keeper");
        }
        rt.sleep(10 * SECOND).await;
        let (mut rng, begin, mut each) = (Rng::new(1), rt.now(), Vec::new());
        for n in 0..WRITES {
            let bytes = vec![n as u8; BLOCK_BYTES as usize];
            let at = rng.below(FILE_BLOCKS) * BLOCK_BYTES;
            let begin = rt.now();
            fs.write(ino, at, Frozen::copy_from(&bytes)).await.expect("written");
            fs.fsync(ino).await.expect("synced");
            each.push((rt.now() - begin) / MICROSECOND);
        }
        fs.sync().await.expect("synced");
        let taken = rt.now() - begin;
        let counts = fs.early_status().counts;
        assert_eq!(counts.commits + counts.refused > 0, is_early, "{counts:?}");
        fs.unmount().await.expect("unmounted");
        fs_0.unmount().await.expect("unmounted");
        each.sort_unstable();
        let most = each.last().copied().unwrap_or(0);
        (WRITES as f64 * SECOND as f64 / taken as f64, each[each.len() / 2], most)
    });
    rt.kill_all();
    rate
}

fn main() {
    println!(
        "4 KiB at random places of {} MiB of RAID-5 on {DISKS} disks, fsync after each, {WRITES} times, and a \
         sync of all at the end; virtual time. Of each: writes a second, median and most of one.\n",
        (FILE_BLOCKS * BLOCK_BYTES) >> 20
    );
    println!("| disks | round trip | log on the disks | early commit | ratio of rates |");
    println!("|---|---|---|---|---|");
    for name in MODELS {
        let model = Model::find(name).expect("it is modelled");
        for round_trip in ROUND_TRIPS {
            let [ring, early] = [false, true].map(|is_early| rate(model, round_trip, is_early));
            let trip_us = round_trip / MICROSECOND;
            let text = |(rate, median_us, most_us): (f64, Nanos, Nanos)| {
                format!("{rate:.0}/s, {median_us} µs, {} ms", most_us / 1000)
            };
            let (log, memory) = (text(ring), text(early));
            println!("| {name} | {trip_us} µs | {log} | {memory} | {:.1} |", early.0 / ring.0);
        }
    }
}
