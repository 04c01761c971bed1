//! Rebuild: reconstructing onto replacements what lost members held.
//!
//! A rebuild combines three independent choices: *which stripe is next* (`order`), *how a stripe is
//! rebuilt* (an executor) and *how fast* (a pace). This file puts them together: it asks the pace
//! whether one more stripe may start, asks the order which one, and hands it to the executor. The
//! engine has several orders, one executor (`disk_oriented`), and one pace, which keeps to the
//! bounds of the rate (`throttle`); experiments may replace it.
//!
//! The [`RebuildPolicy`](crate::RebuildPolicy) may be changed at any time. Stripes in flight end as
//! they started, and nothing is rebuilt twice, because only the region map records the remaining
//! work.
//!
//! All executors rebuild a stripe in the same way (`stripe`), and so do users' requests that bring
//! a unit along (`piggyback`): under the stripe's lock they gather the unit, write it, and note it
//! as rebuilt. From that moment requests use the replacement for this stripe. A region's stale mark
//! is cleared on disk only after the replacement was flushed (`finish`). When no region is stale,
//! the slot becomes active.
//!
//! A stripe that cannot be reconstructed (one medium error too many on the survivors) stays stale,
//! and the rebuild continues with the other stripes. The slot is then incomplete; the job reports
//! that and waits for a change. A replacement without space (a sparse file on a full file system)
//! is retried every few seconds.
//!
//! While the array is reshaped it has two geometries. A reshape does not go on while a member is
//! being rebuilt, so each stripe is live or not throughout, and a pass rebuilds the live ones of
//! both, those of the newest geometry first.
//!
//! A *pass* ends when nothing is left, or when something else comes first: a pause, a spare to
//! take, another lost member. The next pass continues with the work left in the map.

mod disk_oriented;
mod finish;
mod order;
mod returning;
mod spares;
mod work;

use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use weft_code::{SlotNo, SlotSet};
use weft_rt::{Nanos, Task};
use weft_stripe::{Generation, StripeId};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::lane::Lane;
use crate::format::rebuild_policy::RebuildPolicy;
use crate::maintenance::experiment::{Admission, Executor, Pace};
use crate::maintenance::throttle::WithinBounds;
use crate::maintenance::{JobKind, Monitor};
use crate::state::events::Event;
use disk_oriented::DiskOriented;
use order::{Order, Pick};
use work::{Taken, Work};

/// Most hot zones listed in a status.
const ZONES_SHOWN: usize = 16;

type InFlight = FuturesUnordered<LocalBoxFuture<'static, (StripeId, Result<(), ArrayError>)>>;

/// A pass over the stale stripes.
struct Pass<'a> {
    array: &'a Engine,
    /// The slots that it rebuilds, and the incomplete ones. The pass ends when they change.
    slots: Vec<(SlotNo, Lane)>,
    incomplete: SlotSet,
    /// The policy to which the next three belong.
    epoch: u64,
    /// One for each geometry.
    orders: Vec<(Generation, Box<dyn Order>)>,
    executor: Rc<dyn Executor>,
    pace: Box<dyn Pace>,
    taken: Taken,
    in_flight: InFlight,
    finishing: Option<Task<()>>,
    unreadable: Option<ArrayError>,
}

/// The next step of a pass.
enum Step {
    Begin(StripeId),
    Yield,
    WaitUntil(Nanos),
    Wait,
    End,
}

impl Engine {
    /// The kind of job that fills the present replacements.
    pub(super) fn rebuild_kind(&self) -> JobKind {
        if self.members().only_copies() { JobKind::Replace } else { JobKind::Rebuild }
    }

