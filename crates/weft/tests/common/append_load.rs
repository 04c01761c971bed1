//! Programs on several nodes that append lines to shared files and read them whole. What they saw
//! is checked: `weft_testkit::appends` has the rules.
//!
//! An append has ended when `fsync` has confirmed it: what was not synced may go with its node. So
//! what a program reads counts only when it cannot go any more: it ends with another node's line,
//! which that node had to make durable before this one could read it, or `fsync` has confirmed it.
//! Nor does it count on a machine in trouble, which may have been expelled and not know it yet: its
//! memory has what was there before.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_testkit::Rng;
use weft_testkit::appends::{Append, History, Read, lines, text};

/// How long a request may take, with several takeovers in between.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// Lines that one node appends to one file at most: all of them are read again and again.
const LINES_MAX: u64 = 300;

/// A mount, as programs on it see it.
#[derive(Debug)]
pub struct Seat {
    pub name: String,
    pub at: PathBuf,
    /// Whether its programs may expect that it works.
    is_sound: AtomicBool,
    /// Rises with each change of that.
    changes: AtomicU64,
}

/// The state of a seat at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment(Option<u64>);

impl Seat {
    pub fn new(name: &str, at: &Path) -> Arc<Self> {
        let (is_sound, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { name: name.to_owned(), at: at.to_owned(), is_sound, changes })
    }

    /// Before anything is done that may end it, and when it works again.
    pub fn set_sound(&self, is_sound: bool) {
        self.is_sound.store(is_sound, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub fn is_sound(&self) -> bool {
        self.is_sound.load(Ordering::SeqCst)
    }

    pub fn now(&self) -> Moment {
        let changes = self.changes.load(Ordering::SeqCst);
        Moment(self.is_sound().then_some(changes))
    }

    /// Whether it has worked all the time since then, and does now.
    pub fn was_sound_since(&self, then: Moment) -> bool {
        self.is_sound() && then.0 == Some(self.changes.load(Ordering::SeqCst))
    }
}

struct Shared {
    start: Instant,
    files: Vec<(String, Mutex<History>)>,
    folder: String,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    faults: Mutex<Vec<String>>,
}

/// Programs that append and read, one on each seat.
pub struct AppendLoad {
    shared: Arc<Shared>,
    seats: Vec<Arc<Seat>>,
    ends: Vec<(String, Receiver<()>)>,
}

/// What was done and seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    pub lines: usize,
    pub unknown: usize,
    pub reads: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("less than centuries")
    }

    fn fault(&self, seat: &Seat, what: &str) {
        lock(&self.faults).push(format!("{} on {}", what, seat.name));
    }

    /// An error that the state of the seat does not explain.
    fn failed(&self, seat: &Seat, then: Moment, what: &str, error: &io::Error) {
        if seat.was_sound_since(then) {
            self.fault(seat, &format!("{what}: {error}"));
        }
    }

