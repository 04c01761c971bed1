//! What a run has, and how it opens disks, runs futures and reports a failure.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::Rt;

use crate::disk::{Hangs, SimDisk};
use crate::engine::Engine;
use crate::factory::Gear;
use crate::member::Member;
use crate::membership;
use crate::oracle::Tick;
use crate::report::{Failure, Options, Report};
use crate::rng::Rng;
use crate::setup::{Map, Setup};
use crate::slots::Slots;
use crate::violation::Broken;
use crate::workload::Desk;
use crate::world::{Event, What, World};

/// Events shown with a failure.
const TAIL: usize = 40;

/// All that a run has.
pub(crate) struct Run {
    pub rt: Rt,
    pub world: World,
    pub options: Options,
    pub setup: Setup,
    pub rng: Rng,
    pub disks: Rc<RefCell<Vec<Member>>>,
    pub report: Rc<RefCell<Report>>,
    pub desk: Option<Rc<Desk>>,
    pub map: Option<Rc<Map>>,
    /// The engine of the present life.
    pub engine: Rc<RefCell<Option<Engine>>>,
    /// When slots lost their disks in the present life.
    pub lost_at: Rc<RefCell<BTreeMap<usize, Tick>>>,
    /// How the engine's disks are opened.
    pub gear: Gear,
    /// The slots as the last life left them.
    pub last: Option<Slots>,
    /// In the present life, or the last, the power cut waited for a change of the members.
    pub besieged: bool,
    /// The last assembly did not come to its end.
    pub cut_short: bool,
    /// What hangs on disks that come in the middle of the present life.
    pub hangs_of_more: Rc<RefCell<Hangs>>,
}

impl Run {
    pub(super) fn failure(&self, broken: Broken, trace_hash: u64) -> Box<Failure> {
        let shown = |events: Vec<Event>| events.iter().map(ToString::to_string).collect();
        let Broken { kind, mut text, place } = broken;
        if let (Some(place), Some(map)) = (&place, &self.map) {
            let (stripe, slot) = map.of(place.start);
            text = format!("{text}(stripe {stripe}, slot {slot})");
        }
        let shown_max =
            if self.options.events_shown == 0 { TAIL } else { self.options.events_shown };
        let near = place.map(|place| {
            self.world.events(3 * TAIL, |what| match what {
                What::Client { offset, len, .. } => {
                    *offset < place.end && place.start < offset + len
                }
                What::Disk { .. } => false,
                What::Note(_) => true,
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

    /// The disks that are attached, opened in this life.
    pub(crate) fn open(&self) -> Vec<Rc<dyn Disk>> {
        let disks = self.disks.borrow();
        let attached = disks.iter().filter(|member| !member.absent);
        attached.map(|member| self.gear.open(&self.world, &member.platter)).collect()
    }

    /// Runs `future` in this life; `None` if the power went.
    pub(crate) fn drive<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<Option<T>, Broken> {
        let world = self.world.clone();
        let value = self.rt.block_on(async move { world.while_on(future).await });
        match self.desk.as_ref().and_then(|desk| desk.broken.take()) {
            Some(broken) => Err(broken),
            None => Ok(value),
        }
    }

    /// The disks of the run, opened.
    pub(crate) fn open_copies(&self, without: impl Fn(usize) -> bool) -> Vec<Rc<dyn Disk>> {
        (self.disks.borrow().iter())
            .filter(|member| !member.absent && !without(member.platter.number()))
            .map(|member| SimDisk::open(&self.world, &member.platter.copy()) as Rc<dyn Disk>)
            .collect()
    }

    pub(super) fn assemble_all(
        &mut self,
    ) -> impl Future<Output = Result<Engine, Broken>> + 'static {
        let (disks, nonce) = (self.open(), self.rng.next_u64());
        membership::assemble(&self.rt, &self.disks.borrow(), disks, nonce)
    }

    pub(crate) fn tolerance(&self) -> usize {
        weft_layout::code_for(self.setup.code, self.setup.algorithm, self.setup.slots)
            .map_or(0, |code| code.tolerance())
    }
}
