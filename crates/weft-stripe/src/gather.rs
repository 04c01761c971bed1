//! Gathering units of a stripe despite losses: the one routine that reads and reconstructs.
//!
//! Degraded reads, the old data of a write, rebuild, resync and scrub all ask for certain units
//! over a range of offsets. Units that can be read are read, and nothing else. Otherwise the
//! planner names the cheapest reads. A unit that then cannot be read is added to the losses and the
//! planner is asked again, until everything wanted is there or the code cannot give it. Before it
//! reports that, it asks the owner which units are lost now: a read may have waited long for the
//! disk that failed, and members may have come back since. Units *at hand* – a cache's, or a
//! request's own – serve as sources that cost nothing.
//!
//! *Which survivors to read.* Repairs load the survivors unevenly, and a degraded array is as fast
//! as its busiest survivor: under cyclic DRC-G with cheapest repairs, one disk carries half as much
//! again as when healthy, the other disks an eighth to three eighths more. So when a member's queue
//! is deep, repairs for users look for a plan without that member. That plan reads more in total,
//! but from disks that are less busy: each read is priced by the queue that it joins ([`price`]),
//! and the cheaper plan is taken. The queues settle where both plans cost the same.
//!
//! *Whether to read what is rebuilt.* A disk that is being rebuilt is written in order, and each
//! read costs it the way there and back. So a unit on it is computed while that is cheaper at the
//! same prices ([`is_dear`]): mostly where few reads repair a unit, as in LRC and DRC.
//!
//! A *medium error* (some sectors of a working disk) is repaired on the way: the unit is
//! reconstructed and written back. If several disks have medium errors in the same stripe at
//! different offsets, the whole range may be beyond the code although no single sector is. The
//! range is then halved until the errors fall apart. It is also halved down to the bad sectors
//! where parity may be wrong (dirty at a crash): the neighbouring sectors are intact, and
//! reconstructing them from such parity might change them. If a repair finds no space the sectors
//! stay as they are.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weft_code::{Plan, SlotNo, Undecodable, UnitSet};
use weft_disk::{Class, Disk, DiskError, DiskErrorKind, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::flight::{Busy, InFlight};
use crate::owner::{DeviceEvent, Location, Owner, Stripe};
use crate::{Units, Unreadable, value_in};

/// The result of gathering.
#[derive(Debug)]
pub struct Gathered {
    /// Fails if the code cannot give one of the units.
    pub result: Result<(), Unreadable>,
    /// The units asked for; their contents are unspecified after a failure.
    pub units: Units,
    /// Units with sectors that could be neither read nor rewritten. What their disks hold there is
    /// unknown, and they may return it one day.
    pub unrepaired: UnitSet,
}

/// An access to a stripe: where in its units it starts, and for whom it is.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// First offset in the units.
    pub from: u64,
    /// Who waits for it.
    pub class: Class,
    /// Whether a repair may avoid devices with deep queues: a user waits for it.
    pub load_aware: bool,
}

impl Access {
    /// For a user, start at this offset in the units.
    #[must_use]
    pub fn user(from: u64) -> Self {
        Self { from, class: Class::User, load_aware: true }
    }

    /// For maintenance.
    #[must_use]
    pub fn maintenance(from: u64) -> Self {
        Self { from, class: Class::Maintenance, load_aware: false }
    }
}

/// A unit that could not be read. Without a cause, its device left the slot after the losses were
/// listed.
struct Failed {
    unit: usize,
    cause: Option<(SlotNo, Rc<dyn Disk>, DiskError)>,
}

/// Where a unit is read from.
struct Source {
    unit: usize,
    /// Its place among the wanted units, if it is one of them.
    wanted: Option<usize>,
    slot: SlotNo,
    offset: u64,
    disk: Rc<dyn Disk>,
}

/// Fills the buffers of `wanted` (all of one length) with their units' contents, reconstructing
/// units that are lost or turn out to be unreadable. `at_hand` are contents of other units over the
/// same range.
pub async fn gather<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    at: Access,
    at_hand: &[(usize, Frozen)],
    wanted: Units,
) -> Gathered {
    let Some(len) = wanted.first().map(|(_, buf)| buf.len()) else {
        return Gathered { result: Ok(()), units: wanted, unrepaired: UnitSet::new() };
    };
    debug_assert!(wanted.iter().all(|(_, buf)| buf.len() == len));
    debug_assert!(at_hand.iter().all(|(_, bytes)| bytes.len() == len));
    let asked: UnitSet = wanted.iter().map(|(unit, _)| *unit).collect();
    let (bad, unrepaired, have) = (UnitSet::new(), UnitSet::new(), Vec::new());
    let mut job = Gather { owner, stripe, at, len, bad, at_hand, have, wanted, unrepaired };
    let mut result = Ok(());
    if asked.intersects(&stripe.lost) {
        result = Box::pin(job.reconstruct(asked, UnitSet::new(), Vec::new())).await;
    } else {
        let failed = job.read_units(asked).await;
        if !failed.is_empty() {
            result = Box::pin(job.reconstruct(asked, asked, failed)).await;
        }
    }
    Gathered { result, units: job.wanted, unrepaired: job.unrepaired }
}

