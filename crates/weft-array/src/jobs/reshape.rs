//! Reshape: moving the array to another geometry while it is used (`docs/reshape.md`).
//!
//! The addresses are moved in order, in *windows*: stretches whose new stripes lie on nothing that
//! the old geometry still needs (`weft_layout::window`). For each window:
//!
//! ```text
//!   writes to it wait          from here on (`moving.rs`); those in progress end
//!   move                       read from the old stripes, write whole new ones, in any order
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
//! they look at their end whether their place is still right ([`Inner::read`]). Everything else that
//! works on a stripe holds its lock, and looks once it has it.
//!
//! *Regions.* A region's mark counts for its stripes of both geometries. Where a region was never
//! written, and neither were the others with addresses in its new stripes, nothing is moved: its
//! new stripes hold anything, and are zeroed before the first write like those of any unwritten
//! region. Otherwise the region is marked as written, and thereby zeroed, before any of it is moved.
//!
//! A member that fails meanwhile stays out until the reshape has ended, which goes on without it.

use std::ops::Range;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use weft_code::SlotNo;
use weft_layout::window::{Direction, Window};
use weft_rt::{Buf, MILLISECOND};
use weft_stripe::{Access, Band, Segment, StripeId, Updated};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::events::Event;
use crate::geometries::{Border, geometry};
use crate::geometry::{Geometry, Piece, to_len};
use crate::maintenance::JobKind;
use crate::maintenance::throttle;
use crate::members::Spare;
use crate::region_map::RegionNo;
use crate::reshape::{ReshapeOptions, ReshapePlan, plan_reshape, window};
use crate::slot::Slot;

/// Most bytes of the array between two checkpoints.
const WINDOW_BYTES: u64 = 256 << 20;

/// Regions that are looked at together where nothing was written.
const REGIONS_AT_ONCE: u64 = 256;

impl Inner {
    /// What a reshape would do.
    ///
    /// # Errors
    /// [`ArrayError::Refused`] if it is not possible, now or at all.
    pub(crate) fn plan_reshape(&self, options: &ReshapeOptions) -> Result<ReshapePlan, ArrayError> {
        let refused = |why: &str| Err(ArrayError::Refused(why.to_owned()));
        self.check_writable()?;
        self.check_settled()?;
        // Not even a disk that is about to join.
        if self.members.slots().any(|slot| self.members.slot(slot) != Slot::Active) {
            return refused(
                "a member is missing, or being rebuilt or replaced: wait until all are active",
            );
        }
        if self.jobs.scrub.is_running() || self.members.superblock().scrub.is_some() {
            return refused("a scrub is running: wait until it has ended, or cancel it");
        }
        let spares = self.members.spares.all().len();
        if options.add > spares {
            return Err(ArrayError::Refused(format!(
                "{} disks are to be added, and the array has {spares} spares: add spares first",
                options.add
            )));
        }
        plan_reshape(&self.members.superblock(), options)
    }

    /// Begins a reshape. When this returns it is in effect, and goes on in the background.
    ///
    /// # Errors
    /// As [`Inner::plan_reshape`]; or if a disk fails meanwhile.
    pub(crate) async fn begin_reshape(
        &self,
        options: &ReshapeOptions,
    ) -> Result<ReshapePlan, ArrayError> {
        // A stop waits until this has ended: it writes to the members.
        let _running = self.budget.acquire(1).await;
        let plan = self.plan_reshape(options)?;
        if self.members_zeroed() {
            // Rows are used again, and hold old bytes then.
            self.change(|change| change.superblock().members_zeroed = false).await?;
        }
        let regions = plan.to.regions(self.geometry().regions.region_bytes)?;
        self.map.make_room(self, regions.count()).await?;
        self.spares_updated().await;
        // From here on, in one poll and in memory: the slots, the geometry, and what the superblock
        // says of them.
        if self.plan_reshape(options)? != plan {
            return Err(ArrayError::Refused("the array has changed meanwhile: try again".into()));
        }
        let added = self.take_spares_to_add(options.add)?;
        self.map.keep_written();
        let first = self.members.len();
        let begun = self.change(|change| {
            change.add_slots(added);
            let mut superblock = change.superblock();
            *superblock = superblock.reshaped(plan.from, plan.to, Direction::Up);
            let geometry = geometry(plan.to, superblock.generation, &superblock);
            let geometry = geometry.expect("a planned geometry");
            drop(superblock);
            if geometry.regions.count() > self.map.regions().count() {
                self.map.set_regions(geometry.regions);
            }
            self.geometries.add(geometry, Border { direction: Direction::Up, at: 0 });
            // A cache above sorts its contents by slots, of which there are more now.
            self.note_correction();
            if let Some(log) = &self.log {
                (first..self.members.len()).for_each(|slot| log.renew_ring(SlotNo(slot)));
            }
        });
        begun.await?;
        if let Some(log) = &self.log {
            for slot in first..self.members.len() {
                log.begin_ring(self, SlotNo(slot)).await;
            }
        }
        // Until here only the old members have the map. More than half of all members are needed to
        // assemble the array, and at least half of all are old ones.
        self.map.write_all(self).await?;
        self.events.emit(Event::ReshapeStarted {
            from: plan.from.code.to_string(),
            to: plan.to.code.to_string(),
            slots: plan.to.slots,
        });
        self.jobs.wake();
        Ok(plan)
    }

