//! Arrays on files, compared with an io_uring that does the same to the same files.
//!
//! All files are in the temporary folder (`TMPDIR`), hence usually on one real disk, which all
//! contestants share alike. They are written before anything is measured.

mod bare_ring;

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use weft_array::{Array, Consistency};
use weft_bench::{Contestant, Load, MIB, Race, Row, Table, fill, make, rebuilt, run};
use weft_code::SlotNo;
use weft_disk::{Disk, FileDisk, FileOptions, QueueConfig, QueuedDisk};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, Rng, Rt};
use weft_testkit::Scratch;

const TURN: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;
const SLOTS: usize = 6;
const UNIT: u64 = 64 << 10;
/// Offset of the contestants' area on a member, behind the array's own metadata.
const DATA: u64 = 32 * MIB;

struct Setup {
    rt: Rt,
    ring: Ring,
    scratch: Scratch,
}

impl Setup {
    fn open(&self, path: &std::path::Path) -> Rc<dyn Disk> {
        let disk = FileDisk::open(&self.ring, path, &FileOptions::default()).expect("opens");
        Rc::new(QueuedDisk::new(Rc::new(disk), QueueConfig::default()))
    }

    /// A raid6 of 4+2 on new files, completely written.
    fn array(&self, name: &str, policy: Consistency, member_mib: u64) -> (Array, Vec<PathBuf>) {
        let paths = self.scratch.files(name, SLOTS, member_mib * MIB);
        let disks = paths.iter().map(|path| self.open(path)).collect();
        let rt = self.rt.clone();
        let array = self.rt.block_on(async move {
            let array = make(&rt, "raid6", policy, disks).await;
            fill(&array).await;
            array
        });
        (array, paths)
    }

    fn stop(&self, array: Array) {
        self.rt.block_on(async move { array.stop().await.expect("stopped") });
    }

    /// 4 KiB random requests per second. Writes end with a flush, which counts: otherwise the next
    /// contestant's first flush would write what this one left.
    fn small(&self, array: &Array, depth: usize, write: bool) -> f64 {
        let (array, flushed) = (array.clone(), array.clone());
        let blocks = array.size_bytes() >> 12;
        let data = Frozen::copy_from(&[0x5a; 4096]);
        let mut outcome = run(&self.rt, Load { depth, turn: TURN, seed: 99 }, move |random| {
            let (array, data, offset) = (array.clone(), data.clone(), (random % blocks) << 12);
            async move {
                if write {
                    array.write(offset, data, false).await.expect("written");
                } else {
                    array.read(offset, Buf::new(4096)).await.0.expect("read");
                }
            }
        });
        if write {
            let start = Instant::now();
            self.rt.block_on(async move { flushed.flush().await.expect("flushed") });
            outcome.elapsed += start.elapsed();
        }
        outcome.per_second()
    }

    /// Bytes per second that a write of the whole array puts on all members together, flush
    /// included.
    fn sequential(&self, array: &Array) -> f64 {
        const AT_ONCE: u64 = 16;
        let chunk = array.stripe_bytes() * 4;
        let next = Rc::new(Cell::new(0));
        let data = Frozen::copy_from(&vec![0x5a; usize::try_from(chunk).expect("fits memory")]);
        let start = Instant::now();
        let (array, rt) = (array.clone(), self.rt.clone());
        let chunks = array.size_bytes() / chunk;
        self.rt.block_on(async move {
            let workers = (0..AT_ONCE).map(|_| {
                let (array, next, data) = (array.clone(), next.clone(), data.clone());
                rt.spawn(async move {
                    while next.get() < chunks {
                        let at = next.replace(next.get() + 1);
                        array.write(at * chunk, data.clone(), false).await.expect("written");
                    }
                })
            });
            join_all(workers.collect::<Vec<_>>()).await;
            array.flush().await.expect("flushed");
        });
        let width = SLOTS as u64;
        float(chunks * chunk / (width - 2) * width) / start.elapsed().as_secs_f64()
    }
}

/// Random 4 KiB reads per second straight from the members.
fn bare_reads(files: &[File], member_bytes: u64, depth: usize) -> f64 {
    let start = Instant::now();
    let mut rng = Rng::new(1);
    let blocks = (member_bytes - DATA) >> 12;
    let (done, elapsed) = bare_ring::drive(files, 4096, depth, || {
        let file = rng.index(files.len());
        (start.elapsed() < TURN).then(|| (file, DATA + rng.below(blocks) * 4096, false))
    });
    float(done) / elapsed.as_secs_f64()
}

