//! When a member finds no room for a write: a sparse file on a full file system, a thin volume
//! whose pool ran out.
//!
//! Such a member works: all that it holds can be read, and what has room can be written. So it
//! stays. The client is told, and the stripe is brought to one state in which every unit that was
//! not being written is what it was. Let c be the stripe as it would be after the write, and for
//! each data unit u of the write let δ(u) be the difference between u as it ends and u in c.
//!
//! - A data unit that found no room keeps what its disk holds: its δ is read from the disk.
//! - A parity unit that found no room is *stuck*: it belongs to c + Σ coef·δ, whatever its disk
//!   holds says so: an equation in the δ of the data units that did find room, and of lost ones.
//! - If the equations have one solution, it is the stripe before the write: the units that were
//!   written are made old again. (Nothing was stuck: no equations, and all other δ are zero.)
//! - Else the data stays as it is, and stuck parity is *unmatched*: it counts as lost for this
//!   stripe ([`Inner::lost_units`]), so no read ever trusts it. The region is marked for resync,
//!   which computes it anew as soon as there is room.
//! - Unless a member is missing and the stripe could not do without the stuck units too. Then any
//!   solution is taken, at the cost of what was being written, to lost units first: what was not
//!   being written is kept.
//!
//! In a region that awaits its resync parity need not have matched before the write. There a stuck
//! unit tells nothing of the data, and solving for δ would put what never was in the place of the
//! data written, and of its neighbours in the same sectors. Only those that lost units are computed
//! from give equations: they match by definition.
//!
//! Parity that found room is then c's, plus Σ coef·δ. None of this needs new room. A disk may have
//! written part of what it then found no room for; all of the above holds column by column, but for
//! one thing: if of several stuck units some are old where others are new, there is no state
//! before the write to be had from them, and they become unmatched.
//!
//! *A repair that finds no room.* The sectors of a working disk that cannot be read are computed
//! from the others, and written back (`gather.rs`). If there is no room for that nothing is lost
//! that was there: the sectors stay unreadable, and each reader computes them. Only a resync must
//! not count such a stripe as done. The last that was written there may have reached the disk or
//! not, and a disk may read one day what it could not before; then the copies differ, or parity
//! does not match, and no mark would tell. So the stripe is resynced again, until the sectors were
//! read or written, and its region keeps its mark. Its units stay trusted: reading the bad sectors
//! is an error, no wrong bytes, and those beside them are needed should another member be lost.
//! Writes need not wait either, as in a marked region they encode parity from data.
//!
//! *What is kept where.* The stripes that want room are known in memory only; on disk their region
//! is marked for resync. A crash or stop in that state, and then a lost member, meets the write
//! hole in these stripes (`docs/consistency.md`). The table is bounded: when it is full all writes
//! are refused, and no stripe is resynced but those that it names.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_code::UnitSet;
use weft_disk::{Disk, WriteOpts};
use weft_rt::Buf;

use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::gather::{Columns, Units};
use crate::geometry::to_len;
use crate::parity::Band;
use crate::recover::solve;
use crate::write::{FailedWrite, UnitWrite};

/// Stripes that want room, at most: two mebibytes of memory.
const STRIPES_MAX: usize = 16 << 10;

/// What a stripe wants room for.
#[derive(Debug, Default, Clone, Copy)]
struct Wants {
    /// Parity units that do not match.
    unmatched: UnitSet,
    /// Units with unreadable sectors that a resync could not write back.
    unrepaired: UnitSet,
}

/// The stripes that do not match, or may not, because there is no room to write what they lack.
#[derive(Debug, Default)]
pub(crate) struct Wanting(RefCell<BTreeMap<u64, Wants>>);

impl Wanting {
    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn of(&self, stripe: u64) -> Wants {
        let table = self.0.borrow();
        if table.is_empty() {
            return Wants::default();
        }
        table.get(&stripe).copied().unwrap_or_default()
    }

    /// The unmatched units of a stripe.
    pub fn unmatched(&self, stripe: u64) -> UnitSet {
        self.of(stripe).unmatched
    }