    /// Appends a line, durably.
    fn append(&self, seat: &Seat, file: usize, line: u64) {
        let (then, (name, history)) = (seat.now(), &self.files[file]);
        let path = seat.at.join(&self.folder).join(name);
        let mut opened = match File::options().append(true).open(&path) {
            Ok(file) => file,
            Err(error) => return self.failed(seat, then, "open to append", &error),
        };
        let (began, text) = (self.now(), text(line));
        let at = {
            let mut history = lock(history);
            let by = seat.name.clone();
            history.appends.push(Append { line, by, began, ended: None });
            history.appends.len() - 1
        };
        match opened.write(&text) {
            Ok(len) if len == text.len() => {}
            Ok(len) => return self.fault(seat, &format!("append: {len} of {} bytes", text.len())),
            Err(error) => return self.failed(seat, then, "append", &error),
        }
        match opened.sync_all() {
            Ok(()) => {
                lock(history).appends[at].ended = Some(self.now());
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => self.failed(seat, then, "fsync after an append", &error),
        }
    }

    /// Reads all lines, past the page cache or through it; says whether it could.
    fn read(&self, seat: &Seat, own: u64, file: usize, is_cached: bool) -> bool {
        let (then, (name, history)) = (seat.now(), &self.files[file]);
        let path = seat.at.join(&self.folder).join(name);
        let began = self.now();
        let read =
            File::options().read(true).append(!is_cached).open(&path).and_then(|mut file| {
                let (mut bytes, mut steps) = (Vec::new(), vec![file.metadata()?.len()]);
                let mut part = vec![0; 1 << 16];
                loop {
                    let count = io::Read::read(&mut file, &mut part)?;
                    steps.push(count as u64);
                    bytes.extend_from_slice(&part[..count]);
                    if count == 0 {
                        break;
                    }
                }
                Ok((file, bytes, steps, self.now()))
            });
        let (opened, bytes, steps, ended) = match read {
            Ok(read) => read,
            Err(error) => {
                self.failed(seat, then, "read", &error);
                return false;
            }
        };
        if (bytes.len() as u64) < steps[0] {
            let what = format!("{name}: a read ended early, cached {is_cached}: {steps:?}");
            self.fault(seat, &what);
            return false;
        }
        let (saw, rest) = match lines(&bytes) {
            Ok(found) => found,
            Err(error) => {
                self.fault(seat, &format!("{name}: {error}"));
                return false;
            }
        };
        if rest > 0 {
            // Of the append of a program on the same mount it may see a part.
            let begun = &bytes[bytes.len() - rest..];
            let histories = lock(history);
            let ours = histories.appends.iter().filter(|of| of.by == seat.name);
            if !ours.rev().take(4).any(|of| text(of.line).starts_with(begun)) {
                let may_be = histories.appends.iter().filter(|of| text(of.line).starts_with(begun));
                let may_be: Vec<String> =
                    may_be.map(|of| format!("{of:x?} of {} bytes", text(of.line).len())).collect();
                let unknown = histories.appends.iter().filter(|of| of.ended.is_none());
                let unknown: Vec<String> = unknown
                    .map(|of| {
                        format!(
                            "{:x} by {} at {}, {} bytes",
                            of.line,
                            of.by,
                            of.began,
                            text(of.line).len()
                        )
                    })
                    .collect();
                let reads = histories.reads.iter().rev().filter(|of| of.by == seat.name).take(2);
                let reads: Vec<String> = reads
                    .map(|of| {
                        let length: usize = of.saw.iter().map(|line| text(*line).len()).sum();
                        format!("{} to {}: {length} bytes", of.began, of.ended)
                    })
                    .collect();
                drop(histories);
                let at = bytes.len() - rest;
                let now = fs::read(&path).map(|bytes| bytes.len());
                self.fault(
                    seat,
                    &format!(
                        "{name}: {rest} bytes of a line of others at byte {at}, read {began} to {ended}, \
                         now {now:?} bytes: {may_be:?}; its size and reads: {steps:?}; before it {reads:?}; \
                         unknown {unknown:?}"
                    ),
                );
                return false;
            }
        }
        // A part of a line is our own, too.
        let may_go = rest > 0 || saw.last().is_some_and(|line| line >> 32 == own);
        if may_go && let Err(error) = opened.sync_all() {
            self.failed(seat, then, "fsync after a read", &error);
            return false;
        }
        if seat.was_sound_since(then) {
            lock(history).reads.push(Read { saw, by: seat.name.clone(), began, ended });
        }
        true
    }

    fn run(&self, seat: &Seat, own: u64, mut rng: Rng) {
        let mut counts = vec![0; self.files.len()];
        while !self.stop.load(Ordering::SeqCst) {
            let file = rng.index(self.files.len());
            let appends = rng.chance(1, 2) && counts[file] < LINES_MAX;
            let pause_max = if rng.chance(1, 8) { 100 } else { 12 };
            let pause = rng.below(pause_max);
            if !seat.is_sound() && !seat.at.join(&self.folder).exists() {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            if appends {
                let number = counts.iter().sum::<u64>();
                counts[file] += 1;
                self.append(seat, file, own << 32 | number);
            } else {
                let is_cached = rng.chance(1, 2);
                self.read(seat, own, file, is_cached);
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
}

impl AppendLoad {
    /// Makes files in a folder, on the first seat, and starts to use them on all.
    pub fn start(seats: &[Arc<Seat>], folder: &str, files: usize, rng: &mut Rng) -> Self {
        let first = seats[0].at.join(folder);
        fs::create_dir_all(&first).expect("made");
        let names = (0..files).map(|n| format!("list{n}"));
        let files: Vec<_> = names.map(|name| (name, Mutex::new(History::default()))).collect();
        for (name, _) in &files {
            File::create(first.join(name)).and_then(|file| file.sync_all()).expect("made");
        }
        File::open(&first).and_then(|folder| folder.sync_all()).expect("synced");
        let shared = Arc::new(Shared {
            start: Instant::now(),
            files,
            folder: folder.to_owned(),
            stop: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            faults: Mutex::default(),
        });
        let start = |(own, seat): (usize, &Arc<Seat>)| {
            let (sender, end) = channel();
            let (shared, seat, rng) = (shared.clone(), seat.clone(), Rng::new(rng.next_u64()));
            let name = seat.name.clone();
            std::thread::spawn(move || {
                shared.run(&seat, own as u64 + 1, rng);
                let _ = sender.send(());
            });
            (name, end)
        };
        let ends = seats.iter().enumerate().map(start).collect();
        Self { shared, seats: seats.to_vec(), ends }
    }

    /// How many lines were appended durably.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// What was wrong until now.
    pub fn faults(&self) -> Vec<String> {
        lock(&self.shared.faults).clone()
    }

    /// Ends it, when all seats that are sound are to have all lines.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn finish(self) -> Result<Summary, Vec<String>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        for (name, end) in &self.ends {
            let left = deadline.saturating_duration_since(Instant::now());
            if end.recv_timeout(left).is_err() {
                self.shared
                    .faults
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(format!("a program on {name} that appends and reads waits for ever"));
            }
        }
        if !self.faults().is_empty() {
            return Err(self.faults());
        }
        for (own, seat) in self.seats.iter().enumerate().filter(|(_, seat)| seat.is_sound()) {
            for file in 0..self.shared.files.len() {
                let (sender, end) = channel();
                let (shared, seat) = (self.shared.clone(), seat.clone());
                std::thread::spawn(move || {
                    let read = shared.read(&seat, own as u64 + 1, file, true);
                    let _ = sender.send(read);
                });
                match end.recv_timeout(PATIENCE) {
                    Ok(true) => {}
                    Ok(false) => lock(&self.shared.faults)
                        .push(format!("{}: its last read failed", self.seats[own].name)),
                    Err(_) => lock(&self.shared.faults)
                        .push(format!("{}: its last read waits for ever", self.seats[own].name)),
                }
            }
        }
        let mut faults = self.faults();
        let mut summary = Summary::default();
        for (name, history) in &self.shared.files {
            let history = lock(history);
            match history.check() {
                Ok(order) => summary.lines += order.len(),
                Err(violation) => faults.push(format!("{name}: {violation}")),
            }
            summary.unknown += history.appends.iter().filter(|of| of.ended.is_none()).count();
            summary.reads += history.reads.len();
        }
        if faults.is_empty() { Ok(summary) } else { Err(faults) }
    }
}
