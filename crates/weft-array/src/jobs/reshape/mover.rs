//! Moving addresses from one geometry to the other, window by window, as `jobs/reshape.rs`
//! describes it.

mod aggregate;

use std::ops::Range;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use weft_layout::window::{Direction, Window};
use weft_rt::Nanos;

use crate::engine::{Engine, OPERATION_BYTES_MAX};
use crate::error::ArrayError;
use crate::geometry::border::Border;
use crate::geometry::{Geometry, lcm};
use crate::jobs::reshape::plan::window;
use crate::maintenance::throttle::{self, Admission, Pace, WithinBounds};
use crate::region_map::RegionNo;
use crate::state::events::Event;
use crate::superblock::SlotState;
use aggregate::Step;

/// Most bytes of the array between two checkpoints.
const WINDOW_BYTES: u64 = 256 << 20;

/// Most bytes of each member that are moved together. Disks that rotate get longer stretches while
/// there are no users, one at a time: each costs two seeks. On other disks two are in progress at
/// the same time: while one waits for its slowest disk, the other has work.
const AGGREGATE_BYTES: u64 = 1 << 20;
const LONG_AGGREGATE_BYTES: u64 = 4 << 20;

/// Regions that are looked at together where nothing was written.
const REGIONS_AT_ONCE: u64 = 256;

/// Why a reshape cannot go on.
const NO_MEMORY: &str =
    "moving a stripe would need more memory than there is: use smaller units, or fewer disks";

/// Checks that a reshape between these geometries goes on with the memory available, for all disks
/// that the array has or gets.
pub(super) fn check_memory(
    array: &Engine,
    old: &Geometry,
    new: &Geometry,
) -> Result<(), ArrayError> {
    match Step::of(array, [old, new], true, 1, OPERATION_BYTES_MAX) {
        Some(_) => Ok(()),
        None => Err(ArrayError::Refused(NO_MEMORY.to_owned())),
    }
}

/// A reshape in progress.
pub(super) struct Mover<'a> {
    array: &'a Engine,
    old: &'a Geometry,
    new: &'a Geometry,
    window: Window,
    direction: Direction,
    /// The addresses to move.
    addresses: Range<u64>,
}

impl<'a> Mover<'a> {
    pub fn new(array: &'a Engine) -> Result<Self, ArrayError> {
        let (old, new) = match array.geometries().former() {
            Some((old, _)) => (old, array.geometry()),
            None => return Err(ArrayError::Refused("the array is not being reshaped".into())),
        };
        let superblock = array.members().superblock().clone();
        let reshape = superblock.reshape.expect("there is an old geometry");
        let direction = reshape.direction;
        let window = window(direction, &reshape.from, &superblock.shape())?;
        // Every region that the old geometry has is moved whole, with the zeros after the data:
        // where a region is written all of its stripes are valid.
        let last = new.regions().of(window.addresses().end / new.stripe_bytes() - 1).0;
        let last = last.max(old.regions().count() - 1).min(new.regions().count() - 1);
        let addresses = 0..new.regions().bytes_of(RegionNo(last)).end;
        Ok(Self { array, old, new, window, direction, addresses })
    }

    fn border(&self) -> u64 {
        let former = self.array.geometries().former();
        former.map_or_else(|| self.goal(), |(_, border)| border.at.min(self.addresses.end))
    }

    /// Where the border is when all has moved.
    fn goal(&self) -> u64 {
        match self.direction {
            Direction::Up => self.addresses.end,
            Direction::Down => 0,
        }
    }

    /// The addresses between two borders.
    fn between(one: u64, other: u64) -> Range<u64> {
        one.min(other)..one.max(other)
    }

    /// Whether the border `one` comes before the `other`.
    fn is_before(&self, one: u64, other: u64) -> bool {
        match self.direction {
            Direction::Up => one < other,
            Direction::Down => one > other,
        }
    }

    /// That of two borders which comes first.
    fn first_of(&self, one: u64, other: u64) -> u64 {
        if self.is_before(one, other) { one } else { other }
    }

