//! A hard disk: an arm with heads over rotating platters, a memory, a queue.
//!
//! An access to the medium takes
//!
//! ```text
//! seek (or head switch, + settling before a write)      seek.rs
//! + rotation until the first sector is under the head   exact: the angle follows from the time
//! + the sectors passing, with the skews between tracks  geometry.rs
//! ```
//!
//! plus the overhead of the command, which overlaps with the previous access if the command was
//! already queued. Data crosses the interface while it passes the heads, or from memory at the
//! interface's rate; one transfer at a time.
//!
//! **Queue.** Among the queued commands, up to `queue_depth`, the disk chooses the one that its
//! heads reach first, seek and rotation together (*shortest access time first*; Seltzer, Chen,
//! Ousterhout, "Disk scheduling revisited", 1990), except that the oldest one goes first once it
//! has waited for `age_limit_ms`. A command therefore waits at most for this limit, the access in
//! progress, and one access for each older overdue command. An access in progress is not
//! interrupted; reading ahead is.
//!
//! **Memory.** A read of data in memory does not use the heads. With the write cache on, a write
//! completes when it is in memory. It goes to the platters when no read waits; once half of the
//! memory for writes is used, it competes with reads. The next write is also chosen by shortest
//! access time, among the few dirty ranges that follow the heads. A flush completes when nothing is
//! dirty. A write goes straight to the platters if it must be durable (`fua`), if the cache is off,
//! or if it is too long for the cache.

mod cache;
mod geometry;
mod seek;
mod spec;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use cache::{Dirty, Hit, ReadCache};
use geometry::{Geometry, SectorPosition};
use seek::SeekCurve;
pub use spec::{HddSpec, SeekSpec};
use weft_rt::Nanos;

use crate::command::{Command, Done, Mechanism, Verb, Work};
use crate::gate::{Arrival, Gate};
use crate::number::{MS, US, fraction, instant, ns_per_byte, whole};

/// How many dirty ranges are considered for the next write. With more, random writes would be
/// faster than in data sheets; with this many, the Exos X20 reaches the 550 per second that its
/// maker states.
const DIRTY_CHOICE: usize = 6;
/// The most bytes that one access writes out.
const WRITE_OUT_MAX: u64 = 1 << 20;
/// Rounding error of the angle, in revolutions: a smaller remainder counts as in time.
const ANGLE_NOISE: f64 = 1e-6;

/// A command that waits for the heads.
#[derive(Debug, Clone)]
struct Waiting {
    tag: u64,
    verb: Verb,
    range: Range<u64>,
    arrived: f64,
    /// When its overhead ends.
    ready: f64,
    /// Position of its first sector.
    place: SectorPosition,
}

/// What the heads are doing.
#[derive(Debug, Clone)]
struct Access {
    end: f64,
    purpose: Purpose,
}

#[derive(Debug, Clone)]
enum Purpose {
    /// A command; when the access ends its data is in memory, or on the medium.
    Command { tag: u64, verb: Verb, bytes: u64 },
    /// Writes out this many dirty sectors.
    WriteOut(u64),
}

/// The model of a hard disk.
#[derive(Debug)]
pub struct Hdd {
    geometry: Geometry,
    curve: SeekCurve,
    spec: HddSpec,
    sector_bytes: u64,
    byte_ns: f64,
    phase: f64,
    gate: Gate,
    queue: Vec<Waiting>,
    access: Option<Access>,
    cylinder: u64,
    head: u64,
    /// The sector after the last one that passed the heads.
    last_sector: u64,
    reads: ReadCache,
    dirty: Dirty,
    /// Sectors being written out.
    leaving: u64,
    dirty_max: u64,
    /// Writes that wait for space in memory, in order.
    no_room: VecDeque<(u64, Range<u64>)>,
    flush: Option<u64>,
    link_free: f64,
    complete: BinaryHeap<Reverse<Done>>,
    work: Work,
}

