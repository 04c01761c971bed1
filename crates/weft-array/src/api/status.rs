//! Composes the status of an array. It promises nothing that a crash now would take away: a member
//! counts as active, or as the replacement of another one, once a superblock on disk says so.

use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::Disk;

use crate::engine::Engine;
use crate::engine::status::{ArrayState, MemberState, RegionCounts, SlotStatus, Status};
use crate::members::Spare;
use crate::superblock::SlotState;

impl Engine {
    pub(crate) fn status(&self) -> Status {
        let superblock = self.members().superblock();
        let broken = self.service().cause();
        let margin = self.redundancy_remaining();
        let lossy = broken.is_some() || margin.is_none();
        let unreadable = if lossy { self.unreadable_ranges() } else { Vec::new() };
        let geometry = self.geometry();
        let spares = self.members().spares().all();
        let name = |spare: &Spare| spare.disk.info().name.clone();
        let too_small = spares.iter().filter(|spare| !self.members().spares().fits(spare));
        Status {
            name: superblock.name.clone(),
            id: superblock.array_id.to_string(),
            code: superblock.code.to_string(),
            layout: superblock.algorithm,
            redundancy_remaining: margin.map(|margin| margin.losses),
            redundancy_exact: margin.is_none_or(|margin| margin.exact),
            state: self.state(),
            broken,
            unreadable,
            size_bytes: self.geometries().size_bytes(),
            unit_bytes: geometry.unit_bytes,
            sector_bytes: geometry.sector_bytes,
            consistency: superblock.consistency,
            write_hole_closed: self.log().is_some()
                || self.geometry().code().p() == 0
                || self.geometry().mirrored,
            slots: self.members().slots().map(|slot| self.slot_status(slot)).collect(),
            spares: spares.iter().map(name).collect(),
            spares_too_small: too_small.map(name).collect(),
            member_bytes: superblock.member_bytes(),
            unused_member_bytes: self.unused_member_bytes(),
            paused: self.jobs().is_paused(),
            jobs: self.job_status(),
            rebuild: self.rebuild_status(),
            scrub: self.scrub_report(),
            last_rebuild: superblock.last_rebuild,
            throttle: self.jobs().throttle().get(),
            regions: RegionCounts {
                region_bytes: geometry.regions().region_bytes,
                total: geometry.regions().count(),
                written: self.map().written_count(),
                dirty: self.map().dirty_count() as u64,
                resync: self.map().resync_count(),
            },
            reshaping: self.geometries().former().is_some(),
            seq: superblock.seq,
        }
    }

    fn slot_status(&self, slot: SlotNo) -> SlotStatus {
        let (read_errors, repaired) = self.members().error_counts(slot);
        let (members, wants_room_bytes) = (self.members(), self.waiting_bytes(slot));
        let failed = self.service().broken_slots().contains(slot);
        let name = |disk: Rc<dyn Disk>| disk.info().name.clone();
        let (disk, replacement) = match members.replaced(slot) {
            Some(old) => (name(old.disk), Some(members.name(slot))),
            None => {
                let copy = members.copying(slot).and_then(|_| members.second_disk(slot));
                (members.name(slot), copy.map(name))
            }
        };
        let (state, stale_regions) = match members.state(slot) {
            SlotState::Active if failed => (MemberState::Failed, 0),
            SlotState::Active if members.active_in_memory_only().contains(slot) => {
                (MemberState::Rebuilding, 0)
            }
            state => {
                let lane = members.slot(slot).filling();
                (state.into(), lane.map_or(0, |lane| self.map().stale_count(lane)))
            }
        };
        SlotStatus {
            slot,
            state,
            disk,
            read_errors,
            repaired,
            stale_regions,
            replacement,
            wants_room_bytes,
        }
    }

    fn state(&self) -> ArrayState {
        let members = self.members();
        let is_swapping = || members.slots().any(|slot| members.replaced(slot).is_some());
        if self.service().is_stopped() {
            ArrayState::Stopped
        } else if self.service().is_broken() {
            ArrayState::Broken
        } else if !members.only_copies() || !members.active_in_memory_only().is_empty() {
            ArrayState::Rebuilding
        } else if !members.all_active() {
            ArrayState::Degraded
        } else if self.map().resync_count() > 0 {
            ArrayState::Resyncing
        } else if !members.rebuilding().is_empty() || is_swapping() {
            ArrayState::Replacing
        } else if self.geometries().former().is_some() {
            ArrayState::Reshaping
        } else {
            ArrayState::Healthy
        }
    }
}
