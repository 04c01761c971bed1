//! Reshape: moving the array to another geometry while it is used (`docs/reshape.md`).
//!
//! The addresses are moved in order, upwards or downwards, in *windows*: stretches whose new
//! stripes lie on nothing that the old geometry still needs (`weft_layout::window`). For each
//! window:
//!
//! ```text
//!   for each stretch of new stripes (`mover/aggregate.rs`):
//!     writes to it wait        from here on (`state/moving_range.rs`); those in progress end
//!     move                     read from the old stripes, write the whole new ones
//!   flush
//!   checkpoint                 the superblock says that the window has moved; in effect
//!   border                     in memory: requests use the new stripes; writes go on
//!   drain                      what works on old stripes that are dead now, ends
//! ```
//!
//! *What a crash leaves.* Before the checkpoint is in effect: the old stripes, untouched, and new
//! ones that nothing refers to. After it: new stripes, complete and durable. So the array survives
//! at every moment what both codes survive, a crash included.
//!
//! *Why the drain.* The next window may overwrite the old stripes that died. Reads take no lock;
//! they look at their end whether their place is still right ([`Engine::read`]). Everything else
//! that works on a stripe holds its lock, and looks once it has it.
//!
//! *Regions.* A region's mark counts for its stripes of both geometries. Where a region was never
//! written, nor any other region with addresses in its new stripes, nothing is moved: its new
//! stripes hold anything, and are zeroed before the first write like those of any unwritten region.
//! Otherwise the region is marked as written, and thereby zeroed, before any of it is moved.
//!
//! *What a smaller array discards.* The addresses beyond its new end are dead when the reshape is
//! in effect, and their old stripes may be overwritten as soon as nothing works on them any more.
//! Their regions become unwritten when the reshape ends, or before it turns back.
//!
//! *Turning back.* Wherever old and new stripes have a common edge the geometries can change their
//! roles: below the border everything is in one of them, above it in the other, and both are whole.
//! So one superblock records this, and nothing moves. Before it, all log records are retired on
//! disk: those of stripes that have moved would count again. The way back is a reshape like any
//! other, in the other direction.
//!
//! *The end.* Members of slots that the new geometry does not use become spares, one superblock
//! after the other: at every moment most of the members that were active remain so
//! (`members/assemble.rs`).
//!
//! *A member that fails during a reshape.* The reshape goes on without it. When there is a spare
//! the reshape waits at its next checkpoint, until the member is rebuilt: the border stands still,
//! and each address has one stripe that counts. Redundancy comes first, and data that moves
//! afterwards is written to all members.

mod mover;
pub mod plan;

use weft_code::SlotNo;

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::geometry::border::{Border, geometry};
use crate::jobs::reshape::plan::{ReshapeOptions, ReshapePlan, check_window, plan_reshape, window};
use crate::maintenance::JobKind;
use crate::members::Spare;
use crate::members::slot::Slot;
use crate::region_map::RegionNo;
use crate::state::events::Event;
use mover::{Mover, check_memory};

impl Engine {
    /// What a reshape would do.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if it is not possible, now or at all.
    pub(crate) fn plan_reshape(&self, options: &ReshapeOptions) -> Result<ReshapePlan, ArrayError> {
        let refused = |why: &str| Err(ArrayError::Refused(why.to_owned()));
        self.check_writable()?;
        self.check_settled()?;
        // Not even a disk that is about to join.
        if self.members().slots().any(|slot| self.members().slot(slot) != Slot::Active) {
            return refused(
                "a member is missing, or being rebuilt or replaced: wait until all are active",
            );
        }
        if self.jobs().scrub().is_running() || self.members().superblock().scrub.is_some() {
            return refused("a scrub is running: wait until it has ended, or cancel it");
        }
        let spares = self.members().spares().usable();
        if options.add > spares {
            return Err(ArrayError::Refused(format!(
                "{} disks are to be added, and the array has {spares} spares: add spares first",
                options.add
            )));
        }
        let superblock = self.members().superblock();
        let plan = plan_reshape(&superblock, options, self.written_bytes())?;
        let new = geometry(plan.to, superblock.generation, &superblock)?;
        check_memory(self, self.geometry(), &new)?;
        Ok(plan)
    }

    /// The end of the written data.
    fn written_bytes(&self) -> u64 {
        self.map().last_written().map_or(0, |region| self.geometry().regions().bytes_of(region).end)
    }