impl Hdd {
    /// An idle disk with its heads at the first sector; `seed` sets the angle of its platters.
    pub fn new(spec: &HddSpec, capacity_bytes: u64, sector_bytes: u32, seed: u64) -> Self {
        let geometry = Geometry::new(spec, capacity_bytes, sector_bytes);
        let sector = u64::from(sector_bytes);
        let for_writes = if spec.write_cache { spec.cache_bytes / 2 } else { 0 };
        let segments = spec.segments.max(1);
        let segment = (spec.cache_bytes - for_writes) / u64::from(segments) / sector;
        let segments = usize::try_from(segments).unwrap_or(1);
        Self {
            curve: SeekCurve::new(spec.seek, geometry.cylinders),
            byte_ns: ns_per_byte(spec.interface_mb_s),
            phase: (weft_rt::rng::mix(seed) >> 12) as f64 / (1_u64 << 52) as f64,
            gate: Gate::new(spec.queue_depth, true),
            queue: Vec::new(),
            access: None,
            cylinder: 0,
            head: 0,
            last_sector: 0,
            reads: ReadCache::new(segments, segment, spec.read_ahead_bytes / sector),
            dirty: Dirty::default(),
            leaving: 0,
            dirty_max: for_writes / sector,
            no_room: VecDeque::new(),
            flush: None,
            link_free: 0.0,
            complete: BinaryHeap::new(),
            work: Work::default(),
            sector_bytes: sector,
            spec: *spec,
            geometry,
        }
    }

    fn sectors(&self, command: &Command) -> Range<u64> {
        command.offset / self.sector_bytes..command.end().div_ceil(self.sector_bytes)
    }

    fn completes(&mut self, tag: u64, at: f64) {
        self.complete.push(Reverse(Done { at: instant(at), tag }));
    }

    /// Completes a command with a transfer over the link that starts at `from` at the earliest and
    /// ends at `least` at the earliest.
    fn transfers(&mut self, tag: u64, bytes: u64, from: f64, least: f64) {
        let span = bytes as f64 * self.byte_ns;
        self.link_free = (self.link_free.max(from) + span).max(least);
        self.completes(tag, self.link_free);
    }

    /// Accepts the commands that the gate admits.
    fn admit(&mut self, now: f64) {
        while let Some(arrival) = self.gate.admit() {
            self.enter(&arrival, now);
        }
    }

    fn enter(&mut self, arrival: &Arrival, now: f64) {
        let Arrival { tag, command, at } = *arrival;
        let range = self.sectors(&command);
        let ready = now + self.spec.overhead_us * US;
        let cached =
            self.dirty_max > 0 && !command.fua && range.end - range.start <= self.dirty_max;
        match command.verb {
            Verb::Flush => {
                if self.dirty.is_empty() && self.leaving == 0 {
                    self.completes(tag, ready);
                } else {
                    self.flush = Some(tag);
                }
            }
            Verb::Read if self.in_memory(&range, now) => {
                self.work.cache_hits += 1;
                self.transfers(tag, command.len, ready, 0.0);
            }
            Verb::Write | Verb::Zero if cached => {
                self.no_room.push_back((tag, range));
                self.take_in(ready);
            }
            verb => {
                if verb != Verb::Read {
                    self.dirty.remove(&range);
                    self.reads.forget(&range);
                }
                let arrived = at as f64;
                let place = self.geometry.place(range.start);
                self.queue.push(Waiting { tag, verb, range, arrived, ready, place });
            }
        }
    }

    fn in_memory(&mut self, range: &Range<u64>, now: f64) -> bool {
        let held = self.reads.hit(&self.geometry, range, now) == Hit::Now;
        if held {
            self.reads.used(range);
        }
        held || self.dirty.holds(range)
    }

    /// Moves waiting writes into memory while there is space.
    fn take_in(&mut self, from: f64) {
        while let Some((tag, range)) = self.no_room.front().cloned() {
            let sectors = range.end - range.start;
            if self.dirty.sectors + self.leaving + sectors > self.dirty_max {
                return;
            }
            self.no_room.pop_front();
            self.reads.forget(&range);
            self.dirty.add(&range);
            self.transfers(tag, sectors * self.sector_bytes, from, 0.0);
        }
    }

