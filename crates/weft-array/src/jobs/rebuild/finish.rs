//! Finishing a rebuild: regions whose stripes are all rebuilt lose their stale marks on disk, and a
//! slot without stale regions becomes active.
//!
//! A mark is cleared only after the replacement was flushed. Several regions are finished together,
//! to share one flush.

use futures_util::future::join_all;
use weft_code::SlotNo;
use weft_rt::{Nanos, SECOND, Task};
use weft_stripe::StripeId;

use super::order;
use super::work::Taken;
use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::lane::Lane;
use crate::maintenance::{HotZone, RebuildSource, RebuildStatus};
use crate::members::slot::Slot;
use crate::region_map::RegionNo;
use crate::state::events::Event;
use crate::superblock::LastRebuild;
use crate::superblock::SlotState;

/// Most regions whose marks are cleared together. After a crash these are rebuilt again, like the
/// partly rebuilt ones.
pub(super) const FINISH_REGIONS: usize = 16;

/// The longest time for which new writes to a region wait while it is being finished.
const GATE_TIME_MAX: Nanos = SECOND;

/// The longest time for which a stop completes regions that are partly rebuilt.
const STOP_TIME_MAX: Nanos = 2 * SECOND;

/// Stripes that a stop rebuilds at once.
const AT_ONCE_AT_STOP: usize = 8;

impl Engine {
    /// Completes regions that are partly rebuilt, as the array is being stopped: only the marks of
    /// whole regions are stored, and requests of users rebuild stripes here and there. Users are
    /// gone, so the bounds of the rate do not apply; the time is limited instead.
    pub(super) async fn complete_partial(&self, taken: &Taken) {
        let deadline = self.rt().now() + STOP_TIME_MAX;
        let goes_on = || self.rt().now() < deadline && !self.service().is_broken();
        for (_, lane) in self.members().rebuilding() {
            for region in self.map().partial(lane) {
                let left = self.geometries().stripes_of(region).filter(|stripe| {
                    self.map().is_stale(lane, *stripe) && !taken.borrow().contains(stripe)
                });
                let left: Vec<StripeId> = left.collect();
                for stripes in left.chunks(AT_ONCE_AT_STOP) {
                    if !goes_on() {
                        return;
                    }
                    let rebuilt = stripes.iter().map(|stripe| self.complete(*stripe));
                    if join_all(rebuilt).await.iter().any(Result::is_err) {
                        return;
                    }
                }
            }
        }
    }

    async fn complete(&self, stripe: StripeId) -> Result<(), ArrayError> {
        let geometry = self.geometry_of(stripe);
        let _memory = self.memory().acquire(self.memory_of(geometry, geometry.unit_len())).await;
        let _lock = self.locks().exclusive(stripe).await;
        self.rebuild_whole(stripe, RebuildSource::Executor).await
    }

    /// Clears the marks of finished regions in a separate task, so that the rebuild continues
    /// during the flush.
    pub(super) fn start_finishing(&self) -> Task<()> {
        let array = self.handle();
        self.rt().spawn(async move { array.finish_done().await })
    }

    async fn finish_done(&self) {
        while let Some((lane, regions)) = self.jobs().rebuild().take_done(FINISH_REGIONS) {
            self.finish_regions(lane, &regions).await;
        }
    }

    /// Clears the stale marks of rebuilt regions (`region_map/finish.rs` explains how, and why
    /// users need not wait). If the map cannot be written, or users keep a region busy, the region
    /// stays stale on disk, and is finished later. This includes regions that requests rebuilt on a
    /// disk that the superblock does not name yet. After a crash that disk may count as missing,
    /// and the log's records of its units must then hold.
    async fn finish_regions(&self, lane: Lane, regions: &[RegionNo]) {
        let known =
            |(slot, used): &(SlotNo, Lane)| *used == lane && !self.members().is_staged(*slot);
        if self.members().rebuilding().iter().any(known) {
            let patience = async { self.rt().sleep(GATE_TIME_MAX).await };
            let logged = self.log().is_some();
            let _ = self.map().finish_regions(self, lane, regions, logged, patience).await;
        }
    }