    /// Rebuilds all slots that are being rebuilt, until nothing is stale or something else comes
    /// first.
    pub(crate) async fn rebuild(&self) {
        let slots = self.members().rebuilding();
        for (_, lane) in &slots {
            self.jobs().rebuild().set_done(*lane, self.map().unfinished(*lane));
        }
        let left = self.map().stale_stripes(self.lanes());
        // Out of all stripes: after a pause, a crash or another failure, progress does not start at
        // zero.
        self.jobs().begin(self.rebuild_kind(), self.map().live().count(), left, self.rt().now());
        let unreadable = Pass::new(self, slots.clone()).run().await;
        self.jobs().end();
        if self.must_yield() {
            return;
        }
        if let Some(cause) = unreadable {
            // Lack of space was reported already, and is retried automatically.
            if !matches!(cause, ArrayError::NoSpace { .. }) {
                let job = "rebuild".to_owned();
                self.events().emit(Event::JobStalled { job, cause: cause.to_string() });
            }
            self.jobs().stall_rebuild();
            return;
        }
        self.finish_slots(&slots).await;
    }
}

impl<'a> Pass<'a> {
    fn new(array: &'a Engine, slots: Vec<(SlotNo, Lane)>) -> Self {
        let policy = array.jobs().rebuild().policy();
        let incomplete = array.incomplete_slots();
        Self {
            array,
            slots,
            incomplete,
            epoch: array.jobs().rebuild().epoch(),
            orders: new_orders(&policy, array, incomplete.len()),
            executor: new_executor(&policy, array),
            pace: new_pace(array),
            taken: Taken::default(),
            in_flight: InFlight::default(),
            finishing: None,
            unreadable: None,
        }
    }

    /// Runs the pass. Returns the last error that left a stripe stale.
    async fn run(mut self) -> Option<ArrayError> {
        loop {
            match self.step() {
                Step::Begin(stripe) => self.begin(stripe),
                Step::Yield => self.array.rt().yield_now().await,
                Step::WaitUntil(time) => self.wait_until(time).await,
                Step::Wait => self.one_ended().await,
                Step::End => break,
            }
            self.finish(finish::FINISH_REGIONS);
        }
        if self.array.service().is_stopped() && !self.array.jobs().is_paused() && !self.must_end() {
            self.array.complete_partial(&self.taken).await;
        }
        while self.finishing.is_some() || self.array.jobs().rebuild().regions_done() > 0 {
            self.finish(1);
            if let Some(task) = self.finishing.take() {
                task.await;
            }
        }
        self.unreadable
    }

    fn step(&mut self) -> Step {
        let array = self.array;
        let now = array.rt().now();
        if array.must_yield() || self.must_end() {
            return if self.in_flight.is_empty() { Step::End } else { Step::Wait };
        }
        self.follow_policy();
        let window = self.executor.window();
        match self.pace.admit(array.jobs().throttle(), now, self.in_flight.len(), window) {
            Admission::At(time) => return Step::WaitUntil(time),
            Admission::AfterOne if !self.in_flight.is_empty() => return Step::Wait,
            Admission::AfterOne | Admission::Now => {}
        }
        self.pick(now)
    }

    fn must_end(&self) -> bool {
        let array = self.array;
        array.members().rebuilding() != self.slots
            || array.incomplete_slots() != self.incomplete
            || array.can_take_spare()
            || matches!(self.unreadable, Some(ArrayError::NoSpace { .. }))
    }

    /// Adopts a changed policy. Stripes in flight end as they started.
    fn follow_policy(&mut self) {
        let state = self.array.jobs().rebuild();
        if state.epoch() == self.epoch {
            return;
        }
        let policy = state.policy();
        self.epoch = state.epoch();
        self.orders = new_orders(&policy, self.array, self.incomplete.len());
        self.executor = new_executor(&policy, self.array);
        self.pace = new_pace(self.array);
    }