    /// The caller holds the stripe's lock, as for [`Wanting::forget`].
    fn note(&self, stripe: u64, change: impl FnOnce(&mut Wants)) {
        change(self.0.borrow_mut().entry(stripe).or_default());
    }

    pub fn forget(&self, stripe: u64) {
        self.0.borrow_mut().remove(&stripe);
    }

    /// The stripes that want room, ascending.
    pub fn stripes(&self) -> Vec<u64> {
        self.0.borrow().keys().copied().collect()
    }
}

/// A stripe write of which some units found no room, in one of its bands.
struct Shortage<'a> {
    stripe: u64,
    band: &'a Band,
    /// All that the band was to write.
    writes: Vec<&'a UnitWrite>,
    lost: UnitSet,
    /// Data units that found no room.
    kept: UnitSet,
    /// Parity units that found none.
    stuck: UnitSet,
}

impl Inner {
    /// Notes that a member has no room, and says so once.
    pub(crate) fn note_no_space(&self, slot: usize, disk: &dyn Disk) {
        if self.members.set_no_space(slot) {
            let disk = disk.info().name.clone();
            self.events.emit(Event::NoSpace { slot, disk });
            self.jobs.changed();
        }
    }

    /// Before a stripe is written: its unmatched parity is made right, if there is room now.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there is none, or if very many stripes wait for room already.
    pub(crate) async fn match_stripe(&self, stripe: u64) -> Result<(), ArrayError> {
        if !self.wanting.unmatched(stripe).is_empty() {
            let matched = self.resync_stripe(stripe).await;
            // Sectors that still want a repair hinder no write elsewhere.
            if !self.wanting.unmatched(stripe).is_empty() {
                matched?;
            }
        }
        self.check_wanting()
    }

    /// Whether one more stripe may come to want room.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if very many do already.
    pub(crate) fn check_wanting(&self) -> Result<(), ArrayError> {
        let first = {
            let table = self.wanting.0.borrow();
            if table.len() < STRIPES_MAX {
                return Ok(());
            }
            table.keys().next().copied().unwrap_or_default()
        };
        let slot = self.wanting_slots(first).iter().next().unwrap_or_default();
        Err(ArrayError::NoSpace { disk: self.members.name(slot) })
    }

    /// After a resync of a stripe that left units with unreadable sectors: it is resynced once more
    /// when there may be room for their repair. The caller holds its lock.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there are such units.
    pub(crate) fn await_repair(&self, stripe: u64, units: UnitSet) -> Result<(), ArrayError> {
        let Some(unit) = units.iter().next() else { return Ok(()) };
        self.wanting.note(stripe, |wants| wants.unrepaired = units);
        let slot = self.geometry.slot(stripe, unit);
        Err(ArrayError::NoSpace { disk: self.members.name(slot) })
    }

    /// The slots that must have room before the stripe can match.
    fn wanting_slots(&self, stripe: u64) -> UnitSet {
        let Wants { unmatched, unrepaired } = self.wanting.of(stripe);
        let units = unmatched.union(&unrepaired);
        units.iter().map(|unit| self.geometry.slot(stripe, unit)).collect()
    }

    /// Whether something is to be tried again when there may be room under a member.
    pub(crate) fn waits_for_space(&self) -> bool {
        !self.wanting.is_empty() || !self.members.without_space().is_empty()
    }

    /// Tries whether there is room now. A member that has none is asked once.
    pub(crate) async fn try_space(&self) {
        let mut full = UnitSet::new();
        let noted = self.members.without_space();
        for stripe in self.wanting.stripes() {
            if self.jobs.paused.get() || self.stopped.get() || self.check_writable().is_err() {
                return;
            }
            if self.wanting_slots(stripe).intersects(&full) {
                continue;
            }
            // One that lacks more than room waits like those that lack it.
            if let Err(ArrayError::NoSpace { .. }) = self.resync_paced(stripe).await {
                full = full.union(&self.wanting_slots(stripe));
            }
        }
        self.members.suppose_space_but_in(full);
        // A replacement that lacked room may have some where another member has none.
        if full.is_empty() || !noted.is_subset(&full) {
            self.jobs.wake();
        }
    }

