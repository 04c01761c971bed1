//! Disks become larger, and a command lets the array use that.

use weft_array::ArrayError;
use weft_rt::{MILLISECOND, Rng, SECOND};

use super::FaultInjector;
use crate::engine::Engine;
use crate::violation::ViolationKind;

impl FaultInjector {
    /// Lets disks become larger at some times, and the array grow.
    pub(crate) async fn grow_later(&self, engine: &Engine) {
        let Some(growth) = self.setup.growth else { return };
        let mut rng = self.world.rng(23_000 + self.report.borrow().lives);
        if rng.chance(20) {
            return;
        }
        for _ in 0..rng.within(1, 4) {
            let most = *rng.pick(&[MILLISECOND, SECOND / 10, 10 * SECOND]);
            self.rt.sleep(rng.below(most)).await;
            if !self.world.is_on() {
                return;
            }
            self.enlarge_disks(&mut rng, growth.percent);
            self.grow(engine, &mut rng).await;
            self.take_tail(engine).await;
        }
    }

    /// All disks become as large as they will be, and the array grows, if it can.
    pub(crate) async fn grow_at_last(&self, engine: &Engine) {
        let mut rng = self.world.rng(25_000);
        if self.setup.growth.is_some() && rng.chance(70) {
            self.enlarge_disks(&mut rng, 100);
            self.grow(engine, &mut rng).await;
        }
    }

    /// Some of the disks become larger. Contents beyond their old ends may be anything.
    fn enlarge_disks(&self, rng: &mut Rng, percent: u64) {
        let Some(growth) = self.setup.growth else { return };
        let mut spots = rng.fork(1);
        for member in self.disks.borrow().iter() {
            if !rng.chance(percent) {
                continue;
            }
            let (platter, number) = (&member.platter, member.platter.number());
            let first =
                self.setup.disks.get(number).map_or_else(|| platter.size_bytes(), |d| d.size_bytes);
            let most = (first + growth.most_bytes).min(self.setup.disk_bytes_max());
            let before = platter.size_bytes();
            let room = most.saturating_sub(before) / 4096;
            let pages = if rng.chance(60) { room } else { rng.below(room + 1) };
            if pages == 0 {
                continue;
            }
            platter.enlarge(before + pages * 4096);
            self.world.note(format!("disk {number} has {} now", platter.size_bytes()));
            if spots.chance(60) {
                for _ in 0..spots.within(1, 100) {
                    let at = before.next_multiple_of(4096) + spots.below(pages) * 4096;
                    platter.poke(at.min(platter.size_bytes() - 4096), &[0x5a; 4096]);
                }
            }
        }
    }

    async fn grow(&self, engine: &Engine, rng: &mut Rng) {
        let array = &engine.0;
        let unused = array.status().unused_member_bytes;
        let all = array.plan_growth(None);
        let wanted = match &all {
            Ok(plan) if rng.chance(30) => {
                let more = plan.new_member_bytes - plan.member_bytes;
                Some(plan.member_bytes + rng.below(more / 4096 + 1) * 4096)
            }
            _ => None,
        };
        if all.as_ref().is_ok_and(|plan| plan.new_member_bytes - plan.member_bytes != unused) {
            let text = format!("the status says {unused} of {all:?}");
            self.harness.fail(ViolationKind::CommandFailed, text, None);
        }
        self.world.note(format!("the array is to grow to {wanted:?}"));
        match array.grow(wanted).await {
            Ok(plan) => {
                self.world.note(format!("grown: {plan:?}"));
                self.report.borrow_mut().growths += 1;
                if array.size_bytes() < plan.new_size_bytes && !array.is_reshaping() {
                    let text = format!("it has {} after {plan:?}", array.size_bytes());
                    self.harness.fail(ViolationKind::CommandFailed, text, None);
                }
            }
            Err(ArrayError::Refused(why)) => self.world.note(format!("not grown: {why}")),
            Err(ArrayError::Stopped | ArrayError::Broken { .. }) => {}
            Err(_) if self.harness.has_to_stop() || self.harness.errors_allowed.get() => {}
            Err(error) => {
                let text = format!("not grown: {error}");
                self.harness.fail(ViolationKind::CommandFailed, text, None);
            }
        }
    }
}
