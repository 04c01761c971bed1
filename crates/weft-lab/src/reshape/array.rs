//! A RAID-5 on modelled disks while it is reshaped: disks without data, but with all the requests
//! that users and the reshape cause.
//!
//! Every request of a user is cut into pieces of a unit. A piece is served by the new geometry, by
//! the old one, or waits, depending on how far the reshape is ([`Reshaping::route`]). A write reads
//! the old data and parity, or all other data units if these are fewer, and writes data and parity,
//! in both geometries. There is no cache and no stripe lock, and writes to the same stripe are not
//! merged: the same for all policies.
//!
//! A checkpoint flushes all disks, so that moved data is durable, and then writes the metadata at
//! the start of each disk.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::experiment::{Admission, Pace, Throttle};
use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind, VolumeInfo};
use weft_layout::{DiskRange, Placement};
use weft_model::{Command, Model, Station, Verb};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, Nanos, Rt};

use super::valve::Users;
use super::{Counted, Cut, Grow, Job, MERGED_BYTES_MAX, Move, Policy, Progress, Step, UsersWait};

/// Bytes of the metadata on each disk.
const METADATA_BYTES: u64 = 4096;
/// Bytes that users may have in flight before further requests find no buffer: 512 stripe heads.
const BUFFERED_BYTES: u64 = 512 * 4096;

/// What serves a piece of a user's request.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    Old,
    New,
    /// Nothing, until the progress has changed.
    Wait,
    /// The new geometry, after a checkpoint.
    Checkpoint,
}

/// See the [module](self).
pub(crate) struct Reshaping {
    rt: Rt,
    disks: Vec<Station>,
    old: Placement,
    new: Placement,
    unit_bytes: u64,
    users_wait: UsersWait,
    pub(crate) throttle: Throttle,
    pub(crate) users: Rc<Users>,
    checkpoint: Cell<u64>,
    checkpoint_ns: Cell<Nanos>,
    begun: Cell<u64>,
    counted: RefCell<Counted>,
    /// Addresses that are being moved.
    moving: RefCell<Vec<Range<u64>>>,
    /// Pieces of users' requests in flight.
    serving: RefCell<Vec<Range<u64>>>,
    user_bytes: Cell<u64>,
    /// One checkpoint at a time.
    turn: Semaphore,
    /// A move or checkpoint is complete.
    changed: Notify,
    /// A piece of a user's request is complete.
    served: Notify,
}

impl Reshaping {
    pub(crate) fn new(
        rt: &Rt,
        grow: &Grow,
        model: &Model,
        seed: u64,
        users_wait: UsersWait,
    ) -> Result<Self, String> {
        let placement = |disks| grow.placement(disks).map_err(|e| e.to_string());
        let all = grow.disks + grow.added;
        let disk = |number| Station::new(rt, model.mechanism(seed + number as u64));
        Ok(Self {
            rt: rt.clone(),
            disks: (0..all).map(disk).collect(),
            old: placement(grow.disks)?,
            new: placement(all)?,
            unit_bytes: grow.unit_bytes,
            users_wait,
            throttle: Throttle::default(),
            users: Rc::default(),
            checkpoint: Cell::new(0),
            checkpoint_ns: Cell::new(rt.now()),
            begun: Cell::new(0),
            counted: RefCell::default(),
            moving: RefCell::default(),
            serving: RefCell::default(),
            user_bytes: Cell::new(0),
            turn: Semaphore::new(1),
            changed: Notify::default(),
            served: Notify::default(),
        })
    }