    /// Nothing is stale on the replacement of `slot` any more: makes it the member.
    async fn finish_replacement(&self, slot: SlotNo, lane: Lane) {
        if self.members().is_only_active(slot) {
            let is_open = |(_, other): (SlotNo, Lane)| self.map().stale_count(other) > 0;
            if self.members().rebuilding().into_iter().any(is_open) {
                // The rebuild of another slot, which continues, makes it active.
                return;
            }
            let job = format!("the replacement of slot {slot}");
            let cause = "its member is the only active one; add a disk for another".to_owned();
            self.events().emit(Event::JobStalled { job, cause });
            self.jobs().stall_rebuild();
            return;
        }
        let _ = self.change(|change| change.filled(slot, lane)).await;
        let done = self.members().second_disk(slot).is_none();
        if done && self.members().state(slot) == SlotState::Active && self.check_writable().is_ok()
        {
            self.map().end_lane(lane);
            self.note_rebuild_ended();
            let disk = self.members().name(slot);
            self.events().emit(Event::ReplaceFinished { slot, disk });
        }
    }

    /// Makes the slots active that have no stale regions left.
    pub(super) async fn finish_slots(&self, lanes: &[(SlotNo, Lane)]) {
        for (slot, lane) in lanes {
            self.map().late_regions_known(*lane).await;
            let whole = self.map().stale_count(*lane) == 0;
            if whole && self.members().copying(*slot) == Some(*lane) {
                self.finish_replacement(*slot, *lane).await;
            }
            if whole && self.members().slot(*slot) == (Slot::Rebuilding { lane: *lane }) {
                let active = self.change(|change| change.filled(*slot, *lane));
                self.map().end_lane(*lane);
                if active.await.is_err() {
                    return;
                }
                self.note_rebuild_ended();
                self.events().emit(Event::RebuildFinished { slot: *slot });
                // A replacement that waited for another active member may become the member now.
                self.jobs().wake();
            }
        }
    }

    /// Notes that a slot was rebuilt, or its member replaced.
    pub(in crate::jobs) fn note_rebuild_ended(&self) {
        if self.members().rebuilding().is_empty() {
            let now = self.rt().now();
            self.jobs().rebuild().counts().ended(now);
            let started = self
                .jobs()
                .rebuild()
                .counts()
                .get()
                .started_ns
                .unwrap_or_else(|| self.clock().assembled());
            // Becomes durable with the next change of the superblock, at the latest at a clean
            // stop.
            let ended_unix_s = self.clock().unix_s(now);
            let last = LastRebuild { ended_unix_s, took_s: (now - started) / SECOND };
            self.members().edit(|superblock| superblock.last_rebuild = Some(last));
            self.jobs().rebuild().forget_accesses();
        }
    }

    /// The status of a rebuild in progress.
    pub(crate) fn rebuild_status(&self) -> Option<RebuildStatus> {
        if self.members().rebuilding().is_empty() {
            return None;
        }
        let state = self.jobs().rebuild();
        let now = self.rt().now();
        let policy = state.policy();
        let zones = state.zones(now);
        let hot_zones_total = zones.len();
        let hot = zones.into_iter().take(super::ZONES_SHOWN).map(|(stripes, popularity)| {
            let end = stripes.end.min(self.geometry().stripes());
            let bytes = self.geometry().stripe_bytes();
            HotZone {
                offset_bytes: stripes.start * bytes,
                length_bytes: (end - stripes.start) * bytes,
                popularity,
            }
        });
        Some(RebuildStatus {
            order: order::in_effect(&policy, self.incomplete_slots().len()),
            policy,
            hot_zones: hot.collect(),
            hot_zones_total,
            redirected_share: state.counts().redirected_share(now),
            counts: state.counts().get(),
        })
    }
}
