//! Crash recovery: making parity agree with the data again.
//!
//! Recovery runs when the superblock says that the array was not stopped cleanly, before any
//! request is served:
//! 1. Every dirty region is marked, durably, as needing resync.
//! 2. The members' logs are read, and the newest records of each stripe are applied (`log.rs` says
//!    why that is enough): parity := record + Σ coef·d_j over the units that were being written, as
//!    found.
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
//! After recovery the marked regions are resynced in the background ([`Inner::resync_stripe`]),
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
//! the value is chosen to agree with everything that is certain ([`Inner::choose_unknown`]). The
//! same goes for sectors that were being written and cannot be read.

mod logs;

use std::collections::BTreeMap;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::{Buf, Frozen};

use crate::area::Area;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::gather::{Gathered, StripeAccess, Units};
use crate::geometry::to_len;
use crate::log::{FoundRecord, LogId};
pub(crate) use logs::LogBlock;
use logs::Logs;

/// A band of a stripe, with the newest record of each of its parity units. They need not be of the
/// same write: if a later write does not touch a parity unit, that unit's record stays the newest.
struct Replay {
    stripe: u64,
    from: u64,
    len: usize,
    logged: Vec<LoggedParity>,
}

struct LoggedParity {
    unit: usize,
    /// The data units that `partial` leaves out.
    written: UnitSet,
    partial: Option<Frozen>,
}

impl Inner {
    /// Replays the members' logs of the assembly `id`. Returns the unreadable log blocks that must
    /// be rewritten once this recovery is complete.
    pub(crate) async fn replay_log(
        &self,
        id: LogId,
        area: &Area,
    ) -> Result<Vec<LogBlock>, ArrayError> {
        let Logs { scans, torn, unread } = self.read_logs(id, area).await;
        let most = self.run_max();
        for replay in newest_first(self.complete_sets(scans), self.geometry.code.k()) {
            for skip in (0..replay.len).step_by(most) {
                self.replay(replay.part(skip, most.min(replay.len - skip))).await?;
            }
        }
        // Before this recovery is complete: the next one could not tell why they are unreadable.
        self.renew_log_blocks(torn).await;
        self.flush_members().await;
        Ok(unread)
    }

    /// Applies the records of a band. Where a unit that was being written cannot be read, it counts
    /// as lost in the sectors that fail.
    async fn replay(&self, mut replay: Replay) -> Result<(), ArrayError> {
        loop {
            self.check_writable()?;
            let lost = self.lost_units(replay.stripe);
            replay.logged.retain(|parity| !lost.contains(parity.unit));
            let (at, len, logged) = (replay.at(), replay.len, &replay.logged);
            let written =
                logged.iter().fold(UnitSet::new(), |all, parity| all.union(&parity.written));
            let readable = written.difference(&lost);
            let mut values = match self.read_exactly(at, len, readable).await {
                Ok(values) => values,
                Err(_) if self.lost_units(at.stripe) != lost => continue,
                Err(_) if len as u64 > self.geometry.sector_bytes => {
                    let (lower, upper) = replay.halves(self.geometry.sector_bytes);
                    Box::pin(self.replay(lower)).await?;
                    replay = upper;
                    continue;
                }
                Err(_) => self.read_readable(at, len, readable).await,
            };
            let known: UnitSet = values.iter().map(|(unit, _)| *unit).collect();
            let chosen = self.choose_unknown(at, len, written.difference(&known), logged).await;
            if self.lost_units(at.stripe) != lost {
                // A member failed meanwhile, and is excluded.
                continue;
            }
            let unreadable = chosen.iter().filter(|(unit, _)| !lost.contains(*unit));
            let mut fresh: Units =
                unreadable.map(|(unit, value)| (*unit, Buf::copy_from(value))).collect();
            values.extend(chosen);
            let sum =
                |parity: &LoggedParity| (parity.unit, self.sum(at.stripe, len, parity, &values));
            fresh.extend(logged.iter().map(sum));
            self.check_writable()?;
            // Without space this recovery cannot complete: its records are still needed.
            return self.write_back(at, fresh).await;
        }
    }