    /// New stripes in all, and the number moved.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = self.new.stripe_bytes();
        (self.addresses.end / bytes, self.moved_before(self.border()))
    }

    /// New stripes that have moved when the border is here.
    fn moved_before(&self, border: u64) -> u64 {
        let moved = match self.direction {
            Direction::Up => border,
            Direction::Down => self.addresses.end - border,
        };
        moved / self.new.stripe_bytes()
    }

    /// Moves addresses until all have moved, or something else comes first.
    pub async fn run(&mut self) -> Result<(), ArrayError> {
        if self.moved_before(self.border()) == 0 {
            // Members that were added do not have the map yet. As long as nothing has moved the
            // array cannot start without old members, which have it.
            self.array.map().write_all(self.array).await?;
        }
        if self.direction == Direction::Down && self.border() == self.addresses.end {
            // Discarded data may be overwritten once that is in effect, and nothing works on it any
            // more.
            self.array.change(|_| ()).await?;
            self.drain(self.addresses.end..self.old.size_bytes()).await;
        }
        loop {
            let border = self.border();
            if border == self.goal() {
                return self.finish().await;
            }
            if !self.array.members().missing().is_empty() {
                // They have just been told of the checkpoint.
                self.array.spare_updated().await;
            }
            if self.must_wait() {
                return Ok(());
            }
            let turning = self.array.moving().is_to_turn();
            if turning && self.is_common_edge(border) {
                return self.turn(border).await;
            }
            if !turning && let Some(to) = self.skip(border).await {
                self.checkpoint(border, to).await?;
                continue;
            }
            // Marked as written until the window that enters it is over.
            let region = self.next_region(border);
            let _written = self.array.begin_write(region).await?;
            let mut to = self.window_end(border);
            if to == border {
                return Err(ArrayError::Refused(
                    "the next stripe overlaps what it is made of".into(),
                ));
            }
            if turning {
                to = self.first_of(to, self.next_common_edge(border));
            }
            let to = self.move_up_to(border, to).await?;
            self.checkpoint(border, to).await?;
        }
    }

    /// Whether something else comes first: also a spare that can take the place of a lost member.
    fn must_wait(&self) -> bool {
        self.array.must_yield() || self.array.can_take_spare()
    }

    /// Whether no stripe of either geometry contains this border.
    fn is_common_edge(&self, border: u64) -> bool {
        border >= self.old.size_bytes().min(self.new.size_bytes())
            || border.is_multiple_of(self.common_bytes())
    }

    fn next_common_edge(&self, border: u64) -> u64 {
        let common = self.common_bytes();
        match self.direction {
            Direction::Up => border.saturating_add(1).next_multiple_of(common),
            Direction::Down => border.saturating_sub(1) / common * common,
        }
    }

    fn common_bytes(&self) -> u64 {
        lcm(self.old.stripe_bytes(), self.new.stripe_bytes())
    }

    /// The region of the next new stripe that is moved when the border is here.
    fn next_region(&self, border: u64) -> RegionNo {
        let next = border / self.new.stripe_bytes();
        self.new.regions().of(match self.direction {
            Direction::Up => next,
            Direction::Down => next - 1,
        })
    }

    /// The border when all new stripes of a region have moved.
    fn end_of(&self, region: RegionNo) -> u64 {
        let bytes = self.new.regions().bytes_of(region);
        match self.direction {
            Direction::Up => bytes.end,
            Direction::Down => bytes.start,
        }
    }

    /// How far the next window reaches: over written regions, and what may be overwritten.
    fn window_end(&mut self, border: u64) -> u64 {
        let mut limit = self.window.limit(border, WINDOW_BYTES);
        if self.direction == Direction::Up && border >= self.window.addresses().end {
            limit = self.addresses.end;
        }
        let mut end = border;
        while self.is_before(end, limit) {
            let region = self.next_region(end);
            if end != border && !self.array.map().is_written(region) {
                break;
            }
            end = self.end_of(region);
        }
        self.first_of(self.first_of(end, limit), self.goal())
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
        self.old.regions().holding(stripes).all(|region| !self.array.map().is_written(region))
    }

    /// The end of the regions from `border` on that were never written, and need not be moved.
    fn unwritten_end(&self, border: u64, most: u64) -> u64 {
        let mut end = border;
        while self.is_before(end, most) {
            let region = self.next_region(end);
            let next = self.end_of(region);
            if self.array.map().is_written(region) || !self.is_unwritten(&Self::between(end, next))
            {
                break;
            }
            end = next;
        }
        end
    }

    /// If nothing was written from `border` on: how far it need not be moved. Writes to it wait.
    async fn skip(&self, border: u64) -> Option<u64> {
        let array = self.array;
        let region_bytes = self.new.regions().region_bytes;
        let most = REGIONS_AT_ONCE * region_bytes;
        let most = match self.direction {
            Direction::Up => self.addresses.end.min(border.saturating_add(most)),
            Direction::Down => border.saturating_sub(most),
        };
        let mut end = self.unwritten_end(border, most);
        if end == border || !self.window.may_skip(border, end) {
            return None;
        }
        array.moving().begin(self.held(border, end));
        loop {
            let marked = array.map().marked();
            end = self.unwritten_end(border, end);
            let bytes = Self::between(border, end);
            // A region that is about to be written is being zeroed, as it is now.
            let first = bytes.start.min(self.old.size_bytes().saturating_sub(1));
            let first = self.old.regions().of(first / self.old.stripe_bytes());
            let last = (bytes.end.saturating_sub(1) / region_bytes)
                .min(array.geometries().region_count() - 1);
            let mut regions = (first.0..=last).map(RegionNo);
            if end == border || !regions.any(|region| array.map().is_being_marked(region)) {
                break;
            }
            marked.await;
        }
        if end == border || !self.window.may_skip(border, end) {
            array.moving().end();
            return None;
        }
        array.moving().begin(self.held(border, end));
        Some(end)
    }

    /// The addresses to which writes wait while those up to `end` are skipped: those, and the other
    /// units of old stripes of the same regions. A write to one of these would mark its region as
    /// written, and zero the old stripes only, just before the new ones count.
    fn held(&self, border: u64, end: u64) -> Range<u64> {
        let Range { start, end } = Self::between(border, end);
        let bytes = self.new.stripe_bytes();
        let old_bytes = |stripe: u64| self.old.regions().bytes_of(self.new.regions().of(stripe));
        match self.direction {
            Direction::Up => start..end.max(old_bytes(end / bytes - 1).end),
            Direction::Down => start.min(old_bytes(start / bytes).start)..end,
        }
    }

    /// Moves whole new stripes, from the border up to `end`, or less if a write waits for them.
    /// Returns the end of what has moved. Writes to a stripe wait from the moment when its turn
    /// comes: the rest of the window is written in its old place until then.
    async fn move_up_to(&self, border: u64, end: u64) -> Result<u64, ArrayError> {
        let (array, bytes) = (self.array, self.new.stripe_bytes());
        let addresses = Self::between(border, end);
        array.moving().begin(border..border);
        let mut left = addresses.start / bytes..addresses.end / bytes;
        let mut begun = 0;
        let mut window = throttle::Window::default();
        let mut in_flight = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            let (bell, wanted) = (pin!(array.jobs().bell()), pin!(array.moving().wanted()));
            let now = array.rt().now();
            let throttle = array.jobs().throttle();
            let (count_max, in_flight_max) = self.shape_of_moves(now);
            let most = window.stripes(throttle, now, in_flight.len(), in_flight_max);
            let admission = WithinBounds.admit(throttle, now, in_flight.len(), most);
            let is_wanted = array.moving().is_wanted() || array.moving().is_to_turn();
            let ends = self.must_wait() || is_wanted;
            let goes_on = !left.is_empty() && result.is_ok() && (!ends || begun == 0);
            let ended = match admission {
                Admission::Now if goes_on => {
                    let stripes = self.take(&mut left, count_max);
                    let count = stripes.end - stripes.start;
                    begun += count;
                    array.moving().extend(&(stripes.start * bytes..stripes.end * bytes));
                    let of_member = count * self.new.unit_bytes;
                    window.count(of_member);
                    WithinBounds.begun(throttle, now, of_member);
                    in_flight.push(async move { (count, self.move_stripes(stripes).await) });
                    continue;
                }
                Admission::At(time) if goes_on && !self.must_wait() => {
                    let sleep = array.rt().sleep_until(time);
                    let pause = select(sleep, select(bell, wanted));
                    if in_flight.is_empty() {
                        pause.await;
                        continue;
                    }
                    match select(in_flight.next(), pause).await {
                        Either::Left((ended, _)) => ended,
                        Either::Right(_) => continue,
                    }
                }
                _ => in_flight.next().await,
            };
            let Some((count, done)) = ended else { break };
            array.jobs().step(array.rt().now(), count);
            result = result.and(done);
        }
        result.map(|()| match self.direction {
            Direction::Up => left.start * bytes,
            Direction::Down => left.end * bytes,
        })
    }

    /// How many stripes are moved together, and how often that may be in progress.
    fn shape_of_moves(&self, now: Nanos) -> (u64, usize) {
        let array = self.array;
        let rotates = array.members().any_rotational();
        let (bytes, in_flight) = match rotates && !array.jobs().throttle().users_are_active(now) {
            true => (LONG_AGGREGATE_BYTES, 1),
            false => (AGGREGATE_BYTES, 2),
        };
        let memory = OPERATION_BYTES_MAX / in_flight;
        let mut count = (bytes / self.new.unit_bytes).max(1);
        // Several together whole, or one in parts.
        while count > 1 && !self.fit_whole(count, memory) {
            count -= count.div_ceil(8);
        }
        (count, in_flight)
    }

    /// Takes the stripes that are moved together next.
    fn take(&self, left: &mut Range<u64>, count_max: u64) -> Range<u64> {
        let count = count_max.min(left.end - left.start);
        match self.direction {
            Direction::Up => {
                let start = left.start;
                left.start += count;
                start..left.start
            }
            Direction::Down => {
                let end = left.end;
                left.end -= count;
                left.end..end
            }
        }
    }

    /// Waits until nothing works any more on the old stripes that hold these addresses, other than
    /// what started after this.
    async fn drain(&self, addresses: Range<u64>) {
        let (array, bytes, size) = (self.array, self.old.stripe_bytes(), self.old.size_bytes());
        let mut next = addresses.start / bytes;
        let end = addresses.end.min(size).div_ceil(bytes);
        while next < end {
            let region = self.old.regions().of(next);
            // Before its first write a region is zeroed without locks.
            array.map().zeroing_ended(region).await;
            let last = self.old.regions().stripes_of(region).end.min(end);
            if array.map().is_written(region) {
                for number in next..last {
                    drop(array.locks().exclusive(self.old.id(number)).await);
                }
            }
            next = last;
        }
    }

    /// Makes durable that the addresses up to the border `to` have moved, and sends requests there.
    async fn checkpoint(&self, from: u64, to: u64) -> Result<(), ArrayError> {
        let array = self.array;
        let changed = array.change_after_flush(|change| {
            let mut superblock = change.superblock();
            let reshape = superblock.reshape.as_mut().expect("the reshape has not ended");
            reshape.checkpoint_bytes = to;
        });
        changed.await?;
        array.geometries().set_border(Some(Border { direction: self.direction, at: to }));
        array.map().set_live(array.geometries().live());
        array.moving().end();
        array.jobs().reach(self.moved_before(to));
        self.drain(Self::between(from, to)).await;
        Ok(())
    }

    /// The regions from this one on hold nothing that is needed.
    async fn give_up_from(&self, first: RegionNo) -> Result<(), ArrayError> {
        let array = self.array;
        // Nothing new goes there.
        array.map().writes_ended(first).await;
        Ok(array.map().give_up_from(array, first).await?)
    }

    /// From here on it goes back.
    async fn turn(&self, border: u64) -> Result<(), ArrayError> {
        let array = self.array;
        // The end of what either geometry holds now.
        let end = self.old.size_bytes().min(self.new.size_bytes());
        if self.old.size_bytes() > end {
            // A region is in use if a stripe of either geometry is: what has moved is in the new
            // one until it has moved back, and its last stripe may be in a later region.
            let last_of = |of: &Geometry| of.regions().of(end.div_ceil(of.stripe_bytes()) - 1);
            self.give_up_from(last_of(self.old).max(last_of(self.new)).next()).await?;
        }
        // The way back writes stripes that were written before they moved, without records. Those
        // of that time are not used while the stripes are dead, and would be once they are not.
        array.retire_durably().await;
        // Nothing but zeros has moved beyond it, or nothing at all.
        let at = if border < end { border } else { end.next_multiple_of(self.old.stripe_bytes()) };
        let turned = array.change_after_flush(|change| {
            let mut superblock = change.superblock();
            *superblock = superblock.turned(at).expect("the reshape has not ended");
        });
        turned.await?;
        array.geometries().turn(Border { direction: self.direction.reversed(), at });
        array.map().set_live(array.geometries().live());
        array.moving().end_turn();
        let from = self.new.code().spec().to_string();
        let (to, slots) = (self.old.code().spec().to_string(), self.old.layout.slots());
        array.events().emit(Event::ReshapeTurned { from, to, slots });
        Ok(())
    }

    async fn finish(&self) -> Result<(), ArrayError> {
        let array = self.array;
        let count = self.new.regions().count();
        if self.old.regions().count() > count {
            self.give_up_from(RegionNo(count)).await?;
        }
        let slots = self.new.layout.slots();
        for slot in array.members().slots().rev().take_while(|slot| slot.0 >= slots) {
            if let Some(log) = array.log() {
                log.forget_ring(slot);
            }
            // It is undone if another member fails at the same time.
            loop {
                array.change(|change| change.release(slot)).await?;
                if array.members().state(slot) == SlotState::Missing {
                    break;
                }
            }
        }
        let ended = array.change_after_flush(|change| {
            change.superblock().reshape = None;
            change.remove_slots(slots);
        });
        ended.await?;
        array.geometries().set_border(None);
        array.map().set_live(array.geometries().live());
        let size_bytes = array.geometries().size_bytes();
        array.events().emit(Event::ReshapeFinished { size_bytes });
        array.jobs().wake();
        Ok(())
    }
}
