//! Crash recovery: making parity agree with the data again.
//!
//! Recovery runs when the superblock records that the array was not stopped cleanly, before any
//! request is served:
//! 1. Every dirty region is marked, durably, as needing resync.
//! 2. The members' logs are read, and the newest records of each stripe are applied (`log.rs`
//!    explains why that is enough): parity := record + Σ coef·d_j over the units that were being
//!    written, as found.
//! 3. All members are flushed. The superblock gets a new log epoch, which voids the records.
//!
//! *Example:* raid6 4+2 (P = d0 + d1 + d2 + d3, Q = d0 + 2·d1 + 4·d2 + 8·d3), and a write d1 -> d1'
//! with its two records, as in `log.rs`:
//!
//! ```text
//! log (FUA)     [ring of P]  [ring of Q]
//! unit writes                              [d1']  [P']  [Q']
//! request                                                    acknowledged      flushed
//! crash                   A                          B                     C
//! ```
//!
//! - *A*, with one record durable: it names Q as well, whose ring has neither that record nor a
//!   newer batch. So the unit writes had not started. The record is void, and d1, P and Q are the
//!   old ones.
//! - *B*, with d1' and P' written and Q still old: P := (d0 + d2 + d3) + d1' = P' and Q := (d0 +
//!   4·d2 + 8·d3) + 2·d1' = Q'. If the disk of d2 is lost with the crash the result is the same,
//!   since d2 is not read; and d2 = P' - d0 - d1' - d3 is what it was before.
//! - *C*, acknowledged but not flushed, where a power cut took d1' from its disk's cache while P'
//!   and Q' were durable: with d1 as found, P and Q become the old ones again. An unflushed write
//!   may be lost; parity and data agree.
//! - *B, and the disk of d1 is lost*: d1 or d1' would both do, but P' gives one and the old Q the
//!   other. The last parity unit with a record decides: d1 := (Q - d0 - 4·d2 - 8·d3) / 2. Then P is
//!   computed from that as above.
//!
//! A crash during recovery starts it over. Applying a record twice gives the same parity, because
//! nothing was written in between. That holds only for members that took part. A missing member
//! keeps its old parity, and the records in its ring may change which ones count
//! (`recover/logs.rs`). If it simply came back, its parity would disagree with the rest. So before
//! anything is replayed, the exclusion of missing members takes effect on disk. From then until the
//! replay is complete, the superblock keeps the epoch of the log separately from that of the run
//! ([`Superblock::unreplayed`]): the new run's number must not void records that are not applied
//! yet.
//!
//! [`Superblock::unreplayed`]: crate::superblock::Superblock::unreplayed
//!
//! After recovery the marked regions are resynced in the background ([`Engine::resync_stripe`]),
//! since full-stripe writes are not logged. Reads of a stripe with no lost units need not wait for
//! that. Writes there encode parity from data instead of folding differences into parity that may
//! be wrong.
//!
//! *No space* for what recovery must write: the record is still needed, and would be void in the
//! next run. So the array does not start. Nothing is lost by that.
//!
//! *A unit that was being written, on a lost disk*: it may have been old or new, and either value
//! is correct for the unit itself. But parity rows that the write did not touch cover the unit,
//! too, perhaps together with lost units that no write touched. Those units must come out right, so
//! the value is chosen to agree with everything that is certain ([`Replay::values`]). This also
//! holds for sectors that were being written and cannot be read.

mod logs;

use std::collections::BTreeMap;

use weft_code::UnitSet;
use weft_stripe::{Access, LoggedParity, Owner, Replay, StripeId};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::log::{FoundRecord, LogId};
use crate::superblock::area::Area;
pub(crate) use logs::LogBlock;
use logs::Logs;

impl Engine {
    /// Replays the members' logs of the assembly `id`. Returns the unreadable log blocks that must
    /// be rewritten once this recovery is complete.
    pub(crate) async fn replay_log(
        &self,
        id: LogId,
        area: &Area,
    ) -> Result<Vec<LogBlock>, ArrayError> {
        let Logs { scans, torn, unread } = self.read_logs(id, area).await;
        for (stripe, replay) in self.newest_first(self.complete_sets(scans)) {
            let most = self.run_max(self.geometry_of(stripe));
            for skip in (0..replay.len).step_by(most) {
                let part = replay.part(skip, most.min(replay.len - skip));
                self.replay(stripe, part).await?;
            }
        }
        // Before this recovery is complete: the next one could not tell why they are unreadable.
        self.renew_log_blocks(torn).await;
        self.flush_members().await;
        Ok(unread)
    }

    /// The newest records for each offset of each stripe, as disjoint bands.
    fn newest_first(&self, found: Vec<FoundRecord>) -> Vec<(StripeId, Replay)> {
        let mut stripes: BTreeMap<StripeId, Vec<FoundRecord>> = BTreeMap::new();
        for record in found {
            stripes.entry(record.stripe).or_default().push(record);
        }
        let bands = |(stripe, records)| bands(stripe, records, self.geometry_of(stripe).code().k());
        stripes.into_iter().flat_map(bands).collect()
    }

    /// Applies the records of a band. Where a unit that was being written cannot be read, it counts
    /// as lost in the sectors that fail.
    async fn replay(&self, id: StripeId, mut replay: Replay) -> Result<(), ArrayError> {
        loop {
            self.check_writable()?;
            let stripe = self.resolve(id);
            replay.logged.retain(|parity| !stripe.lost.contains(parity.unit));
            let values = replay.values(self, stripe).await;
            if self.resolve(id).lost != stripe.lost {
                // A member failed during recovery, and is excluded.
                continue;
            }
            let Some(values) = values else {
                let half = (replay.len / 2).next_multiple_of(to_len(self.geometry().sector_bytes));
                Box::pin(self.replay(id, replay.part(0, half))).await?;
                replay = replay.part(half, replay.len - half);
                continue;
            };
            self.check_writable()?;
            // Without space this recovery cannot complete: its records are still needed.
            return self.write_back(id, Access::user(replay.from), values).await;
        }
    }
}

/// The part of a record that is about these offsets.
fn part_of(record: &FoundRecord, k: usize, from: u64, len: usize) -> LoggedParity {
    let skip = to_len(from - record.from);
    let partial = record.payload.as_ref().map(|payload| payload.slice(skip, len));
    let written = record.named.intersection(&UnitSet::first(k));
    LoggedParity { unit: record.unit, written, partial }
}

fn bands(stripe: StripeId, records: Vec<FoundRecord>, k: usize) -> Vec<(StripeId, Replay)> {
    let end = |record: &FoundRecord| record.from + record.len as u64;
    let mut cuts: Vec<u64> = records.iter().flat_map(|r| [r.from, end(r)]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut replays = Vec::new();
    for range in cuts.windows(2) {
        let (from, len) = (range[0], to_len(range[1] - range[0]));
        let covering = records.iter().filter(|r| r.from <= from && from < end(r));
        let mut newest: BTreeMap<usize, &FoundRecord> = BTreeMap::new();
        for record in covering {
            let best = newest.entry(record.unit).or_insert(record);
            if record.seq > best.seq {
                *best = record;
            }
        }
        let logged: Vec<LoggedParity> =
            newest.into_values().map(|record| part_of(record, k, from, len)).collect();
        if !logged.is_empty() {
            replays.push((stripe, Replay { from, len, logged }));
        }
    }
    replays
}
