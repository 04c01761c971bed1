//! Two nodes with a mount each: programs on one find at once what programs on the other have done.
//!
//! Both are served on the test's thread; node 1 reaches the keeper, which is with node 0, over
//! a stream in memory. The programs run on other threads.

use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use weft_disk::IoFuture;
use weft_fs::{
    Connector, Fs, KeeperServer, META_CACHE_BYTES, RemoteMetadata, Stream, memory_stream,
};
use weft_random::Rng;
use weft_rt::ring::{self, RingConfig};
use weft_rt::{MILLISECOND, Rt};
use weft_testkit::{Need, have};
use weft_token::NodeId;

use crate::shared_mount::{LOCKS, Mapped, Program};
use crate::test_mounts::{ID, MOUNTING, created, folder, serve};

/// Programs that take longer wait for ever.
const PATIENCE: Duration = Duration::from_secs(100);

/// The way to the keeper.
struct Way {
    rt: Rt,
    keeper: RefCell<Option<KeeperServer>>,
}

impl Connector for Way {
    fn connect(&self) -> IoFuture<'_, io::Result<Rc<dyn Stream>>> {
        Box::pin(async {
            let keeper = self.keeper.borrow().clone().ok_or(io::ErrorKind::NotFound)?;
            let (near, far) = memory_stream();
            drop(self.rt.spawn(async move { keeper.serve(far).await }));
            Ok(near)
        })
    }
}

/// Node 0, and node 1.
async fn nodes(rt: &Rt) -> [Fs; 2] {
    let disks = created(rt, 3, 64).await;
    let way = Rc::new(Way { rt: rt.clone(), keeper: RefCell::default() });
    let (start, starting) = (way.clone(), rt.clone());
    let keeper = move |array| {
        let (way, rt) = (start.clone(), starting.clone());
        async move {
            let server = KeeperServer::open(&rt, array, ID, META_CACHE_BYTES).await?;
            *way.keeper.borrow_mut() = Some(server);
            Ok(RemoteMetadata { node: NodeId { number: 0, epoch: 1 }, way })
        }
    };
    let fs = Fs::mount_with_keeper(rt, &disks, MOUNTING, keeper).await.expect("mounted");
    let server = way.keeper.borrow().clone().expect("it runs");
    fs.serve_nodes(&server, &[]);
    fs.prepare_node(1).await.expect("prepared");
    let node = RemoteMetadata { node: NodeId { number: 1, epoch: 7 }, way };
    let other = Fs::mount_node(rt, &disks, MOUNTING, node).await.expect("mounted");
    [fs, other]
}

/// Runs programs with the folders of two mounts.
fn with_mounts(programs: impl FnOnce(&[PathBuf; 2]) + Send + 'static) {
    if !have(&[Need::Root, Need::Fuse, Need::Tool("python3")]) {
        return;
    }
    let folders = [folder("two-mounts-a"), folder("two-mounts-b")];
    let made = folders.clone();
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let inner = rt.clone();
    rt.block_on(async move {
        let (rt, [fs, other]) = (inner.clone(), nodes(&inner).await);
        let served = [serve(&rt, &ring, &fs, &folders[0]), serve(&rt, &ring, &other, &folders[1])];
        let of_programs = folders.clone();
        let thread = std::thread::spawn(move || programs(&of_programs));
        let deadline = Instant::now() + PATIENCE;
        while !thread.is_finished() && Instant::now() < deadline {
            rt.sleep(MILLISECOND).await;
        }
        let in_time = thread.is_finished();
        let force = if in_time { UnmountFlags::empty() } else { UnmountFlags::FORCE };
        for folder in &folders {
            let _ = rustix::mount::unmount(folder, force | UnmountFlags::DETACH);
        }
        assert!(in_time, "programs wait for ever");
        thread.join().expect("programs do not fail");
        for served in served {
            served.await;
        }
        other.unmount().await.expect("unmounted");
        assert_eq!(fs.check(true).await.expect("checked").findings, []);
        fs.unmount().await.expect("unmounted");
    });
    rt.kill_all();
    made.iter().for_each(|folder| fs::remove_dir(folder).expect("removed"));
}

