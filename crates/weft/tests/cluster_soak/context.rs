//! What the programs of a round share.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weft_testkit::{Process, Rng};

use crate::common::append_load::{PATIENCE, Seat};

/// What programs share.
#[derive(Default)]
pub struct Context {
    pub seats: Vec<Arc<Seat>>,
    /// A folder in the file system.
    pub folder: String,
    /// A folder beside it.
    pub scratch: PathBuf,
    pub stop: AtomicBool,
    pub faults: Mutex<Vec<String>>,
    pub done: Mutex<Vec<(String, u64)>>,
}

impl Context {
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub fn fault(&self, what: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Counts what a program has done.
    pub fn count(&self, what: &str) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        match done.iter_mut().find(|(name, _)| name == what) {
            Some((_, count)) => *count += 1,
            None => done.push((what.to_owned(), 1)),
        }
    }

    /// The mount to which nothing happens.
    pub fn steady(&self) -> &Arc<Seat> {
        &self.seats[0]
    }

    /// A place on a mount.
    pub fn at(&self, seat: &Seat, name: &str) -> PathBuf {
        seat.at.join(&self.folder).join(name)
    }

    /// Another mount that works.
    pub fn another(&self, than: &Seat, rng: &mut Rng) -> Option<Arc<Seat>> {
        let others = self.seats.iter().filter(|seat| seat.name != than.name && seat.is_sound());
        let others: Vec<&Arc<Seat>> = others.collect();
        (!others.is_empty()).then(|| others[rng.index(others.len())].clone())
    }

    /// Runs a program; returns what it printed.
    pub fn run(&self, name: &str, command: &mut Command) -> Result<String, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let out = self.scratch.join(format!("{name}-{number}.out"));
        let file = File::create(&out).map_err(|error| error.to_string())?;
        let second = file.try_clone().map_err(|error| error.to_string())?;
        let mut process = Process::spawn(command.stdout(file).stderr(second));
        let status = process.wait_for(PATIENCE);
        let said = fs::read_to_string(&out).unwrap_or_default();
        match status {
            Some(status) if status.success() => {
                let _ = fs::remove_file(&out);
                Ok(said)
            }
            Some(status) => Err(format!("{name} ended with {status}: {said}")),
            None => Err(format!("{name} waits for ever: {said}")),
        }
    }
}
