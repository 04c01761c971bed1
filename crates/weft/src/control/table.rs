//! The connections of the control socket, and which of them must go when another comes.
//!
//! A connection costs a thread, so there are few. One that waits for its client – for a request, or
//! for an answer to be taken – is worth less than a newcomer: when all places are taken, the one
//! that has done so for the longest time is ended. Those whose request is being carried out stay;
//! if all are of that kind the newcomer is told so.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_rt::{MILLISECOND, Nanos, Rt};

/// Connections at the same time.
pub const CONNECTIONS_MAX: usize = 32;

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It waits for a request since then.
    Listening(Instant),
    /// Its request is being carried out.
    Working,
    /// It sends the answer since then.
    Answering(Instant),
}

/// The connections; clones are handles of the same table.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    stream: UnixStream,
    doing: Doing,
}

/// A connection's place in the table, left on drop.
#[derive(Debug)]
pub struct Place {
    table: Connections,
    number: u64,
}

/// How a newcomer was received.
#[derive(Debug)]
pub enum Welcome {
    /// There was a place.
    Free(Place),
    /// Another connection was ended to make one.
    Displaced(Place),
    /// All are at work.
    Full,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that holds the lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a place for a connection.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn welcome(&self, stream: &UnixStream) -> io::Result<Welcome> {
        let stream = stream.try_clone()?;
        let mut table = self.lock();
        let full = table.entries.len() >= CONNECTIONS_MAX;
        if full {
            let waiting = table.entries.iter().filter_map(|(number, entry)| match entry.doing {
                Doing::Listening(since) | Doing::Answering(since) => Some((since, *number)),
                Doing::Working => None,
            });
            let Some((_, number)) = waiting.min() else { return Ok(Welcome::Full) };
            if let Some(entry) = table.entries.remove(&number) {
                // Its thread sees the end of the stream.
                let _ = entry.stream.shutdown(Shutdown::Both);
            }
        }
        let number = table.next;
        table.next += 1;
        table.entries.insert(number, Entry { stream, doing: Doing::Listening(Instant::now()) });
        let place = Place { table: self.clone(), number };
        Ok(if full { Welcome::Displaced(place) } else { Welcome::Free(place) })
    }

    /// Waits until every request has been answered, but not for longer than `patience`.
    pub async fn wait_answered(&self, rt: &Rt, patience: Nanos) {
        let deadline = rt.now().saturating_add(patience);
        let listens = |entry: &Entry| matches!(entry.doing, Doing::Listening(_));
        while !self.lock().entries.values().all(listens) && rt.now() < deadline {
            rt.sleep(MILLISECOND).await;
        }
    }
}

impl Place {
    /// Notes what the connection does now. False: its place was given to another.
    pub fn note(&self, doing: Doing) -> bool {
        let mut table = self.table.lock();
        let entry = table.entries.get_mut(&self.number);
        entry.map(|entry| entry.doing = doing).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().entries.remove(&self.number);
    }
}
