//! How a run ends: reading with each member removed, losing more disks than the code tolerates, or
//! silent corruption. In the last two data may be lost; the engine must not claim otherwise.

use std::cell::Cell;
use std::rc::Rc;

use weft_array::{MemberState, ScrubMode};
use weft_code::{SlotNo, SlotSet};

use super::state::Run;
use crate::cached;
use crate::disk::{Faults, Platter};
use crate::engine::Engine;
use crate::excuse::Lost;
use crate::format::FIRST_DATA;
use crate::member::Member;
use crate::membership::superblock_of;
use crate::oracle::Kind;
use crate::setup::Map;
use crate::slots::Slots;
use crate::violation::{Violation, ViolationKind};
use crate::workload::ClientHarness;

/// How a disk corrupts data silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SilentFault {
    /// Stored bits change.
    BitRot,
    /// The disk acknowledges a write and does not store it.
    LostWrite,
    /// The disk stores a write at another offset.
    MisdirectedWrite,
}

impl Run {
    /// Loses more disks than the code tolerates while clients write. The array must refuse further
    /// writes. Reads of surviving data must return the right data; reads of lost data must fail.
    /// When the disks return, all acknowledged writes must be there.
    pub(crate) fn lose_too_many(&mut self) -> Result<(), Violation> {
        let (Some(harness), Some(map)) = (self.harness.clone(), self.map.clone()) else {
            return Ok(());
        };
        let (opening, world) = (self.assemble_all(None), self.world.clone());
        let disks = self.disks.clone();
        // The slots that were incomplete at the start, and all that are lost at the end.
        let slots_out = Rc::new(Cell::new((SlotSet::new(), SlotSet::new())));
        let slots_in = slots_out.clone();
        let (load, clients, mut rng) =
            (self.setup.load.clone(), self.world.rng(70), self.world.rng(71));
        let cache_rng = self.world.rng(73);
        // Disks often take no more writes while they can still be read.
        let write_only = self.world.rng(74).chance(40);
        let harness2 = harness.clone();
        harness.quiesce.set(false);
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(violation) => return harness2.record(violation),
            };
            let slots = Slots::of(&engine);
            slots_out.set((slots.incomplete(), slots.incomplete()));
            let volume = cached::perhaps(world.rt(), cache_rng, Rc::new(engine.0.clone()));
            harness2.errors_allowed.set(true);
            let tasks = harness2.start(&volume, &load, &clients);
            let mut lost = slots.incomplete();
            while map.survives(lost) && lost.len() < slots.disks.len() {
                let slot = rng.index(slots.disks.len());
                if let Some(number) = slots.disks[slot]
                    && !lost.contains(SlotNo(slot))
                {
                    lost.insert(SlotNo(slot));
                    let platter = disks.borrow()[number].platter.clone();
                    let after = rng.below(40);
                    // The first ones die, so that there are units to reconstruct.
                    let is_last = !map.survives(lost);
                    match superblock_of(&platter).filter(|_| write_only && is_last) {
                        Some(own) => {
                            world.note(format!("the disk of slot {slot} fails writes of data"));
                            let data = own.area.data_offset..u64::MAX;
                            platter.faults(|f| f.unwritable = Some(data));
                        }
                        None => {
                            world.note(format!("the disk of slot {slot} fails"));
                            platter.faults(|f| f.gone_after_ops = Some(after));
                        }
                    }
                    world.rt().sleep(rng.below(20_000_000)).await;
                }
            }
            futures_util::future::join_all(tasks).await;
            // Make the engine ask every disk.
            for number in slots.disks.iter().flatten() {
                let platter = disks.borrow()[*number].platter.clone();
                platter.faults(|f| f.gone |= f.gone_after_ops.is_some());
            }
            harness2.write(&engine.0, 80, 0..1, Kind::Data, true).await;
            harness2.read_all(&engine.0, 81).await;
            harness2.flush(&engine.0, 82).await;
            let status = engine.0.status();
            if map.survives(lost) {
                return;
            }
            slots_out.set((slots.incomplete(), lost));
            if status.broken.is_none() {
                // The lost units held nothing that was ever written.
                let _ = engine.0.stop().await;
                return;
            }
            harness2.writes_must_fail.set(true);
            harness2.write(&engine.0, 83, 0..1, Kind::Data, false).await;
            harness2.writes_must_fail.set(false);
            Self::read_surviving_data(&harness2, &engine, &map, lost, write_only).await;
            let _ = engine.0.stop().await;
        })?;
        self.end_program();
        self.return_disks(&harness, slots_in.get())
    }

    async fn read_surviving_data(
        harness: &ClientHarness,
        engine: &Engine,
        map: &Map,
        lost: SlotSet,
        write_only: bool,
    ) {
        let stripe_bytes = engine.0.stripe_bytes();
        let cells = harness.oracle.borrow().len();
        for cell in (0..cells).step_by(if write_only { 3 } else { 7 }) {
            let bytes = harness.oracle.borrow().bytes(&(cell..cell + 1));
            // A stripe whose write stopped halfway has lost the units that are not on a working
            // disk.
            let is_torn = |at: u64| {
                let start = at - at % stripe_bytes;
                let oracle = harness.oracle.borrow();
                let stripe = oracle.cells_of(&(start..start + stripe_bytes));
                oracle.open_cells().any(|cell| stripe.contains(&cell))
            };
            let readable =
                |at| map.readable(at, lost) && (!lost.contains(map.of(at).1) || !is_torn(at));
            let readable = readable(bytes.start) && readable(bytes.end - 1);
            let read = harness.read(&engine.0, 84, cell..cell + 1).await;
            if readable && !read {
                let text = "a read failed although the data can be decoded";
                harness.fail(ViolationKind::RequestFailed, text, Some(bytes));
            }
        }
    }

    /// Returns the lost disks, as after a pulled cable.
    fn return_disks(
        &mut self,
        harness: &Rc<ClientHarness>,
        (before, lost): (SlotSet, SlotSet),
    ) -> Result<(), Violation> {
        for member in self.disks.borrow().iter() {
            member.platter.faults(|f| *f = Faults::default());
        }
        self.world.note("the disks are back");
        harness.oracle.borrow_mut().had_to_stop();
        harness.errors_allowed.set(false);
        if let Some(map) = &self.map {
            let mut now = Lost::now(lost.difference(&before));
            now.long_ago(before);
            let oracle = &mut *harness.oracle.borrow_mut();
            let count = now.excuse(oracle, map, harness.exposure.rules());
            self.report.borrow_mut().excused += count;
        }
        let (opening, harness2) = (self.assemble_all(None), harness.clone());
        let holder = self.engine.clone();
        self.drive(async move {
            match opening.await {
                Ok(engine) => {
                    harness2.read_all(&engine.0, 85).await;
                    *holder.borrow_mut() = Some(engine.clone());
                    if let Err(error) = engine.0.stop().await {
                        let text = format!("a clean stop failed: {error}");
                        harness2.fail(ViolationKind::CommandFailed, text, None);
                    }
                }
                Err(violation) => harness2.record(violation),
            }
        })?;
        self.last_slots = self.engine.take().map(|engine| Slots::of(&engine));
        self.end_program();
        Ok(())
    }

    /// Corrupts one block silently. A scrub must find it. If the code can locate the wrong unit, a
    /// repair must restore it; if not, the report must not name a unit. A repair must leave all
    /// other data unchanged. Returns whether the contents of the whole volume are known afterwards.
    pub(crate) fn corrupt_silently(&mut self) -> Result<bool, Violation> {
        let (Some(harness), Some(slots)) = (self.harness.clone(), self.last_slots.clone()) else {
            return Ok(true);
        };
        if !slots.incomplete().is_empty() || self.setup.code == weft_code::CodeSpec::Raid0 {
            return Ok(true);
        }
        let Some((fault, bytes)) = self.inject_silent_fault()? else { return Ok(true) };
        let shape = self.setup.code.shape(self.setup.slots).expect("a code of the table");
        let report = self.report.clone();
        let (opening, harness2) = (self.assemble_all(None), harness.clone());
        let tolerance = self.tolerance();
        // If the code tolerates any two losses it can locate one wrong unit.
        let locates = tolerance >= 2 && shape.p >= 2;
        let known = locates || fault != SilentFault::MisdirectedWrite;
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(violation) => return harness2.record(violation),
            };
            let found = engine.0.scrub(ScrubMode::Check).await;
            let Ok(found) = found else {
                return harness2.fail(ViolationKind::CommandFailed, "a scrub failed", None);
            };
            report.borrow_mut().mismatches += found.mismatches;
            if found.mismatches == 0 {
                let text = "a scrub did not find a silent corruption";
                return harness2.fail(ViolationKind::Scrub, text, None);
            }
            let claims = found.places.iter().any(|place| place.unit.is_some());
            if tolerance < 2 && claims {
                let text =
                    format!("a scrub located an error that the code cannot locate: {found:?}");
                harness2.fail(ViolationKind::Scrub, text, None);
            }
            let repaired = engine.0.scrub(ScrubMode::Repair).await;
            let again = engine.0.scrub(ScrubMode::Check).await;
            match (repaired, again) {
                (Ok(_), Ok(again)) if again.mismatches == 0 => {}
                (repaired, again) => {
                    let text = format!("mismatches remain after a repair: {repaired:?}, {again:?}");
                    harness2.fail(ViolationKind::Scrub, text, None);
                }
            }
            if !locates {
                let oracle = &mut *harness2.oracle.borrow_mut();
                let now = oracle.now();
                for cell in oracle.cells_of(&bytes) {
                    oracle.excuse(cell, now);
                }
                oracle.consistent_again();
            }
            if known {
                harness2.read_all(&engine.0, 86).await;
            }
            if let Err(error) = engine.0.stop().await {
                let text = format!("a clean stop failed: {error}");
                harness2.fail(ViolationKind::CommandFailed, text, None);
            }
        })?;
        self.end_program();
        Ok(known)
    }

    /// Corrupts one block of data on one disk. The block is found by its contents, so that no
    /// knowledge of the layout is needed. Returns how, and which bytes of the volume.
    fn inject_silent_fault(
        &mut self,
    ) -> Result<Option<(SilentFault, std::ops::Range<u64>)>, Violation> {
        let harness = self.harness.clone().expect("set in the first life");
        let (opening, harness2) = (self.assemble_all(None), harness.clone());
        let (world, disks) = (self.world.clone(), self.disks.clone());
        let mut rng = self.world.rng(72);
        let fault = *rng.pick(&[
            SilentFault::BitRot,
            SilentFault::LostWrite,
            SilentFault::MisdirectedWrite,
        ]);
        let block = 4096_u64;
        let told = Rc::new(Cell::new(None));
        let told2 = told.clone();
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(violation) => return harness2.record(violation),
            };
            let whole = |engine: &Engine| {
                engine.0.status().slots.iter().all(|s| s.state == MemberState::Active)
            };
            if !whole(&engine) {
                let _ = engine.0.stop().await;
                return;
            }
            let offset = rng.below(engine.0.size_bytes() / block) * block;
            let cells = harness2.oracle.borrow().cells_of(&(offset..offset + block));
            // New contents that are nowhere else on the disks.
            harness2.write(&engine.0, 87, cells.clone(), Kind::Data, true).await;
            let buf = weft_rt::Buf::new(4096);
            let (result, image) = engine.0.read(offset, buf).await;
            if result.is_err() {
                return;
            }
            let Some((platter, at)) = find(&disks.borrow(), &image) else {
                let text = "no disk holds a block that was written";
                return harness2.fail(ViolationKind::RequestFailed, text, None);
            };
            world.note(format!("disk {}: {fault:?} of {block} bytes at {at}", platter.number()));
            match fault {
                SilentFault::BitRot => platter.rot(at, block),
                SilentFault::LostWrite => {
                    platter.faults(|f| f.lose_write_in = Some(at..at + block))
                }
                SilentFault::MisdirectedWrite => {
                    // Far enough that the same request does not read it, to fill up its sectors.
                    platter.faults(|f| f.misdirect_write_in = Some((at..at + block, 16 * block)));
                }
            }
            if fault != SilentFault::BitRot {
                harness2.write(&engine.0, 88, cells, Kind::Data, true).await;
            }
            // A write near the end of the disk is not misdirected.
            let is_told = platter.faults(|f| {
                let (lose, misdirect) = (f.lose_write_in.take(), f.misdirect_write_in.take());
                lose.is_none() && misdirect.is_none()
            });
            told2.set((is_told && whole(&engine)).then_some(offset));
            let _ = engine.0.stop().await;
        })?;
        self.end_program();
        Ok(told.get().map(|offset| (fault, offset..offset + block)))
    }

    /// Reads the whole volume with each member removed in turn, on copies of the disks.
    pub(super) fn read_degraded(&mut self) -> Result<(), Violation> {
        let (Some(slots), Some(map), Some(harness)) =
            (self.last_slots.clone(), self.map.clone(), self.harness.clone())
        else {
            return Ok(());
        };
        for slot in 0..self.setup.slots {
            let mut lost = SlotSet::one(SlotNo(slot));
            if self.rng.chance(40) {
                lost.insert(SlotNo(self.rng.index(self.setup.slots)));
            }
            let known = slots.incomplete();
            if !map.survives(known.union(&lost)) {
                lost = SlotSet::one(SlotNo(slot));
            }
            if known.contains(SlotNo(slot)) || !map.survives(known.union(&lost)) {
                continue;
            }
            let taken = |n| slots.holding(|disk| disk == n).intersects(&lost);
            self.world.note(format!("reading without slots {:?}", lost.iter().collect::<Vec<_>>()));
            let copies = self.open_copies(taken);
            let (rt, harness) = (self.rt.clone(), harness.clone());
            self.drive(async move {
                match Engine::assemble(&rt, copies, true, true, None, 1).await {
                    Ok(engine) => harness.read_all(&engine.0, 95).await,
                    Err(error) => {
                        let text = format!("the engine refused a degraded assembly: {error}");
                        harness.fail(ViolationKind::AssemblyRefused, text, None);
                    }
                }
            })?;
            self.rt.kill_all();
        }
        Ok(())
    }
}

/// The disk and offset where these 4096 bytes are.
fn find(disks: &[Member], image: &[u8]) -> Option<(Platter, u64)> {
    let mut found = [0; 4096];
    disks.iter().find_map(|member| {
        let end = member.platter.size_bytes().saturating_sub(4096);
        let holds = |at: &u64| {
            member.platter.peek(*at, &mut found);
            found[..] == *image
        };
        (FIRST_DATA..=end).step_by(4096).find(holds).map(|at| (member.platter.clone(), at))
    })
}
