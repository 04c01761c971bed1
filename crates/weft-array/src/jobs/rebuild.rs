//! Rebuild: reconstructing what lost members held onto their replacements.
//!
//! Taking a spare: every written region is marked stale on the slot's lane of the region map, durably; then the superblock
//! says that the slot is being rebuilt by that disk. From then on a crash resumes where the
//! map stands. Regions never written need no rebuild, and what is first written from
//! now on goes to the replacement directly.
//!
//! Stripe by stripe, under its lock, all units lost to slots that are being rebuilt are gathered at once and
//! written; from that moment requests use the replacement for this stripe. A region's mark
//! is cleared on disk only after the replacement was flushed. When no region is stale, the slot
//! becomes active.
//!
//! A stripe that cannot be reconstructed (a medium error on a survivor too many) stays stale, and all
//! others go on; the slot is then not whole, and the job says so and waits for a change.

use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use weft_code::UnitSet;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Buf, Task};

use super::JobKind;
use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::gather::{Columns, Units};
use crate::members::Spare;
use crate::superblock::{LANES, SlotState};

/// Regions whose marks are cleared together, at most: what a crash makes rebuild again.
const FINISH_REGIONS: usize = 16;

/// A unit on a replacement.
struct Target {
    unit: usize,
    slot: usize,
    lane: u8,
    disk: Rc<dyn Disk>,
}

impl Inner {
    /// Puts spares into missing slots. Returns whether one was taken.
    pub(crate) async fn take_spares(&self) -> bool {
        let mut taken = false;
        for slot in self.members.missing() {
            let Some(lane) = self.free_lane() else { break };
            if !self.can_take_spare() {
                break;
            }
            // Records that had a sibling on the slot's last member are not needed any more, and
            // the new ring says so from its beginning.
            self.retire_all().await;
            let spare = self.members.spares.borrow_mut().pop();
            let Some(spare) = spare else { break };
            self.replace_missing(slot, lane, spare).await;
            taken = true;
        }
        taken
    }

    /// Whether a spare waits for a slot that is missing.
    fn can_take_spare(&self) -> bool {
        !self.members.spares.borrow().is_empty() && !self.members.missing().is_empty()
    }

    fn free_lane(&self) -> Option<u8> {
        let used = self.members.rebuilding();
        (0..LANES).find(|lane| used.iter().all(|(_, taken)| taken != lane))
    }

    async fn replace_missing(&self, slot: usize, lane: u8, spare: Spare) {
        let disk = spare.disk.info().name.clone();
        // From here on, in one turn: what is written is stale on the new disk, and what is first
        // written later goes to it. The superblock names the disk only when the map, with the
        // stale marks, is durable on all members and on the disk itself.
        if let Some(log) = &self.log {
            log.renew_ring(slot);
        }
        self.members.stage_rebuilding(slot, spare.disk.clone(), lane);
        if let Err(cause) = self.map.start_lane(self, lane).await {
            let job = format!("rebuild of slot {slot}");
            self.events.emit(Event::JobStalled { job, cause: cause.to_string() });
            self.empty_slot(slot);
            self.members.spares.borrow_mut().push(spare);
            self.jobs.stalled.set(true);
            return;
        }
        if let Some(log) = &self.log {
            log.begin_ring(self, slot).await;
        }
        self.map.lane_joined(lane);
        if self.members.holds(slot, &spare.disk) {
            self.members.publish_rebuilding(slot, &spare);
            self.commit_members().await;
            self.events.emit(Event::RebuildStarted { slot, disk });
        }
    }

    /// Rebuilds all slots that are being rebuilt, until nothing is stale or something must be
    /// looked at first.
    pub(crate) async fn rebuild(&self) {
        let lanes = self.members.rebuilding();
        let regions = self.stale_regions(&lanes);
        let total = regions.iter().map(|region| {
            let stripes = self.geometry.stripes_of(*region);
            stripes.end - stripes.start
        });
        self.jobs.begin(JobKind::Rebuild, total.sum(), self.rt.now());
        let unreadable = self.rebuild_regions(&lanes, &regions).await;
        self.jobs.end();
        if self.must_yield() {
            return;
        }
        if let Some(cause) = unreadable {
            let job = "rebuild".to_owned();
            self.events.emit(Event::JobStalled { job, cause: cause.to_string() });
            self.jobs.stalled.set(true);
            return;
        }
        self.finish_slots(&lanes).await;
    }

    fn stale_regions(&self, lanes: &[(usize, u8)]) -> Vec<u64> {
        let mut regions = std::collections::BTreeSet::new();
        for (_, lane) in lanes {
            let next = |region: &u64| self.map.next_stale(*lane, region + 1);
            regions.extend(std::iter::successors(self.map.next_stale(*lane, 0), next));
        }
        regions.into_iter().collect()
    }

    /// Returns the last error that left a stripe stale.
    async fn rebuild_regions(&self, lanes: &[(usize, u8)], regions: &[u64]) -> Option<ArrayError> {
        let mut unreadable = None;
        let mut in_flight = FuturesUnordered::new();
        let mut stripes = regions.iter().flat_map(|region| self.geometry.stripes_of(*region));
        let mut finished: Vec<Vec<u64>> = vec![Vec::new(); usize::from(LANES)];
        let mut finishing: Vec<Task<()>> = Vec::new();
        let mut exhausted = false;
        loop {
            let changed = self.members.rebuilding() != lanes || self.can_take_spare();
            let open = !exhausted && !changed && !self.must_yield();
            if open && in_flight.len() < self.jobs.throttle.window(self.rt.now(), self.window()) {
                match stripes.next() {
                    Some(stripe) => in_flight.push(self.rebuild_paced(stripe)),
                    None => exhausted = true,
                }
                continue;
            }
            let Some((stripe, result)) = in_flight.next().await else { break };
            self.jobs.step(self.rt.now());
            match result {
                Ok(lanes_done) => {
                    let region = self.map.region_of(stripe);
                    lanes_done.iter().for_each(|lane| finished[usize::from(*lane)].push(region));
                }
                Err(error) => unreadable = Some(error),
            }
            for (lane, regions) in (0..LANES).zip(&mut finished) {
                if regions.len() >= FINISH_REGIONS {
                    finishing.push(self.start_finishing(lane, std::mem::take(regions)));
                }
            }
            finishing.retain(|task| !task.is_finished());
        }
        for (lane, regions) in (0..LANES).zip(finished) {
            finishing.push(self.start_finishing(lane, regions));
        }
        join_all(finishing).await;
        unreadable
    }

