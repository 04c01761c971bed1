//! The claim of a server on a shared disk: two servers of one disk, on two machines that reach it,
//! do not know each other's fences.
//!
//! *One server at a time.* A server writes its number and a count into the disk's head, and raises
//! the count as long as it lives ([`BEAT`]). One that starts reads the claim. If another server has
//! left one, it waits ([`WAIT`]): a count that rises belongs to a server that lives, and the new
//! one gives up. Otherwise it writes its own claim, waits ([`SETTLE`]), and reads it again. Of two
//! that start together the claim of only one stands by then: each writes within half of that time
//! after it had read, or begins again.
//!
//! ```text
//!   head:   copy 0 ─┼─ copy 1 ─┼─ claim, at 64 KiB ─┼─ unused, zeros ──
//! ```
//!
//! *A server that was stopped for a while* (a machine that hangs, a slow disk) hands no request to
//! the disk when its last beat began longer ago than [`HOLD`], which is less than another one has
//! waited. It takes the claim once more, or finds another server and ends. As a late beat may have
//! written over the claim of another, it then beats for the time of [`WAIT`] before it serves: the
//! other one has found that out by then.
//!
//! *Fences are not lost,* whatever clocks show. A server reads the claim after it has written a
//! fence and before it confirms it; one that starts writes its claim before it reads the fences. So
//! either the first sees the claim of the second, and does not confirm, or the second sees the
//! fence.
//!
//! *Limit.* What keeps the *requests* of a deposed server's nodes from the disk is time. A server
//! that stops after it has looked at its claim, for longer than another one waits, hands over a
//! late request; and what its kernel holds is carried out.

use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND};

use super::head::HeadError;
use crate::frame::{self, Frame};

/// How often a server raises its count.
pub(super) const BEAT: Nanos = 500 * MILLISECOND;
/// How long a claim holds after the beginning of its last beat.
pub(super) const HOLD: Nanos = 3 * SECOND;
/// How long a count must not rise until its server counts as dead.
pub(super) const WAIT: Nanos = 6 * SECOND;
/// How long a new claim must stand.
const SETTLE: Nanos = 500 * MILLISECOND;

const AT: u64 = 64 << 10;
const BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"weftserv";
const VERSION: u32 = 1;

/// What the claim's place holds, beside its count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Holder {
    /// The server's number; none: it ended and gave the disk back.
    server: Option<u64>,
    /// How many times a claim was taken.
    generation: u64,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Found {
    count: u64,
    holder: Holder,
    /// Bytes that are no claim: it was torn, and may be written again.
    is_damaged: bool,
}

/// Whether the claim is still this server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    Own,
    Foreign,
}

/// A server's own claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    server: u64,
    /// Which pair of the head the server writes.
    pub generation: u64,
    count: u64,
}

/// A claim that was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub claim: Claim,
    /// When the server began to look whether it stands.
    pub at: Nanos,
    /// Whether another server may not have found out yet: this one waits before it serves.
    pub is_late: bool,
}

async fn read(disk: &dyn Disk) -> Result<Found, HeadError> {
    let (result, bytes) = disk.read(AT, Buf::new(BYTES), Class::Urgent).await;
    let damaged = Found { is_damaged: true, ..Found::default() };
    match result {
        Ok(()) => {}
        Err(error) if error.kind == weft_disk::DiskErrorKind::Medium => return Ok(damaged),
        Err(error) => return Err(error.into()),
    }
    match frame::decode(&MAGIC, VERSION, &bytes) {
        Frame::Blank => Ok(Found::default()),
        Frame::Foreign | Frame::Damaged => Ok(damaged),
        Frame::Version(version) => {
            Err(HeadError::UnknownVersion(disk.info().name.clone(), version))
        }
        Frame::Sound(count, contents) => match serde_json::from_slice(&contents) {
            Ok(holder) => Ok(Found { count, holder, is_damaged: false }),
            Err(_) => Ok(damaged),
        },
    }
}

impl Claim {
    /// Claims a disk, which no other server must serve. The new generation is above `above`.
    ///
    /// # Errors
    /// Another server serves it, or the disk failed.
    pub async fn take(
        rt: &Rt,
        disk: &dyn Disk,
        server: u64,
        above: u64,
    ) -> Result<Taken, HeadError> {
        let served = || HeadError::Served(disk.info().name.clone());
        let is_free = |found: &Found| {
            found.holder.server.is_none_or(|one| one == server) && !found.is_damaged
        };
        let mut is_late = false;
        loop {
            let mut start = rt.now();
            let mut found = read(disk).await?;
            if !is_free(&found) {
                rt.sleep(WAIT).await;
                start = rt.now();
                let later = read(disk).await?;
                if later != found {
                    return Err(served());
                }
                found = later;
            }
            let generation = found.holder.generation.max(above) + 1;
            let mut claim = Self { server, generation, count: found.count };
            claim.write(disk, Some(server)).await?;
            if rt.now().saturating_sub(start) > SETTLE / 2 {
                // One that started together with this one may have looked already.
                is_late = true;
                continue;
            }
            rt.sleep(SETTLE).await;
            let at = rt.now();
            return match claim.check(disk).await? {
                Check::Own => Ok(Taken { claim, at, is_late }),
                Check::Foreign => Err(served()),
            };
        }
    }

    async fn write(&mut self, disk: &dyn Disk, server: Option<u64>) -> Result<(), DiskError> {
        self.count += 1;
        let holder = Holder { server, generation: self.generation };
        let contents = serde_json::to_vec(&holder).expect("it can be written as JSON");
        let claim = frame::encode(&MAGIC, VERSION, self.count, &contents, BYTES);
        let opts = WriteOpts { class: Class::Urgent, fua: true };
        disk.write(AT, claim.expect("it is short").freeze(), opts).await
    }

    /// Whether the disk has this server's claim.
    pub async fn check(&self, disk: &dyn Disk) -> Result<Check, HeadError> {
        let found = read(disk).await?;
        let own = Holder { server: Some(self.server), generation: self.generation };
        let is_own = found.holder == own && !found.is_damaged;
        Ok(if is_own { Check::Own } else { Check::Foreign })
    }

    /// Shows that the server lives, unless the disk has another's claim.
    pub async fn beat(&mut self, disk: &dyn Disk) -> Result<Check, HeadError> {
        let check = self.check(disk).await?;
        if check == Check::Own {
            self.write(disk, Some(self.server)).await?;
        }
        Ok(check)
    }

    /// Gives the disk back: the next server need not wait.
    pub async fn give_back(&mut self, disk: &dyn Disk) -> Result<(), HeadError> {
        if self.check(disk).await? == Check::Own {
            self.write(disk, None).await?;
        }
        Ok(())
    }
}