#[test]
fn programs_on_one_node_find_at_once_what_the_other_has_done() {
    with_mounts(|[a, b]| {
        for round in 0..40_usize {
            let (here, there) = if round % 2 == 0 { (a, b) } else { (b, a) };
            let name = format!("file{}", round % 5);
            let known = there.join(&name).exists();
            assert_eq!(known, round >= 5);
            let bytes = vec![u8::try_from(round).expect("small"); 1 + 977 * round];
            fs::write(here.join(&name), &bytes).expect("written");
            assert!(fs::read(there.join(&name)).expect("read") == bytes, "round {round}");
            let len = fs::metadata(there.join(&name)).expect("there").len();
            assert_eq!(len, bytes.len() as u64);
        }
        fs::rename(a.join("file0"), a.join("other")).expect("renamed");
        assert!(!b.join("file0").exists() && b.join("other").exists());
        let list = |folder: &Path| {
            let names = fs::read_dir(folder).expect("read").map(|entry| entry.expect("one"));
            let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(list(a), list(b));
        fs::create_dir(b.join("folder")).expect("made");
        fs::write(a.join("folder/inside"), b"new").expect("written");
        assert_eq!((list(a), list(&b.join("folder"))), (list(b), list(&a.join("folder"))));
        // A file that is open stays.
        let mut open = OpenOptions::new().read(true).open(b.join("other")).expect("opened");
        fs::remove_file(a.join("other")).expect("removed");
        assert!(!b.join("other").exists());
        let mut found = Vec::new();
        open.read_to_end(&mut found).expect("read");
        assert_eq!(found, vec![35; 1 + 977 * 35]);
    });
}

#[test]
fn mapped_files_and_locks_go_between_nodes() {
    with_mounts(|[a, b]| {
        fs::write(a.join("mapped"), [0; 9000]).expect("written");
        let mut maps = [Mapped::new(&a.join("mapped")), Mapped::new(&b.join("mapped"))];
        for value in 1..60_u8 {
            let [first, second] = &mut maps;
            let (here, there) = if value % 2 == 0 { (first, second) } else { (second, first) };
            here.store(100, value);
            here.store(8000, value);
            assert_eq!((there.load(100), there.load(8000)), (value, value));
        }
        drop(maps);
        let open = |folder: &Path| {
            let file = OpenOptions::new().read(true).write(true).open(folder.join("mapped"));
            file.expect("opened")
        };
        let (first, second) = (open(a), open(b));
        first.lock().expect("locked");
        assert!(second.try_lock().is_err());
        let waits = std::thread::spawn(move || second.lock().expect("locked"));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        first.unlock().expect("unlocked");
        waits.join().expect("it has its lock");
        let mut program = Program::new(LOCKS, &a.join("mapped"));
        let mut other = Program::new(LOCKS, &b.join("mapped"));
        assert_eq!(program.ask("lock 10 5"), "yes");
        assert_eq!(other.ask("lock 14 5"), "no");
        assert_eq!(other.ask("lock 15 5"), "yes");
        assert_eq!(program.ask("unlock 10 5"), "yes");
        assert_eq!(other.ask("lock 14 5"), "yes");
        drop(other);
        assert_eq!(program.ask("lock 0 0"), "yes");
    });
}

#[test]
fn programs_on_both_nodes_at_once_lose_nothing() {
    with_mounts(|folders| {
        fs::write(folders[0].join("shared"), vec![0; 64 << 10]).expect("written");
        fs::write(folders[0].join("wins"), b"").expect("written");
        let mut programs = Vec::new();
        for n in 0..4_u64 {
            let folder = folders[usize::try_from(n % 2).expect("small")].clone();
            programs.push(std::thread::spawn(move || {
                let mut rng = Rng::new(n);
                let open = OpenOptions::new().read(true).write(true).clone();
                let shared = open.open(folder.join("shared")).expect("opened");
                let append = OpenOptions::new().append(true).create(true).clone();
                let mut log = append.open(folder.join("log")).expect("opened");
                let mut wins = append.open(folder.join("wins")).expect("opened");
                let mut own = vec![0; 16 << 10];
                for step in 0..60_u8 {
                    // Its own part of a file, which need not begin with a page.
                    let (from, len) = (rng.index(12 << 10), 1 + rng.index(4 << 10));
                    let at = n * (16 << 10) + from as u64;
                    shared.write_all_at(&vec![step; len], at).expect("written");
                    own[from..from + len].fill(step);
                    let mut found = vec![0; 16 << 10];
                    shared.read_exact_at(&mut found, n * (16 << 10)).expect("read");
                    assert!(found == own, "program {n}, step {step}");
                    shared.read_at(&mut found, rng.below(64 << 10)).expect("read");
                    let line = format!("{n}:{step}\n");
                    log.write_all(line.as_bytes()).expect("written");
                    // One of those that make a folder has made it.
                    let lock = folder.join(format!("lock{step}"));
                    if fs::create_dir(lock).is_ok() {
                        wins.write_all(line.as_bytes()).expect("written");
                    }
                }
            }));
        }
        for program in programs {
            program.join().expect("it found what it wrote");
        }
        for folder in folders {
            let log = fs::read_to_string(folder.join("log")).expect("read");
            let mut lines: Vec<&str> = log.lines().collect();
            assert_eq!(lines.len(), 240);
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), 240, "each is there once");
            let wins = fs::read_to_string(folder.join("wins")).expect("read");
            assert_eq!(wins.lines().count(), 60);
        }
    });
}

