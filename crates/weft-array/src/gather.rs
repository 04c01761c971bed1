//! Gathering units of a stripe despite losses: the one routine that reads and reconstructs.
//!
//! Degraded reads, the old data of a write, rebuild, resync and scrub all ask for certain units
//! over a range of offsets. The planner names the cheapest reads. A unit that then cannot be read
//! is added to the losses and the planner is asked again, until everything wanted is there or the
//! code cannot give it.
//!
//! *Which survivors to read.* Repairs load the survivors unevenly, and a degraded array is as fast
//! as its busiest survivor: under cyclic DRC-G with cheapest repairs, one disk carries half as much
//! again as when healthy, the others an eighth to three eighths more. So when a member's queue is
//! deep, repairs for users look for a plan without that member. That plan reads more in total, but
//! from disks that are less busy: each read is priced by the queue that it joins ([`price`]), and
//! the cheaper plan is taken. The queues settle where both plans cost the same.
//!
//! A *medium error* (some sectors of a working disk) is repaired on the way: the unit is
//! reconstructed and written back. If several disks have medium errors in the same stripe at
//! different offsets, the whole range may be beyond the code although no single sector is. The
//! range is then halved until the errors fall apart. It is also halved down to the bad sectors
//! where parity may be wrong (dirty at a crash): the neighbouring sectors are intact, and
//! reconstructing them from such parity might change them. If a repair finds no space the sectors
//! stay as they are.
//!
//! The caller holds the stripe's lock, so that all units are from the same moment.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_code::{Plan, Undecodable, UnitSet};
use weft_disk::{Class, Disk, DiskError, DiskErrorKind, WriteOpts};
use weft_rt::Buf;

use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::geometry::to_len;

/// Units, each with the buffer for its part of the range.
pub(crate) type Units = Vec<(usize, Buf)>;

/// The result of gathering.
pub(crate) struct Gathered {
    /// [`ArrayError::Unreadable`] if the code cannot give one of the units.
    pub result: Result<(), ArrayError>,
    pub units: Units,
    /// Units with sectors that could be neither read nor rewritten. What their disks hold there is
    /// unknown, and they may return it one day.
    pub unrepaired: UnitSet,
}

/// An access to a stripe: where in its units it begins, and for whom it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripeAccess {
    pub stripe: u64,
    /// First offset in the units.
    pub from: u64,
    pub class: Class,
    /// Whether a repair may avoid members with deep queues: a user waits for it.
    pub load_aware: bool,
}

impl StripeAccess {
    /// For a user, beginning at this offset in the units.
    pub fn user(stripe: u64, from: u64) -> Self {
        Self { stripe, from, class: Class::User, load_aware: true }
    }

    /// For maintenance.
    pub fn maintenance(stripe: u64, from: u64) -> Self {
        Self { stripe, from, class: Class::Maintenance, load_aware: false }
    }
}

/// A unit that could not be read. Without a cause, another operation removed or replaced its member
/// after the losses were listed.
struct Failed {
    unit: usize,
    cause: Option<(usize, Rc<dyn Disk>, DiskError)>,
}

impl Inner {
    /// Fills the buffers of `wanted` (all of one length) with their units' contents, reconstructing
    /// units in `lost` and units that turn out to be unreadable.
    ///
    /// # Errors
    /// [`ArrayError::Unreadable`] if the code cannot give one of them. The buffers are returned in
    /// any case.
    pub(crate) async fn gather(
        &self,
        at: StripeAccess,
        lost: UnitSet,
        wanted: Units,
    ) -> (Result<(), ArrayError>, Units) {
        let Gathered { result, units, .. } = self.gather_and_repair(at, lost, wanted).await;
        (result, units)
    }

    /// As [`Inner::gather`]; also reports which units could not be repaired on the way.
    pub(crate) async fn gather_and_repair(
        &self,
        at: StripeAccess,
        lost: UnitSet,
        wanted: Units,
    ) -> Gathered {
        let mut unrepaired = UnitSet::new();
        let Some(len) = wanted.first().map(|(_, buf)| buf.len()) else {
            return Gathered { result: Ok(()), units: wanted, unrepaired };
        };
        debug_assert!(wanted.iter().all(|(_, buf)| buf.len() == len));
        let (bad, have) = (UnitSet::new(), Vec::new());
        let mut job = Gather { array: self, at, len, lost, bad, have, wanted, unrepaired };
        let result = job.run().await;
        unrepaired = job.unrepaired;
        Gathered { result, units: job.wanted, unrepaired }
    }
}

/// Requests in a member's queue from which on the queue counts as deep.
const DEEP: u32 = 4;

/// The cost of a read that joins `load` others. The square makes the deepest queue count most; the
/// constant makes extra reads cost something while all queues are short.
fn price(load: u32) -> u64 {
    16 + u64::from(load).pow(2)
}