    /// Reshapes by a policy at a pace. Returns what it took.
    pub(crate) async fn reshape(
        self: &Rc<Self>,
        job: &mut Job,
        policy: &mut dyn Policy,
        pace: &mut dyn Pace,
    ) -> Counted {
        let at_once = policy.moves_at_once();
        loop {
            match policy.next(job, self.progress()) {
                Step::Done => break,
                Step::Checkpoint => {
                    self.wait_for_moves(0).await;
                    self.record().await;
                }
                Step::MoveTo(end) => {
                    let begun = self.begun.get();
                    if !self.admitted(pace, at_once).await || self.begun.get() != begun {
                        continue;
                    }
                    let moved = job.requests(begun..end, policy.cut());
                    self.counted.borrow_mut().add(&moved);
                    pace.begun(&self.throttle, self.rt.now(), of_a_disk(&moved));
                    self.begun.set(end);
                    self.moving.borrow_mut().push(moved.addresses.clone());
                    let array = self.clone();
                    drop(self.rt.spawn(async move { array.carry_out(moved).await }));
                }
            }
        }
        self.counted()
    }

    /// Requests and checkpoints of the reshape so far.
    pub(crate) fn counted(&self) -> Counted {
        *self.counted.borrow()
    }

    fn progress(&self) -> Progress {
        Progress {
            checkpoint: self.checkpoint.get(),
            checkpoint_ns: self.checkpoint_ns.get(),
            begun: self.begun.get(),
            now: self.rt.now(),
        }
    }

    /// Waits until one more move may start. False if it waited: things may have changed.
    async fn admitted(&self, pace: &mut dyn Pace, at_once: usize) -> bool {
        let in_flight = self.moving.borrow().len();
        if in_flight >= at_once {
            self.wait_for_moves(at_once - 1).await;
            return false;
        }
        match pace.admit(&self.throttle, self.rt.now(), in_flight, at_once) {
            Admission::Now => return true,
            Admission::At(time) => self.rt.sleep_until(time).await,
            Admission::AfterOne => self.wait_for_moves(in_flight.saturating_sub(1)).await,
        }
        false
    }

    /// Waits until at most `left` moves are in flight.
    async fn wait_for_moves(&self, left: usize) {
        loop {
            let changed = self.changed.wait();
            if self.moving.borrow().len() <= left {
                return;
            }
            changed.await;
        }
    }

    async fn carry_out(&self, moved: Move) {
        loop {
            let served = self.served.wait();
            if !self.serving.borrow().iter().any(|range| meet(range, &moved.addresses)) {
                break;
            }
            served.await;
        }
        self.all(Verb::Read, &moved.reads, moved.cut).await;
        self.all(Verb::Write, &moved.writes, moved.cut).await;
        self.moving.borrow_mut().retain(|range| *range != moved.addresses);
        self.changed.notify_all();
    }

    /// Carries out requests on all disks at once.
    async fn all(&self, verb: Verb, extents: &[DiskRange], cut: Cut) {
        let longest = match cut {
            Cut::Whole => u64::MAX,
            Cut::Pieces(_) => MERGED_BYTES_MAX,
        };
        let mut requests = Vec::new();
        for DiskRange { disk, bytes } in extents {
            let mut offset = bytes.start;
            while offset < bytes.end {
                let len = (bytes.end - offset).min(longest);
                let command = Command { verb, offset, len, fua: false };
                requests.push(self.disks[*disk].serve(command));
                offset += len;
            }
        }
        join_all(requests).await;
    }

    /// Records the move as durable.
    async fn record(&self) {
        let _turn = self.turn.acquire(1).await;
        let first = self.moving.borrow().iter().map(|range| range.start).min();
        let moved = first.unwrap_or_else(|| self.begun.get());
        if moved <= self.checkpoint.get() {
            return;
        }
        join_all(self.disks.iter().map(|disk| disk.serve(Command::FLUSH))).await;
        let write = Command { fua: true, ..Command::write(0, METADATA_BYTES) };
        join_all(self.disks.iter().map(|disk| disk.serve(write))).await;
        self.checkpoint.set(moved);
        self.checkpoint_ns.set(self.rt.now());
        self.counted.borrow_mut().checkpoints += 1;
        self.changed.notify_all();
    }