    /// Parity units of a stripe could not be written: until they are, nobody may trust them.
    pub(crate) async fn distrust(&self, stripe: u64, units: UnitSet) {
        if units.is_empty() {
            return;
        }
        self.wanting.note(stripe, |wants| wants.unmatched = wants.unmatched.union(&units));
        let region = self.map.region_of(stripe);
        // If the map cannot be written the array is broken, and writes no more.
        let _ = self.map.set_needs_resync(self, &[region]).await;
        self.jobs.changed();
    }

    /// After a write of which some units found no room: see the head of this file.
    pub(crate) async fn settle_no_space(
        &self,
        stripe: u64,
        bands: &[Band],
        writes: &[UnitWrite],
        full: &[FailedWrite],
    ) {
        full.iter().for_each(|f| self.note_no_space(f.slot, &*f.disk));
        let data = self.geometry.data_units();
        for band in bands {
            let failed: UnitSet =
                full.iter().filter(|f| f.column == band.from).map(|f| f.unit).collect();
            if failed.is_empty() {
                continue;
            }
            let writes: Vec<&UnitWrite> =
                writes.iter().filter(|write| write.column == band.from).collect();
            loop {
                let lost = self.lost_units(stripe);
                let kept = failed.intersection(&data).difference(&lost);
                let stuck = failed.difference(&data).difference(&lost);
                let shortage = Shortage { stripe, band, writes: writes.clone(), lost, kept, stuck };
                match self.settle_band(&shortage).await {
                    Ok(unmatched) => self.distrust(stripe, unmatched).await,
                    // A member was lost in the middle of it.
                    Err(_) if self.lost_units(stripe) != lost => continue,
                    Err(_) => self.give_up(&shortage, full).await,
                }
                break;
            }
        }
    }

    /// Nothing could be settled: no parity of the band is known to match.
    async fn give_up(&self, shortage: &Shortage<'_>, full: &[FailedWrite]) {
        let Shortage { stripe, lost, .. } = shortage;
        let units: UnitSet = shortage.writes.iter().map(|write| write.unit).collect();
        let parity = units.difference(&self.geometry.data_units()).difference(lost);
        if self.geometry.code.decodable(*stripe, lost.union(&parity)) {
            self.distrust(*stripe, parity).await;
            return;
        }
        for f in full {
            self.member_failed(f.slot, &f.disk, &f.error).await;
        }
    }

    /// Brings a band to one state. Returns the parity units that could not be made to match.
    async fn settle_band(&self, shortage: &Shortage<'_>) -> Result<UnitSet, ArrayError> {
        let Shortage { stripe, band, kept, stuck, .. } = shortage;
        let (at, len) = (Columns::user(*stripe, band.from), band.len);
        let mut deltas = self.read_exactly(at, len, *kept).await?;
        for (unit, found) in &mut deltas {
            weft_gf::xor_acc(found, &[band.columns_of(*unit)]);
        }
        let mut stuck = self.read_exactly(at, len, *stuck).await?;
        for (unit, found) in &mut stuck {
            weft_gf::xor_acc(found, &[shortage.new_of(*unit)]);
            self.add_deltas(*stripe, *unit, found, &deltas);
        }
        // What some disks wrote after all needs nothing.
        stuck.retain(|(_, rest)| rest.iter().any(|byte| *byte != 0));
        let chosen = self.choose_deltas(shortage, &stuck);
        for (unit, rest) in &mut stuck {
            self.add_deltas(*stripe, *unit, rest, &chosen);
        }
        deltas.extend(chosen);
        self.apply(shortage, &deltas).await?;
        stuck.retain(|(_, rest)| rest.iter().any(|byte| *byte != 0));
        Ok(stuck.into_iter().map(|(unit, _)| unit).collect())
    }

    /// Adds to a parity unit's columns what data units that differ add.
    fn add_deltas(&self, stripe: u64, parity: usize, columns: &mut [u8], deltas: &Units) {
        let code = &self.geometry.code;
        for (unit, delta) in deltas {
            weft_gf::mul_acc(columns, code.coef(stripe, parity - code.k(), *unit), delta);
        }
    }

