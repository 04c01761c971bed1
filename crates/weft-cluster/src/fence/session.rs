//! Sessions: the connections, one after the other, of one user of a shared disk.
//!
//! *Why.* A connection may be lost to the client while its requests are still at the server, or on
//! their way to it. If the client asked again on another connection, an old write might overtake a
//! newer one. So each connection of a user has a number, the later ones larger ones, and the server
//! takes a new one only when nothing of the earlier ones can be carried out any more.
//!
//! *Another user* in the same process, as one that opens a lost disk again, has the disk from then
//! on. Who had it before names the session that it had last, and is refused.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// A connection of a user of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub number: u64,
    /// The one before it; none if its user has just opened the disk.
    pub after: Option<u64>,
}

/// The number of the next session of any user in this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Session {
    /// The first session of a user.
    pub fn first() -> Self {
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), after: None }
    }

    /// The next one of the same user.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { after: Some(self.number), ..Self::first() }
    }
}

/// Which disk a server serves, and in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// The disk: a random number.
    pub disk: u64,
    /// The server: a random number.
    pub server: u64,
    /// How many servers have claimed the disk so far.
    pub generation: u64,
}

impl DiskState {
    /// Whether it may be a later state of the same disk: it has the same server, or one that came
    /// later. An old copy of the disk has the claims of its time.
    #[must_use]
    pub fn may_follow(&self, before: &Self) -> bool {
        let is_later = self.generation > before.generation;
        let is_same = (self.server, self.generation) == (before.server, before.generation);
        self.disk == before.disk && (is_later || is_same)
    }
}
