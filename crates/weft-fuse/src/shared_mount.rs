//! A mounted file system that another node uses as well: the kernel's names, attributes and pages
//! go before the other node has their tokens, what programs have changed comes back, and nothing
//! waits for ever.
//!
//! The file system is served on the test's thread. The program runs on another one, and asks the
//! first to be the other node.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use weft_fs::{AccessTimes, Fs, Ino, MountOptions, ROOT};
use weft_random::Rng;
use weft_rt::ring::{self, RingConfig};
use weft_rt::{Frozen, MILLISECOND, Rt};
use weft_testkit::{Need, have};
use weft_token::{Kind, Mode};

use crate::contender::Contender;
use crate::test_mounts::{MOUNTING, created, folder, serve};

/// What the program asks the other thread for.
enum Wish {
    /// The other node gets a token, and returns it after this time.
    Token(Kind, Ino, Mode, Duration),
    /// What the node has of a file.
    Contents(Ino),
    /// Bytes come to the end of a file, as another node would write them, and the kernel has heard
    /// of it. No program may use the file meanwhile: it could ask before the bytes are there.
    Append(Ino, Vec<u8>),
}

/// The program's side.
struct Door {
    folder: PathBuf,
    wishes: Sender<Wish>,
    answers: Receiver<Vec<u8>>,
}

impl Door {
    fn ask(&self, wish: Wish) -> Vec<u8> {
        self.wishes.send(wish).expect("it is there");
        self.answers.recv_timeout(Duration::from_secs(60)).expect("it does not wait for ever")
    }

    /// The other node has had a token, which this one has returned for it.
    fn contend(&self, kind: Kind, ino: Ino, mode: Mode) {
        self.ask(Wish::Token(kind, ino, mode, Duration::ZERO));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Requests of a kind so far.
    fn requests(&self, kind: &str) -> u64 {
        let mut value = vec![0; 1 << 20];
        let name = crate::control::STATUS;
        let len = rustix::fs::getxattr(&self.folder, name, &mut value[..]).expect("read");
        let status: serde_json::Value = serde_json::from_slice(&value[..len]).expect("JSON");
        let each = status["requests"].as_array().expect("a list");
        let of = each.iter().find(|count| count["kind"] == kind);
        of.map_or(0, |count| count["count"].as_u64().expect("a number"))
    }
}

async fn answer(rt: &Rt, fs: &Fs, other: &Contender, wish: Wish) -> Vec<u8> {
    match wish {
        Wish::Token(kind, ino, mode, time) => {
            let token = other.acquire_all(kind, ino, mode).await;
            rt.sleep(u64::try_from(time.as_nanos()).expect("short")).await;
            other.done(token);
            Vec::new()
        }
        Wish::Contents(ino) => {
            let size = fs.attr(ino).await.expect("there").size;
            let len = usize::try_from(size).expect("short");
            fs.read(ino, 0, len).await.expect("read").to_vec()
        }
        Wish::Append(ino, bytes) => {
            for kind in [Kind::Attributes, Kind::Data] {
                let token = other.acquire_all(kind, ino, Mode::Exclusive).await;
                other.done(token);
            }
            fs.append(ino, Frozen::copy_from(&bytes)).await.expect("written");
            Vec::new()
        }
    }
}

/// Runs a program on a mount that another node uses as well.
fn with_mount(program: impl FnOnce(&Door) + Send + 'static) {
    if !have(&[Need::Root, Need::Fuse, Need::Tool("python3")]) {
        return;
    }
    let folder = folder("shared-mount");
    let temporary = folder.clone();
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let inner = rt.clone();
    rt.block_on(async move {
        let rt = inner;
        let disks = created(&rt, 3, 48).await;
        let options = MountOptions { access_times: AccessTimes::None, ..MOUNTING };
        let fs = Fs::mount(&rt, &disks, options).await.expect("mounted");
        fs.share();
        let served = serve(&rt, &ring, &fs, &folder);
        let other = Contender::new(&rt, &fs, 1);
        let ((wishes, wished), (answers, answered)) = (channel_of(), channel_of());
        let at = folder.clone();
        let thread = std::thread::spawn(move || {
            let ended = Unmount(at.clone());
            program(&Door { folder: at, wishes, answers: answered });
            drop(ended);
        });
        while !thread.is_finished() {
            while let Ok(wish) = wished.try_recv() {
                let (rt, fs, other) = (rt.clone(), fs.clone(), other.clone());
                let answers = answers.clone();
                drop(rt.clone().spawn(async move {
                    let _ = answers.send(answer(&rt, &fs, &other, wish).await);
                }));
            }
            rt.sleep(MILLISECOND).await;
        }
        thread.join().expect("the program does not fail");
        served.await;
        assert_eq!(fs.check(true).await.expect("checked").findings, []);
        fs.unmount().await.expect("unmounted");
    });
    rt.kill_all();
    fs::remove_dir(temporary).expect("removed");
}

fn channel_of<T>() -> (Sender<T>, Receiver<T>) {
    channel()
}

/// Unmounts a folder, however the program ends.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let flags =
            if std::thread::panicking() { UnmountFlags::FORCE } else { UnmountFlags::empty() };
        let _ = rustix::mount::unmount(&self.0, flags | UnmountFlags::DETACH);
    }
}

