//! The connections of the control socket, and which one must make room for another.
//!
//! A connection costs a thread, so there are few. An idle connection – one that waits for a
//! request, or for its client to take an answer – is worth less than a new one: when all places are
//! taken, the one that has been idle the longest is closed. Connections whose request is being
//! carried out stay; if all are busy, the new client is refused.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weft_rt::{MILLISECOND, Nanos, Rt};

/// Connections at the same time.
pub const CONNECTIONS_MAX: usize = 32;

/// The activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
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
    activity: Activity,
}

/// A connection's place in the table, left on drop.
#[derive(Debug)]
pub struct ConnectionSlot {
    table: Connections,
    number: u64,
}

/// The result for a new connection.
#[derive(Debug)]
pub enum Admission {
    /// A place was free.
    Free(ConnectionSlot),
    /// Another connection was closed to make room.
    Displaced(ConnectionSlot),
    /// All are busy.
    Full,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code that holds the lock panics in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a place for a connection.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn admit(&self, stream: &UnixStream) -> io::Result<Admission> {
        let stream = stream.try_clone()?;
        let mut table = self.lock();
        let full = table.entries.len() >= CONNECTIONS_MAX;
        if full {
            let waiting = table.entries.iter().filter_map(|(number, entry)| match entry.activity {
                Activity::Listening(since) | Activity::Answering(since) => Some((since, *number)),
                Activity::Working => None,
            });
            let Some((_, number)) = waiting.min() else { return Ok(Admission::Full) };
            if let Some(entry) = table.entries.remove(&number) {
                // Its thread reads the end of the stream.
                let _ = entry.stream.shutdown(Shutdown::Both);
            }
        }
        let number = table.next;
        table.next += 1;
        table
            .entries
            .insert(number, Entry { stream, activity: Activity::Listening(Instant::now()) });
        let place = ConnectionSlot { table: self.clone(), number };
        Ok(if full { Admission::Displaced(place) } else { Admission::Free(place) })
    }

    /// Waits until every request has been answered, for at most `patience`.
    pub async fn wait_answered(&self, rt: &Rt, patience: Nanos) {
        let deadline = rt.now().saturating_add(patience);
        let listens = |entry: &Entry| matches!(entry.activity, Activity::Listening(_));
        while !self.lock().entries.values().all(listens) && rt.now() < deadline {
            rt.sleep(MILLISECOND).await;
        }
    }
}

impl ConnectionSlot {
    /// Records what the connection does now. False: its place was given to another.
    pub fn note(&self, activity: Activity) -> bool {
        let mut table = self.table.lock();
        let entry = table.entries.get_mut(&self.number);
        entry.map(|entry| entry.activity = activity).is_some()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.table.lock().entries.remove(&self.number);
    }
}
