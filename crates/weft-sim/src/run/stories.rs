//! The ends of two stories that no array survives, or that no redundancy without checksums can
//! prevent: what counts is that nothing wrong is claimed.

use std::cell::Cell;
use std::rc::Rc;

use weft_array::{MemberState, ScrubMode};
use weft_code::UnitSet;

use super::state::Run;
use crate::disk::{Faults, Platter};
use crate::engine::Engine;
use crate::excuse::Lost;
use crate::format::FIRST_DATA;
use crate::member::Member;
use crate::oracle::Kind;
use crate::setup::{Map, Policy};
use crate::slots::Slots;
use crate::violation::{Broken, Violation};
use crate::volume::Volume;
use crate::workload::Desk;

/// How a disk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Stored bits change.
    Rot,
    /// A write is acknowledged and never stored.
    Lose,
    /// A write is stored elsewhere.
    Misdirect,
}

impl Run {
    /// More disks go than the code survives, while clients write. The array must stop taking
    /// writes and say so; what can still be read must be right, what cannot must not be made up.
    /// When the disks come back, nothing that was acknowledged is gone.
    pub(crate) fn beyond(&mut self) -> Result<(), Broken> {
        let (Some(desk), Some(map)) = (self.desk.clone(), self.map.clone()) else {
            return Ok(());
        };
        let (opening, world) = (self.assemble_all(), self.world.clone());
        let disks = self.disks.clone();
        // Incomplete when this began, and lost in all.
        let slots_out = Rc::new(Cell::new((UnitSet::new(), UnitSet::new())));
        let slots_in = slots_out.clone();
        let (load, clients, mut rng) =
            (self.setup.load.clone(), self.world.rng(70), self.world.rng(71));
        let desk2 = desk.clone();
        desk.quiesce.set(false);
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(broken) => return desk2.broke(broken),
            };
            let slots = Slots::of(&engine);
            slots_out.set((slots.incomplete(), slots.incomplete()));
            let volume: Rc<dyn Volume> = Rc::new(engine.clone());
            desk2.errors_allowed.set(true);
            let tasks = desk2.start(&volume, &load, &clients);
            let mut lost = slots.incomplete();
            while map.survives(lost) && lost.len() < slots.disks.len() {
                let slot = rng.index(slots.disks.len());
                if let Some(number) = slots.disks[slot]
                    && !lost.contains(slot)
                {
                    lost.insert(slot);
                    world.note(format!("slot {slot} loses its disk, too many"));
                    let after = rng.below(40);
                    disks.borrow()[number].platter.faults(|f| f.gone_after_ops = Some(after));
                    world.rt().sleep(rng.below(20_000_000)).await;
                }
            }
            futures_util::future::join_all(tasks).await;
            // Whatever it takes to make the engine ask every disk.
            for number in slots.disks.iter().flatten() {
                let platter = disks.borrow()[*number].platter.clone();
                platter.faults(|f| f.gone |= f.gone_after_ops.is_some());
            }
            desk2.write(&engine, 80, 0..1, Kind::Data, true).await;
            desk2.read_all(&engine, 81).await;
            desk2.flush(&engine, 82).await;
            let status = engine.0.status();
            if map.survives(lost) {
                return;
            }
            slots_out.set((slots.incomplete(), lost));
            if status.broken.is_none() {
                // Nothing that was ever written is lost.
                let _ = engine.0.stop().await;
                return;
            }
            desk2.writes_must_fail.set(true);
            desk2.write(&engine, 83, 0..1, Kind::Data, false).await;
            desk2.writes_must_fail.set(false);
            Self::read_what_is_left(&desk2, &engine, &map, lost).await;
            let _ = engine.0.stop().await;
        })?;
        self.rt.kill_all();
        self.come_back(&desk, slots_in.get())
    }

    async fn read_what_is_left(desk: &Desk, engine: &Engine, map: &Map, lost: UnitSet) {
        let cells = desk.oracle.borrow().len();
        for cell in (0..cells).step_by(7) {
            let bytes = desk.oracle.borrow().bytes(&(cell..cell + 1));
            let readable = map.readable(bytes.start, lost) && map.readable(bytes.end - 1, lost);
            let read = desk.read(engine, 84, cell..cell + 1).await;
            if readable && !read {
                let text = "bytes that are still there cannot be read";
                desk.fail(Violation::RequestFailed, text, Some(bytes));
            }
        }
    }

    /// The lost disks are back, as after a pulled cable.
    fn come_back(
        &mut self,
        desk: &Rc<Desk>,
        (before, lost): (UnitSet, UnitSet),
    ) -> Result<(), Broken> {
        for member in self.disks.borrow().iter() {
            member.platter.faults(|f| *f = Faults::default());
        }
        self.world.note("the disks are back");
        desk.oracle.borrow_mut().had_to_stop();
        desk.errors_allowed.set(false);
        if let Some(map) = &self.map {
            let mut now = Lost::now(lost.difference(&before));
            if self.setup.policy != Policy::Ppl {
                now.extend(before);
            }
            let count = now.excuse(&mut desk.oracle.borrow_mut(), map, self.setup.policy);
            self.report.borrow_mut().excused += count;
        }
        let (opening, desk2) = (self.assemble_all(), desk.clone());
        let holder = self.engine.clone();
        self.drive(async move {
            match opening.await {
                Ok(engine) => {
                    desk2.read_all(&engine, 85).await;
                    *holder.borrow_mut() = Some(engine.clone());
                    if let Err(error) = engine.0.stop().await {
                        let text = format!("a clean stop failed: {error}");
                        desk2.fail(Violation::CommandFailed, text, None);
                    }
                }
                Err(broken) => desk2.broke(broken),
            }
        })?;
        self.last = self.engine.take().map(|engine| Slots::of(&engine));
        self.rt.kill_all();
        Ok(())
    }

    /// Disks lie. A scrub must find it; where the code can tell which unit is wrong, repair makes
    /// it right, and where it cannot, the report must not claim to know.
    /// Whatever it does, what the disk did not lie about stays as it is.
    /// Says whether all bytes of the volume are known afterwards.
    pub(crate) fn silent(&mut self) -> Result<bool, Broken> {
        let (Some(desk), Some(slots)) = (self.desk.clone(), self.last.clone()) else {
            return Ok(true);
        };
        if !slots.incomplete().is_empty() || self.setup.code == weft_code::CodeSpec::Raid0 {
            return Ok(true);
        }
        let Some((lie, bytes)) = self.lie()? else { return Ok(true) };
        let shape = self.setup.code.shape(self.setup.slots).expect("a code of the table");
        let report = self.report.clone();
        let (opening, desk2) = (self.assemble_all(), desk.clone());
        let tolerance = self.tolerance();
        // Any two losses survive: then one wrong unit can be told from the others.
        let locates = tolerance >= 2 && shape.p >= 2;
        let known = locates || lie != Lie::Misdirect;
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(broken) => return desk2.broke(broken),
            };
            let found = engine.0.scrub(ScrubMode::Check).await;
            let Ok(found) = found else {
                return desk2.fail(Violation::CommandFailed, "a scrub failed", None);
            };
            report.borrow_mut().mismatches += found.mismatches;
            if found.mismatches == 0 {
                let text = "a scrub did not find what a disk had changed";
                return desk2.fail(Violation::Scrub, text, None);
            }
            let claims = found.places.iter().any(|place| place.unit.is_some());
            if tolerance < 2 && claims {
                let text = format!("a scrub claims to know more than it can: {found:?}");
                desk2.fail(Violation::Scrub, text, None);
            }
            let repaired = engine.0.scrub(ScrubMode::Repair).await;
            let again = engine.0.scrub(ScrubMode::Check).await;
            match (repaired, again) {
                (Ok(_), Ok(again)) if again.mismatches == 0 => {}
                (repaired, again) => {
                    let text =
                        format!("after a repair mismatches are left: {repaired:?}, {again:?}");
                    desk2.fail(Violation::Scrub, text, None);
                }
            }
            if !locates {
                let oracle = &mut *desk2.oracle.borrow_mut();
                let now = oracle.now();
                for cell in oracle.cells_of(&bytes) {
                    oracle.excuse(cell, now);
                }
                oracle.consistent_again();
            }
            if known {
                desk2.read_all(&engine, 86).await;
            }
            if let Err(error) = engine.0.stop().await {
                let text = format!("a clean stop failed: {error}");
                desk2.fail(Violation::CommandFailed, text, None);
            }
        })?;
        self.rt.kill_all();
        Ok(known)
    }

    /// Changes one block of data on one disk, found by its contents, so that no knowledge of
    /// the layout is needed. Says how, and which bytes of the volume they are.
    fn lie(&mut self) -> Result<Option<(Lie, std::ops::Range<u64>)>, Broken> {
        let desk = self.desk.clone().expect("the array has lived");
        let (opening, desk2) = (self.assemble_all(), desk.clone());
        let (world, disks) = (self.world.clone(), self.disks.clone());
        let mut rng = self.world.rng(72);
        let lie = *rng.pick(&[Lie::Rot, Lie::Lose, Lie::Misdirect]);
        let block = 4096_u64;
        let told = Rc::new(Cell::new(None));
        let told2 = told.clone();
        self.drive(async move {
            let engine = match opening.await {
                Ok(engine) => engine,
                Err(broken) => return desk2.broke(broken),
            };
            let whole = |engine: &Engine| {
                engine.0.status().slots.iter().all(|s| s.state == MemberState::Active)
            };
            if !whole(&engine) {
                let _ = engine.0.stop().await;
                return;
            }
            let offset = rng.below(engine.size_bytes() / block) * block;
            let cells = desk2.oracle.borrow().cells_of(&(offset..offset + block));
            // Fresh contents, that no other place of any disk holds.
            desk2.write(&engine, 87, cells.clone(), Kind::Data, true).await;
            let buf = weft_rt::Buf::new(4096);
            let (result, image) = engine.read(offset, buf).await;
            if result.is_err() {
                return;
            }
            let Some((platter, at)) = find(&disks.borrow(), &image) else {
                let text = "a block that was written is on no disk";
                return desk2.fail(Violation::RequestFailed, text, None);
            };
            world.note(format!("disk {}: {lie:?} of {block} bytes at {at}", platter.number()));
            match lie {
                Lie::Rot => platter.rot(at, block),
                Lie::Lose => platter.faults(|f| f.lose_write_in = Some(at..at + block)),
                Lie::Misdirect => {
                    platter.faults(|f| f.misdirect_write_in = Some((at..at + block, 2 * block)));
                }
            }
            if lie != Lie::Rot {
                desk2.write(&engine, 88, cells, Kind::Data, true).await;
            }
            // A write near the end of the disk cannot go astray.
            let is_told = platter.faults(|f| {
                let (lose, misdirect) = (f.lose_write_in.take(), f.misdirect_write_in.take());
                lose.is_none() && misdirect.is_none()
            });
            told2.set((is_told && whole(&engine)).then_some(offset));
            let _ = engine.0.stop().await;
        })?;
        self.rt.kill_all();
        Ok(told.get().map(|offset| (lie, offset..offset + block)))
    }

    /// Reads everything with each member taken away in turn, on copies.
    pub(super) fn views(&mut self) -> Result<(), Broken> {
        let (Some(slots), Some(map), Some(desk)) =
            (self.last.clone(), self.map.clone(), self.desk.clone())
        else {
            return Ok(());
        };
        for slot in 0..self.setup.slots {
            let mut lost = UnitSet::one(slot);
            if self.rng.chance(40) {
                lost.insert(self.rng.index(self.setup.slots));
            }
            let known = slots.incomplete();
            if !map.survives(known.union(&lost)) {
                lost = UnitSet::one(slot);
            }
            if known.contains(slot) || !map.survives(known.union(&lost)) {
                continue;
            }
            let taken = |n| slots.holding(|disk| disk == n).intersects(&lost);
            self.world.note(format!("view without slots {:?}", lost.iter().collect::<Vec<_>>()));
            let copies = self.open_copies(taken);
            let (rt, desk) = (self.rt.clone(), desk.clone());
            self.drive(async move {
                match Engine::assemble(&rt, copies, true, true, 1).await {
                    Ok(engine) => desk.read_all(&engine, 95).await,
                    Err(error) => {
                        let text = format!("degraded assembly was refused: {error}");
                        desk.fail(Violation::AssemblyRefused, text, None);
                    }
                }
            })?;
            self.rt.kill_all();
        }
        Ok(())
    }
}

/// The disk and the place on it that holds these 4096 bytes.
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