/// Bytes per second of sequential requests of `len` bytes to all files at once; `writes[i]` tells
/// what is done to file i. Writes are made durable at the end.
fn bare_streams(files: &[File], writes: &[bool], member_bytes: u64, len: u64, depth: usize) -> f64 {
    let start = Instant::now();
    let (mut next, count) = (0, files.len() as u64);
    let each = (member_bytes - DATA) / len;
    let (done, _) = bare_ring::drive(files, usize::try_from(len).expect("fits"), depth, || {
        let (row, file) = (next / count, usize::try_from(next % count).expect("a file"));
        next += 1;
        (row < each).then(|| (file, DATA + row * len, writes[file]))
    });
    for (file, _) in files.iter().zip(writes).filter(|(_, write)| **write) {
        file.sync_data().expect("durable");
    }
    float(done * len) / start.elapsed().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a short run")]
fn float(n: u64) -> f64 {
    n as f64
}

fn reads(table: &Table, setup: &Setup) {
    let member_mib = 192;
    let (array, paths) = setup.array("r", Consistency::Ppl, member_mib);
    let files = bare_ring::open(&paths);
    for depth in [1, 16, 64] {
        let mut contestants: [Contestant<'_>; 2] = [
            Box::new(|| setup.small(&array, depth, false)),
            Box::new(|| bare_reads(&files, member_mib * MIB, depth)),
        ];
        let race = Race::run(ROUNDS, &mut contestants);
        table.row(&Row {
            what: format!("raid6 4+2, 4 KiB random reads, depth {depth}"),
            weft: format!("{:.1} k/s", race.rate(0) / 1e3),
            peer: format!("bare io_uring {:.1} k/s", race.rate(1) / 1e3),
            ratio: Some(race.ratio(0, 1)),
            target: Some(0.95),
        });
    }
    setup.stop(array);
}

/// Full stripes in order, and the rebuild of a member, compared with the same traffic without an
/// array.
fn streams(table: &Table, setup: &Setup) {
    let member_mib = 256;
    let bytes = member_mib * MIB;
    let (array, _) = setup.array("s", Consistency::Ppl, member_mib);
    // Other files of the same kind: the members hold an array.
    let other = setup.scratch.files("o", SLOTS, bytes);
    let files = bare_ring::open(&other);
    let writes = [true; SLOTS];
    bare_streams(&files, &writes, bytes, UNIT, 64);
    let mut contestants: [Contestant<'_>; 3] = [
        Box::new(|| setup.sequential(&array)),
        Box::new(|| bare_streams(&files, &writes, bytes, UNIT, 384)),
        Box::new(|| bare_streams(&files, &writes, bytes, MIB, 24)),
    ];
    let race = Race::run(3, &mut contestants);
    for (peer, len) in [(1, "64 KiB"), (2, "1 MiB")] {
        table.row(&Row {
            what: "raid6 4+2, full stripes, bytes on members".into(),
            weft: format!("{:.0} MB/s", race.rate(0) / 1e6),
            peer: format!("bare io_uring, {len}: {:.0} MB/s", race.rate(peer) / 1e6),
            ratio: Some(race.ratio(0, peer)),
            target: Some(0.9),
        });
    }
    drop(contestants);
    rebuild(table, setup, &array, &files, bytes);
    setup.stop(array);
}

fn rebuild(table: &Table, setup: &Setup, array: &Array, files: &[File], bytes: u64) {
    let mut round = 0;
    let mut ours = || {
        // Each round loses another member, to a file that has been written before.
        round += 1;
        let path = setup.scratch.join(format!("n{round}"));
        std::fs::write(&path, vec![1; usize::try_from(bytes).expect("fits")]).expect("written");
        File::open(&path).and_then(|file| file.sync_all()).expect("durable");
        let (rt, array, disk) = (setup.rt.clone(), array.clone(), setup.open(&path));
        let elapsed = setup.rt.block_on(async move {
            // A working member would only be copied.
            array.fail(SlotNo(round % SLOTS)).await.expect("failed");
            let start = Instant::now();
            array.add_spare(disk).await.expect("added");
            rebuilt(&rt, &array).await;
            start.elapsed()
        });
        float(bytes - DATA) / elapsed.as_secs_f64()
    };
    // What a rebuild must move: four members read, one written.
    let streams = [false, false, false, false, true];
    let mut contestants: [Contestant<'_>; 2] = [
        Box::new(&mut ours),
        Box::new(|| bare_streams(&files[..5], &streams, bytes, UNIT, 64) / 5.0),
    ];
    let race = Race::run(3, &mut contestants);
    table.row(&Row {
        what: "raid6 4+2, rebuild, bytes on the new member".into(),
        weft: format!("{:.0} MB/s", race.rate(0) / 1e6),
        peer: format!("same traffic by bare io_uring {:.0} MB/s", race.rate(1) / 1e6),
        ratio: Some(race.ratio(0, 1)),
        target: Some(0.95),
    });
}

fn policies(table: &Table, setup: &Setup) {
    let all = [Consistency::None, Consistency::Bitmap, Consistency::Ppl];
    let arrays = all.map(|policy| setup.array(&policy.to_string(), policy, 96).0);
    let measure = |of: &dyn Fn(&Array) -> f64| {
        let contestant = |array| Box::new(move || of(array)) as Contestant<'_>;
        Race::run(ROUNDS, &mut arrays.iter().map(contestant).collect::<Vec<_>>())
    };
    let row = |race: &Race, index: usize, what: &str, unit: &str, scale: f64| {
        table.row(&Row {
            what: format!("raid6 4+2, {what}, {}", all[index]),
            weft: format!("{:.1} {unit}", race.rate(index) / scale),
            peer: format!("none {:.1} {unit}", race.rate(0) / scale),
            ratio: Some(race.ratio(index, 0)),
            target: None,
        });
    };
    let small = measure(&|array| setup.small(array, 32, true));
    (0..3).for_each(|n| row(&small, n, "4 KiB random writes, depth 32", "k/s", 1e3));
    let long = measure(&|array| setup.sequential(array));
    (0..3).for_each(|n| row(&long, n, "full stripes, on members", "MB/s", 1e6));
    arrays.into_iter().for_each(|array| setup.stop(array));
}

fn main() {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    let setup = Setup { rt, ring, scratch: Scratch::new("bench-files") };
    let table = Table::new(
        "Arrays on files",
        format!(
            "Files in {}, O_DIRECT. Writes include the flush at the end.",
            setup.scratch.path().display()
        ),
    );
    reads(&table, &setup);
    streams(&table, &setup);
    policies(&Table::new("What consistency costs", "By the rate of policy `none`."), &setup);
}