    /// The spares that were added last, in that order.
    fn take_spares_to_add(&self, count: usize) -> Result<Vec<Spare>, ArrayError> {
        let spares = &self.members.spares;
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

    /// Whether addresses are to be moved, and nothing stands in the way.
    pub(super) fn can_reshape(&self) -> bool {
        self.geometries.former().is_some()
            && !self.jobs.reshape_stalled.get()
            && self.map.resync_count() == 0
    }

    /// Moves addresses until all have moved, or something else comes first.
    pub(super) async fn reshape(&self) {
        let moved = match Mover::new(self) {
            Ok(mut mover) => {
                let (total, done) = mover.progress();
                self.jobs.begin(JobKind::Reshape, total, total - done, self.rt.now());
                mover.run().await
            }
            Err(error) => Err(error),
        };
        self.moving.end();
        self.jobs.end();
        let Err(error) = moved else { return };
        self.jobs.reshape_stalled.set(true);
        if !self.must_yield() && !matches!(error, ArrayError::NoSpace { .. }) {
            let job = "reshape".to_owned();
            self.events.emit(Event::JobStalled { job, cause: error.to_string() });
        }
    }
}

/// A reshape in progress.
struct Mover<'a> {
    array: &'a Inner,
    old: &'a Geometry,
    new: &'a Geometry,
    window: Window,
    /// The address at which it ends.
    end: u64,
}

impl<'a> Mover<'a> {
    fn new(array: &'a Inner) -> Result<Self, ArrayError> {
        let (old, new) = match array.geometries.former() {
            Some((old, _)) => (old, array.geometry()),
            None => return Err(ArrayError::Refused("the array is not being reshaped".into())),
        };
        let superblock = array.members.superblock().clone();
        let reshape = superblock.reshape.expect("there is an old geometry");
        let window = window(&reshape.from, &superblock.shape())?;
        // Every region that the old geometry has is moved whole, with the zeros behind the data:
        // where a region is written all of its stripes are valid.
        let last = new.regions.of(window.addresses().end / new.stripe_bytes() - 1).0;
        let last = last.max(old.regions.count() - 1).min(new.regions.count() - 1);
        let end = new.regions.bytes_of(RegionNo(last)).end;
        Ok(Self { array, old, new, window, end })
    }

    fn border(&self) -> u64 {
        self.array.geometries.former().map_or(self.end, |(_, border)| border.at)
    }

    /// New stripes in all, and those that have moved.
    fn progress(&self) -> (u64, u64) {
        let bytes = self.new.stripe_bytes();
        (self.end / bytes, self.border().min(self.end) / bytes)
    }

    async fn run(&mut self) -> Result<(), ArrayError> {
        loop {
            let border = self.border();
            if border >= self.end {
                return self.finish().await;
            }
            if self.array.must_yield() {
                return Ok(());
            }
            if let Some(to) = self.skip(border).await {
                self.checkpoint(border, to).await?;
                continue;
            }
            // Marked as written until the window that enters it is over.
            let region = self.region_at(border);
            let _written = self.array.begin_write(region).await?;
            let to = self.window_end(border);
            if to == border {
                return Err(ArrayError::Refused(
                    "the next stripe overlaps what it is made of".into(),
                ));
            }
            let to = self.move_up_to(border, to).await?;
            self.checkpoint(border, to).await?;
        }
    }

