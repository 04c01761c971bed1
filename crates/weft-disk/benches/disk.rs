//! 4 KiB random reads: the cost of our driver and disks compared with the bare ring and with
//! threads, and the cost of a request over memory.
//!
//! `cargo bench -p weft-disk --bench disk [-- FOLDER]`; FOLDER (default: the target's temporary
//! folder) should be on a real disk. All contestants run in turns in one process, several rounds,
//! after a first one that is thrown away; the median of the rounds is printed, and its ratio to the
//! bare ring.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_disk::{Class, Disk, FileDisk, FileOptions, IoMode, QueueConfig, QueuedDisk, RamDisk};
use weft_rt::ring::{self, Fd, Ring, RingConfig};
use weft_rt::{Buf, Rng, Rt};

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 512 << 20;
const ROUND: Duration = Duration::from_millis(700);
const ROUNDS: usize = 5;

/// The offset of one of `blocks`.
fn offset(rng: &mut Rng, blocks: u64) -> u64 {
    rng.below(blocks) * BLOCK as u64
}

struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn make_file(folder: &Path) -> Temp {
    use std::io::Write as _;
    let temp = Temp(folder.join(format!("weft-bench-{}", std::process::id())));
    let mut file = std::fs::File::create(&temp.0).expect("the file can be made");
    let chunk = vec![0x5a; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&chunk).expect("the file can be filled");
    }
    file.sync_all().expect("sync");
    temp
}

/// O_DIRECT; its value differs between architectures.
fn open_direct(path: &Path) -> std::fs::File {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).expect("opens")
}

/// Requests per second by the ring with nothing around it.
fn bare_ring(path: &Path, depth: usize) -> f64 {
    use io_uring::{IoUring, opcode, types};
    let file = open_direct(path);
    let mut ring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64).expect("a ring");
    let mut bufs: Vec<Buf> = (0..depth).map(|_| Buf::new(BLOCK)).collect();
    let mut rng = Rng::new(1);
    let mut next = |index: usize| {
        opcode::Read::new(types::Fd(file.as_raw_fd()), bufs[index].as_mut_ptr(), 4096)
            .offset(offset(&mut rng, FILE_BYTES / BLOCK as u64))
            .build()
            .user_data(index as u64)
    };
    for index in 0..depth {
        // SAFETY: the buffers outlive the ring's last completion, awaited below.
        unsafe { ring.submission().push(&next(index)) }.expect("room");
    }
    let (start, mut done, mut flying) = (Instant::now(), 0u64, depth);
    let mut batch = Vec::with_capacity(depth);
    while flying > 0 {
        ring.submit_and_wait(1).expect("submits");
        batch.extend(ring.completion().map(|entry: io_uring::cqueue::Entry| {
            assert_eq!(entry.result(), 4096);
            usize::try_from(entry.user_data()).expect("an index")
        }));
        let more = start.elapsed() < ROUND;
        for index in batch.drain(..) {
            done += 1;
            if more {
                // SAFETY: as above.
                unsafe { ring.submission().push(&next(index)) }.expect("room");
            } else {
                flying -= 1;
            }
        }
    }
    rate(done, start)
}

fn rate(done: u64, start: Instant) -> f64 {
    done as f64 / start.elapsed().as_secs_f64()
}