    fn route(&self, piece: &Range<u64>, writes: bool) -> Route {
        if piece.end <= self.checkpoint.get() {
            return Route::New;
        }
        if piece.start >= self.begun.get() {
            return Route::Old;
        }
        let moving = || self.moving.borrow().iter().any(|range| meet(range, piece));
        match self.users_wait {
            UsersWait::ForCheckpoint => Route::Wait,
            UsersWait::ForMove if moving() => Route::Wait,
            UsersWait::ForMove if writes => Route::Checkpoint,
            UsersWait::ForMove => Route::New,
        }
    }

    /// Serves a user's request.
    async fn serve(&self, offset: u64, len: u64, writes: bool) -> Result<(), VolumeError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size_bytes());
        let Some(end) = end else {
            return Err(VolumeError::new(VolumeErrorKind::Invalid, "beyond the end"));
        };
        let begun = self.rt.now();
        self.user_bytes.set(self.user_bytes.get() + len);
        if self.user_bytes.get() > BUFFERED_BYTES {
            self.users.congested();
        }
        let unit = self.unit_bytes;
        let pieces = (offset / unit..end.div_ceil(unit))
            .map(|number| (number * unit).max(offset)..((number + 1) * unit).min(end));
        join_all(pieces.map(|piece| self.serve_piece(piece, writes))).await;
        self.user_bytes.set(self.user_bytes.get() - len);
        self.users.served(self.rt.now() - begun);
        self.throttle.note_served(begun, || self.rt.now());
        Ok(())
    }

    /// Notes requests of users, as bytes of each disk.
    fn note_user(&self, requests: usize, piece: &Range<u64>) {
        let bytes = (piece.end - piece.start) * requests as u64;
        self.throttle.note_user(self.rt.now(), bytes / self.disks.len() as u64);
    }

    /// The number of a piece's unit in its stripe, and the same bytes of each unit of this stripe,
    /// parity last.
    fn stripe(&self, placement: &Placement, piece: &Range<u64>) -> (usize, Vec<DiskRange>) {
        let (bytes, len) = (placement.stripe_bytes(), piece.end - piece.start);
        let (unit, skipped) =
            (piece.start % bytes / self.unit_bytes, piece.start % self.unit_bytes);
        let part = |DiskRange { disk, bytes }| {
            let start = bytes.start + skipped;
            DiskRange { disk, bytes: start..start + len }
        };
        let units = placement.stripe(piece.start / bytes).map(part).collect();
        (usize::try_from(unit).expect("a unit of a stripe"), units)
    }

    async fn serve_piece(&self, piece: Range<u64>, writes: bool) {
        let placement = loop {
            let changed = self.changed.wait();
            match self.route(&piece, writes) {
                Route::Old => break &self.old,
                Route::New => break &self.new,
                Route::Wait => changed.await,
                Route::Checkpoint => self.record().await,
            }
        };
        self.serving.borrow_mut().push(piece.clone());
        let (unit, mut units) = self.stripe(placement, &piece);
        if writes {
            let parity = units.pop().expect("a parity unit");
            let changed = [units.remove(unit), parity];
            let fewer = if units.len() < 2 { &units[..] } else { &changed[..] };
            self.note_user(fewer.len() + changed.len(), &piece);
            self.all(Verb::Read, fewer, Cut::Whole).await;
            self.all(Verb::Write, &changed, Cut::Whole).await;
        } else {
            self.note_user(1, &piece);
            self.all(Verb::Read, &units[unit..=unit], Cut::Whole).await;
        }
        let mut serving = self.serving.borrow_mut();
        let own = serving.iter().position(|range| *range == piece);
        serving.swap_remove(own.expect("in flight until now"));
        drop(serving);
        self.served.notify_all();
    }
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Bytes that a move writes on each disk.
fn of_a_disk(moved: &Move) -> u64 {
    let bytes = moved.writes.iter().map(|extent| extent.bytes.end - extent.bytes.start);
    bytes.max().unwrap_or(0)
}