    /// A parity unit: its record, plus the units that the record leaves out, as far as `values` has
    /// them.
    fn sum(&self, stripe: u64, len: usize, parity: &LoggedParity, values: &Units) -> Buf {
        let code = &self.geometry.code;
        let mut sum = match &parity.partial {
            Some(partial) => Buf::copy_from(partial),
            None => Buf::zeroed(len),
        };
        for (data, value) in values.iter().filter(|(data, _)| parity.written.contains(*data)) {
            weft_gf::mul_acc(&mut sum, code.coef(stripe, parity.unit - code.k(), *data), value);
        }
        sum
    }

    /// Chooses values for lost units that were being written. Either the old or the new value is
    /// correct for such a unit itself, but parity rows that the write did not touch, and lost units
    /// that no write touched, must agree with it. So what is certain comes first: each record is a
    /// sum over units that were not being written, and each parity unit without a record is a sum
    /// over all of its units. What this leaves open follows from the logged parity units as found,
    /// so that a write that reached all disks keeps its value. A unit that nothing determines
    /// becomes zeros.
    async fn choose_unknown(
        &self,
        at: StripeAccess,
        len: usize,
        unknown: UnitSet,
        logged: &[LoggedParity],
    ) -> Units {
        if unknown.is_empty() {
            return Units::new();
        }
        let all = self.geometry.data_units();
        let present = self.geometry.units().difference(&self.lost_units(at.stripe));
        let read = self.read_readable(at, len, present.difference(&unknown)).await;
        let (known, found): (Units, Units) =
            read.into_iter().partition(|(unit, _)| all.contains(*unit));
        let mut equations = Vec::new();
        for parity in logged {
            let Some((_, found)) = found.iter().find(|(unit, _)| *unit == parity.unit) else {
                continue;
            };
            let mut rest = Buf::copy_from(found);
            if let Some(partial) = &parity.partial {
                weft_gf::xor_acc(&mut rest, &[partial]);
            }
            equations.push(self.equation(at.stripe, parity.unit, parity.written, rest, &known));
        }
        for parity in logged {
            let zero = || Buf::zeroed(len);
            let partial = parity.partial.as_ref().map_or_else(zero, |p| Buf::copy_from(p));
            let counted = all.difference(&parity.written);
            equations.push(self.equation(at.stripe, parity.unit, counted, partial, &known));
        }
        for (parity, value) in found {
            if logged.iter().all(|logged| logged.unit != parity) {
                equations.push(self.equation(at.stripe, parity, all, value, &known));
            }
        }
        // `solve` takes the last equations first.
        let mut values = solve(equations);
        values.retain(|(unit, _)| unknown.contains(*unit));
        let solved: UnitSet = values.iter().map(|(unit, _)| *unit).collect();
        values.extend(unknown.difference(&solved).iter().map(|unit| (unit, Buf::zeroed(len))));
        values
    }

    /// The equation "the sum over `units` with the coefficients of a parity unit is `sum`", in the
    /// units that are not `known`.
    fn equation(
        &self,
        stripe: u64,
        parity: usize,
        units: UnitSet,
        mut sum: Buf,
        known: &Units,
    ) -> (Coefs, Buf) {
        let row = self.geometry.code.row(stripe, parity - self.geometry.code.k());
        let mut open = units;
        for (unit, value) in known.iter().filter(|(unit, _)| units.contains(*unit)) {
            weft_gf::mul_acc(&mut sum, row[*unit], value);
            open.remove(*unit);
        }
        let coefs = open.iter().map(|unit| (unit, row[unit])).filter(|(_, coef)| *coef != 0);
        (coefs.collect(), sum)
    }

    /// Reads units from their own disks, without reconstruction.
    pub(crate) async fn read_exactly(
        &self,
        at: StripeAccess,
        len: usize,
        units: UnitSet,
    ) -> Result<Units, ArrayError> {
        let others = self.geometry.units().difference(&units);
        let wanted = units.iter().map(|unit| (unit, Buf::new(len))).collect();
        let (result, values) = self.gather(at, others, wanted).await;
        result.map(|()| values)
    }

