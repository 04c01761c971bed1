//! Programs that use the mounts while things happen. Those of the steady node must not see a single
//! error; those of other nodes may fail with their node, and what they had synced is there.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_testkit::{Rng, command};

use crate::common::append_load::{PATIENCE, Seat};
use crate::context::Context;
use crate::relay;

/// All programs of a round.
pub struct Programs {
    context: Arc<Context>,
    ends: Vec<(&'static str, Receiver<()>)>,
}

type Program = fn(&Context, &mut Rng);

impl Programs {
    pub fn start(seats: &[Arc<Seat>], folder: &str, scratch: &Path, rng: &mut Rng) -> Self {
        let context = Arc::new(Context {
            seats: seats.to_vec(),
            folder: folder.to_owned(),
            scratch: scratch.to_owned(),
            ..Context::default()
        });
        let all: [(&'static str, Program); 5] =
            [("fsx", fsx), ("fio", fio), ("git", git), ("sqlite", sqlite), ("relay", relay::run)];
        let start = |(name, program): (&'static str, Program)| {
            let (sender, end) = channel();
            let (context, mut rng) = (context.clone(), Rng::new(rng.next_u64()));
            let body = move || {
                program(&context, &mut rng);
                let _ = sender.send(());
            };
            std::thread::Builder::new().name(name.into()).spawn(body).expect("a thread");
            (name, end)
        };
        Self { ends: all.into_iter().map(start).collect(), context }
    }

    pub fn faults(&self) -> Vec<String> {
        self.context.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all; returns what they have done.
    ///
    /// # Errors
    /// What was wrong.
    pub fn finish(self) -> Result<String, Vec<String>> {
        self.context.stop.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        for (name, end) in &self.ends {
            let left = deadline.saturating_duration_since(Instant::now());
            // A program that panics ends its end of the channel, too.
            match end.recv_timeout(left) {
                Ok(()) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    self.context.fault(format!("{name} has panicked"));
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    self.context.fault(format!("{name} does not end"));
                }
            }
        }
        let faults = self.faults();
        if !faults.is_empty() {
            return Err(faults);
        }
        let done = self.context.done.lock().unwrap_or_else(PoisonError::into_inner);
        let done: Vec<String> =
            done.iter().map(|(name, count)| format!("{count} {name}")).collect();
        Ok(done.join(", "))
    }
}

/// Random operations on a file, which are checked there; then it is read on another node.
fn fsx(context: &Context, rng: &mut Rng) {
    let steady = context.steady().clone();
    let config = context.scratch.join("fsx.toml");
    let weights = "close_open = 2\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\ninvalidate = 1\n\
        truncate = 3\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\npunch_hole = 3\nsendfile = 2\n\
        posix_fadvise = 2\ncopy_file_range = 5\n";
    fs::write(&config, format!("flen = 400000\n[opsize]\nmax = 60000\n[weights]\n{weights}"))
        .expect("written");
    while !context.stops() {
        let name = format!("fsx{}", rng.below(3));
        let mut fsx = command("fsx");
        let seed = rng.below(1 << 30).to_string();
        fsx.arg("-f").arg(&config).args(["-S", &seed, "-N", "250", "-P"]).arg(&context.scratch);
        if let Err(error) = context.run("fsx", fsx.arg(context.at(&steady, &name))) {
            return context.fault(format!("seed {seed}, {error}"));
        }
        context.count("runs of fsx");
        let Some(other) = context.another(&steady, rng) else { continue };
        let then = other.now();
        let here = fs::read(context.at(&steady, &name));
        let there = fs::read(context.at(&other, &name));
        match (here, there) {
            (Ok(here), Ok(there)) if here == there => {}
            (Ok(_), _) if !other.was_sound_since(then) => {}
            (Ok(here), Ok(there)) => {
                let at = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
                return context.fault(format!(
                    "{name} after fsx with seed {seed}: {} bytes on {}, {} on {}; they differ at {at}",
                    here.len(),
                    steady.name,
                    there.len(),
                    other.name
                ));
            }
            (Ok(_), Err(error)) => {
                return context.fault(format!("{name} on {}: {error}", other.name));
            }
            (Err(error), _) => return context.fault(format!("{name} on {}: {error}", steady.name)),
        }
    }
}

/// Blocks that tell their place, written on the steady node and verified on another one.
fn fio(context: &Context, rng: &mut Rng) {
    let steady = context.steady().clone();
    let fio = |at: &Path, seed: &str, more: &str| {
        let mut fio = command("fio");
        fio.args(["--name=v", "--filename=fio", "--rw=randwrite", "--bsrange=1k-64k", "--size=6M"]);
        fio.args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--ioengine=psync",
            "--fsync=16",
            "--thread",
        ]);
        fio.args(["--fallocate=none", "--verify_state_save=0", more]);
        fio.arg(format!("--randseed={seed}")).arg(format!("--directory={}", at.display()));
        fio
    };
    while !context.stops() {
        let seed = rng.below(1 << 30).to_string();
        let folder = |seat: &Seat| seat.at.join(&context.folder);
        let mut write = fio(&folder(&steady), &seed, "--do_verify=0");
        if let Err(error) = context.run("fio", write.current_dir(&context.scratch)) {
            return context.fault(format!("on {}: {error}", steady.name));
        }
        context.count("runs of fio");
        let other = context.another(&steady, rng).unwrap_or_else(|| steady.clone());
        let then = other.now();
        let mut verify = fio(&folder(&other), &seed, "--verify_only");
        if let Err(error) = context.run("fio", verify.current_dir(&context.scratch))
            && other.was_sound_since(then)
        {
            return context
                .fault(format!("written on {}, on {}: {error}", steady.name, other.name));
        }
    }
}

/// Commits on the steady node, which another one finds complete.
fn git(context: &Context, rng: &mut Rng) {
    let steady = context.steady().clone();
    let git = |seat: &Seat, args: &[&str]| {
        let mut git = command("git");
        let settings =
            ["safe.directory=*", "user.name=weft", "user.email=weft@localhost", "gc.auto=0"];
        for setting in settings {
            git.args(["-c", setting]);
        }
        git.env("GIT_OPTIONAL_LOCKS", "0").arg("-C").arg(context.at(seat, "git")).args(args);
        context.run("git", &mut git)
    };
    let ours = |args: &[&str]| {
        git(&steady, args).map_err(|error| context.fault(format!("on {}: {error}", steady.name)))
    };
    let at = context.at(&steady, "git");
    if let Err(error) = fs::create_dir(&at) {
        return context.fault(format!("git on {}: {error}", steady.name));
    }
    if ours(&["init", "--quiet"]).is_err() {
        return;
    }
    for commit in 0_u64.. {
        if context.stops() {
            return;
        }
        for _ in 0..4 {
            let mut bytes = vec![0; rng.index(20_000)];
            rng.fill(&mut bytes);
            if let Err(error) = fs::write(at.join(format!("file{}", rng.below(12))), bytes) {
                return context.fault(format!("a file for git on {}: {error}", steady.name));
            }
        }
        let message = format!("commit {commit}");
        let done = ours(&["add", "."])
            .and_then(|_| ours(&["commit", "--quiet", "--allow-empty", "-m", &message]));
        if done.is_err() || commit % 8 == 7 && ours(&["gc", "--quiet"]).is_err() {
            return;
        }
        context.count("commits");
        let Some(other) = context.another(&steady, rng) else { continue };
        let then = other.now();
        let found = git(&other, &["fsck", "--full", "--strict", "--no-progress"])
            .and_then(|_| git(&other, &["log", "-1", "--format=%s"]));
        match found {
            Ok(said) if said.trim() == message => {}
            _ if !other.was_sound_since(then) => {}
            Ok(said) => {
                return context.fault(format!("{} sees {said:?} and not {message}", other.name));
            }
            Err(error) => return context.fault(format!("on {}: {error}", other.name)),
        }
    }
}

/// Rows of several nodes in one database. A node that dies leaves a journal and locks.
fn sqlite(context: &Context, rng: &mut Rng) {
    let nodes: Vec<Arc<Seat>> = context.seats.iter().take(3).cloned().collect();
    let sqlite = |seat: &Seat, script: &str| {
        let mut sqlite = command("sqlite3");
        sqlite.args(["-batch", "-bail", "-cmd", ".timeout 30000"]);
        sqlite.arg(context.at(seat, "rows.db")).arg(script);
        context.run("sqlite", &mut sqlite)
    };
    let table = "pragma synchronous=full; create table rows(who text, n integer);";
    if let Err(error) = sqlite(context.steady(), table) {
        return context.fault(format!("on {}: {error}", context.steady().name));
    }
    let rows: Mutex<Vec<(String, u64)>> = Mutex::default();
    std::thread::scope(|scope| {
        for seat in &nodes {
            let (sqlite, rows, mut rng) = (&sqlite, &rows, Rng::new(rng.next_u64()));
            scope.spawn(move || {
                for n in 0_u64.. {
                    if context.stops() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(rng.below(300)));
                    let then = seat.now();
                    let name = &seat.name;
                    let insert =
                        format!("pragma synchronous=full; insert into rows values('{name}',{n});");
                    match sqlite(seat, &insert) {
                        Ok(_) => {
                            rows.lock().expect("no panic").push((seat.name.clone(), n));
                            context.count("rows");
                        }
                        // A node that hangs has its locks until it is fenced.
                        Err(error) if error.contains("is locked") => context.count("locked rows"),
                        Err(error) if seat.was_sound_since(then) => {
                            return context.fault(format!("on {name}: {error}"));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(300)),
                    }
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no panic");
    for seat in context.seats.iter().filter(|seat| seat.is_sound()) {
        let then = seat.now();
        let said = sqlite(seat, "pragma integrity_check; select who||' '||n from rows;");
        let said = match said {
            Ok(said) => said,
            Err(_) if !seat.was_sound_since(then) => continue,
            Err(error) => return context.fault(format!("at the end on {}: {error}", seat.name)),
        };
        let mut lines = said.lines();
        let check = lines.next().unwrap_or_default();
        if check != "ok" {
            return context.fault(format!("integrity_check on {}: {said}", seat.name));
        }
        let found: std::collections::BTreeSet<&str> = lines.collect();
        let is_missing = |(who, n): &&(String, u64)| !found.contains(format!("{who} {n}").as_str());
        if let Some((who, n)) = rows.iter().find(is_missing) {
            return context.fault(format!("{} does not have row {n} of {who}", seat.name));
        }
    }
}