    /// Time to move arm or heads from their position to `place`, in nanoseconds.
    fn seek_ns(&self, place: &SectorPosition, writes: bool) -> f64 {
        let settle = if writes { self.spec.write_settle_ms * MS } else { 0.0 };
        if place.cylinder != self.cylinder {
            self.curve.time(place.cylinder.abs_diff(self.cylinder)) + settle
        } else if place.head != self.head {
            self.spec.head_switch_ms * MS
        } else {
            0.0
        }
    }

    /// Nanoseconds of (seek, rotation) from `start` until `place` starts to pass. The rotation is
    /// slightly negative if the place has just started to pass.
    fn positioning(&self, place: &SectorPosition, start: f64, writes: bool) -> (f64, f64) {
        let seek = self.seek_ns(place, writes);
        let angle = (start + seek) * self.geometry.turns_per_ns + self.phase;
        let mut turn = fraction(place.angle - angle);
        if turn > 1.0 - ANGLE_NOISE {
            turn -= 1.0;
        }
        (seek, turn * self.geometry.turn_ns)
    }

    /// Nanoseconds until the data of a waiting command starts to pass.
    fn cost(&self, waiting: &Waiting, now: f64) -> f64 {
        let start = waiting.ready.max(now);
        if waiting.verb == Verb::Read
            && let Some(at) = self.reads.brings(&self.geometry, &waiting.range, start)
        {
            let count = waiting.range.end - waiting.range.start;
            return (at - self.geometry.pass_ns(waiting.range.start, count) - now).max(0.0);
        }
        let (seek, turn) = self.positioning(&waiting.place, start, waiting.verb != Verb::Read);
        start - now + seek + turn
    }