    /// The region of the new stripe that begins at this address.
    fn region_at(&self, address: u64) -> RegionNo {
        self.new.regions.of(address / self.new.stripe_bytes())
    }

    /// How far the next window reaches: over written regions, and what may be overwritten.
    fn window_end(&mut self, border: u64) -> u64 {
        let mut limit = self.window.limit(border, WINDOW_BYTES);
        if border >= self.window.addresses().end {
            limit = self.end;
        }
        let mut end = border;
        while end < limit {
            let region = self.region_at(end);
            if end > border && !self.array.map.is_written(region) {
                break;
            }
            end = self.new.regions.bytes_of(region).end;
        }
        end.min(limit).min(self.end)
    }

    /// Whether nothing was ever written to these addresses: all their old stripes are in unwritten
    /// regions.
    fn is_unwritten(&self, addresses: &Range<u64>) -> bool {
        let size = self.old.size_bytes();
        if addresses.start >= size {
            return true;
        }
        let bytes = self.old.stripe_bytes();
        let stripes = addresses.start / bytes..addresses.end.min(size).div_ceil(bytes);
        self.old.regions.holding(stripes).all(|region| !self.array.map.is_written(region))
    }

    /// The end of the regions from `border` on that were never written, and need not be moved.
    fn unwritten_end(&self, border: u64, most: u64) -> u64 {
        let mut end = border;
        while end < most {
            let region = self.region_at(end);
            let bytes = end..self.new.regions.bytes_of(region).end;
            if self.array.map.is_written(region) || !self.is_unwritten(&bytes) {
                break;
            }
            end = bytes.end;
        }
        end
    }

    /// If nothing was written from `border` on: how far it need not be moved. Writes to it wait.
    async fn skip(&self, border: u64) -> Option<u64> {
        let array = self.array;
        let region_bytes = self.new.regions.region_bytes;
        let most = self.end.min(border.saturating_add(REGIONS_AT_ONCE * region_bytes));
        let mut end = self.unwritten_end(border, most);
        if end == border || !self.window.may_skip(border, end) {
            return None;
        }
        array.moving.begin(border..end);
        loop {
            end = self.unwritten_end(border, end);
            // A region that is about to be written is being zeroed, as it is now.
            let first = border.min(self.old.size_bytes().saturating_sub(1));
            let first = self.old.regions.of(first / self.old.stripe_bytes());
            let last =
                (end.saturating_sub(1) / region_bytes).min(array.geometries.region_count() - 1);
            let mut regions = (first.0..=last).map(RegionNo);
            if end == border || !regions.any(|region| array.map.has_writers(region)) {
                break;
            }
            array.rt.sleep(MILLISECOND).await;
        }
        if end == border || !self.window.may_skip(border, end) {
            array.moving.end();
            return None;
        }
        array.moving.begin(border..end);
        Some(end)
    }