fn ino_of(path: &Path) -> Ino {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).expect("there").ino()
}

#[test]
fn the_kernel_asks_again_for_what_it_had_to_forget() {
    with_mount(|door| {
        let path = door.path("file");
        fs::write(&path, vec![1; 10_000]).expect("written");
        let ino = ino_of(&path);
        let look = || {
            assert_eq!(fs::read(&path).expect("read").len(), 10_000);
            fs::metadata(door.path("none")).expect_err("there is none");
        };
        look();
        look();
        let counts = || ["lookup", "getattr", "read"].map(|kind| door.requests(kind));
        let before = counts();
        look();
        let [lookups, attributes, reads] = counts();
        assert_eq!(reads, before[2], "it has the pages");
        let keeps_names = lookups == before[0];
        for mode in [Mode::Shared, Mode::Exclusive] {
            let before = counts();
            for (kind, ino) in [(Kind::Names, ROOT), (Kind::Attributes, ino), (Kind::Data, ino)] {
                door.contend(kind, ino, mode);
            }
            look();
            let after = counts();
            if mode == Mode::Shared {
                assert_eq!(after[2], before[2], "it may keep the pages");
                assert!(!keeps_names || after[0] == before[0], "and the names");
            } else {
                assert!(after[0] >= before[0] + 2, "names: {before:?}, {after:?}");
                assert!(after[1] > before[1], "attributes: {before:?}, {after:?}");
                assert!(after[2] > before[2], "pages: {before:?}, {after:?}");
            }
        }
        let _ = attributes;
    });
}

#[test]
fn stores_to_mapped_files_come_back_and_appends_go_to_the_end() {
    with_mount(|door| {
        let path = door.path("file");
        fs::write(&path, [1; 8192]).expect("written");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        let ino = ino_of(&path);
        let mut map = Mapped::new(&path);
        for value in 2..20 {
            map.store(100, value);
            map.store(5000, value);
            let kind = if value % 2 == 0 { Kind::Data } else { Kind::Attributes };
            let mode = if value % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
            door.contend(kind, ino, mode);
            let there = door.ask(Wish::Contents(ino));
            assert_eq!((there[100], there[5000]), (value, value), "{kind:?} {mode:?}");
            assert_eq!((map.load(100), map.load(5000)), (value, value));
        }
        drop(map);
        drop(file);

        let mut appends = OpenOptions::new().read(true).append(true).open(&path).expect("opened");
        let mut expected = fs::read(&path).expect("read");
        for n in 0..10_u8 {
            appends.write_all(&[n; 300]).expect("written");
            expected.extend([n; 300]);
            door.ask(Wish::Append(ino, vec![100 + n; 500]));
            expected.extend([100 + n; 500]);
        }
        appends.write_all(b"end").expect("written");
        expected.extend(b"end");
        assert!(door.ask(Wish::Contents(ino)) == expected, "an append went elsewhere");
        let mut found = Vec::new();
        appends.seek(SeekFrom::Start(0)).expect("sought");
        appends.read_to_end(&mut found).expect("read");
        assert!(found == expected, "what was read by the same handle");
        assert!(fs::read(&path).expect("read") == expected);
    });
}