impl Inner {
    /// The plan for a user's request that is cheapest under the current load.
    fn plan_by_load(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
    ) -> Result<Arc<Plan>, Undecodable> {
        let plan = self.plan(stripe, lost, wanted, UnitSet::new())?;
        let load = |unit: usize| self.members.load(self.geometry.slot(stripe, unit));
        let repair = plan.reads.difference(&wanted);
        let Some(hot) = repair.iter().max_by_key(|unit| load(*unit)).filter(|u| load(*u) >= DEEP)
        else {
            return Ok(plan);
        };
        let other = self.plan_without(stripe, lost, wanted, hot)?;
        let cost = |plan: &Plan| plan.reads.iter().map(|unit| price(load(unit))).sum::<u64>();
        Ok(if cost(&other) < cost(&plan) { other } else { plan })
    }
}

struct Gather<'a> {
    array: &'a Inner,
    at: StripeAccess,
    len: usize,
    /// Units whose members are lost.
    lost: UnitSet,
    /// Units that this gathering could not read.
    bad: UnitSet,
    /// Sources read so far that are not wanted themselves.
    have: Units,
    wanted: Units,
    /// Those of `bad` that could not be written back.
    unrepaired: UnitSet,
}

impl Gather<'_> {
    async fn run(&mut self) -> Result<(), ArrayError> {
        let wanted: UnitSet = self.wanted.iter().map(|(unit, _)| *unit).collect();
        let mut read = UnitSet::new();
        let mut medium = Vec::new();
        // From parity that may be wrong, reconstruct only the sectors that cannot be read.
        let unsure = self.array.awaits_resync(self.at.stripe);
        let exactly = unsure && self.can_halve();
        loop {
            let plan = match self.plan(wanted) {
                Ok(plan) => plan,
                Err(_) if !medium.is_empty() && self.can_halve() => {
                    return self.halves().await;
                }
                Err(cause) => return Err(self.unreadable(&cause)),
            };
            let missing = plan.reads.difference(&read);
            let failed = self.read_units(missing).await;
            read = read.union(&missing);
            if failed.is_empty() {
                self.combine(&plan, wanted);
                break;
            }
            for Failed { unit, cause } in failed {
                read.remove(unit);
                if cause.is_none() && !self.array.lost_units(self.at.stripe).contains(unit) {
                    // Another disk has taken the slot, with everything that this one held.
                    continue;
                }
                self.bad.insert(unit);
                let Some((slot, disk, error)) = cause else { continue };
                if error.kind == DiskErrorKind::Medium {
                    if exactly {
                        return self.halves().await;
                    }
                    self.array.members.count_read_error(slot);
                    medium.push((unit, slot, disk));
                } else {
                    Box::pin(self.array.member_failed(slot, &disk, &error)).await;
                }
            }
        }
        if !medium.is_empty() {
            Box::pin(self.repair(medium, read)).await;
        }
        Ok(())
    }

    fn plan(&self, wanted: UnitSet) -> Result<Arc<Plan>, Undecodable> {
        let lost = self.lost.union(&self.bad);
        // Where copies or parity units may differ, every read must use the same ones. Otherwise
        // data once read could change, also in the sectors that an unaligned write fills up with
        // old data.
        let unsure = self.array.awaits_resync(self.at.stripe);
        let load_aware =
            self.at.load_aware && self.array.load_aware_reconstruction.get() && !unsure;
        if load_aware && wanted.intersects(&lost) {
            return self.array.plan_by_load(self.at.stripe, lost, wanted);
        }
        self.array.plan(self.at.stripe, lost, wanted, UnitSet::new())
    }

    fn unreadable(&self, cause: &Undecodable) -> ArrayError {
        let geometry = &self.array.geometry;
        let unit = cause.unit.min(geometry.code.k() - 1);
        let offset = geometry.offset(self.at.stripe, unit, self.at.from);
        ArrayError::unreadable(offset, self.len as u64, cause)
    }

    /// Reads `units`, each into its wanted buffer if it has one.
    async fn read_units(&mut self, units: UnitSet) -> Vec<Failed> {
        // The membership may have changed since the losses were listed: a replacement that took a
        // slot meanwhile holds nothing of this stripe yet.
        let lost = self.array.lost_units(self.at.stripe);
        let mut reads = Vec::with_capacity(units.len());
        for unit in units.iter() {
            let (slot, offset) = self.array.geometry.locate(self.at.stripe, unit, self.at.from);
            let buf = match self.wanted.iter_mut().find(|(wanted, _)| *wanted == unit) {
                Some((_, buf)) => std::mem::replace(buf, Buf::new(0)),
                None => Buf::new(self.len),
            };
            let disk = self.array.members.disk(slot).filter(|_| !lost.contains(unit));
            let class = self.at.class;
            let members = &self.array.members;
            reads.push(async move {
                match disk {
                    Some(disk) => {
                        let _busy = members.busy(slot);
                        let (result, buf) = disk.read(offset, buf, class).await;
                        // If it left its slot during the read it may already be wiped for another
                        // use.
                        let result = if members.holds(slot, &disk) {
                            result.map_err(|error| Some((slot, disk, error)))
                        } else {
                            Err(None)
                        };
                        (unit, buf, result)
                    }
                    None => (unit, buf, Err(None)),
                }
            });
        }
        let mut failed = Vec::new();
        for (unit, buf, result) in join_all(reads).await {
            match self.wanted.iter_mut().find(|(wanted, _)| *wanted == unit) {
                Some(place) => place.1 = buf,
                None if result.is_ok() => self.have.push((unit, buf)),
                None => {}
            }
            if let Err(cause) = result {
                failed.push(Failed { unit, cause });
            }
        }
        failed
    }

    /// Computes the wanted units that were not read.
    fn combine(&mut self, plan: &Plan, wanted: UnitSet) {
        let computed: Vec<_> = plan
            .outputs
            .iter()
            .filter(|(unit, sources)| wanted.contains(*unit) && !is_itself(*unit, sources))
            .collect();
        for (unit, sources) in computed {
            let index = self.wanted.iter().position(|(wanted, _)| wanted == unit);
            let Some(index) = index else { continue };
            let mut out = std::mem::replace(&mut self.wanted[index].1, Buf::new(0));
            sum(sources, |source| self.value(source), &mut out);
            self.wanted[index].1 = out;
        }
    }

    fn value(&self, unit: usize) -> &[u8] {
        let mut all = self.wanted.iter().chain(&self.have);
        let (_, buf) = all.find(|(held, _)| *held == unit).expect("a plan's source was read");
        buf
    }

    /// Rewrites units that could not be read because of medium errors. If that fails the request
    /// still succeeds: it has what it wanted.
    async fn repair(&mut self, medium: Vec<(usize, usize, Rc<dyn Disk>)>, read: UnitSet) {
        for (unit, slot, disk) in medium {
            if !self.array.members.holds(slot, &disk) {
                continue;
            }
            self.unrepaired.insert(unit);
            let Some(buf) = self.value_from(unit, read) else { continue };
            if self.array.check_writable().is_err() {
                continue;
            }
            let (_, offset) = self.array.geometry.locate(self.at.stripe, unit, self.at.from);
            let opts = WriteOpts { class: self.at.class, fua: false };
            match disk.write(offset, buf.freeze(), opts).await {
                Ok(()) => {
                    self.unrepaired.remove(unit);
                    self.array.members.count_repair(slot);
                    let len = self.len as u64;
                    self.array.events.emit(Event::ReadErrorRepaired { slot, offset, len });
                }
                // The sectors stay as they are.
                Err(error) if error.is_no_space() => {}
                Err(error) => {
                    self.unrepaired.remove(unit);
                    self.array.member_failed(slot, &disk, &error).await;
                }
            }
        }
    }

    /// An unreadable unit, computed from what was `read` for the request: a repair reads nothing
    /// more.
    fn value_from(&self, unit: usize, read: UnitSet) -> Option<Buf> {
        let lost = self.lost.union(&self.bad);
        let plan = self.array.plan(self.at.stripe, lost, UnitSet::one(unit), read).ok()?;
        if !plan.reads.is_subset(&read) {
            return None;
        }
        let mut buf = Buf::new(self.len);
        sum(plan.output(unit)?, |source| self.value(source), &mut buf);
        Some(buf)
    }

    fn can_halve(&self) -> bool {
        self.len as u64 > self.array.geometry.sector_bytes
    }

    /// Gathers the lower and the upper half of the range separately.
    fn halves(&mut self) -> LocalBoxFuture<'_, Result<(), ArrayError>> {
        Box::pin(async move {
            let sector = to_len(self.array.geometry.sector_bytes);
            let half = (self.len / 2).next_multiple_of(sector);
            let mut lower = std::mem::take(&mut self.wanted);
            let upper: Units =
                lower.iter_mut().map(|(unit, buf)| (*unit, buf.split_off(half))).collect();
            let lower = self.array.gather_and_repair(self.at, self.lost, lower).await;
            let at = StripeAccess { from: self.at.from + half as u64, ..self.at };
            let upper = self.array.gather_and_repair(at, self.lost, upper).await;
            self.unrepaired = lower.unrepaired.union(&upper.unrepaired);
            self.wanted = lower.units;
            for ((_, low), (_, high)) in self.wanted.iter_mut().zip(upper.units) {
                *low = Buf::rejoin(vec![std::mem::replace(low, Buf::new(0)), high]);
            }
            lower.result.and(upper.result)
        })
    }
}

/// Computes a unit of `plan` from the sources in `have`.
pub(crate) fn combine(plan: &Plan, unit: usize, have: &Units, out: &mut Buf) {
    let value = |source| {
        let (_, buf) = have.iter().find(|(held, _)| *held == source).expect("a source was read");
        &**buf
    };
    sum(plan.output(unit).expect("the plan is for the unit"), value, out);
}

/// Σ coefficient · source.
fn sum<'a>(sources: &[(usize, u8)], value: impl Fn(usize) -> &'a [u8], out: &mut Buf) {
    let (coefs, bufs): (Vec<u8>, Vec<&[u8]>) =
        sources.iter().map(|(source, coef)| (*coef, value(*source))).unzip();
    weft_gf::encode(&[&coefs], &bufs, &mut [out]);
}

fn is_itself(unit: usize, sources: &[(usize, u8)]) -> bool {
    sources == [(unit, 1)]
}