    /// Reads those of the units that can be read from their own disks.
    async fn read_readable(&self, at: StripeAccess, len: usize, units: UnitSet) -> Units {
        let mut read = Units::new();
        for unit in units.iter() {
            read.extend(self.read_exactly(at, len, UnitSet::one(unit)).await.unwrap_or_default());
        }
        read
    }

    /// Writes units to their members, where present. A member that fails is excluded.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there was not enough space for all of them.
    pub(crate) async fn write_back(
        &self,
        at: StripeAccess,
        units: Units,
    ) -> Result<(), ArrayError> {
        let writes = units.into_iter().filter_map(|(unit, buf)| {
            let (slot, offset) = self.geometry.locate(at.stripe, unit, at.from);
            let disk = self.members.disk(slot)?;
            Some(async move {
                let (data, opts) = (buf.freeze(), WriteOpts::MAINTENANCE);
                let result = self.write_both(at.stripe, slot, &disk, offset, data, opts).await;
                result.err().map(|error| (slot, disk, error))
            })
        });
        let failed = futures_util::future::join_all(writes).await;
        let mut result = Ok(());
        for (slot, disk, error) in failed.into_iter().flatten() {
            if error.is_no_space() && self.members.holds(slot, &disk) {
                result = Err(self.note_no_space(slot));
            } else {
                self.member_failed(slot, &disk, &error).await;
            }
        }
        result
    }

    /// Makes the parity of a stripe agree with its data. Lost units keep the value that the code
    /// gives for them now. The caller holds the stripe's lock.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there was not enough space for what must be written, or for the
    /// repair of unreadable sectors.
    pub(crate) async fn resync_stripe(&self, stripe: u64) -> Result<(), ArrayError> {
        let mut unrepaired = UnitSet::new();
        for (from, len) in self.runs() {
            let at = StripeAccess::maintenance(stripe, from);
            let check = self.check_stripe(at, len).await?;
            let wrong: UnitSet = check.wrong.iter().map(|(unit, _)| *unit).collect();
            self.write_back(at, check.wrong).await?;
            unrepaired = unrepaired.union(&check.unrepaired.difference(&wrong));
        }
        self.check_writable()?;
        match unrepaired.iter().next() {
            Some(unit) => Err(self.note_no_space(self.geometry.slot(stripe, unit))),
            None => Ok(()),
        }
    }

    /// Reads all units of a stripe over a range of offsets, and recomputes their parity.
    pub(crate) async fn check_stripe(
        &self,
        at: StripeAccess,
        len: usize,
    ) -> Result<Checked, ArrayError> {
        let lost = self.lost_units(at.stripe);
        let code = &self.geometry.code;
        let k = code.k();
        // If the first copy of a mirror is lost, the planner picks the next.
        let present = self.geometry.units().difference(&lost);
        let wanted = self.geometry.data_units().union(&present);
        let all: Units = wanted.iter().map(|unit| (unit, Buf::new(len))).collect();
        let Gathered { result, units: all, unrepaired } =
            self.gather_and_repair(at, lost, all).await;
        result?;
        let (data, parity): (Vec<_>, Vec<_>) = all.into_iter().partition(|(unit, _)| *unit < k);
        let sources: Vec<&[u8]> = data.iter().map(|(_, buf)| &**buf).collect();
        let rows: Vec<&[u8]> =
            parity.iter().map(|(unit, _)| code.row(at.stripe, unit - k)).collect();
        let mut fresh: Vec<Buf> = parity.iter().map(|_| Buf::new(len)).collect();
        let mut outputs: Vec<&mut [u8]> = fresh.iter_mut().map(|buf| &mut **buf).collect();
        weft_gf::encode(&rows, &sources, &mut outputs);
        let wrong = parity
            .iter()
            .zip(fresh)
            .filter(|((_, found), fresh)| **found != **fresh)
            .map(|((unit, _), fresh)| (*unit, fresh))
            .collect();
        Ok(Checked { data, parity, wrong, unrepaired })
    }
}

/// Units with their coefficients in an equation.
type Coefs = Vec<(usize, u8)>;