/// Programs write and read their own pages of two files, by calls and mapped, while the other node
/// wants the tokens of both.
#[test]
fn nothing_waits_for_ever_and_each_program_finds_its_own_writes() {
    with_mount(|door| {
        let paths = ["one", "two"].map(|name| door.path(name));
        for path in &paths {
            fs::write(path, vec![0; 64 << 10]).expect("written");
        }
        let inos = [ino_of(&paths[0]), ino_of(&paths[1])];
        let mut programs = Vec::new();
        for n in 0..4_u64 {
            let paths = paths.clone();
            programs.push(std::thread::spawn(move || {
                let mut rng = Rng::new(n);
                let files = paths.map(|path| {
                    OpenOptions::new().read(true).write(true).open(path).expect("opened")
                });
                let mut own = [vec![0; 16 << 10], vec![0; 16 << 10]];
                for step in 0..300_u32 {
                    let which = rng.index(2);
                    let (from, len) = (rng.index(12 << 10), 1 + rng.index(4 << 10));
                    let at = n * (16 << 10) + from as u64;
                    if rng.chance(50) {
                        let value = u8::try_from(step % 251).expect("small");
                        files[which].write_all_at(&vec![value; len], at).expect("written");
                        own[which][from..from + len].fill(value);
                    }
                    let mut found = vec![0; len];
                    files[which].read_exact_at(&mut found, at).expect("read");
                    assert!(found == own[which][from..from + len], "{n}, step {step}");
                    // It reads what others write, too.
                    files[which].read_at(&mut found, rng.below(64 << 10)).expect("read");
                }
            }));
        }
        let (mut first, mut second) = (Mapped::new(&paths[0]), Mapped::new(&paths[1]));
        let mut rng = Rng::new(77);
        let mut value = 0_u8;
        while programs.iter().any(|program| !program.is_finished()) {
            let ino = *rng.pick(&inos);
            let kind = *rng.pick(&[Kind::Attributes, Kind::Data, Kind::Data]);
            let mode = if rng.chance(30) { Mode::Shared } else { Mode::Exclusive };
            door.ask(Wish::Token(kind, ino, mode, Duration::from_millis(rng.below(2))));
            // Within what the last program has, which it leaves alone.
            value = value.wrapping_add(1);
            for map in [&mut first, &mut second] {
                map.store((64 << 10) - 1, value);
                assert_eq!(map.load((64 << 10) - 1), value);
            }
        }
        for program in programs {
            program.join().expect("it found what it wrote");
        }
        for ino in inos {
            door.contend(Kind::Data, ino, Mode::Exclusive);
            assert_eq!(door.ask(Wish::Contents(ino)).last(), Some(&value));
        }
    });
}

#[test]
fn locks_are_kept_by_the_file_system() {
    with_mount(|door| {
        let path = door.path("file");
        fs::write(&path, [1; 100]).expect("written");
        let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        // Of whole files.
        let (first, second) = (open(), open());
        first.lock().expect("locked");
        assert!(second.try_lock().is_err());
        let waits = std::thread::spawn(move || {
            second.lock().expect("locked");
            second
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        drop(first);
        let second = waits.join().expect("it has its lock");
        assert!(open().try_lock().is_err());
        second.unlock().expect("unlocked");
        open().try_lock().expect("free");
        // Of bytes, of processes.
        let mut program = Program::new(LOCKS, &path);
        assert_eq!(program.ask("lock 10 5"), "yes");
        let mut other = Program::new(LOCKS, &path);
        assert_eq!(other.ask("lock 14 5"), "no");
        assert_eq!(other.ask("lock 15 5"), "yes");
        assert_eq!(program.ask("lock 0 0"), "no", "to the end");
        assert_eq!(other.ask("unlock 15 5"), "yes");
        assert_eq!(program.ask("lock 0 0"), "yes");
        assert_eq!(other.ask("lock 99 1"), "no");
        // They go when the process closes any handle of the file, or ends.
        assert_eq!(program.ask("close 0 0"), "yes");
        assert_eq!(other.ask("lock 99 1"), "yes");
        drop(other);
        let mut other = Program::new(LOCKS, &path);
        assert_eq!(other.ask("lock 0 0"), "yes");
        assert!(door.requests("setlk") > 5 && door.requests("setlkw") > 0);
    });
}

/// Locks bytes of a file.
pub(crate) const LOCKS: &str = "
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    what, start, length = line.split()
    try:
        if what == 'lock':
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, int(length), int(start))
        elif what == 'unlock':
            fcntl.lockf(file, fcntl.LOCK_UN, int(length), int(start))
        else:
            os.close(os.open(sys.argv[1], os.O_RDONLY))
        print('yes', flush=True)
    except BlockingIOError:
        print('no', flush=True)
";

/// Stores and loads bytes of a mapped file.
const MAPS: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(file, 0)
for line in sys.stdin:
    at, value = map(int, line.split())
    if value >= 0:
        mapped[at] = value
    print(mapped[at], flush=True)
";

/// Another program, which answers each line with one.
pub(crate) struct Program {
    program: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn new(script: &str, path: &Path) -> Self {
        let mut program = Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let to = program.stdin.take().expect("piped");
        let from = BufReader::new(program.stdout.take().expect("piped"));
        Self { program, to, from }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("it listens");
        let mut answer = String::new();
        self.from.read_line(&mut answer).expect("it answers");
        answer.trim().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A file that another program has mapped.
pub(crate) struct Mapped(Program);

impl Mapped {
    pub(crate) fn new(path: &Path) -> Self {
        Self(Program::new(MAPS, path))
    }

    pub(crate) fn store(&mut self, at: usize, value: u8) {
        self.0.ask(&format!("{at} {value}"));
    }

    pub(crate) fn load(&mut self, at: usize) -> u8 {
        self.0.ask(&format!("{at} -1")).parse().expect("a byte")
    }
}
