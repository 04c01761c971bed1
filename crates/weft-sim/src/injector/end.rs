//! The end of a life: everything settles and is checked, and the array is stopped.

use std::rc::Rc;

use weft_array::{ArrayError, MemberState, ScrubMode};
use weft_rt::{MILLISECOND, Rt, SECOND};

use super::{FaultInjector, summary};
use crate::disk::{Hangs, Uniform};
use crate::engine::Engine;
use crate::member::Member;
use crate::slots::Slots;
use crate::violation::ViolationKind;
use crate::workload::Load;

/// The virtual time that jobs have to finish after the last request.
const SETTLE_MAX: u64 = 4 * 3600 * SECOND;

impl FaultInjector {
    /// Ends a life in order. In the last life, lets everything settle and checks it first. Before
    /// other stops a command sometimes starts to give the array a disk.
    pub(crate) async fn finish(&self, engine: &Engine, last: bool) {
        if last {
            self.settle(engine).await;
        }
        let mut rng = self.world.rng(13_000 + self.report.borrow().lives);
        if last || self.crashes_only || rng.chance(50) {
            return self.stop(engine).await;
        }
        let most = *rng.pick(&[10 * MILLISECOND, 100 * MILLISECOND, SECOND]);
        let head_start = rng.below(most);
        let stop = async {
            self.rt.sleep(head_start).await;
            self.stop(engine).await;
        };
        futures_util::future::join(self.give_slow_disk(engine, &mut rng), stop).await;
    }

    async fn stop(&self, engine: &Engine) {
        if self.harness.array_stopped.get() {
            // The operator ends the program and assembles the array again.
            return self.world.cut();
        }
        let flushing = self.harness.oracle.borrow_mut().begin_flush();
        let wants_room = || {
            let is_full = |m: &Member| m.platter.faults(|f| f.full);
            self.disks.borrow().iter().any(is_full)
                || engine.0.status().slots.iter().any(|slot| slot.wants_room_bytes > 0)
        };
        let wanted_room = wants_room();
        match engine.0.stop().await {
            Ok(()) if self.world.is_on() => {
                self.harness.end_abandoned();
                self.harness.oracle.borrow_mut().end_flush(flushing);
                self.stays_stopped(engine).await;
            }
            Ok(()) => {}
            Err(_) if self.harness.has_to_stop() => self.world.cut(),
            // Writes were still waiting for space: for the next life that is a crash.
            Err(ArrayError::Unclean { .. }) if wanted_room || wants_room() => self.world.cut(),
            Err(error) => {
                let text = format!("a clean stop failed: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
    }

    /// The array was stopped, and the program goes on: it writes nothing to members any more, since
    /// they may be assembled again at once.
    async fn stays_stopped(&self, engine: &Engine) {
        let members = Slots::of(engine).disks;
        let writes = || {
            let disks = self.disks.borrow();
            let is_member = |m: &&Member| members.contains(&Some(m.platter.number()));
            disks.iter().filter(is_member).map(|m| m.platter.writes()).sum::<u64>()
        };
        let before = writes();
        self.rt.sleep(self.world.rng(5001).below(SECOND)).await;
        if self.world.is_on() && writes() != before {
            let text = "a stopped array wrote to its members";
            self.harness.fail(ViolationKind::CommandFailed, text, None);
        }
    }

    async fn settle(&self, engine: &Engine) {
        self.world.note("the clients are done: everything must settle");
        for member in self.disks.borrow().iter() {
            member.platter.faults(|f| {
                f.unreadable.clear();
                f.write_errors_percent = 0;
                f.unwritable = None;
                f.write_protected = false;
                f.gone_after_ops = None;
                f.full = false;
            });
            member.platter.set_latency(Box::new(Uniform { spike_every: 0, ..Uniform::default() }));
            member.platter.set_hangs(Hangs::default());
        }
        engine.0.set_throttle(0, None);
        engine.0.set_latency_target(None);
        engine.0.set_paused(false);
        // A write lets the engine notice members that are gone but were not used since.
        self.harness.flush(&engine.0, 93).await;
        if self.harness.array_stopped.get() {
            return;
        }
        let settled = wait_for(&self.rt, || {
            let status = engine.0.status();
            let waits = status.spares.len() > status.spares_too_small.len()
                && status.slots.iter().any(|s| s.state == MemberState::Missing);
            status.jobs.is_empty()
                && !engine.0.is_reshaping()
                && status.regions.resync == 0
                && !waits
                && status.slots.iter().all(|s| s.state != MemberState::Rebuilding)
        });
        if !settled.await {
            let text = format!("the jobs did not end: {:?}", engine.0.status());
            self.harness.fail(ViolationKind::NeverSettles, text, None);
            return;
        }
        // By now abandoned requests have been carried out.
        self.rt.sleep(600 * SECOND).await;
        self.harness.end_abandoned();
        self.harness.consistent_again();
        self.world.note(format!("settled: {}", summary(engine)));
        self.grow_at_last(engine).await;
        if self.take_tail(engine).await {
            // The array uses what a cache above it holds, so all writes go through that.
            let volume = self.volume.borrow().clone();
            let volume = volume.unwrap_or_else(|| Rc::new(engine.0.clone()));
            let load =
                Load { requests: self.setup.load.requests.min(40), ..self.setup.load.clone() };
            let tasks = self.harness.start(&volume, &load, &self.world.rng(19_000));
            futures_util::future::join_all(tasks).await;
            self.rt.sleep(600 * SECOND).await;
            self.harness.end_abandoned();
            self.harness.consistent_again();
        }
        self.harness.read_all(&engine.0, 94).await;
        match engine.0.scrub(ScrubMode::Check).await {
            Ok(report) if report.mismatches == 0 && report.unreadable == 0 => {}
            Ok(report) => {
                let text = format!("the last scrub is not clean: {report:?}");
                self.harness.fail(ViolationKind::Scrub, text, None);
            }
            Err(error) => {
                let text = format!("the last scrub failed: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
        self.harness.read_all(&engine.0, 94).await;
    }
}

/// Waits until `done`, at most [`SETTLE_MAX`]. Returns whether it happened.
async fn wait_for(rt: &Rt, mut done: impl FnMut() -> bool) -> bool {
    let deadline = rt.now() + SETTLE_MAX;
    let mut pause = MILLISECOND;
    while !done() {
        if rt.now() > deadline {
            return false;
        }
        rt.sleep(pause).await;
        pause = (pause * 2).min(SECOND);
    }
    true
}