/// Reads units from their own disks, without reconstruction.
///
/// # Errors
/// If one of them cannot be read.
pub async fn gather_exactly<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    at: Access,
    len: usize,
    units: UnitSet,
) -> Result<Units, Unreadable> {
    let alone = stripe.with_lost(stripe.coding.units().difference(&units));
    let wanted = units.iter().map(|unit| (unit, Buf::new(len))).collect();
    let Gathered { result, units, .. } = gather(owner, alone, at, &[], wanted).await;
    result.map(|()| units)
}

/// Reads those of the units that can be read from their own disks.
pub async fn gather_readable<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    at: Access,
    len: usize,
    units: UnitSet,
) -> Units {
    let mut read = Units::new();
    for unit in units.iter() {
        let unit = gather_exactly(owner, stripe, at, len, UnitSet::one(unit)).await;
        read.extend(unit.unwrap_or_default());
    }
    read
}

/// Requests in a device's queue from which on the queue counts as deep.
const DEEP: u32 = 4;

/// The cost of a read of its own.
const READ: u64 = 16;

/// The cost of a read that joins `load` other reads. The square makes the deepest queue count most;
/// the constant makes extra reads cost something while all queues are short.
pub(crate) fn price(load: u32) -> u64 {
    READ + u64::from(load).pow(2)
}

/// Whether a unit on a disk that is being rebuilt is dearer to read than to compute just now.
pub fn is_dear<O: Owner>(owner: &O, stripe: Stripe<'_>, unit: usize) -> bool {
    let Stripe { id, coding, lost, unsure, .. } = stripe;
    if unsure || !owner.balances_load() {
        return false;
    }
    let of = |unit: usize| price(owner.in_flight(owner.place(id, unit, 0).slot).get());
    let one = UnitSet::one(unit);
    let plan = coding.plan(id.number, lost.union(&one), one, UnitSet::new());
    plan.is_ok_and(|plan| plan.reads.iter().map(of).sum::<u64>() < of(unit) + READ)
}

struct Gather<'a, O> {
    owner: &'a O,
    stripe: Stripe<'a>,
    at: Access,
    len: usize,
    /// Units that this gathering could not read.
    bad: UnitSet,
    at_hand: &'a [(usize, Frozen)],
    /// Sources read so far that are not wanted themselves.
    have: Units,
    wanted: Units,
    /// Those of `bad` that could not be written back.
    unrepaired: UnitSet,
}