    async fn rebuild_paced(&self, stripe: u64) -> (u64, Result<Vec<u8>, ArrayError>) {
        self.pace().await;
        (stripe, self.rebuild_stripe(stripe).await)
    }

    /// Rebuilds one stripe on every slot that is being rebuilt. Returns the lanes in which this
    /// was the last stale stripe of its region.
    async fn rebuild_stripe(&self, stripe: u64) -> Result<Vec<u8>, ArrayError> {
        let _memory = self.job_memory().await?;
        let _lock = self.locks.exclusive(stripe).await;
        let targets = self.targets(stripe);
        let lost = self.lost_units(stripe);
        let len = self.geometry.unit_len();
        let wanted: Units = targets
            .iter()
            .filter(|target| lost.contains(target.unit))
            .map(|target| (target.unit, Buf::new(len)))
            .collect();
        let at = Columns { stripe, from: 0, class: Class::Maintenance };
        let (result, units) = self.gather(at, lost, wanted).await;
        result?;
        let writes =
            units.into_iter().map(|(unit, data)| self.write_target(at, &targets, unit, data));
        let failed: UnitSet = join_all(writes).await.into_iter().flatten().collect();
        // Still under the lock: from here on requests use the replacement – if it still is the
        // disk that was written.
        let mut lanes_done = Vec::new();
        for Target { unit, slot, lane, disk } in targets {
            let whole = !failed.contains(unit) && self.members.holds(slot, &disk);
            if whole && self.map.mark_stripe_rebuilt(lane, stripe) {
                lanes_done.push(lane);
            }
        }
        lanes_done.extend(self.lanes_without(stripe));
        Ok(lanes_done)
    }

    /// The units of `stripe` on replacements.
    fn targets(&self, stripe: u64) -> Vec<Target> {
        let units = self.geometry.units();
        let targets = self.members.rebuilding().into_iter().filter_map(|(slot, lane)| {
            let unit = units.iter().find(|unit| self.geometry.slot(stripe, *unit) == slot)?;
            Some(Target { unit, slot, lane, disk: self.members.disk(slot)? })
        });
        targets.collect()
    }

    /// Replacements that hold no unit of `stripe`: it is done as it is. Returns the lanes in which
    /// that was the last of its region.
    fn lanes_without(&self, stripe: u64) -> Vec<u8> {
        let units = self.geometry.units();
        let absent = |slot| units.iter().all(|unit| self.geometry.slot(stripe, unit) != slot);
        let lanes = self.members.rebuilding().into_iter().filter(|(slot, _)| absent(*slot));
        lanes
            .map(|(_, lane)| lane)
            .filter(|lane| self.map.mark_stripe_rebuilt(*lane, stripe))
            .collect()
    }

    /// Writes a unit to its replacement; gives it back if it is not there afterwards.
    async fn write_target(
        &self,
        at: Columns,
        targets: &[Target],
        unit: usize,
        data: Buf,
    ) -> Option<usize> {
        let target = targets.iter().find(|target| target.unit == unit)?;
        let (_, offset) = self.geometry.locate(at.stripe, unit, at.from);
        match target.disk.write(offset, data.freeze(), WriteOpts::MAINTENANCE).await {
            Ok(()) => None,
            Err(error) => {
                self.member_failed(target.slot, &target.disk, &error).await;
                Some(unit)
            }
        }
    }

    /// In a task of its own: it waits for stripe locks, and this job must go on meanwhile.
    fn start_finishing(&self, lane: u8, regions: Vec<u64>) -> Task<()> {
        let array = self.handle();
        self.rt.spawn(async move { array.finish_regions(lane, regions).await })
    }

    /// Clears the stale marks of regions that are rebuilt. Nobody writes to them meanwhile: until the
    /// mark is gone the log counts the replacement's units as lost, from then on as present,
    /// and a record of the old kind must not be needed any more (the flush retires them).
    async fn finish_regions(&self, lane: u8, regions: Vec<u64>) {
        let current = self.members.rebuilding().iter().any(|(_, used)| *used == lane);
        if !current || regions.is_empty() {
            return;
        }
        let mut locks = Vec::new();
        for stripe in regions.iter().flat_map(|region| self.geometry.stripes_of(*region)) {
            locks.push(self.locks.exclusive(stripe).await);
        }
        // If the map cannot be written the regions stay stale on disk, and are rebuilt again.
        let _ = self.map.finish_regions(self, lane, &regions).await;
    }

    async fn finish_slots(&self, lanes: &[(usize, u8)]) {
        for (slot, lane) in lanes {
            let whole = self.map.stale_count(*lane) == 0;
            if whole && self.members.state(*slot) == (SlotState::Rebuilding { lane: *lane }) {
                self.members.set_active(*slot);
                self.map.end_lane(*lane);
                self.commit_members().await;
                self.events.emit(Event::RebuildFinished { slot: *slot });
            }
        }
    }
}