    fn pick(&mut self, now: Nanos) -> Step {
        let array = self.array;
        for (generation, order) in &mut self.orders {
            let generation = *generation;
            let work = Work {
                map: array.map(),
                generation,
                lanes: array.lanes(),
                taken: &self.taken,
                lost: &|stripe| array.stripe(stripe).lost.len(),
                lost_max: self.incomplete.len(),
            };
            // If no more regions may be partly rebuilt, some of them are completed first.
            let begun = array.map().is_partial_full().then(|| work.next_begun()).flatten();
            let pick = match begun {
                Some(stripe) => Pick::Stripe(stripe),
                None => {
                    let next = |monitor: &mut Monitor| order.next(&work, monitor, now);
                    array.jobs().rebuild().with_monitor(next)
                }
            };
            match pick {
                Pick::Stripe(number) => return Step::Begin(StripeId { generation, number }),
                Pick::Later => return Step::Yield,
                Pick::Nothing => {}
            }
        }
        if self.in_flight.is_empty() { Step::End } else { Step::Wait }
    }

    fn begin(&mut self, stripe: StripeId) {
        let array = self.array;
        self.taken.borrow_mut().insert(stripe);
        // A stripe with no unit on the replacements is only noted.
        if !array.targets(stripe).is_empty() {
            let bytes = array.geometry_of(stripe).unit_bytes;
            self.pace.begun(array.jobs().throttle(), array.rt().now(), bytes);
        }
        let rebuilt = self.executor.clone().rebuild(stripe);
        self.in_flight.push(Box::pin(async move { (stripe, rebuilt.await) }));
    }

    async fn one_ended(&mut self) {
        let Some((stripe, result)) = self.in_flight.next().await else { return };
        self.ended(stripe, result);
    }

    fn ended(&mut self, stripe: StripeId, result: Result<(), ArrayError>) {
        match result {
            // One that a stop came before may still be completed.
            Ok(()) | Err(ArrayError::Stopped) => drop(self.taken.borrow_mut().remove(&stripe)),
            // It stays taken: this pass does not try it again.
            Err(error) => self.unreadable = Some(error),
        }
    }

    /// Waits until `time`, or until something happens that the pass should look at.
    async fn wait_until(&mut self, time: Nanos) {
        let array = self.array;
        let bell = std::pin::pin!(array.jobs().bell());
        let pause = select(array.rt().sleep_until(time), bell);
        if self.in_flight.is_empty() {
            pause.await;
            return;
        }
        let ended = match select(self.in_flight.next(), pause).await {
            futures_util::future::Either::Left((ended, _)) => ended,
            futures_util::future::Either::Right(_) => None,
        };
        if let Some((stripe, result)) = ended {
            self.ended(stripe, result);
        }
    }

    /// Starts clearing stale marks if at least `regions` regions are ready for it.
    fn finish(&mut self, regions: usize) {
        if self.finishing.as_ref().is_some_and(Task::is_finished) {
            self.finishing = None;
        }
        if self.finishing.is_none() && self.array.jobs().rebuild().regions_done() >= regions {
            self.finishing = Some(self.array.start_finishing());
        }
    }
}

/// The orders of the live stripes of each geometry.
fn new_orders(
    policy: &RebuildPolicy,
    array: &Engine,
    lost_max: usize,
) -> Vec<(Generation, Box<dyn Order>)> {
    let order = order::in_effect(policy, lost_max);
    let newest = (array.geometry().generation, order::new(order, policy));
    let former = array.geometries().former();
    let former = former.map(|(old, _)| (old.generation, order::of_former(order)));
    [Some(newest), former].into_iter().flatten().collect()
}

/// The executor of the experiment, or else the engine's.
fn new_executor(policy: &RebuildPolicy, array: &Engine) -> Rc<dyn Executor> {
    let chosen = array.jobs().rebuild().experiment().and_then(|e| e.executor(array.handle()));
    chosen.unwrap_or_else(|| Rc::new(DiskOriented::new(policy.pace, array.handle())))
}

/// The pace of the experiment, or else only the bounds: the process of each disk lets the users of
/// that disk go first.
fn new_pace(array: &Engine) -> Box<dyn Pace> {
    let chosen = array.jobs().rebuild().experiment().and_then(|e| e.pace(array.rt().now()));
    chosen.unwrap_or_else(|| Box::new(WithinBounds))
}