    /// How the units that found room, or are lost, are to differ, so that stuck parity matches.
    fn choose_deltas(&self, shortage: &Shortage<'_>, stuck: &Units) -> Units {
        let Shortage { stripe, band, lost, kept, .. } = shortage;
        let code = &self.geometry.code;
        if stuck.is_empty() {
            return Units::new();
        }
        // In the order in which they are given up, if some must be.
        let free = || {
            let there = band.units.difference(lost).difference(kept);
            band.units
                .intersection(lost)
                .iter()
                .collect::<Vec<_>>()
                .into_iter()
                .chain(there.iter().collect::<Vec<_>>())
        };
        let equation = |(unit, rest): &(usize, Buf)| {
            let coef = |data| (data, code.coef(*stripe, unit - code.k(), data));
            let coefs = free().map(coef).filter(|(_, coef)| *coef != 0).collect();
            (coefs, Buf::copy_from(rest))
        };
        let told: Vec<_> = self.telling(*stripe, *lost, stuck).collect();
        let solution = solve(told.iter().map(|unit| equation(unit)).collect());
        let old_again = solution.len() == free().count() && self.are_torn_alike(&told);
        let units: UnitSet = stuck.iter().map(|(unit, _)| *unit).collect();
        if old_again || !code.decodable(*stripe, lost.union(&units)) {
            solution
        } else {
            Units::new()
        }
    }

    /// The stuck units that matched the stripe before the write: all of them, unless it awaits its
    /// resync. Then those are left that lost data is computed from.
    fn telling<'a>(
        &self,
        stripe: u64,
        lost: UnitSet,
        stuck: &'a Units,
    ) -> impl Iterator<Item = &'a (usize, Buf)> {
        let matched = if self.awaits_resync(stripe) {
            let data = lost.intersection(&self.geometry.data_units());
            let plan = self.plan(stripe, lost, data, UnitSet::new());
            plan.map_or_else(|_| UnitSet::new(), |plan| plan.reads)
        } else {
            self.geometry.units()
        };
        stuck.iter().filter(move |(unit, _)| matched.contains(*unit))
    }

    /// Whether stuck units are new in the same sectors, so that in each of the others all are old.
    fn are_torn_alike(&self, stuck: &[&(usize, Buf)]) -> bool {
        let sector = to_len(self.geometry.sector_bytes);
        let torn = |rest: &Buf| -> Vec<bool> {
            rest.chunks(sector).map(|part| part.iter().all(|byte| *byte == 0)).collect()
        };
        let mut all = stuck.iter().map(|(_, rest)| torn(rest));
        let first = all.next();
        all.all(|other| Some(other) == first)
    }

    /// Writes what found room once more, as it is to be.
    async fn apply(&self, shortage: &Shortage<'_>, deltas: &Units) -> Result<(), ArrayError> {
        let Shortage { stripe, lost, kept, stuck, .. } = shortage;
        let k = self.geometry.code.k();
        let untouched = lost.union(kept).union(stuck);
        let mut corrected = Vec::new();
        for write in shortage.writes.iter().filter(|write| !untouched.contains(write.unit)) {
            let mut columns = Buf::copy_from(&write.data);
            if write.unit >= k {
                self.add_deltas(*stripe, write.unit, &mut columns, deltas);
            } else if let Some((_, delta)) = deltas.iter().find(|(unit, _)| *unit == write.unit) {
                weft_gf::xor_acc(&mut columns, &[delta]);
            }
            if *columns != *write.data {
                let data = columns.freeze();
                corrected.push(UnitWrite { unit: write.unit, column: write.column, data });
            }
        }
        let mut result = Ok(());
        for f in self.issue(*stripe, &corrected, WriteOpts::USER).await {
            if f.error.is_no_space() {
                result = Err(f.error.into());
            } else {
                self.member_failed(f.slot, &f.disk, &f.error).await;
            }
        }
        result
    }
}

impl Shortage<'_> {
    /// What was to be written to a unit.
    fn new_of(&self, unit: usize) -> &[u8] {
        let write = self.writes.iter().find(|write| write.unit == unit);
        &write.expect("a unit that found no room was to be written").data
    }
}