/// Through handles that are open all the time: the kernel has an earlier size, and forgets it again
/// while it asks for the present one.
#[test]
fn a_read_goes_to_the_end_of_what_another_node_appended_before_it() {
    with_mounts(|[a, b]| {
        fs::write(a.join("file"), [1; 100]).expect("written");
        let [appended, reads] = [100, 0].map(|first| Arc::new(AtomicU64::new(first)));
        let mut programs = Vec::new();
        for n in 0..4 {
            let (path, appended, reads) = (a.join("file"), appended.clone(), reads.clone());
            programs.push(std::thread::spawn(move || {
                let opened = OpenOptions::new().read(true).write(n == 3).open(path);
                let (file, mut part) = (opened.expect("opened"), vec![0; 1 << 14]);
                loop {
                    let least = appended.load(Ordering::SeqCst);
                    if least == u64::MAX {
                        return;
                    }
                    let size = if n == 0 { least } else { file.metadata().expect("there").len() };
                    let mut found = 0;
                    loop {
                        let count = file.read_at(&mut part, found).expect("read");
                        assert!(part[..count].iter().all(|byte| *byte == 1), "at {found}");
                        found += count as u64;
                        if count == 0 {
                            break;
                        }
                    }
                    assert!(least <= size && size <= found, "program {n}: {least} {size} {found}");
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        let mut file = OpenOptions::new().append(true).open(b.join("file")).expect("opened");
        for n in 1..200_u64 {
            file.write_all(&[1; 300]).expect("written");
            appended.store(100 + 300 * n, Ordering::SeqCst);
            // Some read before the next one: the nodes take turns.
            let enough = reads.load(Ordering::SeqCst) + 8;
            let has_failed = || programs.iter().any(|program| program.is_finished());
            while reads.load(Ordering::SeqCst) < enough && !has_failed() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        appended.store(u64::MAX, Ordering::SeqCst);
        for program in programs {
            program.join().expect("it found all");
        }
    });
}