    /// Moves whole new stripes, from `border` up to `end`, or less if a write waits for them.
    /// Returns the end of what has moved.
    async fn move_up_to(&self, border: u64, end: u64) -> Result<u64, ArrayError> {
        let array = self.array;
        array.moving.begin(border..end);
        self.drain(border..end).await;
        let bytes = self.new.stripe_bytes();
        let mut stripes = border / bytes..end / bytes;
        let mut pace = throttle::Window::default();
        let mut in_flight = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            let (now, flying) = (array.rt.now(), in_flight.len());
            let window = pace.stripes(&array.jobs.throttle, now, flying, array.window());
            let goes_on = result.is_ok() && !array.must_yield() && !array.moving.is_wanted();
            if (goes_on || flying == 0 && stripes.start == border / bytes)
                && flying < window
                && result.is_ok()
                && let Some(stripe) = stripes.next()
            {
                pace.count(self.new.unit_bytes);
                in_flight.push(self.move_stripe(self.new.id(stripe)));
                continue;
            }
            let Some(done) = in_flight.next().await else { break };
            array.jobs.step(array.rt.now());
            result = result.and(done);
        }
        result.map(|()| stripes.start * bytes)
    }

    /// Waits until nothing works any more on the old stripes that hold these addresses, other than
    /// what began after this.
    async fn drain(&self, addresses: Range<u64>) {
        let (array, bytes, size) = (self.array, self.old.stripe_bytes(), self.old.size_bytes());
        let mut next = addresses.start / bytes;
        let end = addresses.end.min(size).div_ceil(bytes);
        while next < end {
            let region = self.old.regions.of(next);
            // Before its first write a region is zeroed without locks.
            while array.map.is_zeroing(region) {
                array.rt.sleep(MILLISECOND).await;
            }
            let last = self.old.regions.stripes_of(region).end.min(end);
            if array.map.is_written(region) {
                for number in next..last {
                    drop(array.locks.exclusive(self.old.id(number)).await);
                }
            }
            next = last;
        }
    }

    /// Makes durable that the addresses up to `to` have moved, and sends requests there.
    async fn checkpoint(&self, from: u64, to: u64) -> Result<(), ArrayError> {
        let array = self.array;
        let changed = array.change_after_flush(|change| {
            let mut superblock = change.superblock();
            let reshape = superblock.reshape.as_mut().expect("the reshape has not ended");
            reshape.checkpoint_bytes = to;
        });
        changed.await?;
        let border = Border { direction: Direction::Up, at: to };
        array.geometries.set_border(Some(border));
        array.moving.end();
        array.jobs.reach(to / self.new.stripe_bytes());
        self.drain(from..to).await;
        Ok(())
    }

    async fn finish(&self) -> Result<(), ArrayError> {
        let array = self.array;
        array.change_after_flush(|change| change.superblock().reshape = None).await?;
        array.geometries.set_border(None);
        array.map.set_regions(self.new.regions);
        array.remaining.set(None);
        let size_bytes = array.geometries.size_bytes();
        array.events.emit(Event::ReshapeFinished { size_bytes });
        array.jobs.wake();
        Ok(())
    }

    /// Writes a new stripe, from what the old geometry has.
    async fn move_stripe(&self, stripe: StripeId) -> Result<(), ArrayError> {
        let array = self.array;
        array.pace().await;
        for (from, len) in array.runs(self.new) {
            let _memory = array.budget.acquire(array.memory_of(self.new, len)).await;
            if array.stopped.get() {
                return Err(ArrayError::Stopped);
            }
            let read = self.new.data_units().iter().map(|unit| async move {
                let start = self.new.offset(stripe.number, unit, from);
                let data = self.read(start, len).await?.freeze();
                Ok::<_, ArrayError>(Segment { unit, from, data })
            });
            let segments: Result<Vec<Segment>, _> = join_all(read).await.into_iter().collect();
            for band in Band::of(&segments?) {
                let now = array.stripe(stripe);
                let mut updated = Updated::default();
                array.update(now, &band, None, &mut updated).await?;
                array.store_back(now, &updated.writes).await?;
                array.check_writable()?;
            }
        }
        Ok(())
    }

    /// Reads addresses from the old geometry. Behind its end are zeros.
    async fn read(&self, start: u64, len: usize) -> Result<Buf, ArrayError> {
        let there = to_len(self.old.size_bytes().saturating_sub(start).min(len as u64));
        let mut rest = Buf::new(len);
        let reads = self.old.pieces(start, there).map(|Piece { at, len }| {
            let tail = rest.split_off(len);
            let mut buf = std::mem::replace(&mut rest, tail);
            async move {
                let array = self.array;
                if !array.map.is_written(array.region_of(at.stripe)) {
                    buf.fill(0);
                    return Ok(buf);
                }
                let _lock = array.locks.shared(at.stripe).await;
                let (stripe, access) =
                    (array.stripe(at.stripe), Access::maintenance(at.unit_offset));
                let (result, mut units) = array.gather(stripe, access, vec![(at.unit, buf)]).await;
                result?;
                let (_, buf) = units.pop().expect("the unit comes back");
                Ok::<_, ArrayError>(buf)
            }
        });
        let parts: Result<Vec<Buf>, _> = join_all(reads).await.into_iter().collect();
        rest.fill(0);
        Ok(Buf::rejoin(parts?.into_iter().chain([rest]).collect()))
    }
}