    /// Chooses the next access, if there is one.
    fn choose(&mut self, now: f64) {
        while self.access.is_none() {
            let mut best: Option<(f64, Option<usize>, u64)> = None;
            let (mut oldest, mut since) = (0, f64::INFINITY);
            for (index, waiting) in self.queue.iter().enumerate() {
                let cost = self.cost(waiting, now);
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, Some(index), 0));
                }
                if waiting.arrived < since {
                    (oldest, since) = (index, waiting.arrived);
                }
            }
            if now - since > self.spec.age_limit_ms * MS {
                best = Some((0.0, Some(oldest), 0));
            } else if self.must_write_out() {
                for range in self.dirty.from(self.last_sector).take(DIRTY_CHOICE) {
                    let place = self.geometry.place(range.start);
                    let (seek, turn) = self.positioning(&place, now, true);
                    if best.is_none_or(|(least, ..)| seek + turn < least) {
                        best = Some((seek + turn, None, range.start));
                    }
                }
            }
            match best {
                Some((_, Some(index), _)) => self.begin(index, now),
                Some((_, None, start)) => self.write_out(start, now),
                None => return,
            }
        }
    }

    fn must_write_out(&self) -> bool {
        !self.dirty.is_empty()
            && (self.queue.is_empty()
                || self.flush.is_some()
                || !self.no_room.is_empty()
                || self.dirty.sectors > self.dirty_max / 2)
    }

    /// Starts a waiting command.
    fn begin(&mut self, index: usize, now: f64) {
        let waiting = self.queue.swap_remove(index);
        let start = waiting.ready.max(now);
        let bytes = (waiting.range.end - waiting.range.start) * self.sector_bytes;
        let purpose = Purpose::Command { tag: waiting.tag, verb: waiting.verb, bytes };
        if waiting.verb != Verb::Read {
            let end = self.pass(&waiting.range, start, true);
            self.access = Some(Access { end, purpose });
            return;
        }
        match self.reads.hit(&self.geometry, &waiting.range, start) {
            Hit::Now => {
                self.work.cache_hits += 1;
                self.reads.used(&waiting.range);
                self.transfers(waiting.tag, bytes, start, 0.0);
            }
            Hit::At(at) => {
                self.reads.used(&waiting.range);
                self.reads.streamed(&waiting.range, at, self.geometry.sectors);
                self.work.transfer_ns += whole(at - start);
                self.rest_at(waiting.range.end);
                self.access = Some(Access { end: at, purpose });
            }
            Hit::No => {
                self.reads.stop(&self.geometry, now);
                let missing = self.reads.missing(&waiting.range);
                let end = self.pass(&missing, start, false);
                self.reads.filled(&missing, end, self.geometry.sectors);
                self.access = Some(Access { end, purpose });
            }
        }
    }

    /// Starts to write out the dirty range at `start`.
    fn write_out(&mut self, start: u64, now: f64) {
        let most = WRITE_OUT_MAX / self.sector_bytes;
        let Some(range) = self.dirty.from(start).next() else { return };
        let range = range.start..range.end.min(range.start + most);
        self.dirty.remove(&range);
        self.leaving = range.end - range.start;
        let end = self.pass(&range, now, true);
        self.access = Some(Access { end, purpose: Purpose::WriteOut(self.leaving) });
    }

    /// Positions the heads and passes `range`; returns when it has passed.
    fn pass(&mut self, range: &Range<u64>, start: f64, writes: bool) -> f64 {
        self.reads.stop(&self.geometry, start);
        let place = self.geometry.place(range.start);
        let (seek, turn) = self.positioning(&place, start, writes);
        let transfer = self.geometry.pass_ns(range.start, range.end - range.start);
        self.work.accesses += 1;
        self.work.seek_ns += whole(seek);
        self.work.rotation_ns += whole(turn);
        self.work.transfer_ns += whole(transfer);
        self.rest_at(range.end);
        start + seek + turn + transfer
    }

    /// The heads stop after the sector before `end`.
    fn rest_at(&mut self, end: u64) {
        let place = self.geometry.place(end.saturating_sub(1));
        (self.cylinder, self.head, self.last_sector) = (place.cylinder, place.head, end);
    }

    /// The access in progress has ended.
    fn ended(&mut self, access: Access) {
        let now = access.end;
        match access.purpose {
            Purpose::Command { tag, verb: Verb::Zero, .. } => self.completes(tag, now),
            Purpose::Command { tag, verb, bytes } => {
                // The data crossed the link while it passed the heads.
                let span = bytes as f64 * self.byte_ns;
                let from = if verb == Verb::Read { now - span } else { 0.0 };
                self.transfers(tag, bytes, from.max(0.0), now);
            }
            Purpose::WriteOut(sectors) => {
                self.leaving -= sectors;
                self.take_in(now);
                if self.dirty.is_empty()
                    && let Some(tag) = self.flush.take()
                {
                    self.completes(tag, now);
                }
            }
        }
        self.choose(now);
    }
}

impl Mechanism for Hdd {
    fn submit(&mut self, now: Nanos, tag: u64, command: Command) {
        self.gate.arrive(Arrival { tag, command, at: now });
        self.admit(now as f64);
        self.choose(now as f64);
    }

    fn next_event(&self) -> Option<Nanos> {
        let access = self.access.as_ref().map(|access| instant(access.end));
        let complete = self.complete.peek().map(|Reverse(done)| done.at);
        match (access, complete) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        loop {
            let access = self.access.as_ref().map_or(Nanos::MAX, |access| instant(access.end));
            let complete = self.complete.peek().map_or(Nanos::MAX, |Reverse(done)| done.at);
            if access.min(complete) > now {
                return;
            }
            if access <= complete {
                if let Some(access) = self.access.take() {
                    self.ended(access);
                }
            } else if let Some(Reverse(completed)) = self.complete.pop() {
                done.push(completed);
                self.gate.leave();
                let at = completed.at as f64;
                self.admit(at);
                self.choose(at);
            }
        }
    }

    fn work(&self) -> Work {
        self.work
    }
}