impl Volume for Reshaping {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { align_bytes: 512, block_bytes: 512, fast_zeroes: false }
    }

    fn size_bytes(&self) -> u64 {
        self.old.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move { (self.serve(offset, buf.len() as u64, false).await, buf) })
    }

    fn write(&self, offset: u64, data: Frozen, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { self.serve(offset, data.len() as u64, true).await })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(async {
            join_all(self.disks.iter().map(|disk| disk.serve(Command::FLUSH))).await;
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: bool, _: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(self.serve(offset, len, true))
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use weft_rt::{SECOND, Schedule, virtual_rt};

    use super::super::Way;
    use super::*;

    const UNIT: u64 = 64 << 10;

    fn array(rt: &Rt, users_wait: UsersWait) -> Rc<Reshaping> {
        let model = Model::find("st3146807fc").unwrap();
        Rc::new(Reshaping::new(rt, &grow(), model, 1, users_wait).unwrap())
    }

    fn grow() -> Grow {
        Grow { disks: 3, added: 1, disk_bytes: 64 << 20, unit_bytes: UNIT }
    }

    #[test]
    fn requests_go_where_their_data_are() {
        let rt = virtual_rt(Schedule::Fifo);
        for users_wait in [UsersWait::ForMove, UsersWait::ForCheckpoint] {
            let array = array(&rt, users_wait);
            array.checkpoint.set(3 * UNIT);
            array.begun.set(9 * UNIT);
            array.moving.borrow_mut().push(6 * UNIT..9 * UNIT);
            let route = |unit, writes| array.route(&(unit * UNIT..unit * UNIT + 1), writes);
            for writes in [false, true] {
                assert_eq!(route(2, writes), Route::New);
                assert_eq!(route(8, writes), Route::Wait);
                assert_eq!(route(9, writes), Route::Old);
            }
            match users_wait {
                UsersWait::ForCheckpoint => {
                    assert_eq!([route(3, false), route(3, true)], [Route::Wait, Route::Wait]);
                }
                UsersWait::ForMove => {
                    let routes = [route(3, false), route(3, true)];
                    assert_eq!(routes, [Route::New, Route::Checkpoint]);
                }
            }
        }
    }

    /// A write to moved data has it recorded; up to the data being moved, and no further.
    #[test]
    fn a_write_to_moved_data_waits_for_a_checkpoint() {
        let rt = virtual_rt(Schedule::Fifo);
        let array = array(&rt, UsersWait::ForMove);
        array.begun.set(9 * UNIT);
        array.moving.borrow_mut().push(6 * UNIT..9 * UNIT);
        let user = array.clone();
        rt.clone().block_on(async move { user.serve(0, 4096, true).await.unwrap() });
        assert_eq!((array.checkpoint.get(), array.counted().checkpoints), (6 * UNIT, 1));
    }

    /// Users everywhere during it: the reshape ends, and all of it is in the new geometry.
    #[test]
    fn every_policy_ends_with_users_everywhere() {
        for way in ["way = 'md'", "way = 'md-today'", "way = 'ga'", "way = 'alv'"] {
            let way: Way = toml::from_str(way).unwrap();
            let rt = virtual_rt(Schedule::Seeded(1));
            let mut policy = way.policy(&grow(), 1 << 20).unwrap();
            let array = array(&rt, policy.users_wait());
            let mut job = Job::new(&grow()).unwrap();
            let (user, end) = (array.clone(), job.end);
            let clock = rt.clone();
            let users = rt.spawn(async move {
                for number in 0..400 {
                    clock.sleep(SECOND / 200).await;
                    let offset = number * 7919 * 4096 % (user.size_bytes() - 8192);
                    user.serve(offset, 8192, number % 2 == 0).await.unwrap();
                }
            });
            let reshaped = array.clone();
            let mut pace = crate::rebuild::SpeedControl::new(crate::rebuild::Manner::Lenient, 0);
            rt.clone().block_on(async move {
                reshaped.reshape(&mut job, &mut *policy, &mut pace).await;
                users.await;
            });
            assert_eq!((array.checkpoint.get(), array.begun.get()), (end, end), "{way:?}");
            assert!(array.serving.borrow().is_empty() && array.moving.borrow().is_empty());
        }
    }
}