impl<O: Owner> Gather<'_, O> {
    /// Gets the wanted units by plans. `read` are the units that were read, or tried: those of
    /// `failed` could not be.
    async fn reconstruct(
        &mut self,
        asked: UnitSet,
        mut read: UnitSet,
        mut failed: Vec<Failed>,
    ) -> Result<(), Unreadable> {
        let mut medium = Vec::new();
        // From parity that may be wrong, reconstruct only the sectors that cannot be read.
        let exactly = self.is_unsure() && self.can_halve();
        let at_hand: UnitSet = self.at_hand.iter().map(|(unit, _)| *unit).collect();
        loop {
            for Failed { unit, cause } in failed {
                read.remove(unit);
                let lost = || self.owner.resolve(self.stripe.id).lost;
                if cause.is_none() && !lost().contains(unit) {
                    // Another disk has taken the slot, with everything that this one held.
                    continue;
                }
                self.bad.insert(unit);
                let Some((slot, disk, error)) = cause else { continue };
                if error.kind == DiskErrorKind::Medium {
                    if exactly {
                        return self.halves().await;
                    }
                    self.owner.met(slot, DeviceEvent::ReadError);
                    medium.push((unit, slot, disk));
                } else {
                    self.owner.failed(slot, &disk, &error).await;
                }
            }
            let plan = match self.plan(asked, at_hand) {
                Ok(plan) => plan,
                Err(_) if self.came_back() => {
                    failed = Vec::new();
                    continue;
                }
                Err(_) if !medium.is_empty() && self.can_halve() => return self.halves().await,
                Err(cause) => return Err(self.unreadable(cause)),
            };
            let missing = plan.reads.difference(&read).difference(&at_hand);
            failed = self.read_units(missing).await;
            read = read.union(&missing);
            if failed.is_empty() {
                self.combine(&plan, asked);
                break;
            }
        }
        if !medium.is_empty() {
            self.repair(medium, read.union(&at_hand)).await;
        }
        Ok(())
    }

    /// Where copies or parity units may differ, every read must use the same ones. Otherwise data
    /// once read could change, also in the sectors that an unaligned write fills up with old data.
    fn is_unsure(&self) -> bool {
        self.owner.resolve(self.stripe.id).unsure
    }

    /// Whether units that were lost when the stripe was resolved no longer are. They may be read
    /// from now on.
    fn came_back(&mut self) -> bool {
        let still = self.stripe.lost.intersection(&self.owner.resolve(self.stripe.id).lost);
        let came_back = !self.stripe.pinned && still != self.stripe.lost;
        if came_back {
            self.stripe.lost = still;
        }
        came_back
    }

    fn plan(&self, asked: UnitSet, at_hand: UnitSet) -> Result<Arc<Plan>, Undecodable> {
        let Stripe { id, coding, lost, .. } = self.stripe;
        let lost = lost.union(&self.bad).difference(&at_hand);
        let plan = coding.plan(id.number, lost, asked, at_hand)?;
        let load_aware = self.at.load_aware && self.owner.balances_load();
        if !load_aware || !asked.intersects(&lost) || self.is_unsure() {
            return Ok(plan);
        }
        let load = |unit: usize| self.owner.in_flight(self.owner.place(id, unit, 0).slot).get();
        let repair = plan.reads.difference(&asked).difference(&at_hand);
        let Some(hot) = repair.iter().max_by_key(|unit| load(*unit)).filter(|u| load(*u) >= DEEP)
        else {
            return Ok(plan);
        };
        let other = coding.plan_without(id.number, lost, asked, at_hand, hot)?;
        let cost = |plan: &Plan| {
            let reads = plan.reads.difference(&at_hand);
            reads.iter().map(|unit| price(load(unit))).sum::<u64>()
        };
        Ok(if cost(&other) < cost(&plan) { other } else { plan })
    }

    fn unreadable(&self, cause: Undecodable) -> Unreadable {
        let unit = cause.unit.min(self.stripe.code().k() - 1);
        Unreadable { unit, from: self.at.from, len: self.len, lost: cause.lost.len() }
    }

    /// Reads `units`, each into its wanted buffer if it has one.
    async fn read_units(&mut self, units: UnitSet) -> Vec<Failed> {
        let (owner, id) = (self.owner, self.stripe.id);
        // The membership may have changed since the losses were listed: a replacement that took a
        // slot since holds nothing of this stripe yet.
        let lost = owner.resolve(id).lost;
        let mut failed = Vec::new();
        let mut sources = Vec::with_capacity(units.len());
        for unit in units.iter() {
            let place = owner.place(id, unit, self.at.from);
            let Some(disk) = owner.disk(place.slot).filter(|_| !lost.contains(unit)) else {
                failed.push(Failed { unit, cause: None });
                continue;
            };
            // Mostly exactly the wanted units are read, in their order.
            let guess = sources.len();
            let wanted = match self.wanted.get(guess) {
                Some((wanted, _)) if *wanted == unit => Some(guess),
                _ => self.wanted.iter().position(|(wanted, _)| *wanted == unit),
            };
            let Location { slot, offset } = place;
            sources.push(Source { unit, wanted, slot, offset, disk });
        }
        let mut reads = InFlight::with_capacity(sources.len());
        for source in &sources {
            let buf = match source.wanted {
                Some(index) => std::mem::replace(&mut self.wanted[index].1, Buf::empty()),
                None => Buf::new(self.len),
            };
            let busy = Busy::on(owner.in_flight(source.slot));
            reads.push(source.disk.read(source.offset, buf, self.at.class), busy);
        }
        let (wanted_units, have) = (&mut self.wanted, &mut self.have);
        let done = |index: usize, (result, buf)| {
            let &Source { unit, wanted, slot, ref disk, .. } = &sources[index];
            // If it left its slot during the read it may already be wiped for another use.
            let result = match result {
                _ if !owner.holds(slot, disk) => Err(None),
                Err(error) => Err(Some((slot, disk.clone(), error))),
                Ok(()) => Ok(()),
            };
            match wanted {
                Some(index) => wanted_units[index].1 = buf,
                None if result.is_ok() => have.push((unit, buf)),
                None => {}
            }
            if let Err(cause) = result {
                failed.push(Failed { unit, cause });
            }
        };
        reads.all(done).await;
        // Whichever ended first: those without a disk, then by unit.
        failed.sort_by_key(|failed| (failed.cause.is_some(), failed.unit));
        failed
    }

    /// Computes the wanted units that were not read.
    fn combine(&mut self, plan: &Plan, asked: UnitSet) {
        for (unit, sources) in plan.outputs.iter().filter(|(unit, _)| asked.contains(*unit)) {
            let index = self.wanted.iter().position(|(wanted, _)| wanted == unit);
            let Some(index) = index else { continue };
            let at_hand = self.at_hand.iter().any(|(held, _)| held == unit);
            if sources[..] == [(*unit, 1)] && !at_hand {
                continue;
            }
            let mut out = std::mem::replace(&mut self.wanted[index].1, Buf::empty());
            sum(sources, |source| self.value(source), &mut out);
            self.wanted[index].1 = out;
        }
    }

    fn value(&self, unit: usize) -> &[u8] {
        if let Some((_, bytes)) = self.at_hand.iter().find(|(held, _)| *held == unit) {
            return bytes;
        }
        let mut all = self.wanted.iter().chain(&self.have);
        let (_, buf) = all.find(|(held, _)| *held == unit).expect("a plan's source was read");
        buf
    }

    /// Rewrites units that could not be read because of medium errors. If that fails the request
    /// still succeeds: it has what it wanted.
    async fn repair(&mut self, medium: Vec<(usize, SlotNo, Rc<dyn Disk>)>, read: UnitSet) {
        for (unit, slot, disk) in medium {
            if !self.owner.holds(slot, &disk) {
                continue;
            }
            self.unrepaired.insert(unit);
            let Some(buf) = self.value_from(unit, read) else { continue };
            if !self.owner.may_repair() {
                continue;
            }
            let offset = self.owner.place(self.stripe.id, unit, self.at.from).offset;
            // Where copies or parity may be wrong, durably: if a crash undid the repair, the
            // sectors could return with other contents than a reader was given.
            let opts = WriteOpts { class: self.at.class, fua: self.is_unsure() };
            match disk.write(offset, buf.freeze(), opts).await {
                Ok(()) => {
                    self.unrepaired.remove(unit);
                    self.owner.met(slot, DeviceEvent::Repaired { offset, len: self.len as u64 });
                }
                // The sectors stay as they are.
                Err(error) if error.is_no_space() => {}
                Err(error) => {
                    self.unrepaired.remove(unit);
                    self.owner.failed(slot, &disk, &error).await;
                }
            }
        }
    }

    /// An unreadable unit, computed from the units `read` for the request: a repair reads nothing
    /// more.
    fn value_from(&self, unit: usize, read: UnitSet) -> Option<Buf> {
        let lost = self.stripe.lost.union(&self.bad).difference(&read);
        let plan =
            self.stripe.coding.plan(self.stripe.id.number, lost, UnitSet::one(unit), read).ok()?;
        if !plan.reads.is_subset(&read) {
            return None;
        }
        let mut buf = Buf::new(self.len);
        sum(plan.output(unit)?, |source| self.value(source), &mut buf);
        Some(buf)
    }

    fn can_halve(&self) -> bool {
        self.len > self.owner.sector_bytes()
    }

    /// Gathers the lower and the upper half of the range separately.
    fn halves(&mut self) -> LocalBoxFuture<'_, Result<(), Unreadable>> {
        Box::pin(async move {
            let half = (self.len / 2).next_multiple_of(self.owner.sector_bytes());
            let mut lower = std::mem::take(&mut self.wanted);
            let upper: Units =
                lower.iter_mut().map(|(unit, buf)| (*unit, buf.split_off(half))).collect();
            let part = |from: usize, len: usize| -> Vec<(usize, Frozen)> {
                let slice = |(unit, bytes): &(usize, Frozen)| (*unit, bytes.slice(from, len));
                self.at_hand.iter().map(slice).collect()
            };
            let at_hand = (part(0, half), part(half, self.len - half));
            let lower = gather(self.owner, self.stripe, self.at, &at_hand.0, lower).await;
            let at = Access { from: self.at.from + half as u64, ..self.at };
            let upper = gather(self.owner, self.stripe, at, &at_hand.1, upper).await;
            self.unrepaired = lower.unrepaired.union(&upper.unrepaired);
            self.wanted = lower.units;
            for ((_, low), (_, high)) in self.wanted.iter_mut().zip(upper.units) {
                *low = Buf::rejoin(vec![std::mem::replace(low, Buf::empty()), high]);
            }
            lower.result.and(upper.result)
        })
    }
}

/// Computes a unit of `plan` from the sources in `have`.
///
/// # Panics
/// If the plan is not for the unit, or a source is missing.
pub fn compute(plan: &Plan, unit: usize, have: &Units, out: &mut Buf) {
    let value = |source| value_in(have, source).expect("a source was read");
    sum(plan.output(unit).expect("the plan is for the unit"), value, out);
}

/// Σ coefficient · source.
fn sum<'a>(sources: &[(usize, u8)], value: impl Fn(usize) -> &'a [u8], out: &mut Buf) {
    let (coefs, bufs): (Vec<u8>, Vec<&[u8]>) =
        sources.iter().map(|(source, coef)| (*coef, value(*source))).unzip();
    weft_gf::encode(&[&coefs], &bufs, &mut [out]);
}