    /// Starts a reshape. When this returns it is in effect, and goes on in the background.
    ///
    /// # Errors
    /// As [`Engine::plan_reshape`]; or if a disk fails meanwhile.
    pub(crate) async fn begin_reshape(
        &self,
        options: &ReshapeOptions,
    ) -> Result<ReshapePlan, ArrayError> {
        // A stop waits until this has ended: it writes to the members.
        let _running = self.hold_off_stop().await;
        let plan = self.plan_reshape(options)?;
        if self.members_zeroed() {
            // Rows are used again, and hold old bytes then.
            self.change(|change| change.superblock().members_zeroed = false).await?;
        }
        let regions = self.geometry().regions();
        let (count, new_regions) = (regions.count(), plan.to.regions(regions.region_bytes)?);
        // What an array gave up may have been marked again by a write that was then refused.
        self.map().give_up_from(self, RegionNo(count)).await?;
        self.make_room_in_map(new_regions.count()).await?;
        self.spares_updated().await;
        // From here on, in one poll and in memory: the slots, the geometry, and the superblock's
        // record of them.
        if self.plan_reshape(options)? != plan {
            return Err(ArrayError::Refused("the array has just changed: try again".into()));
        }
        let added = self.take_spares_to_add(options.add)?;
        self.map().keep_written();
        let first = self.members().len();
        let begun = self.change(|change| {
            change.add_slots(added);
            let mut superblock = change.superblock();
            let ReshapePlan { from, to, direction, .. } = plan;
            let reshaped = superblock.reshaped(from, to, direction, plan.start());
            *superblock = reshaped.expect("a planned geometry");
            let geometry = geometry(plan.to, superblock.generation, &superblock);
            let geometry = geometry.expect("a planned geometry");
            drop(superblock);
            let border = Border { direction: plan.direction, at: plan.start() };
            self.geometries().add(geometry, border);
            self.map().set_live(self.geometries().live());
            // A cache above sorts its contents by slots, of which there may be more now, and must
            // forget what was given up.
            self.note_correction();
            if let Some(log) = self.log() {
                (first..self.members().len()).for_each(|slot| log.renew_ring(SlotNo(slot)));
            }
        });
        begun.await?;
        if let Some(log) = self.log() {
            for slot in first..self.members().len() {
                log.begin_ring(self, SlotNo(slot)).await;
            }
        }
        self.events().emit(Event::ReshapeStarted {
            from: plan.from.code.to_string(),
            to: plan.to.code.to_string(),
            slots: plan.to.slots,
        });
        self.jobs().wake();
        Ok(plan)
    }

    /// Turns the reshape back. When this returns that is in effect, and goes on in the background.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if the array is not being reshaped, or the way back is not free.
    pub(crate) async fn turn_reshape(&self) -> Result<(), ArrayError> {
        let refused = |why: &str| Err(ArrayError::Refused(why.to_owned()));
        self.check_writable()?;
        let superblock = self.members().superblock().clone();
        let Some(reshape) = superblock.reshape else {
            return refused("the array is not being reshaped");
        };
        if self.jobs().is_paused() {
            return refused("the reshape is paused: resume it first");
        }
        if !self.members().rebuilding().is_empty() {
            return refused("the reshape waits for a rebuild: turn it back when that has ended");
        }
        let back = window(reshape.direction.reversed(), &superblock.shape(), &reshape.from)?;
        check_window(back, 0)?;
        self.jobs().wake();
        self.moving().turned(|| self.check_writable().is_err() || self.jobs().is_paused()).await;
        self.check_writable()?;
        let now = self.members().superblock().reshape;
        if now.is_some_and(|now| now.from_generation == superblock.generation) {
            return Ok(());
        }
        match now {
            Some(_) => refused("the reshape was paused: resume it first"),
            None => refused("the reshape has just ended"),
        }
    }

    /// The spares that were added last, in that order.
    fn take_spares_to_add(&self, count: usize) -> Result<Vec<Spare>, ArrayError> {
        let spares = self.members().spares();
        let mut taken: Vec<Spare> = Vec::new();
        while taken.len() < count {
            let Some(spare) = spares.last_ready() else { break };
            spares.remove(&spare);
            taken.insert(0, spare);
        }
        if taken.len() == count {
            return Ok(taken);
        }
        taken.into_iter().for_each(|spare| drop(self.change(|change| change.add_spare(spare))));
        Err(ArrayError::Refused("not all spares answer: try again".into()))
    }

    /// Whether addresses wait to be moved, and nothing prevents it.
    pub(super) fn can_reshape(&self) -> bool {
        self.geometries().former().is_some()
            && !self.jobs().is_reshape_stalled()
            && self.map().resync_count() == 0
            && self.members().rebuilding().is_empty()
    }

    /// Moves addresses until all have moved, or something else comes first.
    pub(super) async fn reshape(&self) {
        let moved = match Mover::new(self) {
            Ok(mut mover) => {
                let (total, done) = mover.progress();
                self.jobs().begin(JobKind::Reshape, total, total - done, self.rt().now());
                mover.run().await
            }
            Err(error) => Err(error),
        };
        self.moving().end();
        if self.geometries().former().is_none() {
            self.moving().end_turn();
        }
        self.jobs().end();
        let Err(error) = moved else { return };
        self.jobs().stall_reshape();
        if !self.must_yield() && !matches!(error, ArrayError::NoSpace { .. }) {
            let job = "reshape".to_owned();
            self.events().emit(Event::JobStalled { job, cause: error.to_string() });
        }
    }
}
