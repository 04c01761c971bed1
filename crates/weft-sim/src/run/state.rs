//! The state of a run; how it opens disks, runs futures and reports a failure.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_array::Consistency;
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Rng, Rt};

use crate::disk::{Hangs, Platter, SimDisk};
use crate::engine::Engine;
use crate::factory::DiskFactory;
use crate::foreign::Foreign;
use crate::member::Member;
use crate::membership;
use crate::oracle::Tick;
use crate::report::{Failure, Options, Report};
use crate::setup::{Map, Setup};
use crate::slots::Slots;
use crate::violation::Violation;
use crate::workload::ClientHarness;
use crate::world::{Event, EventKind, World};

/// Events shown with a failure.
const TAIL: usize = 40;

/// The state of a run.
pub(crate) struct Run {
    pub rt: Rt,
    pub world: World,
    pub options: Options,
    pub setup: Setup,
    pub rng: Rng,
    pub disks: Rc<RefCell<Vec<Member>>>,
    pub report: Rc<RefCell<Report>>,
    pub harness: Option<Rc<ClientHarness>>,
    pub map: Option<Rc<Map>>,
    /// The engine of this life.
    pub engine: Rc<RefCell<Option<Engine>>>,
    /// When each slot lost its disk in this life.
    pub lost_at: Rc<RefCell<BTreeMap<SlotNo, Tick>>>,
    /// Opens the engine's disks.
    pub factory: DiskFactory,
    /// The slots at the end of the previous life.
    pub last_slots: Option<Slots>,
    /// The crash of this life, or of the previous one, is timed to hit a membership change.
    pub membership_crash: bool,
    /// That crash comes while superblocks are held back.
    pub held_commit: bool,
    /// This life, or the previous one, ends after a reshape that turned back.
    pub turned_crash: bool,
    /// What disks hold that come back from another use.
    pub foreign: Foreign,
    /// The last life ended with a clean stop.
    pub stopped: bool,
    /// An image of a disk.
    pub image: Rc<RefCell<Option<Platter>>>,
    /// The last assembly did not finish.
    pub assembly_interrupted: bool,
    /// The hangs of disks that are added during this life.
    pub new_disk_hangs: Rc<RefCell<Hangs>>,
}

impl Run {
    pub(super) fn failure(&self, violation: Violation, trace_hash: u64) -> Box<Failure> {
        let shown = |events: Vec<Event>| events.iter().map(ToString::to_string).collect();
        let Violation { kind, mut text, place } = violation;
        if let (Some(place), Some(map)) = (&place, &self.map) {
            let (stripe, slot) = map.of(place.start);
            text = format!("{text}(stripe {stripe}, slot {slot})");
        }
        let shown_max =
            if self.options.events_shown == 0 { TAIL } else { self.options.events_shown };
        let near = place.map(|place| {
            self.world.events(3 * TAIL, |what| match what {
                EventKind::Client { offset, len, .. } => {
                    *offset < place.end && place.start < offset + len
                }
                EventKind::Disk { .. } => false,
                EventKind::Note(_) => true,
            })
        });
        Box::new(Failure {
            seed: self.world.seed(),
            setup: self.setup.to_string(),
            kind,
            text,
            tail: shown(self.world.events(shown_max, |_| true)),
            place: near.map(shown).unwrap_or_default(),
            step: self.world.steps(),
            trace_hash,
        })
    }

    /// Opens the attached disks for this life.
    pub(crate) fn open(&self) -> Vec<Rc<dyn Disk>> {
        let (disks, open) = (self.disks.borrow(), self.opener());
        disks.iter().filter(|member| !member.absent).map(|member| open(&member.platter)).collect()
    }

    fn opener(&self) -> impl Fn(&Platter) -> Rc<dyn Disk> + use<> {
        let (factory, world) = (self.factory.clone(), self.world.clone());
        move |platter| factory.open(&world, platter)
    }

    /// Runs `future` in this life; returns `None` if the power is cut first.
    pub(crate) fn drive<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<Option<T>, Violation> {
        let world = self.world.clone();
        let value = self.rt.block_on(async move { world.while_on(future).await });
        match self.harness.as_ref().and_then(|harness| harness.violation.take()) {
            Some(violation) => Err(violation),
            None => Ok(value),
        }
    }

    /// Ends the program after a clean stop. A spare may still have a write in flight then: it
    /// reaches the disk now or never, and not after the next program has written there.
    pub(crate) fn end_program(&self) {
        self.rt.kill_all();
        self.disks.borrow().iter().for_each(|member| member.platter.program_killed());
    }

    /// Opens copies of the attached disks, except those `without` selects.
    pub(crate) fn open_copies(&self, without: impl Fn(usize) -> bool) -> Vec<Rc<dyn Disk>> {
        (self.disks.borrow().iter())
            .filter(|member| !member.absent && !without(member.platter.number()))
            .map(|member| SimDisk::open(&self.world, &member.platter.copy()) as Rc<dyn Disk>)
            .collect()
    }

    /// Assembles the array from the attached disks, and keeps it consistent by the `wanted` policy
    /// if that is possible.
    pub(super) fn assemble_all(
        &mut self,
        wanted: Option<Consistency>,
    ) -> impl Future<Output = Result<Engine, Violation>> + 'static + use<> {
        let (open, nonce) = (self.opener(), self.rng.next_u64());
        membership::assemble(&self.rt, &self.disks.borrow(), open, wanted, nonce)
    }

    pub(crate) fn tolerance(&self) -> usize {
        weft_layout::code_for(self.setup.code, self.setup.algorithm, self.setup.slots)
            .map_or(0, |code| code.tolerance())
    }
}