/// Requests per second by `depth` threads that call `pread`.
fn threads(path: &Path, depth: usize) -> f64 {
    let file = open_direct(path);
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..depth)
            .map(|worker| {
                let file = &file;
                scope.spawn(move || {
                    let (mut buf, mut rng) = (Buf::new(BLOCK), Rng::new(worker as u64 + 77));
                    let mut done = 0;
                    while start.elapsed() < ROUND {
                        let offset = offset(&mut rng, FILE_BYTES / BLOCK as u64);
                        file.read_exact_at(&mut buf, offset).expect("read");
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum()
    });
    rate(done, start)
}

/// Requests per second by `depth` tasks, each of which does `request` again and again.
fn tasks<F, R>(rt: &Rt, depth: usize, blocks: u64, request: R) -> f64
where
    F: AsyncFn(u64, Buf) -> Buf + Clone + 'static,
    R: Fn() -> F,
{
    let start = Instant::now();
    let workers: Vec<_> = (0..depth)
        .map(|worker| {
            let request = request();
            rt.spawn(async move {
                let (mut buf, mut rng) = (Buf::new(BLOCK), Rng::new(worker as u64 + 77));
                let mut done = 0u64;
                loop {
                    buf = request(offset(&mut rng, blocks), buf).await;
                    done += 1;
                    // Looking at the clock for every request would be a part of what is measured.
                    if done.is_multiple_of(64) && start.elapsed() >= ROUND {
                        return done;
                    }
                }
            })
        })
        .collect();
    let done = rt.block_on(async move {
        let mut sum = 0;
        for worker in workers {
            sum += worker.await;
        }
        sum
    });
    rate(done, start)
}

fn by_disk(rt: &Rt, disk: &Rc<dyn Disk>, depth: usize) -> f64 {
    let blocks = disk.info().size_bytes / BLOCK as u64;
    tasks(rt, depth, blocks, || {
        let disk = disk.clone();
        async move |offset, buf| {
            let (result, buf) = disk.read(offset, buf, Class::User).await;
            result.expect("read");
            buf
        }
    })
}

fn by_ring(rt: &Rt, ring: &Ring, fd: &Fd, depth: usize) -> f64 {
    tasks(rt, depth, FILE_BYTES / BLOCK as u64, || {
        let (ring, fd) = (ring.clone(), fd.clone());
        async move |offset, buf| {
            let (result, buf) = ring.read_at(&fd, buf, offset).await;
            assert_eq!(result.expect("read"), BLOCK);
            buf
        }
    })
}

type Contestant<'a> = (&'a str, Box<dyn Fn() -> f64 + 'a>);

/// Runs all in turns and prints medians and ratios to the first.
fn compare(title: &str, contestants: &[Contestant<'_>]) {
    let mut rates = vec![Vec::new(); contestants.len()];
    for round in 0..=ROUNDS {
        for ((_, run), rates) in contestants.iter().zip(&mut rates) {
            let rate = run();
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    println!("{title}");
    let mut first = None;
    for ((name, _), rates) in contestants.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        let base = *first.get_or_insert(median);
        println!(
            "  {name:<28} {median:>12.0} /s {:>10.0} ns each   x {:.2}",
            1e9 / median,
            median / base
        );
    }
}

fn main() {
    let (flags, folders): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    if !flags.iter().any(|flag| flag == "--bench") {
        println!("a benchmark, not a test: nothing to do without --bench");
        return;
    }
    let folder = folders.into_iter().next();
    let folder = folder.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned());
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    println!("ring mode: {:?}", ring.mode());

    let ram: Rc<dyn Disk> = Rc::new(RamDisk::new("ram", 1 << 20, 512));
    let queued: Rc<dyn Disk> = Rc::new(QueuedDisk::new(ram.clone(), QueueConfig::default()));
    let spawned = || {
        let (rt2, ram) = (rt.clone(), ram.clone());
        let request = move || {
            let (rt, ram) = (rt2.clone(), ram.clone());
            async move |offset, buf| {
                let ram = ram.clone();
                let task = rt.spawn(async move {
                    let (result, buf) = ram.read(offset, buf, Class::User).await;
                    result.expect("read");
                    buf
                });
                task.await
            }
        };
        tasks(&rt, 16, 256, request)
    };
    compare(
        "4 KiB random reads of 1 MiB of memory",
        &[
            ("RamDisk", Box::new(|| by_disk(&rt, &ram, 1))),
            ("QueuedDisk over RamDisk", Box::new(|| by_disk(&rt, &queued, 1))),
            ("RamDisk, a task each", Box::new(spawned)),
        ],
    );

    let file = make_file(folder.as_ref());
    let open = |io_mode| {
        let options = FileOptions { io_mode, ..FileOptions::default() };
        let disk = FileDisk::open(&ring, &file.0, &options).expect("opens");
        println!("{}: {:?}, direct: {}", folder, disk.io_mode(), disk.is_direct());
        Rc::new(disk) as Rc<dyn Disk>
    };
    let in_place = open(Some(IoMode::InPlace));
    let in_place_rate = by_disk(&rt, &in_place, 1);
    drop(in_place);
    println!("in place, depth 1: {in_place_rate:.0} /s");
    let disk = open(None);
    let raw: Fd = OwnedFd::from(open_direct(&file.0)).into();
    for depth in [1, 16, 64] {
        compare(
            &format!("4 KiB random reads of a file, depth {depth}"),
            &[
                ("bare ring", Box::new(|| bare_ring(&file.0, depth))),
                ("weft ring", Box::new(|| by_ring(&rt, &ring, &raw, depth))),
                ("FileDisk", Box::new(|| by_disk(&rt, &disk, depth))),
                ("threads, pread", Box::new(|| threads(&file.0, depth))),
            ],
        );
    }
}