/// Solves the equations Σ coef·value = right-hand side, the last ones first. Undetermined units
/// count as zeros and are left out of the result.
fn solve(mut equations: Vec<(Coefs, Buf)>) -> Units {
    let mut pivots: Vec<(usize, Coefs, Buf)> = Vec::new();
    while let Some((coefs, rest)) = equations.pop() {
        let Some((unit, pivot)) = coefs.first().copied() else { continue };
        let scale = weft_gf::field::inv(pivot);
        let mut right = Buf::new(rest.len());
        weft_gf::mul(&mut right, scale, &rest);
        let equation: Coefs =
            coefs.iter().map(|(u, c)| (*u, weft_gf::field::mul(scale, *c))).collect();
        for (coefs, rest) in &mut equations {
            eliminate(unit, &equation, &right, coefs, rest);
        }
        for (_, coefs, rest) in &mut pivots {
            eliminate(unit, &equation, &right, coefs, rest);
        }
        pivots.push((unit, equation, right));
    }
    // Units that remain next to a pivot are undetermined, and count as zeros.
    pivots.into_iter().map(|(unit, _, value)| (unit, value)).collect()
}

/// Subtracts a multiple of `equation`, whose leading unit is `unit` (with coefficient 1).
fn eliminate(
    unit: usize,
    equation: &[(usize, u8)],
    right: &[u8],
    coefs: &mut Coefs,
    rest: &mut [u8],
) {
    let Some(factor) = coefs.iter().find(|(u, _)| *u == unit).map(|(_, c)| *c) else { return };
    weft_gf::mul_acc(rest, factor, right);
    for (u, c) in equation {
        let delta = weft_gf::field::mul(factor, *c);
        match coefs.iter_mut().find(|(held, _)| held == u) {
            Some((_, held)) => *held ^= delta,
            None => coefs.push((*u, delta)),
        }
    }
    coefs.retain(|(_, c)| *c != 0);
}

/// A stripe as read, with its recomputed parity compared.
pub(crate) struct Checked {
    /// All data units; lost ones reconstructed.
    pub data: Units,
    /// The present parity units, as found.
    pub parity: Units,
    /// The correct contents of those that disagree with the data.
    pub wrong: Units,
    /// Units with sectors that could be neither read nor rewritten. They are reconstructed here;
    /// their disks may return something else one day.
    pub unrepaired: UnitSet,
}

impl Replay {
    fn at(&self) -> StripeAccess {
        StripeAccess::user(self.stripe, self.from)
    }

    fn part(&self, skip: usize, len: usize) -> Self {
        let part = |part: &LoggedParity| LoggedParity {
            partial: part.partial.as_ref().map(|partial| partial.slice(skip, len)),
            ..*part
        };
        let logged = self.logged.iter().map(part).collect();
        Self { stripe: self.stripe, from: self.from + skip as u64, len, logged }
    }

    /// The lower and the upper half of the range.
    fn halves(&self, sector: u64) -> (Self, Self) {
        let half = (self.len / 2).next_multiple_of(to_len(sector));
        (self.part(0, half), self.part(half, self.len - half))
    }
}

impl LoggedParity {
    fn of(record: &FoundRecord, k: usize, from: u64, len: usize) -> Self {
        let skip = to_len(from - record.from);
        let partial = record.payload.as_ref().map(|payload| payload.slice(skip, len));
        let written = record.named.intersection(&UnitSet::first(k));
        Self { unit: record.unit, written, partial }
    }
}

/// The newest records for each offset of each stripe, as disjoint bands.
fn newest_first(found: Vec<FoundRecord>, k: usize) -> Vec<Replay> {
    let mut stripes: BTreeMap<u64, Vec<FoundRecord>> = BTreeMap::new();
    for record in found {
        stripes.entry(record.stripe).or_default().push(record);
    }
    stripes.into_iter().flat_map(|(stripe, records)| bands(stripe, records, k)).collect()
}

fn bands(stripe: u64, records: Vec<FoundRecord>, k: usize) -> Vec<Replay> {
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
            newest.into_values().map(|record| LoggedParity::of(record, k, from, len)).collect();
        if !logged.is_empty() {
            replays.push(Replay { stripe, from, len, logged });
        }
    }
    replays
}
