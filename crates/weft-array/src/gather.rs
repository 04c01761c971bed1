//! Getting units of a stripe, whatever is lost: the one routine that reads and reconstructs.
//!
//! Degraded reads, the old data of a write, rebuild, resync and scrub all ask the same question:
//! "these units, over these columns". The planner names the cheapest reads; what cannot be read
//! after all is added to the losses and the planner is asked again, until everything wanted is
//! there or the code cannot give it.
//!
//! *Whom to ask.* Repairs do not load the survivors alike, and the rate of an array that misses a
//! disk is that of its busiest survivor: under cyclic DRC-G with cheapest repairs one carries half
//! as much again as when healthy, the others an eighth to three eighths. So when the queue of a
//! member has grown deep, users' repairs look for a plan without it. That costs more reads in all,
//! but of disks that have time: a read is priced by the queue that it joins ([`price`]), and the
//! cheaper plan is taken. The queues themselves then settle where both cost the same.
//!
//! A *medium error* (some sectors of a working disk) is repaired on the way: the unit is
//! reconstructed too and written back. When several disks have medium errors in the same stripe,
//! each in other columns, the whole is beyond the code while every single sector is not; the range
//! is then halved until the errors fall apart. It is halved down to the bad sectors, too, where
//! parity may be wrong (dirty at a crash): the others beside them are as they should be, and what
//! such parity gives may not be. A repair that finds no room leaves the sectors as they are.
//!
//! The caller holds the stripe's lock, so that all units are of one moment.

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

/// Units with the buffers that hold (or will hold) their columns.
pub(crate) type Units = Vec<(usize, Buf)>;

/// What came of a gathering.
pub(crate) struct Gathered {
    /// [`ArrayError::Unreadable`] if the code cannot give one of the units.
    pub result: Result<(), ArrayError>,
    pub units: Units,
    /// Units with sectors that could be neither read nor written back: what their disks hold there
    /// is unknown, and may be found one day.
    pub unrepaired: UnitSet,
}

/// What is wanted of a stripe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripeAccess {
    pub stripe: u64,
    /// First column.
    pub from: u64,
    pub class: Class,
    /// Whether a repair may go around a deep queue: a user waits for it.
    pub load_aware: bool,
}

impl StripeAccess {
    /// For a user, from this column on.
    pub fn user(stripe: u64, from: u64) -> Self {
        Self { stripe, from, class: Class::User, load_aware: true }
    }

    /// For maintenance.
    pub fn maintenance(stripe: u64, from: u64) -> Self {
        Self { stripe, from, class: Class::Maintenance, load_aware: false }
    }
}

/// A unit that could not be read. Without a cause, its member was failed or replaced by somebody
/// else since the losses were listed.
struct Failed {
    unit: usize,
    cause: Option<(usize, Rc<dyn Disk>, DiskError)>,
}

impl Inner {
    /// Fills the buffers of `wanted` (all of one length) with the columns of their units, reading
    /// around `lost` and around whatever else turns out to be unreadable.
    ///
    /// # Errors
    /// [`ArrayError::Unreadable`] if the code cannot give one of them. The buffers come back in any case.
    pub(crate) async fn gather(
        &self,
        at: StripeAccess,
        lost: UnitSet,
        wanted: Units,
    ) -> (Result<(), ArrayError>, Units) {
        let Gathered { result, units, .. } = self.gather_and_repair(at, lost, wanted).await;
        (result, units)
    }

    /// As [`Inner::gather`]; says also what could not be repaired on the way.
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

/// Queues that are shorter need no relief: requests on the member.
const DEEP: u32 = 4;

/// What a read costs that joins so many others. The square makes the deepest queue count
/// most, the constant keeps extra reads from being free while all queues are short.
fn price(load: u32) -> u64 {
    16 + u64::from(load).pow(2)
}

impl Inner {
    /// The plan for a user's request: the cheapest as things stand.
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
    /// Units that could not be read just now.
    bad: UnitSet,
    /// Sources read so far that nobody wanted for themselves.
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
        // Parity that may be wrong must give no more than the very sectors that cannot be read.
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
                    // Another disk has taken the slot, with all that this one held.
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
        // Where copies, or parities, may differ the same ones must always be asked: what was read
        // once stays, also in the sectors that a write fills up with what was there.
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

    /// Reads `units`, into the wanted buffers where there are such.
    async fn read_units(&mut self, units: UnitSet) -> Vec<Failed> {
        // Members may have changed since the losses were listed: a replacement that took a slot
        // meanwhile holds nothing of this stripe yet.
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
                        // If it left its slot while it was read it may be wiped for another use by
                        // now.
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

    /// Writes units back that could not be read for medium errors. Failing to is no error of the
    /// request: what it wanted is there.
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

    /// A unit that could not be read, from what was `read` for the request itself: a repair reads
    /// nothing more.
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

    /// Gathers the lower and the upper half of the columns by themselves.
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

/// Computes a unit that `plan` gives from what it reads.
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
